"""What is written to a store is what is gathered from it, to the byte, for every type that it takes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo.data.disk_store import private_disk_store
from keras_turbo.data.example_store import (
    ExampleStore,
    bytes_per_example,
    fits_in_memory,
    leaf_formats,
    memory_store,
    why_not_storable,
)

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
        return memory_store
    return lambda spec, num_examples: private_disk_store(spec, num_examples, tmp_path)


def examples_of(dtype: tf.DType, shape: tuple[int, ...] = (2, 3)) -> tf.Tensor:
    """Different values for each example, negative ones where the type has them."""
    numbers = tf.reshape(tf.range(NUM_EXAMPLES * int(np.prod(shape))), (NUM_EXAMPLES, *shape)) - 7
    return tf.cast(numbers % 2 if dtype == tf.bool else numbers, dtype)


def fill(store: ExampleStore, positions: list[int], examples) -> None:
    batch = tf.nest.map_structure(lambda tensor: tf.gather(tensor, positions), examples)
    store.write_in_graph(tf.constant(positions, tf.int64), batch)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)], ids=["scalar", "2x3", "nothing"])
def test_each_type_comes_back(make_store, dtype, shape):
    examples = examples_of(dtype, shape)
    store = make_store(tf.TensorSpec(shape, dtype), NUM_EXAMPLES)
    fill(store, [3, 0, 4], examples)
    fill(store, [1, 2], examples)
    order = [4, 0, 3, 3, 1, 2]
    gathered = store.gather(tf.constant(order, tf.int64))
    assert gathered.dtype == dtype
    np.testing.assert_array_equal(gathered.numpy(), tf.gather(examples, order).numpy())


def test_bits_of_special_numbers_are_kept(make_store):
    values = [float("nan"), float("inf"), -0.0, 1e-40, 3.0]
    store = make_store(tf.TensorSpec((), tf.float32), NUM_EXAMPLES)
    fill(store, list(range(5)), tf.constant(values))
    assert store.gather(tf.range(5, dtype=tf.int64)).numpy().tobytes() == np.array(values, "float32").tobytes()


def test_nested_structures(make_store):
    examples = (
        {"image": examples_of(tf.uint8), "size": examples_of(tf.int32, ())},
        (examples_of(tf.bfloat16, (1,)), examples_of(tf.bool, ())),
    )
    spec = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape[1:], tensor.dtype), examples)
    store = make_store(spec, NUM_EXAMPLES)
    fill(store, [4, 3, 2, 1, 0], examples)
    gathered = store.gather(tf.constant([2, 0], tf.int64))
    tf.nest.assert_same_structure(gathered, examples)
    for ours, theirs in zip(tf.nest.flatten(gathered), tf.nest.flatten(examples), strict=True):
        np.testing.assert_array_equal(ours.numpy(), tf.gather(theirs, [2, 0]).numpy())


def test_positions_of_any_shape(make_store):
    examples = examples_of(tf.int32)
    store = make_store(tf.TensorSpec((2, 3), tf.int32), NUM_EXAMPLES)
    fill(store, list(range(5)), examples)
    assert store.gather(tf.constant(2, tf.int64)).numpy().tolist() == examples[2].numpy().tolist()
    positions = tf.constant([[0, 4], [1, 1]], tf.int64)
    np.testing.assert_array_equal(store.gather(positions).numpy(), tf.gather(examples, positions).numpy())


def test_what_is_filled_is_seen_at_once(make_store):
    """Graphs hold a view of the marks and of the data, not a copy."""
    examples = examples_of(tf.float32)
    store = make_store(tf.TensorSpec((2, 3), tf.float32), NUM_EXAMPLES)

    @tf.function
    def marks_and_row():
        return tf.identity(store.filled_view), store.gather(tf.constant([1], tf.int64))

    before, _ = marks_and_row()
    assert not before.numpy().any()
    assert store.num_filled == 0
    fill(store, [1, 4], examples)
    marks, row = marks_and_row()
    assert marks.numpy().tolist() == [False, True, False, False, True]
    assert store.num_filled == 2
    np.testing.assert_array_equal(row[0].numpy(), examples[1].numpy())


def test_its_size_is_known_beforehand(make_store):
    spec = (tf.TensorSpec((8, 8, 3), tf.uint8), tf.TensorSpec((), tf.int32), tf.TensorSpec((2,), tf.bfloat16))
    assert bytes_per_example(spec) == 8 * 8 * 3 + 4 + 4
    store = make_store(spec, 10)
    assert store.num_bytes == 10 * bytes_per_example(spec)
    assert store.num_examples == 10


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (tf.TensorSpec((None, 8, 3), tf.uint8), r"shape \(None, 8, 3\), which differs from example to example"),
        (tf.TensorSpec(None, tf.uint8), "shape <unknown>"),
        (tf.TensorSpec((), tf.string), "type string"),
        (tf.TensorSpec((), tf.qint8), "type qint8"),
        (tf.TensorSpec((), tf.dtypes.experimental.float8_e5m2), "type float8_e5m2"),
        (tf.TensorSpec((), tf.variant), "type variant"),
        (tf.RaggedTensorSpec((None,), tf.int32), "holds a RaggedTensorSpec"),
        (tf.SparseTensorSpec((3,), tf.int32), "holds a SparseTensorSpec"),
        (({"a": tf.TensorSpec((2,), tf.int32)}, tf.TensorSpec((), tf.string)), "type string"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_told(spec, why):
    reason = why_not_storable(spec)
    assert reason is not None
    assert re.search(why, reason)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_what_can_be_kept_has_no_obstacle(dtype):
    assert why_not_storable((tf.TensorSpec((2,), dtype), {"a": tf.TensorSpec((), dtype)})) is None


def test_formats_name_what_is_kept():
    formats = leaf_formats({"b": tf.TensorSpec((3,), tf.bfloat16), "a": tf.TensorSpec((), tf.float64)})
    assert [(leaf.shape, leaf.dtype, leaf.stored_dtype, leaf.num_bytes) for leaf in formats] == [
        ((), tf.float64, np.dtype("float64"), 8),
        ((3,), tf.bfloat16, np.dtype("uint16"), 6),
    ]


def test_a_store_may_take_half_of_what_is_free(monkeypatch):
    monkeypatch.setattr("keras_turbo.data.example_store.free_memory_bytes", lambda: 100_000_000)
    assert fits_in_memory(50_000_000)
    assert not fits_in_memory(50_000_000 + 1)
