"""Callbacks for `fit`: thin, they join the other packages to its hooks."""
