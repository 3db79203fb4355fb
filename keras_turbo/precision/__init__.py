"""Mixed precision: which policy, models that are safe under it, loss scaling, and what it costs a model."""

from keras_turbo.precision.check import check_precision
from keras_turbo.precision.loss_scale_logs import LossScaleLogs
from keras_turbo.precision.loss_scaling import SafeLossScaleOptimizer
from keras_turbo.precision.policy import PolicyChoice, use_mixed_precision
from keras_turbo.precision.policy_trials import FastestPolicy
from keras_turbo.precision.replace_head import replace_head
from keras_turbo.precision.report import PrecisionReport, precision_report
from keras_turbo.precision.safe_model import make_precision_safe, unsafe_layers
from keras_turbo.precision.warn_once import PrecisionWarning, silence_warnings

__all__ = [
    "use_mixed_precision",
    "PolicyChoice",
    "FastestPolicy",
    "make_precision_safe",
    "unsafe_layers",
    "replace_head",
    "SafeLossScaleOptimizer",
    "LossScaleLogs",
    "check_precision",
    "PrecisionWarning",
    "silence_warnings",
    "precision_report",
    "PrecisionReport",
]
