"""What users' Python code returns, and how it goes from one process to another."""

from __future__ import annotations

import multiprocessing
import pickle
from multiprocessing.reduction import recv_handle

import ml_dtypes
import numpy as np
import pytest

from keras_turbo.data.workers.items import Form, ItemError, flatten, leaf_of, written
from keras_turbo.data.workers.messages import Memory, Pickled, mapped
from keras_turbo.data.workers.transfer import TransferredObject


def form_of(item, *, are_batches=False, is_declared=False):
    structure, leaves = flatten(item, is_batch=are_batches)
    return Form(structure, [leaf_of(leaf, np.dtype("float32")) for leaf in leaves], are_batches, is_declared)


def columns_of(items):
    return form_of(items[0]).columns([flatten(item)[1] for item in items])


def sent(value):
    """What arrives at the other end of a connection."""
    ours, its = multiprocessing.Pipe()
    with ours, its:
        message, memory = Pickled(value), None
        if message.num_bytes:
            memory = Memory(message.num_bytes)
            message.write(memory)
        message.send(ours, ("head",), memory)
        head, stream, places = its.recv()
        assert head == "head"
        buffers = []
        if places:
            received = np.frombuffer(mapped(recv_handle(its), places[-1][1], private=False), np.uint8)
            buffers = [received[begin:end] for begin, end in places]
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
        "bfloat16": np.ones((300, 200), ml_dtypes.bfloat16),
        "text": np.array(["a", "äö"]),
    }
    structure, leaves = flatten(item)
    form = Form(structure, [(leaf.dtype, leaf.shape) for leaf in leaves], are_batches=False, is_declared=False)
    arrays = dict(zip(sorted(item), sent(form.columns([leaves])), strict=True))
    assert arrays.pop("text").tolist() == [[b"a", "äö".encode()]]
    for name, (array,) in arrays.items():
        assert array.dtype == item[name].dtype
        np.testing.assert_array_equal(array, item[name])


def test_large_arrays_lie_aligned_in_memory():
    arrays = sent([np.zeros(70_001, np.uint8), np.zeros(70_003, np.uint8)])
    assert [array.ctypes.data % 64 for array in arrays] == [0, 0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_become_the_agreed_type(dtype):
    ((array,),) = columns_of([np.arange(6, dtype=dtype)[::2]])
    assert array.dtype == np.float32
    assert array.tolist() == [0, 2, 4]


def test_items_are_stacked_in_order():
    x, y, text = columns_of([(np.full((2, 2), k, np.uint8), k, f"n{k}") for k in range(3)])
    assert x.tolist() == [[[k, k], [k, k]] for k in range(3)]
    assert y.tolist() == [0, 1, 2]
    assert text.tolist() == [b"n0", b"n1", b"n2"]
    assert {type(one) for one in text} == {bytes}


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
    assert written(flatten(item)[0]) == text


def test_integers_may_be_smaller_but_not_larger():
    form = form_of(np.zeros(2, np.int32))
    form.check(*flatten(np.zeros(2, np.int8)))
    with pytest.raises(ItemError, match="has the type int64, where the first had int32"):
        form.check(*flatten(np.zeros(2, np.int64)))


def test_what_is_declared_takes_numbers_that_fit():
    form = form_of((np.zeros(2, np.int8), np.zeros(2, np.float32)), is_declared=True)
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
