"""Where examples come from: one kind of input a module."""
