"""Watches one `fit`: its steps, its callbacks, its input and the hardware. `GpuUtilization` tells what it sees."""

from __future__ import annotations

import time
import types
import weakref
from typing import Any

import keras

from keras_turbo.callbacks.callback_list import callback_list_of
from keras_turbo.callbacks.callback_times import CallbackTimes, unwatch_callbacks, watch_callbacks
from keras_turbo.callbacks.empty_execution import empty_execution_seconds
from keras_turbo.callbacks.epoch_figures import figures_for_logs, step_figures, steps_in
from keras_turbo.callbacks.fit_times import FitTimes
from keras_turbo.callbacks.hardware_figures import HardwareFigures
from keras_turbo.callbacks.python_batches import WatchedTrainFunction
from keras_turbo.callbacks.train_function import (
    InterceptedTrainFunction,
    Run,
    intercept_train_function,
    restore_train_function,
)
from keras_turbo.callbacks.verdict import StepFigures
from keras_turbo.data.input_wait import Waits
from keras_turbo.devices.sampler import Sample, subscribe

# Opening NVML takes 1 to 3 s a GPU where no persistence daemon keeps the driver loaded. An epoch that ends before waits
# for it, once, so that all epochs have the same figures.
_FIRST_SAMPLE_SECONDS = 5.0


