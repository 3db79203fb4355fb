"""Files by their paths, on this machine or behind a scheme (`s3://`): what data and checkpoints both read."""
