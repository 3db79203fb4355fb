"""Arrays that numpy and TensorFlow have in common."""

from __future__ import annotations

import numpy as np
import pytest

from keras_turbo.data.shared_arrays import aligned_zeros, tensor_view


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32", "complex128"])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5, 7), (0,), (4, 0)])
def test_arrays_are_aligned_and_shared(dtype, shape):
    array = aligned_zeros(shape, dtype)
    assert array.shape == shape
    assert array.dtype == dtype
    assert not array.any()
    view = tensor_view(array)
    assert view.shape == shape
    if array.size:
        assert array.ctypes.data % 64 == 0
        array[0] = 1
        np.testing.assert_array_equal(view.numpy(), array)
