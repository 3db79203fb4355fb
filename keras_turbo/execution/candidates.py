"""Which settings are worth measuring for a model and its data."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import keras
import tensorflow as tf

from keras_turbo.execution.setting import ExecutionSetting
from keras_turbo.execution.stacks import why_not_stackable

Kind = Literal["multi_step", "jit", "xla_loop"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# From here on one execution takes so long that nothing is left to gain, and Ctrl+C and progress bars wait for it.
_LONGEST_EXECUTION_MS = 500.0
# What a call of Keras' train function and its callbacks cost (facts measured on one machine: 0.5 to 1.3 ms); a block
# of steps should make it less than a hundredth of their time.
_DISPATCH_MS = 0.8
_MOST_STEPS = 128
_MOST_STACK_BYTES = 64 << 20
# How often as long as tracing a step compiling it by XLA takes.
XLA_TRACINGS = 4.0
# What is a smaller part of a step is within the noise.
_LEAST_SHARE = 0.03


def candidate_settings(
    *,
    allow: tuple[Kind, ...],
    stock_ms: float,
    num_batches: int | None,
    batch_bytes: int,
    element_spec: Any,
    every_batch: bool,
) -> tuple[list[ExecutionSetting], dict[str, str]]:
    """The settings to measure, in the order in which to compile them.

    Args:
        allow: kinds of settings.
        stock_ms: milliseconds a step as `compile` set the model up.
        num_batches: batches in an epoch; None where unknown.
        batch_bytes: size of a batch.
        element_spec: structure of `tf.TypeSpec`s of a batch.
        every_batch: whether a callback must be called for each batch.

    Returns:
        The settings, and for kinds that can't be why not.
    """
    left_out: dict[str, str] = {}
    lengths = [1] if every_batch else block_lengths(stock_ms, num_batches)
    stack_lengths = [1] if every_batch else within_bytes(lengths, batch_bytes)
    # In the order of what they cost to compile, which is next to nothing for the first.
    settings = []
    if "multi_step" in allow:
        if lengths[0] > 1:
            settings.append(ExecutionSetting("graph", lengths[0]))
        else:
            left_out["steps in a graph loop"] = (
                "a callback needs every batch" if every_batch else "one step takes as long as an execution should"
            )
    if "xla_loop" in allow:
        reason = why_not_stackable(element_spec)
        if reason is None:
            settings += [ExecutionSetting("xla", length) for length in stack_lengths]
        else:
            left_out["steps in one XLA program"] = reason
    # Only the loop over stacks can be refused by its input; another step with text in it can abort the process.
    has_text = any(getattr(spec, "dtype", None) == tf.string for spec in tf.nest.flatten(element_spec))
    if "jit" in allow and has_text:
        left_out["steps compiled by XLA"] = "a part of the data is text, which XLA does not know"
    elif "jit" in allow:
        settings.append(ExecutionSetting("graph", lengths[0], jit_compile=True))
        if "multi_step" not in allow and lengths[0] > 1:
            settings[-1] = ExecutionSetting("graph", 1, jit_compile=True)
    return settings, left_out


def block_lengths(stock_ms: float, num_batches: int | None) -> list[int]:
    """Numbers of steps for one execution, the longest first.

    A divisor of the epoch is preferred: Keras then tells callbacks the right batch at the epoch's end.

    Args:
        stock_ms: milliseconds a step, with Keras' dispatch.
        num_batches: batches in an epoch; None where unknown.
    """
    # Of a short step one can't tell what is dispatch.
    alone = max(stock_ms - _DISPATCH_MS, 0.2 * stock_ms)
    wanted = _MOST_STEPS if stock_ms < 5 * _DISPATCH_MS else math.ceil(100 * _DISPATCH_MS / alone)
    longest = max(1, min(_MOST_STEPS, wanted, int(_LONGEST_EXECUTION_MS / alone)))
    lengths = [longest, max(1, longest // 8)]
    if num_batches:
        lengths = [_near_divisor(min(length, num_batches), num_batches) for length in lengths]
    return list(dict.fromkeys(lengths))


def why_not_worth_it(model: keras.Model, stock_ms: float, allow: tuple[Kind, ...]) -> dict[str, str]:
    """Kinds of settings that are known not to be faster, by what is known of steps on a CPU, with the reason.

    Args:
        model: whose steps they are.
        stock_ms: milliseconds a step as `compile` set the model up.
        allow: kinds that are asked for.
    """
    if tf.config.list_physical_devices("GPU"):
        return {}
    share = _DISPATCH_MS / stock_ms
    if share < _LEAST_SHARE:
        # Where computing limits, neither a loop nor XLA helps on a CPU (measured on several kinds of layers).
        reason = f"of a step of {stock_ms:.3g} ms, {share:.1%} at most is dispatch, and XLA computes no faster on a CPU"
        return dict.fromkeys(allow, reason)
    if loses_by_xla(model):
        reason = "convolutions take two to five times as long by XLA on a CPU"
        return {kind: reason for kind in allow if kind != "multi_step"}
    return {}


def loses_by_xla(model: keras.Model) -> bool:
    """Whether XLA is known to be slower: convolutions on a CPU take two to five times as long (TensorFlow 2.21)."""
    if tf.config.list_physical_devices("GPU"):
        return False
    return any("conv" in type(layer).__name__.lower() for layer in layers_of(model))


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """All layers of a model, also those in its attributes, the model itself among them."""
    return [each for each in tf.train.TrackableView(model).descendants() if isinstance(each, keras.Layer)]


def _near_divisor(length: int, num_batches: int) -> int:
    near = [divisor for divisor in range(length, length // 2, -1) if num_batches % divisor == 0]
    return near[0] if near else length


def within_bytes(lengths: list[int], batch_bytes: int) -> list[int]:
    """Lengths of stacks, of which none takes more memory than it should; `batch_bytes` is the size of a batch."""
    most = max(1, _MOST_STACK_BYTES // max(batch_bytes, 1))
    return list(dict.fromkeys(min(length, most) for length in lengths))
