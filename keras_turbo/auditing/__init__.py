"""What holds the training of a model up, and what each remedy gains, measured; see `keras_turbo.audit`."""
