"""Batches that other machines make: a tf.data service, its parts, and what comes from it."""
