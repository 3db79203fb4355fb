"""A train function that finds out, while it trains, how many steps to run in one call.

It runs some steps as Keras does, then k in one graph loop, and goes on with what was faster. All of them are steps of
the training: nothing is run twice and nothing is put back. Where Keras calls it for each batch, it runs k steps at the
first of k calls and answers the others with what it has. From the next epoch on Keras itself is told to call it once
for k batches (`EpochIterator.steps_per_execution`, which an epoch reads as it begins).
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.execution.candidates import XLA_TRACINGS, block_lengths, layers_of, loses_by_xla, within_bytes
from keras_turbo.execution.programs import GraphLoop, Steps, XlaLoop
from keras_turbo.execution.race import short_reason
from keras_turbo.execution.setting import ExecutionSetting
from keras_turbo.execution.stacks import why_not_stackable
from keras_turbo.fit.call import FitCall
from keras_turbo.fit.steps import number

# Between two calls of a train function and inside one, what one that runs many steps saves at most, and surely where
# steps are short. Measured on small machines; what the callbacks take comes on top, as measured.
_MOST_DISPATCH_SECONDS, _SURE_DISPATCH_SECONDS = 0.6e-3, 0.3e-3
# A gain below this is within what two runs of the same code differ by.
_LEAST_GAIN = 0.03
# A trial that may lose takes no larger share than this of the time that the fit still has.
_LARGEST_SHARE = 0.02
_STEPS_TO_LOOK_AT, _BLOCKS_TO_LOOK_AT = 11, 3
_HOPELESS = 1.5
# Of steps that are shorter, dispatch is so large a part that a loop surely gains.
_SHORT_SECONDS = 3e-3
# What tracing a loop takes at least, and of that for each layer.
_TRACE_SECONDS, _TRACE_SECONDS_A_LAYER = 0.4, 0.03
_STOCK = ExecutionSetting()


class FitTrial:
    """What `fit` calls in place of Keras' train function.

    Args:
        model: a compiled model.
        stock: Keras' train function.
        with_loop: whether to try a graph loop, whose results are equal to the bit.
        with_xla: whether to try one XLA program over stacks of batches.

    Attributes:
        stock: as given.
        steps_of_last_call: how many steps the last call ran; 0 where it was answered.
        chosen: the setting that was found to be the fastest; None as long as that is not known.
        why: what was found, as a clause.
        stock_seconds: a step by Keras' own function with what is between two of them, median; None: not measured.
        dispatch_seconds: of that, what surely is dispatch.
        chosen_seconds: a step by what was chosen in place of it; None: not measured.
        cost_seconds: what tracing, compiling and trying took beyond the same steps by Keras' own function.
        steps_by_chosen: steps of this `fit` that ran by what was chosen.
    """

    def __init__(self, model: keras.Model, stock: Callable, *, with_loop: bool, with_xla: bool) -> None:
        self._model = model
        self.stock = stock
        self._with_loop, self._with_xla = with_loop, with_xla
        self._program = Steps(model, model.train_step, lambda batch: None)
        self._loops: dict[ExecutionSetting, Any] = {}
        self.chosen: ExecutionSetting | None = None
        self.chosen_seconds: float | None = None

    # What `fit` and other parts ask of a train function.

    def fit_begins(self, call: FitCall, *, held_to_one: bool, saves_after: list[int]) -> None:
        """To be told before the first epoch of a `fit`.

        Args:
            call: of the `fit`.
            held_to_one: whether a callback must be called for each batch.
            saves_after: after how many batches callbacks save. Executions end there.
        """
        self._call, self._held_to_one, self._saves_after = call, held_to_one, saves_after
        if self.chosen == _STOCK:
            self.chosen = None
        self.why = "the fit was too short to tell"
        self.stock_seconds: float | None = None
        self.dispatch_seconds = self.cost_seconds = 0.0
        self.steps_by_chosen, self.steps_of_last_call = 0, 1
        self._trying: ExecutionSetting | None = None
        # Of the last few steps: of data of unknown length it looks on through all of the first epoch.
        self._between: deque[float] = deque(maxlen=_STEPS_TO_LOOK_AT)
        self._durations: deque[float] = deque(maxlen=_STEPS_TO_LOOK_AT)
        self._first_seconds: float | None = None
        # Batches that callbacks have seen in this fit, and steps that this has run.
        self._seen = self._done = 0

    def epoch_begins(self, epochs: int) -> None:
        """To be told before the first batch of an epoch; `epochs` are left, with this one."""
        call, model = self._call, self._model
        if not self._done:
            optimizer: Any = getattr(model, "optimizer", None)
            self._steps_before = int(number(optimizer.iterations)) if optimizer is not None else 0
        self._answers, self._logs = 0, None
        self._at, self._in_epoch, self._epochs = 0, call.steps, epochs
        self._returned: float | None = None
        # What reads stacks ahead, so that nothing else can go on with the iterator.
        self._stacks: XlaLoop | None = None
        for loop in self._loops.values():
            loop.forget()
        if self._trying is not None and self._trying.loop == "xla":
            self._trying = None  # it got no further in a whole epoch
        if self._xla_may_pay():
            self._try(ExecutionSetting("xla", self._stack_length()))
        steps = 1 if self._held_to_one or self.chosen is None else self.chosen.steps_per_execution
        counts = [self._in_epoch or 1, *self._saves_after, *([self._steps_before] if self._saves_after else [])]
        self._is_told = steps > 1 and self._trying is None and all(count % steps == 0 for count in counts)
        call.epoch_iterator.steps_per_execution = steps if self._is_told else 1

    def fit_ends(self) -> None:
        """Lets go of what belongs to this `fit`."""
        self._call.epoch_iterator.steps_per_execution = 1
        self._call, self._logs, self._stacks = FitCall(), None, None
        for loop in self._loops.values():
            loop.forget()

    def resume(self, iterator: Any, steps_done: int) -> None:
        """Takes note that an epoch begins in its middle, with what the iterator has left."""
        del iterator
        self._seen += steps_done
        self._at = steps_done if self._call.steps_per_epoch is None else steps_done % self._call.steps_per_epoch

    def measures_waits_of(self, iterator: Any) -> bool:
        """Whether it reads this iterator in stacks, in Python; see `waits`."""
        setting = self._trying or self.chosen or _STOCK
        return setting.loop == "xla" and why_not_stackable(iterator.element_spec) is None

    @property
    def waits(self) -> tuple[float, int, int]:
        """Of all stacks so far: the seconds that they were waited for, their batches and their examples."""
        loops = [loop for loop in self._loops.values() if isinstance(loop, XlaLoop)]
        return (
            sum(loop.waited_seconds for loop in loops),
            sum(loop.batches for loop in loops),
            sum(loop.examples for loop in loops),
        )

    def __call__(self, iterator: Any) -> Any:
        """Runs one execution, or answers for one that is done; raises StopIteration where no batch is left."""
        if not isinstance(iterator, tf.data.Iterator):
            return self.stock(iterator)  # of train_on_batch
        if self._answers:
            self._answers -= 1
            self.steps_of_last_call = 0
            return self._logs
        begin = time.perf_counter()
        if self._returned is not None and self._is_looking:
            self._between.append(begin - self._returned)
        self._element_spec = iterator.element_spec
        setting = self._trying or self.chosen or _STOCK
        most = self._most(setting)
        if self._stacks is None and (most == 1 or setting == _STOCK):
            setting, done, self._logs = _STOCK, 1, self.stock(iterator)
        else:
            done, self._logs = self._run(setting, iterator, most)
        now = time.perf_counter()
        self.steps_of_last_call = done
        self._at, self._seen, self._done = self._at + done, self._seen + done, self._done + done
        self._answers = 0 if self._is_told else done - 1
        self._returned = None if self._answers else now
        self._note(setting, now - begin, done)
        return self._logs

    # How it runs.

    def _most(self, setting: ExecutionSetting) -> int:
        most = 1 if self._held_to_one else setting.steps_per_execution
        if self._in_epoch:
            most = min(most, self._in_epoch - self._at)
        for frequency in self._saves_after:
            # Keras' callbacks count the batches of this fit; AsyncCheckpoint counts steps of the optimizer.
            for count in (self._seen, self._steps_before + self._done):
                most = min(most, frequency - count % frequency)
        return max(1, most)

    def _run(self, setting: ExecutionSetting, iterator: Any, most: int) -> tuple[int, Any]:
        loop = self._stacks or self._loops[setting]
        if isinstance(loop, XlaLoop):
            self._stacks = loop
        done, logs = loop(iterator, most)
        if done == 0:
            raise StopIteration
        return done, logs

    # How it decides.

    @property
    def _is_looking(self) -> bool:
        return self.chosen is None and self._trying is None

    @property
    def _left(self) -> int:
        """Steps that the fit still has; 0 where that can't be known."""
        return self._in_epoch * self._epochs - self._at if self._in_epoch else 0

    def _note(self, setting: ExecutionSetting, seconds: float, done: int) -> None:
        if self._trying is not None:
            if setting == self._trying:
                self._look_at_block(seconds, done)
        elif self.chosen is not None:
            self.steps_by_chosen += done if setting != _STOCK else 0
        elif self._first_seconds is None:
            self._first_seconds = seconds
        else:
            self._durations.append(seconds)
            self._look_at_steps()

    def _look_at_steps(self) -> None:
        seen = len(self._durations)
        if seen < 2 or not self._between:
            return
        function, between = statistics.median(self._durations), statistics.median(self._between)
        step = self.stock_seconds = function + between
        most = between + min(_MOST_DISPATCH_SECONDS, 0.9 * function)
        self.dispatch_seconds = between + min(_SURE_DISPATCH_SECONDS, 0.5 * function)
        if most < _LEAST_GAIN * step:
            self._settle(_STOCK, f"of a step of {step * 1e3:.3g} ms, {most / step:.1%} at most is dispatch")
        elif seen >= _STEPS_TO_LOOK_AT and self._left:
            # The first call has traced the step, where no `fit` has done so before.
            least = _TRACE_SECONDS + _TRACE_SECONDS_A_LAYER * len(layers_of(self._model))
            self._trace_seconds = max(least, (self._first_seconds or 0.0) - step)
            length = block_lengths(step * 1e3, self._in_epoch)[0]
            if self._held_to_one:
                self._settle(_STOCK, "a callback is called for each batch")
            elif not self._may_pay(step, most):
                left = f"{self._left} more steps of {step * 1e3:.3g} ms"
                self._settle(_STOCK, f"{left} don't pay for tracing another program")
            elif length == 1:
                self._settle(_STOCK, "one step takes as long as an execution should")
            elif self._with_loop:
                self._try(ExecutionSetting("graph", length, jit_compile=bool(self._model.jit_compile)))
            else:
                self._settle(_STOCK, "no graph loop is allowed")

    def _may_pay(self, step: float, most: float) -> bool:
        """Whether tracing a loop pays: surely, or for a small share of the time that is left."""
        if step < _SHORT_SECONDS and self._left * self.dispatch_seconds > 1.5 * self._trace_seconds:
            return True
        is_cheap = self._trace_seconds < _LARGEST_SHARE * self._left * step
        return is_cheap and self._left * most > 2 * self._trace_seconds

    def _xla_may_pay(self) -> bool:
        """Whether to try XLA in the epoch that begins: where half of the time that is left would pay for compiling."""
        if not self._with_xla or self._held_to_one or self.stock_seconds is None or self._is_looking or self._trying:
            return False
        if any(setting.loop == "xla" for setting in self._loops) or why_not_stackable(self._element_spec) is not None:
            return False
        if self.stock_seconds > _SHORT_SECONDS or loses_by_xla(self._model):
            return False
        seconds = min(self.stock_seconds, self.chosen_seconds or self.stock_seconds)
        return 0.5 * seconds * self._left > 1.5 * XLA_TRACINGS * self._trace_seconds

    def _stack_length(self) -> int:
        # Stacks are whole in an epoch, so that Keras can be told of them.
        specs = tf.nest.flatten(self._element_spec)
        known = [spec.dtype.size * (spec.shape[1:].num_elements() or 1) * (spec.shape[0] or 32) for spec in specs]
        length = block_lengths((self.stock_seconds or 0.0) * 1e3, self._in_epoch)[0]
        return within_bytes([length], sum(known))[0]

    def _try(self, setting: ExecutionSetting) -> None:
        """Begins to run by a setting, if it can be traced."""
        begin = time.perf_counter()
        loop: Any = GraphLoop(self._program, jit_compile=setting.jit_compile)
        try:
            loop.trace(self._element_spec)
        except Exception as error:  # whatever a user's step raises where it is not called by Keras
            self.cost_seconds += time.perf_counter() - begin
            self._settle(_STOCK, f"its step can't be traced in a loop ({short_reason(error)})")
            return
        self.cost_seconds += time.perf_counter() - begin
        if setting.loop == "xla":
            loop = XlaLoop(self._program, setting.steps_per_execution, loop, lambda reason: None)
            loop.falls_back = True
        self._loops[setting] = loop
        self._trying, self._blocks = setting, []

    def _look_at_block(self, seconds: float, done: int) -> None:
        tried, stock = self._trying, self.stock_seconds or 0.0
        assert tried is not None  # noqa: S101 (for the type checker)
        best = min(stock, self.chosen_seconds or stock)
        self.cost_seconds += max(0.0, seconds - done * best)
        self._blocks.append(seconds / done)
        # The first one has compiled.
        block = statistics.median(self._blocks[1:] or self._blocks)
        fails = self._stacks is not None and not self._stacks.compiles
        is_hopeless = fails or (len(self._blocks) > 1 and block > _HOPELESS * best)
        if len(self._blocks) <= _BLOCKS_TO_LOOK_AT and not is_hopeless:
            return
        if not fails and block < best * (1 - _LEAST_GAIN):
            self.chosen_seconds = block
            self._settle(tried, f"{tried.name}: {block * 1e3:.3g} ms a step")
            return
        if self._stacks is not None:
            self._stacks.compiles = False  # to the end of the epoch
        self._settle(self.chosen or _STOCK, self.why if self.chosen else f"{tried.name}: {block * 1e3:.3g} ms a step")

    def _settle(self, setting: ExecutionSetting, why: str) -> None:
        self.chosen, self._trying, self.why = setting, None, why
