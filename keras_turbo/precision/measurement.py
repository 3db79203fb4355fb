"""Whether half precision is faster than float32 on this machine, measured."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# A batch through two layers of usual width, and through two convolutions of few channels, forward and backward: small
# sizes, where half precision gains least, and of which some tens of rounds fit into half a second on two cores.
_MATRIX = 512
_IMAGE = (8, 28, 28, 32)

_BUDGET_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class HalfPrecisionSpeed:
    """How many times as fast as float32 a half-precision dtype is; above 1 it is faster.

    Attributes:
        dtype: "float16" or "bfloat16".
        matrix_products: for a product of matrices, its gradients and the casts that mixed precision adds.
        convolutions: for a convolution, likewise.
    """

    dtype: str
    matrix_products: float
    convolutions: float

    @property
    def gains(self) -> bool:
        """Whether matrix products gain a tenth at least, and convolutions lose nothing but noise."""
        return self.matrix_products >= 1.1 and self.convolutions >= 0.95

    def __str__(self) -> str:
        return (
            f"measured here, {self.dtype} is {self.matrix_products:.2f} times as fast as float32 in matrix products "
            f"and {self.convolutions:.2f} times in convolutions"
        )


@functools.cache
def half_precision_speed(dtype: str, device: str = "CPU:0") -> HalfPrecisionSpeed:
    """Measures for half a second whether a dtype is faster than float32, in turn; once in a process.

    A processor that has the instructions may still be slower with them: convolutions and small products go through
    other code, and each layer casts its weights. TensorFlow's runtime starts with it.

    Args:
        dtype: "float16" or "bfloat16".
        device: of TensorFlow. Default: the first CPU.

    Returns:
        The two ratios.
    """
    with tf.device(device):
        products = _ratio(_matrix_step, dtype, _BUDGET_SECONDS / 2)
        convolutions = _ratio(_convolution_step, dtype, _BUDGET_SECONDS / 2)
    return HalfPrecisionSpeed(dtype, products, convolutions)


def _matrix_step(dtype: str) -> Callable[[], Any]:
    return _step([_MATRIX // 2, _MATRIX], [_MATRIX, _MATRIX], tf.matmul, dtype)


def _convolution_step(dtype: str) -> Callable[[], Any]:
    channels = _IMAGE[-1]
    return _step(_IMAGE, [3, 3, channels, channels], lambda x, kernel: tf.nn.conv2d(x, kernel, 1, "SAME"), dtype)


def _step(
    input_shape: Sequence[int], kernel_shape: Sequence[int], operation: Callable[..., Any], dtype: str
) -> Callable[[], Any]:
    """A forward and a backward pass through two layers of the operation."""
    inputs = tf.random.stateless_normal(input_shape, (0, 1))
    kernel = tf.random.stateless_normal(kernel_shape, (0, 2)) / kernel_shape[-1] ** 0.5

    @tf.function
    def step() -> Any:
        hidden = tf.cast(inputs, dtype)
        with tf.GradientTape() as tape:
            # No variable, which would belong to a strategy that is open.
            tape.watch(kernel)
            for _ in range(2):
                hidden = tf.nn.relu(operation(hidden, tf.cast(kernel, dtype)))
            loss = tf.reduce_sum(tf.cast(hidden, tf.float32))
        return tape.gradient(loss, kernel)

    return step


def _ratio(make_step: Callable[[str], Callable[[], Any]], dtype: str, seconds: float) -> float:
    steps = [make_step("float32"), make_step(dtype)]
    for step in steps:
        step().numpy()  # traced and warm
    ratios = []
    deadline = time.perf_counter() + seconds
    while not ratios or time.perf_counter() < deadline:
        times = []
        for step in steps:
            begun_at = time.perf_counter()
            step().numpy()
            times.append(time.perf_counter() - begun_at)
        ratios.append(times[0] / times[1])
    return statistics.median(ratios)
