"""Training on several devices and several machines with a stock `fit`."""

from keras_turbo.distribution.workers import is_chief

__all__ = ["is_chief"]
