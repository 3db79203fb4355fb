"""Keras-native objects that make a stock `model.fit()` fast, in the order in which a batch meets them."""

from keras_turbo.data.fast_dataset import FastDataset
from keras_turbo.precision import make_precision_safe, use_mixed_precision
from keras_turbo.layers import MixedPrecisionSafeHead
from keras_turbo.distribution.distribute import distribute
from keras_turbo.execution.tune import tune  # isort: skip (in the order in which a batch meets them)
from keras_turbo.execution.tune_execution import TuneExecution
from keras_turbo.execution.debug_mode import debug_mode
from keras_turbo.checkpoint import AsyncCheckpoint
from keras_turbo.monitor import GpuUtilization  # isort: skip (in the order in which a batch meets them)
from keras_turbo.auditing.audit import audit
from keras_turbo.moved import keep_old_paths

__version__ = "0.1.0"

keep_old_paths()

__all__ = [
    "FastDataset",
    "use_mixed_precision",
    "make_precision_safe",
    "MixedPrecisionSafeHead",
    "distribute",
    "TuneExecution",
    "tune",
    "debug_mode",
    "AsyncCheckpoint",
    "GpuUtilization",
    "audit",
    "__version__",
]


def __dir__() -> list[str]:
    return __all__
