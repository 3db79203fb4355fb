"""Memory that is lent to TensorFlow is used again when nobody holds it, and never before."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.engine.slots import Slots, aligned_empty
from tests.data.noise_images import write_images


def address_of(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.bool_, np.complex128])
@pytest.mark.parametrize("shape", [(), (3,), (5, 7, 3), (0, 4)])
def test_arrays_are_aligned(shape, dtype):
    array = aligned_empty(shape, dtype)
    assert array.shape == shape
    assert array.dtype == dtype
    assert array.size == 0 or address_of(array) % 64 == 0


class TestSlots:
    def test_what_is_gone_is_lent_again(self):
        slots = Slots(8, (3,), np.dtype("float32"))
        first = slots.lend((8,))
        address = address_of(first)
        second = slots.lend((8,))
        assert address_of(second) != address
        del first
        assert address_of(slots.lend((2, 4))) == address

    def test_of_any_leading_shape(self):
        slots = Slots(8, (3, 2), np.dtype("int32"))
        assert slots.lend((2, 4)).shape == (2, 4, 3, 2)
        assert slots.lend((5,)).shape == (5, 3, 2)
        assert slots.lend(()).shape == (3, 2)

    def test_a_tensor_over_it_holds_it(self):
        slots = Slots(1 << 16, (), np.dtype("uint8"))

        def give(value: np.ndarray) -> tf.Tensor:
            lent = slots.lend((1 << 16,))
            lent[...] = value
            return lent

        tensors = [tf.numpy_function(give, [tf.constant(value, tf.uint8)], tf.uint8) for value in range(6)]
        gc.collect()
        assert [int(tensor[0]) for tensor in tensors] == [0, 1, 2, 3, 4, 5]

    def test_strings_are_copied_by_tensorflow(self):
        lent = Slots(4, (), np.dtype(object)).lend((3,))
        assert lent.shape == (3,)


@pytest.mark.compatibility
@pytest.mark.parametrize("cache", ["memory", False])
@pytest.mark.parametrize("batch_size", [2, 16, None])
def test_batches_that_are_kept_stay_as_they_are(tmp_path, cache, batch_size):
    write_images(tmp_path, [f"a/{number:02d}.png" for number in range(40)])
    dataset = FastDataset.from_image_folder(
        tmp_path, image_size=(64, 64), batch_size=batch_size, shuffle=True, seed=0, cache=cache
    )
    kept, copies = [], []
    for _ in range(3):
        for images, _ in dataset:
            kept.append(images)
            copies.append(images.numpy().copy())
    gc.collect()
    for images, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(images, copy)


def test_batches_of_arrays_that_are_kept_stay_as_they_are():
    x = np.random.default_rng(0).normal(size=(64, 4096)).astype("float32")
    dataset = FastDataset(x, batch_size=8, shuffle=True, seed=0)
    kept = [batch for _ in range(4) for batch in dataset]
    rows = np.concatenate(kept).reshape(4, 64, 4096)
    for epoch in rows:
        np.testing.assert_array_equal(np.sort(epoch[:, 0]), np.sort(x[:, 0]))
