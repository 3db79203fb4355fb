"""Which dtype policy trains a model fastest: a copy of it is built under each, and their steps are timed in turn.

Each trial builds from the same random states, which are put back; the model that is given in the end is built once
more. So its weights, its names and all that is drawn later are as if it alone had been built.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.fit.random_states import kept_random_states
from keras_turbo.precision.safe_model import make_precision_safe
from keras_turbo.report import Block, Report, Table

# So many different batches are enough: what is timed depends on their shapes alone.
_MOST_BATCHES = 3

# Of arrays, as `fit` takes by default.
_BATCH_SIZE = 32

_FEWEST_ROUNDS = 3
_MOST_ROUNDS = 20
_BUDGET_SECONDS = 3.0

# Medians of a few steps differ by some percent from run to run. Less than this is no reason to give up bits.
LEAST_GAIN = 1.05

# Of an error's text, to fit into a table.
_LONGEST_PROBLEM = 120

# Where Keras counts how many layers of a kind it has named.
_NAME_COUNTERS = "object_name_uids"


@dataclasses.dataclass(frozen=True)
class PolicySteps:
    """How a model trained under a policy.

    Attributes:
        policy: its name.
        step_ms: median time of a training step, in milliseconds; None where there was none.
        problem: why it can't be taken; empty where it can.
    """

    policy: str
    step_ms: float | None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class FastestPolicy(Report):
    """The policy that trains a model fastest, the model under it, and the figures.

    Attributes:
        name: of the policy, such as "mixed_bfloat16".
        reason: in a sentence.
        steps: of each policy that was tried, float32 first.
        model: built under the policy, made safe and not trained yet.
    """

    name: str
    reason: str
    steps: tuple[PolicySteps, ...]
    model: keras.Model = dataclasses.field(repr=False, compare=False)

    def blocks(self) -> Iterator[Block]:
        """A table of the steps by policy, and what was chosen."""
        base = self.steps[0].step_ms
        rows = []
        for one in self.steps:
            timed = one.step_ms is not None and base is not None
            speed = f"{base / one.step_ms:.2f}" if timed and one.step_ms and base else ""
            rows.append((one.policy, f"{one.step_ms:.2f}" if one.step_ms is not None else "", speed, one.problem))
        if len(rows) > 1:
            columns = ("policy", "step, ms", "times float32", "problem")
            yield Table(f"{self.model.name}: a training step by policy", columns, rows, words=(0, 3))
        yield f"Dtype policy {self.name}: {self.reason}."

    def to_dict(self) -> dict[str, Any]:
        """All figures, without the model."""
        return {"name": self.name, "reason": self.reason, "steps": [dataclasses.asdict(one) for one in self.steps]}


class SameModelError(ValueError):
    """A function that should build a new model gave one that it had given before."""


class Trial:
    """A model under a policy, and training steps of it.

    Args:
        model: compiled; it is trained.
        batches: of training data, over and over.
    """

    def __init__(self, model: Any, batches: tf.data.Dataset) -> None:
        self._model = model
        # Builds what is not built yet, and traces.
        history = model.fit(batches, epochs=1, steps_per_epoch=model.steps_per_execution, shuffle=False, verbose=0)
        self.loss = float(history.history.get("loss", [0.0])[-1])
        self._iterator = iter(model.distribute_strategy.experimental_distribute_dataset(batches))

    def step_ms(self) -> float:
        """Trains a step, and gives its time in milliseconds."""
        begun_at = time.perf_counter()
        logs = self._model.train_function(self._iterator)
        keras.tree.map_structure(keras.ops.convert_to_numpy, logs)  # waits for a GPU
        return (time.perf_counter() - begun_at) * 1e3 / self._model.steps_per_execution


def choose_policy(build: Callable[[], keras.Model], data: Any, policies: Sequence[str], why: str) -> FastestPolicy:
    """Builds a model under the policy that trains it fastest.

    Args:
        build: makes and compiles a new model in each call.
        data: as `use_mixed_precision` takes it.
        policies: to try; float32 first. Of one alone nothing is timed.
        why: these; said where float32 is the only one.

    Raises:
        ValueError: `data` gives nothing; `build` gives no compiled model, or the same one again.
    """
    batches = _batches(data)
    before = keras.config.dtype_policy()
    try:
        if len(policies) == 1:
            name, reason, steps = policies[0], why, (PolicySteps(policies[0], None),)
        else:
            steps = _timed(build, batches, policies)
            name, reason = _fastest(steps)
        model = _built(build, name, batches)
        make_precision_safe(model, verbose=False)
    finally:
        keras.config.set_dtype_policy(before)
    return FastestPolicy(name, reason, steps, model)


def _timed(build: Callable[[], Any], batches: tf.data.Dataset, policies: Sequence[str]) -> tuple[PolicySteps, ...]:
    trials: dict[str, Trial] = {}
    problems: dict[str, str] = {}
    models: list[Any] = []
    for policy in policies:
        try:
            with _nothing_drawn(), warnings.catch_warnings():
                # What is to be said of half precision is said of the model that is given in the end.
                warnings.simplefilter("ignore")
                models.append(_require_new(_built(build, policy, batches), models))
                make_precision_safe(models[-1], verbose=False)
                trials[policy] = Trial(models[-1], batches)
        except SameModelError:
            raise
        except Exception as error:  # whatever a user's layers raise under another policy is a reason not to take it
            if policy == policies[0]:
                raise
            problems[policy] = f"{type(error).__name__}: {_in_one_line(str(error))}"
    base = trials[policies[0]].loss
    for policy, trial in trials.items():
        if math.isfinite(base) and not math.isfinite(trial.loss):
            problems[policy] = "the loss is not finite"
    times: dict[str, list[float]] = collections.defaultdict(list)
    with _nothing_drawn():
        deadline = time.perf_counter() + _BUDGET_SECONDS
        # In turn, so that what else the machine does falls on all of them.
        for rounds in range(_MOST_ROUNDS):
            if rounds >= _FEWEST_ROUNDS and time.perf_counter() > deadline:
                break
            for policy, trial in trials.items():
                times[policy].append(trial.step_ms())
    medians = {policy: statistics.median(each) for policy, each in times.items()}
    return tuple(PolicySteps(policy, medians.get(policy), problems.get(policy, "")) for policy in policies)


def _require_new(model: Any, models: Sequence[Any]) -> Any:
    if any(model is one for one in models):
        raise SameModelError("`build` must make a new model in each call. It gave the same one again.")
    return model


def _in_one_line(text: str) -> str:
    # Keras has escape sequences and many lines around what a layer said.
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())[:_LONGEST_PROBLEM]


def _fastest(steps: Sequence[PolicySteps]) -> tuple[str, str]:
    base, *others = steps
    timed = [(one.step_ms, one.policy) for one in others if one.step_ms is not None and not one.problem]
    best, policy = min(timed, default=(math.inf, ""))
    base_ms = base.step_ms or 0.0
    if base_ms >= best * LEAST_GAIN:
        return policy, f"measured here, a step takes {best:.3g} ms, and {base_ms:.3g} ms in float32"
    if not timed:
        return base.policy, "no other policy can train this model"
    return base.policy, f"measured here, a step takes {base_ms:.3g} ms, and {best:.3g} ms under {policy}"


def _built(build: Callable[[], Any], policy: str, batches: tf.data.Dataset) -> Any:
    keras.config.set_dtype_policy(policy)
    model = build()
    if not isinstance(model, keras.Model) or not model.compiled:
        raise ValueError(
            "`build` must make a Keras model and compile it, since training steps are timed. Received: "
            + (f"model {model.name!r}, not compiled." if isinstance(model, keras.Model) else repr(model) + ".")
        )
    if not model.built:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(next(iter(batches)))
        model(x)
    return model


@contextlib.contextmanager
def _nothing_drawn() -> Iterator[None]:
    """Puts random states, and the numbers in names of new layers, back at its end."""
    with kept_random_states() as keras_state:
        counters = keras_state.get_global_attribute(_NAME_COUNTERS)
        keras_state.set_global_attribute(_NAME_COUNTERS, collections.defaultdict(int, counters or {}))
        try:
            yield
        finally:
            keras_state.set_global_attribute(_NAME_COUNTERS, counters)


def _batches(data: Any) -> tf.data.Dataset:
    """Some batches of one shape, over and over. A FastDataset begins where it would have begun."""
    if isinstance(data, tuple):
        data = [keras.tree.map_structure(lambda one: one[:_BATCH_SIZE], data)]
    position = getattr(data, "epochs_begun", None)
    found = [tuple(one) if isinstance(one, list) else one for one in itertools.islice(data, _MOST_BATCHES)]
    if position is not None:
        data.epochs_begun = position
    if not found or any(len(one) == 0 for one in keras.tree.flatten(found[0])):
        raise ValueError(f"`data` must give at least one batch of training data. Received: {data!r}.")
    first, *others = (tf.data.Dataset.from_tensors(one) for one in found)
    for one in others:
        if one.element_spec == first.element_spec:
            first = first.concatenate(one)
    return first.repeat()
