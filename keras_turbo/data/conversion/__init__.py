"""Examples and image files -> TFRecord shards; `keras_turbo/data/convert.py` is what users call."""
