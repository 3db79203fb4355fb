"""Mixed precision: which policy, and models that are safe under it."""

from keras_turbo.precision.policy import PolicyChoice, use_mixed_precision
from keras_turbo.precision.warn_once import PrecisionWarning, silence_warnings

__all__ = [
    "use_mixed_precision",
    "PolicyChoice",
    "PrecisionWarning",
    "silence_warnings",
]
