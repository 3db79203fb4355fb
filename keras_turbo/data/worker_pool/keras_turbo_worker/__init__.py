"""What runs in a worker process. It imports neither keras_turbo nor TensorFlow, so that a worker is up at once.

A worker imports this package under its own name, from the folder above it, and not through keras_turbo.
"""
