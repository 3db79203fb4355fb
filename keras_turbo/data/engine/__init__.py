"""The engine under FastDataset: an order, loaders, memory that is lent to TensorFlow, a store, one tf.data node."""
