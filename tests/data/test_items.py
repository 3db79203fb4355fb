"""What users' Python code returns, and how it goes from one process to another."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from multiprocessing.reduction import recv_handle

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo.data.engine.elements import Elements
from keras_turbo.data.workers.form import Form
from keras_turbo.data.workers.item_maker import ItemError, Made, flatten
from keras_turbo.data.workers.messages import Pickled, mapped
from keras_turbo.data.workers.transfer import TransferredObject


def form_of(*specs, is_declared=False):
    return Form(Elements(specs if len(specs) > 1 else specs[0]), is_declared=is_declared)


def sent(value):
    """What arrives at the other end of a connection."""
    ours, its = multiprocessing.Pipe()
    with ours, its:
        message = Pickled(value)
        memory = message.written_to(None)
        sending = threading.Thread(target=message.send, args=(ours, ("head",), memory))
        sending.start()
        head, stream, places = its.recv()
        assert head == "head"
        buffers = []
        if places:
            received = np.frombuffer(mapped(recv_handle(its), places[-1][1], private=False), np.uint8)
            buffers = [received[begin:end] for begin, end in places]
        sending.join()
        return pickle.loads(stream, buffers=buffers)


def test_all_types_come_out_as_they_went_in():
    item = {
        "bool": np.array([True, False]),
        "uint8": np.array([[0, 255]], np.uint8),
        "int64": np.array(-(2**62)),
        "complex": np.array([1 + 2j]),
        "empty": np.zeros((0, 3), np.int16),
        "large": np.arange(100_000.0, dtype=np.float32).reshape(10, -1),
        "column by column": np.asfortranarray(np.arange(40_000).reshape(200, 200)),
        "every other": np.arange(200_000)[::2],
        "bfloat16": np.ones((300, 200), ml_dtypes.bfloat16),
        "text": np.array(["a", "äö"]),
    }
    structure, leaves = flatten(item)
    arrays = dict(zip(structure, sent(leaves), strict=True))
    assert arrays.pop("text").tolist() == [b"a", "äö".encode()]
    for name, array in arrays.items():
        assert array.dtype == item[name].dtype
        np.testing.assert_array_equal(array, item[name])


def test_large_arrays_lie_aligned_in_memory():
    arrays = sent([np.zeros(70_001, np.uint8), np.zeros(70_003, np.uint8)])
    assert [array.ctypes.data % 64 for array in arrays] == [0, 0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_become_the_agreed_type(dtype):
    made = Made({0: flatten(np.arange(6, dtype=dtype)[::2])}, {})
    ((array,),), failures = form_of(tf.TensorSpec([None], tf.float32)).columns(made, 1)
    assert array.dtype == np.float32
    assert array.tolist() == [0, 2, 4]
    assert failures == {}


def test_items_are_stacked_in_order_and_failures_told():
    items = {k: flatten((np.full((2, 2), k, np.uint8), k, f"n{k}")) for k in (0, 2, 3)}
    items[3] = flatten((np.full((2, 3), 3, np.uint8), 3, "n3"))
    form = form_of(tf.TensorSpec([2, 2], tf.uint8), tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string))
    (x, y, text), failures = form.columns(Made(items, {1: ("ValueError: one", "its traceback")}), 4)
    assert [x[k].tolist() for k in (0, 2)] == [[[k, k], [k, k]] for k in (0, 2)]
    assert [y.tolist(), text.tolist()] == [[0, 0, 2, 0], [b"n0", b"", b"n2", b""]]
    assert {index: str(error)[:20] for index, error in failures.items()} == {
        1: "ValueError: one",
        3: "array 1 of 3 has the",
    }
    assert failures[1].details == "its traceback"


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ((np.zeros(1), {"b": 1, "a": (2,)}), "(array, {'a': (array,), 'b': array})"),
        ([np.zeros(1), np.zeros(2)], "(array, array)"),
        ([1.0, 2.0, 3.0], "array"),
        ((np.zeros(1), np.zeros(1), None), "(array, array)"),
    ],
)
def test_structures(item, text):
    assert str(flatten(item)[0]).replace("'array'", "array") == text


def test_integers_may_be_smaller_but_not_larger():
    form = form_of(tf.TensorSpec([2], tf.int32))
    form.check(*flatten(np.zeros(2, np.int8)))
    with pytest.raises(ItemError, match="has the type int64, where the first had int32"):
        form.check(*flatten(np.zeros(2, np.int64)))


def test_what_is_declared_takes_numbers_that_fit():
    form = form_of(tf.TensorSpec([2], tf.int8), tf.TensorSpec([2], tf.float32), is_declared=True)
    form.check(*flatten((np.array([-128, 127]), np.array([1, 2]))))
    with pytest.raises(ItemError, match="has the type int64, where `element_spec` says int8"):
        form.check(*flatten((np.array([0, 128]), np.array([1, 2]))))
    with pytest.raises(ItemError, match="has the type float64, where `element_spec` says int8"):
        form.check(*flatten((np.array([0.0, 1.0]), np.array([1, 2]))))


@pytest.mark.parametrize("item", [np.array(["2020-01-01"], "datetime64[D]"), object(), {1, 2}, np.array([{}])])
def test_what_is_no_array_is_refused(item):
    with pytest.raises(ItemError):
        flatten(item)


def test_a_change_of_an_object_is_told_by_its_digest():
    array = np.arange(100_000)
    before = TransferredObject({"array": array, "empty": np.zeros(0)}, "data").digest
    assert TransferredObject({"array": array, "empty": np.zeros(0)}, "data").digest == before
    array[50_000] += 1
    assert TransferredObject({"array": array, "empty": np.zeros(0)}, "data").digest != before
