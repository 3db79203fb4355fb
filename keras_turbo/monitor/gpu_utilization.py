"""What the hardware does while `fit` runs, and what holds it up, in `logs` and in TensorBoard."""

from __future__ import annotations

import math
import numbers
import os
import time
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import keras

from keras_turbo.fit.session import FitSession
from keras_turbo.fit.steps import number, optimizers_of, training_steps
from keras_turbo.fit.timing import EpochTimes, FitTimes
from keras_turbo.fit.workers import worker_of_model
from keras_turbo.monitor.dispatch import empty_execution_seconds
from keras_turbo.monitor.figures import (
    HardwareFigures,
    figures_for_logs,
    gather_over_workers,
    over_workers,
    step_figures,
)
from keras_turbo.monitor.sampler import Sample, Subscription, subscribe
from keras_turbo.monitor.scalars import ScalarWriter
from keras_turbo.monitor.verdict import StepFigures, Verdict, judge

# Within an epoch, the state of the hardware goes to TensorBoard this often: some milliseconds each time, which is
# 0.03 % at most.
_SCALARS_SECONDS = 10.0
# Opening NVML takes 1 to 3 s a GPU where no persistence daemon keeps the driver loaded. A first epoch that ends before
# waits so long, once, so that all epochs have the same figures.
_FIRST_SAMPLE_SECONDS = 1.0
# With rarer readings, most epochs would have none of their own.
_MOST_INTERVAL_SECONDS = 3600.0