class FitMonitor:
    """Watches from `on_train_begin` to the end of a fit, however it ends.

    A fit that ends by an exception tells no callback. So the end is also seen where the train function raises, where a
    callback does, and in any other case when Keras' list of callbacks is collected, which only `fit` holds.

    Args:
        callback: that of `fit` for which it watches, in its `on_train_begin`.
        interval_seconds: between two samples of the hardware.
        at_end: called once, at the end.
    """

    def __init__(self, callback: keras.callbacks.Callback, interval_seconds: float, at_end: Any) -> None:
        self._model: keras.Model = callback.model
        self._callback = callback
        self._at_end = at_end
        self._ended = False
        self._on_tensorflow = keras.config.backend() == "tensorflow"
        if self._on_tensorflow:
            from keras_turbo.callbacks.input_waits import FitInputWaits

            self._input_waits = FitInputWaits()
        self._python_waits = Waits()
        self._logs: Any = None
        self._empty_seconds: float | None = None
        self._is_calibrated = False
        self._callback_times = CallbackTimes(callback, self.end)
        self._times = FitTimes(
            self._callback_times,
            self._read_waits,
            self._is_intercepted,
            fetches_in_python=not self._on_tensorflow,
        )
        self.hardware = HardwareFigures()
        self._subscription = subscribe(interval_seconds)
        self._callback_list: Any = None
        callback_list = callback_list_of(callback)
        if callback_list is not None:
            self._callback_list = weakref.ref(callback_list)
            # As it is called when nobody holds the list, the list is not held here.
            weakref.finalize(callback_list, self.end).atexit = False
        self._install()

    # What the callback calls in its hooks.

    def epoch_begins(self) -> None:
        """In on_epoch_begin: a model may have been compiled anew, and the list of callbacks be another."""
        if not self._ended:
            self._install()
            self._times.epoch_begins()

    def step_begins(self) -> None:
        """In on_train_batch_begin."""
        self._times.step_begins()

    def validation_begins(self) -> None:
        """In on_test_begin: what follows is none of the training's time."""
        self._times.steps_end()
        self._callback_times.paused = True

    def validation_ends(self) -> None:
        """In on_test_end."""
        self._callback_times.paused = False

    def steps_end(self) -> None:
        """In on_epoch_end."""
        self._times.steps_end()
        if self._on_tensorflow:
            self._input_waits.forget_iterator()

    def take_samples(self, wait: bool = False) -> list[Sample]:
        """The samples of the hardware since the last call, which are also counted for the epoch.

        Args:
            wait: whether to wait for the first of all, for at most 5 seconds.
        """
        samples = self._subscription.take()
        deadline = time.monotonic() + _FIRST_SAMPLE_SECONDS
        while wait and not samples and not self.hardware.has_samples and time.monotonic() < deadline:
            time.sleep(0.005)
            samples = self._subscription.take()
        self.hardware.add(samples)
        return samples

    @property
    def problem(self) -> str | None:
        """Why there are no figures of GPUs."""
        return self._subscription.problem

    def log_figures(self) -> dict[str, float]:
        """The figures of the epoch up to now, for `logs`."""
        times, figures = self._times.so_far(), self._figures(take=False)
        if times is None or figures is None:
            return {}
        seconds = figures.step_ms * self.steps_in_epoch / 1000
        return figures_for_logs(times, figures) | self.hardware.figures(seconds)

    @property
    def steps_in_epoch(self) -> int:
        """How many steps the epoch has had."""
        times = self._times.so_far()
        return 0 if times is None else steps_in(times, self._model.steps_per_execution)

    def epoch_figures(self) -> tuple[StepFigures | None, int]:
        """The figures of the epoch with all callbacks' hooks, and how many steps it had; the next epoch begins."""
        steps = self.steps_in_epoch
        figures = self._figures(take=True)
        self.hardware.next_epoch()
        return figures, steps

    def end(self) -> None:
        """Ends the thread, and gives the model its own train function back. May be called again."""
        if self._ended:
            return
        self._ended = True
        self._subscription.close()
        if self._on_tensorflow:
            restore_train_function(self._model, self._intercept)
        elif isinstance(self._model.train_function, WatchedTrainFunction):
            self._model.train_function = self._model.train_function.function
        callback_list = None if self._callback_list is None else self._callback_list()
        if callback_list is not None:
            unwatch_callbacks(callback_list, self._callback_times)
        self._at_end()

    # How it comes between fit and what fit calls.

    def _install(self) -> None:
        callback_list = None if self._callback_list is None else self._callback_list()
        if callback_list is not None:
            watch_callbacks(callback_list, self._callback_times)
        if self._model.train_function is None or self._is_intercepted():
            return
        if self._on_tensorflow:
            intercept_train_function(self._model, self._intercept)
        else:
            self._model.train_function = WatchedTrainFunction(self._model.train_function, self)

    def _is_intercepted(self) -> bool:
        function: Any = self._model.train_function
        if isinstance(function, InterceptedTrainFunction):
            return self._intercept in function.interceptors
        return isinstance(function, WatchedTrainFunction) and function.watcher is self

    def _intercept(self, run: Run, iterator: Any) -> Any:
        # A generator is what train_on_batch gives, which callbacks may call.
        if self._ended or isinstance(iterator, types.GeneratorType) or not self.awaits_execution:
            return run(iterator)
        if self._input_waits.is_new(iterator):
            begin = time.perf_counter()
            function: Any = self._model.train_function
            self._input_waits.prepare(getattr(function, "train_function", function), iterator)
            self._times.own(time.perf_counter() - begin)
        chosen = self._input_waits.chosen(iterator, self._times.mean_seconds, self._times.executions)
        return self.watched(lambda: run(chosen))

    @property
    def awaits_execution(self) -> bool:
        """Whether the train function, when it is called now, is called by `fit`, and not by a callback."""
        return self._times.awaits_call

    def watched(self, execution: Any) -> Any:
        """Runs an execution, with a look at the clock before it and after it."""
        self._times.calls()
        try:
            logs = execution()
        except BaseException as error:
            if _is_end_of_data(error):
                self._times.found_nothing()
            else:
                self.end()
            raise
        self._times.returned()
        self._logs = logs
        return logs

    def count(self, waits: Waits) -> None:
        """Counts batches that were taken in Python."""
        self._python_waits += waits

    def _read_waits(self) -> Waits | None:
        return self._input_waits.read() if self._on_tensorflow else self._python_waits

    def _figures(self, take: bool) -> StepFigures | None:
        times = self._times.take() if take else self._times.so_far()
        if times is None:
            return None
        if not self._is_calibrated and not self.hardware.gpu_utilization_percents:
            self._is_calibrated = True
            self._empty_seconds = empty_execution_seconds(self._model, self._logs)
        return step_figures(
            times,
            self.hardware,
            steps_per_execution=self._model.steps_per_execution,
            empty_execution_seconds=self._empty_seconds,
            reads_fast_dataset=self._input_waits.reads_fast_dataset if self._on_tensorflow else None,
            why_no_input_wait=self._input_waits.why_not if self._on_tensorflow else None,
            backend=keras.config.backend(),
        )


def _is_end_of_data(error: BaseException) -> bool:
    # By name, since TensorFlow is of no concern on other backends. Its errors and Python's end an epoch alike.
    return isinstance(error, StopIteration) or type(error).__name__ == "OutOfRangeError"
