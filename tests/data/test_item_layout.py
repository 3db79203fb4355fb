"""What users' Python code returns, as arrays side by side in memory."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from keras_turbo.data.worker_pool.keras_turbo_worker.item_layout import (
    ItemError,
    check,
    described,
    flatten,
    leaf_of,
    pack,
    unpack,
)
from keras_turbo.data.worker_pool.keras_turbo_worker.memory import Slot
from keras_turbo.data.worker_pool.object_transfer import transferred


def wanted_of(item, *, are_batches=False):
    structure, leaves = flatten(item, is_batch=are_batches)
    return structure, [leaf_of(leaf, "float32") for leaf in leaves], are_batches


def through_memory(items, *, stacked):
    wanted = wanted_of(items[0])
    room = bytearray(4096)
    places = pack([flatten(item)[1] for item in items], wanted[1], stacked, lambda size: memoryview(room)[:size])
    return [array.copy() for array in unpack(places, memoryview(room))]


def test_all_types_come_out_as_they_went_in():
    item = {
        "bool": np.array([True, False]),
        "uint8": np.array([[0, 255]], np.uint8),
        "int64": np.array(-(2**62)),
        "complex": np.array([1 + 2j]),
        "empty": np.zeros((0, 3), np.int16),
        "text": np.array(["a", "äö"]),
    }
    arrays = dict(zip(sorted(item), through_memory([item], stacked=False), strict=True))
    assert arrays.pop("text").tolist() == [b"a", "äö".encode()]
    for name, array in arrays.items():
        assert array.dtype == item[name].dtype
        np.testing.assert_array_equal(array, item[name])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_become_the_agreed_type(dtype):
    (array,) = through_memory([np.arange(6, dtype=dtype)[::2]], stacked=False)
    assert array.dtype == np.float32
    assert array.tolist() == [0, 2, 4]


def test_items_are_stacked_in_order():
    x, y, text = through_memory([(np.full((2, 2), k, np.uint8), k, f"n{k}") for k in range(3)], stacked=True)
    assert x.tolist() == [[[k, k], [k, k]] for k in range(3)]
    assert y.tolist() == [0, 1, 2]
    assert text.tolist() == [b"n0", b"n1", b"n2"]
    assert {type(one) for one in text} == {bytes}


def test_arrays_are_aligned():
    room = bytearray(4096)
    items = [flatten((np.zeros(3, np.uint8), np.zeros(5, np.uint8)))[1]]
    places = pack(items, [("|u1", (3,)), ("|u1", (5,))], False, lambda size: room)
    assert [place[2] % 64 for place in places] == [0, 0]
    assert places[0][2] != places[1][2]


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
    assert described(flatten(item)[0]) == text


def test_integers_may_be_smaller_but_not_larger():
    wanted = wanted_of(np.zeros(2, np.int32))
    check(*flatten(np.zeros(2, np.int8)), wanted)
    with pytest.raises(ItemError, match="has the type int64, where the first had int32"):
        check(*flatten(np.zeros(2, np.int64)), wanted)


@pytest.mark.parametrize("item", [np.array(["2020-01-01"], "datetime64[D]"), object(), {1, 2}, np.array([{}])])
def test_what_is_no_array_is_refused(item):
    with pytest.raises(ItemError):
        flatten(item)


def test_a_slot_grows_and_tells_of_new_memory_once():
    slot = Slot()
    slot.room(10)[:3] = b"abc"
    first = slot.take_descriptor()
    with mmap.mmap(first, 10) as memory:
        assert memory[:3] == b"abc"
    slot.room(5)
    assert slot.take_descriptor() is None
    slot.room(5000)
    second = slot.take_descriptor()
    assert os.fstat(second).st_size == 5000
    os.close(first)
    os.close(second)


def test_large_arrays_are_beside_the_pickle_and_a_change_is_told_by_the_digest():
    array = np.arange(100_000)
    before = transferred({"array": array, "empty": np.zeros(0)}, "data")
    assert len(before.stream) < 1000
    places, descriptor = before.in_shared_memory()
    with mmap.mmap(descriptor, 0) as memory:
        offset, size = places[0]
        assert memory[offset : offset + size] == array.tobytes()
    os.close(descriptor)
    assert transferred({"array": array, "empty": np.zeros(0)}, "data").digest == before.digest
    array[50_000] += 1
    assert transferred({"array": array, "empty": np.zeros(0)}, "data").digest != before.digest
