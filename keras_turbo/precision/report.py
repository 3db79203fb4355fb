"""What each dtype policy would cost a model, by layer, measured: may this model train in float16?"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.precision.compiled_settings import compiled_settings
from keras_turbo.precision.layer_calls import all_layers, layer_paths
from keras_turbo.precision.policy import POLICIES
from keras_turbo.precision.policy_run import PolicyRun, layers_to_vary, run_policy, set_policy, unchanged
from keras_turbo.report import Block, Report, Table, show

# A float16 number is rounded by up to 5e-4, a bfloat16 one by 4e-3; through some ten layers gradients differ by some
# percent, which is less than they differ between batches. A tenth is more than rounding alone explains.
GRADIENT_TOLERANCE = 0.1
LOSS_TOLERANCE = 0.01

_TIMED_ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class LayerFigures:
    """What one layer lost against float32.

    Attributes:
        layer: its name, after those of the models and layers around it.
        kind: its class.
        output_error: relative error of its outputs (Euclidean norm); infinite where one is not finite. None where they
            can't be seen, as inside a loop.
        gradient_error: the same of the gradients of its own weights; None where it has none.
        overflows: outputs that are infinite or NaN, and were finite in float32.
        gradient_overflows: the same of gradients, at the loss scale of the run.
        underflow_percent: gradients that are 0, and were not in float32.
    """

    layer: str
    kind: str
    output_error: float | None
    gradient_error: float | None
    overflows: int
    gradient_overflows: int
    underflow_percent: float

    @property
    def suffering(self) -> tuple[bool, float]:
        """What layers are sorted by: overflows, then the larger error."""
        errors = [error for error in (self.output_error, self.gradient_error) if error is not None]
        return bool(self.overflows or self.gradient_overflows), max(errors, default=0.0)


@dataclasses.dataclass(frozen=True)
class PolicyFigures:
    """What one policy costs.

    Attributes:
        policy: its name.
        loss: of the batch.
        loss_error: relative, against float32; infinite where the loss is not finite.
        loss_scale: at which gradients were taken: the largest up to 32,768 that does not overflow. 1 without scaling.
        step_ms: of forward and backward, median.
        peak_memory_mb: of the GPU; None where there is none.
        layers: the one that suffers most first. Empty for float32.
    """

    policy: str
    loss: float
    loss_error: float
    loss_scale: float
    step_ms: float
    peak_memory_mb: float | None
    layers: tuple[LayerFigures, ...]

    @property
    def usable(self) -> bool:
        """Whether nothing overflowed, the loss is within 1 % and each layer's gradient within 10 % of float32's."""
        return not self.objections

    @property
    def objections(self) -> tuple[str, ...]:
        """What speaks against the policy, in words."""
        found = []
        overflowing = [one.layer for one in self.layers if one.suffering[0]]
        if overflowing:
            found.append(f"overflows in {', '.join(overflowing[:3])}" + (" and others" if len(overflowing) > 3 else ""))
        if not self.loss_error <= LOSS_TOLERANCE:
            found.append(f"the loss is off by {self.loss_error:.2g}")
        worst = max(self.layers, key=lambda one: one.gradient_error or 0.0, default=None)
        if worst is not None and (worst.gradient_error or 0.0) > GRADIENT_TOLERANCE:
            found.append(f"the gradient of {worst.layer} is off by {worst.gradient_error:.2g}")
        return tuple(found)


@dataclasses.dataclass(frozen=True)
class PrecisionReport(Report):
    """Figures of several policies from the same weights on the same batch.

    Attributes:
        model: its name.
        policies: float32 first.
    """

    model: str
    policies: tuple[PolicyFigures, ...]

    def __getitem__(self, policy: str) -> PolicyFigures:
        for figures in self.policies:
            if figures.policy == policy:
                return figures
        raise KeyError(f"{policy!r} is not among {[figures.policy for figures in self.policies]}.")

    def verdict(self, policy: str) -> str:
        """Whether a policy may be used, and what speaks against it.

        Args:
            policy: one of the report's.

        Returns:
            A sentence.
        """
        figures, base = self[policy], self.policies[0]
        times = base.step_ms / figures.step_ms
        if not figures.usable:
            return f"{policy}: no, {'; '.join(figures.objections)}."
        return f"{policy}: yes on this batch, and {times:.2f} times as fast as float32 here."

    def blocks(self, most_layers: int = 10) -> Iterator[Block]:
        """A step by policy in a table, and for each policy its layers in another, the one that suffers most first."""
        rows = [
            (
                one.policy,
                f"{one.loss:.5g}",
                f"{one.loss_error:.1e}",
                f"{one.loss_scale:g}",
                f"{one.step_ms:.2f}",
                "" if one.peak_memory_mb is None else f"{one.peak_memory_mb:,.0f}",
            )
            for one in self.policies
        ]
        columns = ("policy", "loss", "off by", "loss scale", "step, ms", "GPU peak, MB")
        yield Table(f"{self.model}: a step by policy", columns, rows)
        for one in self.policies[1:]:
            yield _layer_table(one, most_layers)
            yield self.verdict(one.policy)

    def print(self, file: IO[str] | None = None, most_layers: int = 10) -> None:
        """Prints the tables, to standard output by default.

        Args:
            file: where to print.
            most_layers: rows for each policy. Default: 10.
        """
        show(self.blocks(most_layers), file)


def precision_report(
    model: keras.Model,
    data: Any,
    policies: Sequence[str] = ("float32", "mixed_bfloat16", "mixed_float16"),
    *,
    batch_size: int = 32,
) -> PrecisionReport:
    """Measures what half precision costs a model, by layer, from the weights that it has.

    For each policy one step is run, forward and backward, on the same batch, and compared with float32. Dropout is off
    meanwhile, since half precision draws other masks. Nothing is trained: weights, policies, moving averages and random
    seeds are as before at the end. Ask again after some epochs: gradients change.

    Where some layers compute in half precision, these alone are varied, and those that are float32 stay: so a model
    that `make_precision_safe` has seen is measured as it would train. Of a float32 model all layers are varied, as if
    it had been built under the policy.

    Example:

    ```python
    report = keras_turbo.precision.precision_report(model, (x, y))
    report.print()
    report["mixed_float16"].usable      # False
    report.verdict("mixed_float16")     # "mixed_float16: no, overflows in lstm."
    ```

    Args:
        model: built, and compiled with a loss.
        data: arrays `(x, y)` or `(x, y, sample_weight)`, of which the first `batch_size` examples are used; or a
            `tf.data.Dataset` or another iterable of batches, of which the first is.
        policies: names of policies. "float32" is run in any case, as what others are compared with.
        batch_size: examples taken of arrays. Default: 32.

    Returns:
        The figures. Printed, they are tables with the layer that suffers most first.

    Raises:
        ValueError: the model is not built or not compiled with a loss, a policy is not known, or `data` gives nothing.
    """
    _check_model(model)
    wrong = [policies] if isinstance(policies, str) else [policy for policy in policies if policy not in POLICIES]
    if wrong or not policies:
        raise ValueError(f"`policies` must be of {POLICIES}, in a tuple or list. Received: {policies!r}.")
    if data is None:
        raise ValueError("`data` must be a dataset of batches or arrays (x, y). Received: None.")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"`batch_size` must be a positive whole number. Received: {batch_size!r}.")
    batch = _first_batch(data, batch_size)
    names = ["float32", *(policy for policy in dict.fromkeys(policies) if policy != "float32")]
    layers = layers_to_vary(model)
    runs: dict[str, PolicyRun] = {}
    times: dict[str, list[float]] = {name: [] for name in names}
    with unchanged(model) as put_back:
        for name in names:
            put_back()
            set_policy(model, layers, name)
            runs[name] = run_policy(model, batch)
        # In turn, so that what else the machine does falls on all of them.
        for _ in range(_TIMED_ROUNDS):
            for name in names:
                times[name].append(runs[name].step_ms())
    base = runs["float32"]
    return PrecisionReport(
        model.name,
        tuple(
            PolicyFigures(
                policy=name,
                loss=run.loss,
                loss_error=_relative_error(np.array([run.loss]), np.array([base.loss])),
                loss_scale=run.loss_scale,
                step_ms=statistics.median(times[name]),
                peak_memory_mb=run.peak_memory_mb,
                layers=_by_layer(model, run, base) if run is not base else (),
            )
            for name, run in runs.items()
        ),
    )


def _by_layer(model: keras.Model, run: PolicyRun, base: PolicyRun) -> tuple[LayerFigures, ...]:
    paths = layer_paths(model)
    found = []
    for layer in all_layers(model):
        # Models inside are seen by their layers.
        if isinstance(layer, keras.Model | keras.layers.InputLayer):
            continue
        own = [id(variable) for variable in _own_variables(layer) if id(variable) in base.gradients]
        outputs, true_outputs = (_joined(of.outputs, [id(layer)]) for of in (run, base))
        gradients, true_gradients = (_joined(of.gradients, own) for of in (run, base))
        if not len(true_outputs) and not len(true_gradients):
            continue
        vanished = 100 * float(np.mean(gradients[true_gradients != 0] == 0)) if true_gradients.any() else 0.0
        found.append(
            LayerFigures(
                layer=paths.get(id(layer), str(layer.name)),
                kind=type(layer).__name__,
                output_error=None if not len(true_outputs) else _relative_error(outputs, true_outputs),
                gradient_error=None if not len(true_gradients) else _relative_error(gradients, true_gradients),
                overflows=_lost(outputs, true_outputs),
                gradient_overflows=_lost(gradients, true_gradients),
                underflow_percent=vanished,
            )
        )
    return tuple(sorted(found, key=lambda one: one.suffering, reverse=True))


def _joined(values: dict[int, np.ndarray], keys: Sequence[int]) -> np.ndarray:
    found = [values[key].ravel() for key in keys if key in values]
    return np.concatenate(found) if found else np.zeros(0)


def _own_variables(layer: Any) -> Iterable[Any]:
    below = {id(one) for inner in layer._flatten_layers(include_self=False) for one in inner.trainable_variables}
    return (one for one in layer.trainable_variables if id(one) not in below)


def _relative_error(values: np.ndarray, true: np.ndarray) -> float:
    if not np.isfinite(values).all():
        return 0.0 if _lost(values, true) == 0 and not np.isfinite(true).all() else float("inf")
    difference = float(np.linalg.norm(values.astype(np.float64) - true))
    return difference / (float(np.linalg.norm(true.astype(np.float64))) or 1.0) if difference else 0.0


def _lost(values: np.ndarray, true: np.ndarray) -> int:
    return int(np.sum(~np.isfinite(values) & np.isfinite(true)))


def _layer_table(figures: PolicyFigures, most: int) -> Table:
    rows = []
    for one in figures.layers[:most]:
        errors = ["" if error is None else f"{error:.1e}" for error in (one.output_error, one.gradient_error)]
        counts = (str(one.overflows), str(one.gradient_overflows), f"{one.underflow_percent:.1f}")
        rows.append((one.layer, *errors, *counts))
    columns = ("layer", "output off by", "gradient off by", "overflows", "of gradients", "vanished, %")
    return Table(f"{figures.policy} against float32, the worst layer first", columns, rows)


def _check_model(model: Any) -> None:
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"`model` must be a built Keras model. Received: {model!r} (of type {type(model).__name__}).")
    if not model.compiled or (compiled_settings(model).get("loss") is None and not model.losses):
        raise ValueError(
            f"Model {model.name!r} must be compiled with a loss, whose gradients are compared. A loss that a "
            "`train_step` computes by itself can't be seen."
        )


def _first_batch(data: Any, batch_size: int) -> tuple[Any, Any, Any]:
    if isinstance(data, tuple | list):
        taken = keras.tree.map_structure(lambda one: one[:batch_size], tuple(data))
    else:
        taken = next(iter(data), None)
    if taken is None or any(len(one) == 0 for one in keras.tree.flatten(taken)):
        raise ValueError(f"`data` must give at least one example. Received: {data!r}.")
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(tuple(taken) if isinstance(taken, list) else taken)
    x, y, sample_weight = (
        keras.tree.map_structure(lambda one: None if one is None else _tensor(one), part)
        for part in (x, y, sample_weight)
    )
    return x, y, sample_weight


def _tensor(values: Any) -> Any:
    tensor = tf.convert_to_tensor(values)
    return tf.cast(tensor, tf.float32) if tensor.dtype == tf.float64 else tensor
