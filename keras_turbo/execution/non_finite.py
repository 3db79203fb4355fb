"""Finds where the first NaN or Inf of a training step arises: batch, layer, loss, gradient or update."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.execution.patching import replaced_method


class NonFiniteError(FloatingPointError):
    """A NaN or an infinite value arose; the message says where, and what went in."""

    # Keras copies an exception with the arguments of the layer around added, unless it finds this mark, which it puts
    # on those copies itself. Without it the message would be the same, but longer.
    _keras_call_info_injected = True


@contextlib.contextmanager
def non_finite_raises() -> Iterator[None]:
    """Raises `NonFiniteError` at the first NaN or Inf that eager code computes, while it is open.

    What is looked at: the output of each layer and operation of a functional model, innermost first; each loss; the
    gradient that flows back through each of them; the gradients of the weights; and the weights after the update. For
    this the methods that all of Keras' layers, losses and optimizers share are replaced until it closes: no model needs
    to be passed, and models made meanwhile are looked at, too. Graphs are not touched.

    Inputs are not looked at by themselves, since a model may well expect NaN in them (to mask or fill it).

    Yields:
        Nothing.
    """
    finder = _Finder()
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in (
            # A layer's own __call__ ends in this one, after casting its inputs; other operations have no other.
            (keras.Operation, "__call__", finder.call_operation),
            (keras.Loss, "__call__", finder.call_loss),
            (keras.optimizers.Optimizer, "apply", finder.apply),
            (keras.optimizers.LossScaleOptimizer, "apply", finder.apply),
        ):
            stack.enter_context(replaced_method(owner, name, replacement))
        yield


class _Calls(threading.local):
    """The operations that are being called in this thread, outermost first, with their inputs."""

    def __init__(self) -> None:
        self.stack: list[tuple[Any, Any]] = []

    def path(self) -> str:
        return "/".join(operation.name for operation, _ in self.stack)


class _Finder:
    """Looks at what layers, losses and optimizers give, and raises."""

    def __init__(self) -> None:
        self._calls = _Calls()
        self._step: int | None = None

    def call_operation(self, original: Callable[..., Any], operation: Any, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            return original(operation, *args, **kwargs)
        stack = self._calls.stack
        if not stack and isinstance(getattr(operation, "optimizer", None), keras.optimizers.Optimizer):
            self._step = _iterations(operation.optimizer) + 1
        stack.append((operation, (args, kwargs)))
        try:
            path = self._calls.path()
            kind = type(operation).__name__

            def gradient_of_inputs(found: str) -> str:
                return (
                    f"{found} in the gradient that {path!r} ({kind}) passes back to its input{self._at_step}. The "
                    "gradient that reached its output was finite: it is the derivative of this layer that is not, as "
                    "that of a square root, a norm or a power at 0, of a logarithm or a division near 0."
                )

            def gradient_of_outputs(found: str) -> str:
                return (
                    f"{found} in the gradient that reaches the output of {path!r} ({kind}){self._at_step}. It comes "
                    "from what follows this layer and is no layer itself: the loss, or plain operations in the `call` "
                    "or `train_step` around it. A square root or norm at 0, a logarithm or a division near 0 do this."
                )

            args = _gradients_checked(args, gradient_of_inputs)
            kwargs = _gradients_checked(kwargs, gradient_of_inputs)
            outputs = original(operation, *args, **kwargs)
            bad = [tensor for tensor in _float_tensors(outputs) if not _is_finite(tensor)]
            if bad:
                raise NonFiniteError(self._about_outputs(operation, path, args, kwargs, bad))
            return _gradients_checked(outputs, gradient_of_outputs)
        finally:
            stack.pop()

    def call_loss(self, original: Callable[..., Any], loss: keras.Loss, *args: Any, **kwargs: Any) -> Any:
        value = original(loss, *args, **kwargs)
        bad = [tensor for tensor in _float_tensors(value) if not _is_finite(tensor)]
        if bad:
            names = ("y_true", "y_pred", "sample_weight")
            inputs = dict(zip(names, args, strict=False)) | kwargs
            raise NonFiniteError(
                f"{_kind(bad)} in the loss {loss.name!r}{self._at_step}.\n{_described(inputs)}"
                + (
                    "What it is given is finite. Does it expect probabilities and get logits (`from_logits=True`), or "
                    "take a logarithm of or divide by a value that may be 0?"
                    if all(_is_finite(tensor) for tensor in _float_tensors(inputs))
                    else "What it is given is not finite: look at the labels or weights above."
                )
            )
        return value

    def apply(
        self,
        original: Callable[..., Any],
        optimizer: Any,
        grads: Iterable[Any],
        trainable_variables: Iterable[Any] | None = None,
    ) -> Any:
        grads = list(grads)
        variables = None if trainable_variables is None else list(trainable_variables)
        if not tf.executing_eagerly():
            return original(optimizer, grads, variables)
        names = [f"number {index}" for index in range(len(grads))] if variables is None else _paths(variables)
        self._step = _iterations(optimizer) + 1
        found = {name: grad for name, grad in zip(names, grads, strict=True) if not _all_finite(grad)}
        if found:
            raise NonFiniteError(
                f"{_kind(found.values())} in the gradients of {len(found)} of {len(grads)} weights{self._at_step}: "
                f"{_shortened(found)}.\n{_described(found)}"
                "Outputs and losses were finite; the derivative is not. Look at the layer of the last weight that is "
                "listed first, and at what follows it: a square root, norm or power at 0, a logarithm or division near "
                "0, a regularizer or an `add_loss`."
            )
        result = original(optimizer, grads, variables)
        # The slots are not looked at: what is wrong in them shows in the weights.
        updated = dict(zip(names, map(tf.convert_to_tensor, variables or ()), strict=False))
        found = {name: weight for name, weight in updated.items() if not _all_finite(weight)}
        if found:
            raise NonFiniteError(
                f"{_kind(found.values())} in {len(found)} of {len(grads)} weights after the update{self._at_step}: "
                f"{_shortened(found)}.\n{_described(found)}"
                "Their gradients were finite: the learning rate is too high, or the optimizer divides by 0 (epsilon)."
            )
        return result

    @property
    def _at_step(self) -> str:
        return "" if self._step is None else f" at step {self._step} of the optimizer"

    def _about_outputs(self, operation: Any, path: str, args: Any, kwargs: Any, bad: list[tf.Tensor]) -> str:
        numbered = {f"input[{index}]": value for index, value in enumerate(args)}
        inputs = {**({"input": args[0]} if len(args) == 1 else numbered), **kwargs}
        weights = dict(zip(_paths(weights := getattr(operation, "weights", [])), weights, strict=True))
        weights = {name: tf.convert_to_tensor(weight) for name, weight in weights.items()}
        bad_weights = {name: weight for name, weight in weights.items() if not _all_finite(weight)}
        outermost, outermost_inputs = self._calls.stack[0]
        if bad_weights:
            cause = (
                f"Its weights are not finite: {_shortened(bad_weights)}. They were so before this call: an update of "
                "theirs was too large, or they were loaded so."
            )
        elif all(_is_finite(tensor) for tensor in _float_tensors(inputs)):
            cause = (
                "What went in is finite, and so are its weights: it arises here. Look for a logarithm, a division, a "
                "square root or an exponential."
            )
        elif not all(_is_finite(tensor) for tensor in _float_tensors(outermost_inputs)):
            cause = f"The batch itself, as it was given to {outermost.name!r}, is not finite: look at the data."
        else:
            cause = (
                "What went in is not finite, though the batch is, and the output of each layer before: it arises in "
                "an operation between layers, in the `call` around this one."
            )
        return (
            f"{_kind(bad)} in the output of {path!r} ({type(operation).__name__}){self._at_step}.\n"
            f"{_described({'output': bad[0], **inputs, **weights})}{cause}"
        )


def _gradients_checked(structure: Any, message: Callable[[str], str]) -> Any:
    return keras.tree.map_structure(lambda leaf: _gradient_checked(leaf, message), structure)


def _gradient_checked(value: Any, message: Callable[[str], str]) -> Any:
    """The same tensor, whose gradient is looked at when it comes back through it."""
    if not _is_float_tensor(value):
        return value

    @tf.custom_gradient
    def same(tensor: tf.Tensor) -> Any:
        def grad(upstream: Any) -> Any:
            if tf.executing_eagerly() and not _all_finite(upstream):
                raise NonFiniteError(message(f"{_kind([upstream])} ({_summary(upstream)})"))
            return upstream

        return tf.identity(tensor), grad

    passed = same(value)
    # Keras keeps a mask as an attribute of the tensor itself, in this name since 3.0.
    mask = getattr(value, "_keras_mask", None)
    if mask is not None:
        passed._keras_mask = mask
    return passed


def _is_float_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and hasattr(value, "numpy") and value.dtype.is_floating


def _float_tensors(structure: Any) -> list[tf.Tensor]:
    return [leaf for leaf in keras.tree.flatten(structure) if _is_float_tensor(leaf)]


def _is_finite(tensor: tf.Tensor) -> bool:
    return bool(tf.reduce_all(tf.math.is_finite(tensor)))


def _iterations(optimizer: Any) -> int:
    # As a tensor, since under a strategy the variable is one of each replica, and no number.
    return int(tf.convert_to_tensor(optimizer.iterations))


def _values(gradient: Any) -> Any:
    """The numbers of a gradient, which may be those of some rows only, or None."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _all_finite(gradient: Any) -> bool:
    values = _values(gradient)
    return not _is_float_tensor(values) or _is_finite(values)


