"""What attaches to a running `fit`: its session, its train function, its training state, its times.

Callbacks and wrappers of this package build on it, and on nothing else of Keras' training loop. What it needs of Keras
that is private is in `keras_internals.py`, each name with its reason.
"""
