"""What is written to a store is what is gathered from it, to the byte, for every type that it takes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo.data.engine.disk_store import private_disk_store
from keras_turbo.data.engine.elements import Elements
from keras_turbo.data.engine.store import ExampleStore, memory_store, why_not_storable

NUM_EXAMPLES = 5
DTYPES = [
    tf.bool,
    tf.uint8,
    tf.uint16,
    tf.uint32,
    tf.uint64,
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
    tf.complex64,
    tf.complex128,
]


@pytest.fixture(params=["memory", "disk"])
def make_store(request, tmp_path):
    """Makes an empty store in memory, or one on disk."""
    if request.param == "memory":
        return lambda spec, num_examples: memory_store(Elements(spec), num_examples)
    return lambda spec, num_examples: private_disk_store(Elements(spec), num_examples, tmp_path)


def examples_of(dtype: tf.DType, shape: tuple[int, ...] = (2, 3)) -> np.ndarray:
    """Different values for each example, negative ones where the type has them."""
    numbers = np.arange(NUM_EXAMPLES * int(np.prod(shape))).reshape(NUM_EXAMPLES, *shape) - 7
    return (numbers % 2 if dtype == tf.bool else numbers).astype(dtype.as_numpy_dtype)


def fill(store: ExampleStore, positions: list[int], *examples: np.ndarray) -> None:
    store.put(np.array(positions), [column[positions] for column in examples])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)], ids=["scalar", "2x3", "nothing"])
def test_each_type_comes_back(make_store, dtype, shape):
    examples = examples_of(dtype, shape)
    store = make_store(tf.TensorSpec(shape, dtype), NUM_EXAMPLES)
    fill(store, [3, 0, 4], examples)
    fill(store, [1, 2], examples)
    order = np.array([4, 0, 3, 3, 1, 2])
    (gathered,) = store.gather(order, None)
    assert gathered.dtype == dtype.as_numpy_dtype
    np.testing.assert_array_equal(gathered, examples[order])
    (out,) = store.gather(order, [np.empty_like(gathered)])
    np.testing.assert_array_equal(out, gathered)


def test_bits_of_special_numbers_are_kept(make_store):
    values = np.array([float("nan"), float("inf"), -0.0, 1e-40, 3.0], "float32")
    store = make_store(tf.TensorSpec((), tf.float32), NUM_EXAMPLES)
    fill(store, list(range(5)), values)
    assert store.gather(np.arange(5), None)[0].tobytes() == values.tobytes()


def test_what_is_written_in_place(make_store):
    spec = {"image": tf.TensorSpec((2, 3), tf.uint8), "size": tf.TensorSpec((), tf.int32)}
    store = make_store(spec, NUM_EXAMPLES)
    for (image, size), number in zip(store.rows(np.array([4, 1])), (7, 8), strict=True):
        image[...] = number
        size[...] = -number
    assert store.num_filled == 0
    store.mark(np.array([4, 1]))
    assert store.has(np.arange(5)).tolist() == [False, True, False, False, True]
    images, sizes = store.gather(np.array([1, 4]), None)
    assert sizes.tolist() == [-8, -7]
    assert images[:, 0, 0].tolist() == [8, 7]


def test_its_size_is_known_beforehand(make_store):
    spec = (tf.TensorSpec((8, 8, 3), tf.uint8), tf.TensorSpec((), tf.int32), tf.TensorSpec((2,), tf.bfloat16))
    assert Elements(spec).row_bytes == 8 * 8 * 3 + 4 + 4
    store = make_store(spec, 10)
    assert store.num_bytes == 10 * Elements(spec).row_bytes
    assert len(store) == 10


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (tf.TensorSpec((None, 8, 3), tf.uint8), r"shape \(None, 8, 3\), which differs from example to example"),
        (tf.TensorSpec((), tf.string), "type string"),
        (tf.TensorSpec((), tf.qint8), "type qint8"),
        (tf.TensorSpec((), tf.dtypes.experimental.float8_e5m2), "type float8_e5m2"),
        (tf.TensorSpec((), tf.variant), "type variant"),
        (({"a": tf.TensorSpec((2,), tf.int32)}, tf.TensorSpec((), tf.string)), "type string"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_told(spec, why):
    reason = why_not_storable(Elements(spec))
    assert reason is not None
    assert re.search(why, reason)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_what_can_be_kept_has_no_obstacle(dtype):
    assert why_not_storable(Elements((tf.TensorSpec((2,), dtype), {"a": tf.TensorSpec((), dtype)}))) is None
