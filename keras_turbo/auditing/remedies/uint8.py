"""The remedy for images that come as floats: uint8 up to the model, which normalizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.auditing.bench import Bench
from keras_turbo.auditing.remedies.copies import compile_alike, why_not_copyable
from keras_turbo.auditing.remedies.remedy import Remedy, does_not_apply, not_measured
from keras_turbo.execution.race import short_reason
from keras_turbo.execution.sample import RepeatedStack

_CHANNELS = (1, 3, 4)
_LEVELS = 255
# A float32 that was made of a level by one multiplication is within this of it.
_ROUNDING = 1e-3


def uint8_input(bench: Bench) -> Remedy:
    """Images as uint8, normalized in the model."""
    name, sample = "uint8 input", bench.sample
    spec = sample.element_spec
    image_spec = spec[0] if isinstance(spec, tuple) else spec
    if not isinstance(image_spec, tf.TensorSpec) or not _is_image(image_spec):
        return does_not_apply(name, "the input is no batch of images")
    if not image_spec.dtype.is_floating:
        return does_not_apply(name, f"the images come as {image_spec.dtype.name} already")
    batch = sample.first_batch
    images = (batch[0] if isinstance(batch, tuple) else batch).numpy()
    scale = _scale_of(images)
    if scale is None:
        return does_not_apply(
            name,
            "the floats are no multiples of 1/255 or whole numbers up to 255, so that uint8 could not hold them; where "
            "the pipeline standardizes images, move that into the model (keras.layers.Normalization)",
        )
    code = "inputs = keras.Input(shape, dtype='uint8')  # and no cast and no division in the pipeline\n" + (
        "x = keras.layers.Rescaling(1 / 255)(inputs)" if scale != 1.0 else "x = keras.ops.cast(inputs, 'float32')"
    )
    reason = why_not_copyable(bench.model) or ("batches differ in shape" if sample.stack is None else None)
    if reason is not None:
        return not_measured(name, reason, code)
    try:
        model = _normalizing(bench.model, image_spec, scale)
    except Exception as error:  # whatever a user's layers raise
        return not_measured(name, f"the model can't be put behind a Rescaling: {short_reason(error)}", code)
    run, before = _runs(bench, model, scale)
    return bench.compare(
        name,
        run,
        measured="fit of the model behind a Rescaling, on the same batches as uint8",
        changes="nothing: the same numbers reach the model",
        code=code,
        reason=f"a batch takes {_megabytes(images.size)} MB in place of {_megabytes(images.nbytes)} MB, in a cache too",
        before=before,
    )


def _runs(bench: Bench, model: keras.Model, scale: float) -> tuple[Callable, Callable]:
    """Runs on batches that are ready, as uint8 and as they come."""
    sample = bench.sample
    element_spec: Any = sample.element_spec
    has_more = isinstance(element_spec, tuple)
    stack = sample.stack
    images = tf.cast(tf.round((stack[0] if has_more else stack) / scale), tf.uint8)
    spec = element_spec[0] if has_more else element_spec
    levels_spec = tf.TensorSpec(spec.shape, tf.uint8)
    levels = ((images, *stack[1:]), (levels_spec, *element_spec[1:])) if has_more else (images, levels_spec)

    def run(model: keras.Model, stack: Any, spec: Any) -> Any:
        steps = bench.steps_of(bench.parts.ready_ms if bench.parts is not None else bench.baseline_ms[-1])
        return bench.turn({"x": RepeatedStack(stack, spec, steps)}, model=model, num_batches=None, with_callbacks=False)

    return (lambda: run(model, *levels)), (lambda: run(bench.model, stack, sample.element_spec))


def _normalizing(model: keras.Model, spec: tf.TensorSpec, scale: float) -> keras.Model:
    inputs = keras.Input(spec.shape[1:], dtype="uint8")
    normalizing = keras.Model(inputs, model(keras.layers.Rescaling(scale)(inputs)))
    compile_alike(normalizing, model)
    return normalizing


def _is_image(spec: tf.TensorSpec) -> bool:
    if spec.shape.rank != 4:
        return False
    channels = spec.shape[-1] if keras.config.image_data_format() == "channels_last" else spec.shape[1]
    return channels in _CHANNELS


def _scale_of(images: np.ndarray) -> float | None:
    """What a level of 0 to 255 was multiplied by; None where the images are no such levels."""
    largest = float(images.max(initial=0))
    if images.min(initial=0) < 0 or largest > _LEVELS:
        return None
    scale = 1.0 if largest > 1.0 else 1 / _LEVELS
    levels = images.astype("float64") / scale
    return scale if float(np.abs(levels - np.round(levels)).max(initial=0)) < _ROUNDING * _LEVELS else None


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.3g}"
