"""Layers that are safe to use under every dtype policy."""

from keras_turbo.layers.mixed_precision_safe_head import MixedPrecisionSafeHead

__all__ = ["MixedPrecisionSafeHead"]
