"""One small model trained on real images, the stock way and with keras_turbo, side by side."""

from keras_turbo.demo.comparison import DemoError, DemoResult, RunFigures, run_demo
from keras_turbo.demo.digits import digit_folders

__all__ = ["DemoError", "DemoResult", "RunFigures", "digit_folders", "run_demo"]
