"""Files, arrays and other datasets -> batches: `fast_dataset.py` joins the parts."""
