"""Tables of Parquet and CSV files: their columns, their row groups, and what is wrong with them."""
