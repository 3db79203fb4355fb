"""TFRecord files: where their records begin, reading them by position, and what is in them."""