def _array(tensor: Any) -> np.ndarray:
    return tf.cast(_values(tensor), tf.float64).numpy()


def _kind(tensors: Iterable[Any]) -> str:
    arrays = [_array(tensor) for tensor in tensors]
    kinds = [
        name
        for name, is_kind in (("NaN", np.isnan), ("Inf", np.isinf))
        if any(is_kind(array).any() for array in arrays)
    ]
    return " and ".join(kinds)


def _summary(tensor: Any) -> str:
    array = _array(tensor)
    finite = array[np.isfinite(array)]
    spread = f"from {finite.min():.6g} to {finite.max():.6g}" if finite.size else "none"
    if finite.size == array.size:
        return f"{_values(tensor).dtype.name} {array.shape}, all finite, {spread}"
    return (
        f"{_values(tensor).dtype.name} {array.shape}, {np.isnan(array).sum()} NaN and {np.isinf(array).sum()} Inf of "
        f"{array.size}, finite values {spread}"
    )


def _described(parts: dict[str, Any]) -> str:
    """A line for each float tensor in structures of them, by name."""
    return "".join(
        f"  {name}{''.join(f'[{key!r}]' for key in path)}: {_summary(leaf)}\n"
        for name, part in parts.items()
        for path, leaf in keras.tree.flatten_with_path(part)
        if _is_float_tensor(_values(leaf))
    )


def _paths(variables: Iterable[Any]) -> list[str]:
    return [getattr(variable, "path", variable.name) for variable in variables]


def _shortened(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join([*names[:4], *([f"and {len(names) - 4} more"] if len(names) > 4 else [])])
