"""How training steps are run: several in one program, with or without XLA, chosen by measurement."""

from keras_turbo.execution.retracing import watch_retracing
from keras_turbo.execution.setting import ExecutionSetting
from keras_turbo.execution.tune_report import TuneReport

__all__ = ["ExecutionSetting", "TuneReport", "watch_retracing"]