class GpuUtilization(keras.callbacks.Callback):
    """Tells how busy the GPUs are while `fit` runs, and what they wait for.

    Whether a training is slow because of its input, its callbacks, its checkpoints or Python between its steps can't be
    seen from its loss. This callback measures it in every epoch, puts the figures into `logs`, where `History`,
    `CSVLogger` and `TensorBoard` find them, and warns where the hardware is idle, with the cause and the line of code
    that removes it. The progress bar shows two of them: the input wait, and the use of the GPUs or the time of a step.

    Example:

    ```python
    model.fit(train, epochs=10, callbacks=[keras_turbo.GpuUtilization(log_dir="logs")])
    ```

    In `logs` at the end of each epoch, where they exist (a figure that does not exist is absent, never 0):

    - `gpu_utilization_percent`, `gpu_utilization_p10_percent`: mean over the GPUs that this process uses and over time,
      and what 90 % of the readings exceed.
    - `gpu_memory_peak_mb`, `gpu_memory_peak_percent`: of the GPU that has most in use, by all processes. TensorFlow
      takes nearly all of it at its start unless it is told to grow.
    - `gpu_power_watts`, `gpu_energy_wh`: of all GPUs together; the energy is that of the epoch.
    - `gpu_throttled_percent`: share of the readings in which heat or power held a clock down.
    - `gpu_sm_activity_percent`, `gpu_tensor_activity_percent`: how much of the GPUs, and of their Tensor Cores, is at
      work. From Hopper on.
    - `cpu_utilization_percent`, `cpu_free_percent`: without a GPU: this process's use of the cores that it may use,
      and what nobody uses of them.
    - `input_wait_ms`, `input_wait_percent`: what `fit` waited for its next batch, a step, and the share of a step. Of
      executions below 50 ms, the first 100 of an epoch are measured, and one in five of the others, drawn at random.
    - `step_ms_median`, `step_ms_p95`, `examples_per_second`.
    - `learning_rate`: also that of a schedule; of a model with one optimizer.

    Each is of the training alone: validation is left out. So is the first execution of a `fit`, which compiles. Figures
    of the hardware are of the whole epoch. Under several workers each has its own in `logs`, and the chief
    `workers_min_`, `workers_mean_` and `workers_max_` of each; give the callback to every worker, since each waits for
    the others' figures.

    The verdict comes when an epoch's last callback is through, so that checkpoints count. Without figures of a GPU,
    what `warn_below` is compared with is the share of a step's time in which the model computes.

    Args:
        interval: seconds between two readings of the hardware, from 0.01 to 3600. Default 0.5.
        warn_below: mean utilization, in per cent, below which an epoch ends with a warning. Default 70; 0 for none: the
            verdict is there all the same.
        log_dir: folder for TensorBoard; None (default) for none. Scalars are against the optimizer's step (batches, of
            a model with several): those of the epochs as `epoch_...`, and the hardware's about each 10 seconds.

    Raises:
        ValueError: an argument that can't be.

    Attributes:
        figures: of the last epoch, a `StepFigures`; None before its end.
        verdict: on the last epoch, a `Verdict`; None before its end.
    """

    # It is right with one call for each execution, however many steps that has.
    needs_every_batch = False

    def __init__(
        self, *, interval: float = 0.5, warn_below: float = 70, log_dir: str | os.PathLike | None = None
    ) -> None:
        super().__init__()
        self.interval = _checked_number("interval", interval, 0.01, _MOST_INTERVAL_SECONDS)
        self.warn_below = _checked_number("warn_below", warn_below, 0, 100)
        if log_dir is not None and (not isinstance(log_dir, (str, os.PathLike)) or not os.fspath(log_dir)):
            raise ValueError(
                f"`log_dir` must be a path or None. Received: {log_dir!r} (of type {type(log_dir).__name__})."
            )
        self.log_dir = log_dir
        self.figures: StepFigures | None = None
        self.verdict: Verdict | None = None
        self._forget_fit()

    def _forget_fit(self) -> None:
        self._session: FitSession | None = None
        self._times: FitTimes | None = None
        self._subscription: Subscription | None = None
        self._writer: ScalarWriter | None = None
        self._optimizers: list[weakref.ref[Any]] = []
        self._batches_before = 0
        self._hardware, self._recent = HardwareFigures(), HardwareFigures()
        self._next_scalars = math.inf
        self._names: dict[str, None] = {}
        self._epoch: int | None = None
        self._empty_seconds: float | None = None
        self._has_waited = self._is_calibrated = self._has_told_problem = False

    # A copy is a new callback with the same settings and the last results: threads and files stay with their fit.

    def __getstate__(self) -> dict[str, Any]:
        names = ("interval", "warn_below", "log_dir", "figures", "verdict")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__init__()
        self._forget_fit()
        self.__dict__.update(state)

    # Keras' hooks. As soon as a fit has begun, this callback is the first of which they are called.

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        self._end()
        self._new_writer()
        session = FitSession.join(self, first=self)
        if session is None:
            return
        self._names = {}
        self._hardware, self._recent = HardwareFigures(), HardwareFigures()
        self._has_waited = self._is_calibrated = False
        self._session, self._times = session, session.measure_times()
        # Before there is something to end: Ctrl-C may come between.
        session.at_end(self._end)
        self._subscription = subscribe(self.interval)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        if self._session is not None:
            self._session.epoch_begins()
            self._judge_epoch()
            self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if time.monotonic() >= self._next_scalars:
            self._write_recent()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Nothing. Where no callback has one, Keras calls hooks on a thread of its own on JAX and PyTorch."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._session is None:
            return
        self._take_samples(wait=True)
        self._tell_problem_once()
        figures = self._all_names(self._figures_so_far() | self._learning_rate())
        figures |= self._figures_over_workers(figures)
        if logs is not None:
            of_hardware = "gpu_utilization_percent" if "gpu_utilization_percent" in figures else "step_ms_median"
            self._session.add_figures(logs, figures, shown=("input_wait_percent", of_hardware))
        if self._writer is not None:
            self._writer.write(figures, self._step(), "epoch_")

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._judge_epoch()
        self._end()

    # What they do.

    @property
    def _trained(self) -> Any:
        return self.model

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._batches_before += session.batches
        if self._subscription is not None:
            self._subscription.close()
        self._times = self._subscription = None
        if self._writer is not None:
            self._writer.close()

    def _take_samples(self, *, wait: bool = False) -> list[Sample]:
        """The samples of the hardware since the last call, which are also counted for the epoch."""
        if self._subscription is None:
            return []
        if wait and not self._has_waited:
            self._has_waited = True
            self._subscription.wait_for_first(_FIRST_SAMPLE_SECONDS)
        samples = self._subscription.take()
        self._hardware.add(samples)
        return samples

    def _figures_of(self, times: EpochTimes) -> StepFigures:
        if not self._is_calibrated and not self._hardware.gpu_utilization_percents:
            self._is_calibrated = True
            self._empty_seconds = empty_execution_seconds(self._trained, times.logs)
        return step_figures(
            times,
            self._times.waits if self._times is not None else None,
            self._hardware,
            steps_per_execution=self._trained.steps_per_execution,
            empty_execution_seconds=self._empty_seconds,
            backend=keras.config.backend(),
        )

    def _figures_so_far(self) -> dict[str, float]:
        times = None if self._times is None else self._times.so_far()
        if times is None:
            return {}
        return figures_for_logs(times, self._figures_of(times)) | self._hardware.figures(times.total_seconds)

    def _judge_epoch(self) -> None:
        """Judges the epoch that is over with all its callbacks, and warns."""
        times = None if self._times is None else self._times.last_epoch
        epoch, self._epoch = self._epoch, None
        if times is not None and epoch is not None:
            self.figures = self._figures_of(times)
            self.verdict = judge(self.figures, self.warn_below)
            if self.verdict.is_warning:
                warnings.warn(f"Epoch {epoch + 1} of {self._trained.name!r} is {self.verdict}", stacklevel=2)
        self._hardware.next_epoch()

    def _tell_problem_once(self) -> None:
        problem = None if self._subscription is None else self._subscription.problem
        if problem is not None and not self._has_told_problem:
            self._has_told_problem = True
            warnings.warn(f"GpuUtilization gives no figures of GPUs, or not all. {problem}", stacklevel=2)

    def _all_names(self, figures: Mapping[str, float]) -> dict[str, float]:
        """The figures with all names that a fit has had: CSVLogger and History want the same ones in each epoch."""
        self._names |= dict.fromkeys(figures)
        return {name: figures.get(name, math.nan) for name in self._names}

    def _learning_rate(self) -> dict[str, float]:
        # Of an optimizer that scales its loss, it is that of the one inside; of a schedule, that of the next step.
        optimizers = optimizers_of(self._trained)
        return {"learning_rate": float(number(optimizers[0].learning_rate))} if len(optimizers) == 1 else {}

    def _figures_over_workers(self, figures: Mapping[str, float]) -> dict[str, float]:
        index, count = worker_of_model(self._trained)
        if count == 1:
            return {}
        gathered = gather_over_workers(self._trained.distribute_strategy, figures)
        return over_workers(gathered) if index == 0 else {}

    def _new_writer(self) -> None:
        """A writer for this fit: the one of the last fit, unless the steps of other optimizers begin at 0."""
        if self.log_dir is None:
            return
        optimizers = optimizers_of(self._trained)
        known = [reference() for reference in self._optimizers]
        if self._writer is None or len(known) != len(optimizers) or any(one not in known for one in optimizers):
            index, count = worker_of_model(self._trained)
            folder = os.fspath(self.log_dir)
            self._writer = ScalarWriter(folder if count == 1 else os.path.join(folder, f"worker_{index}"))
            self._optimizers = [weakref.ref(one) for one in optimizers]
            self._batches_before = 0
        self._next_scalars = time.monotonic() + _SCALARS_SECONDS

    def _step(self) -> int:
        """The steps that the model has trained; of one that trains without its optimizer, the number of batches."""
        batches = self._batches_before + (0 if self._session is None else self._session.batches)
        return training_steps(self._trained, batches=batches) or batches

    def _write_recent(self) -> None:
        """Writes what the hardware did since the last time."""
        self._next_scalars = time.monotonic() + _SCALARS_SECONDS
        # On JAX the optimizer's variables are out of date, and can't be read, until the epoch is over.
        if self._session is None or self._writer is None or keras.config.backend() == "jax":
            return
        self._recent.add(self._take_samples())
        figures = self._recent.figures(_SCALARS_SECONDS)
        self._recent.next_epoch()
        self._writer.write(figures, self._step())


def _checked_number(name: str, value: Any, least: float, most: float) -> float:
    if (
        isinstance(value, bool)
        # NumPy's numbers are such ones, too.
        or not isinstance(value, numbers.Real)
        or not least <= value <= most
    ):
        raise ValueError(
            f"`{name}` must be a number from {least:g} to {most:g}. Received: {value!r} (of type "
            f"{type(value).__name__})."
        )
    return float(value)
