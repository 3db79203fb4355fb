"""One remedy a module: whether it applies, what it gains in a `fit`, what it changes, and the lines to add."""
