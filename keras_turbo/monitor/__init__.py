"""What the hardware does while `fit` runs, and what holds it up."""

from __future__ import annotations

from keras_turbo.monitor.gpu_utilization import GpuUtilization

__all__ = ["GpuUtilization"]
