"""Labels in each mode, and what is refused."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_turbo.data.labels import encode_labels, labels_of_paths

PATHS = ["photos/a.jpg", "photos/b.jpg", "photos/c.jpg"]
NAMES = ["dog", "cat", "dog"]


def assert_encoded(labels, mode, class_names, expected, numbers, names):
    encoded, found_numbers, found_names = encode_labels(labels, mode, class_names)
    np.testing.assert_array_equal(encoded, expected)
    assert encoded.dtype == np.asarray(expected).dtype
    assert encoded.shape == np.asarray(expected).shape
    np.testing.assert_array_equal(found_numbers, numbers)
    assert found_numbers.dtype == np.int32
    assert found_names == names


class TestOfPaths:
    def test_a_list(self):
        assert labels_of_paths([1, 2, 3], PATHS) == [1, 2, 3]

    def test_a_function_of_the_path(self):
        assert labels_of_paths(lambda path: path[-5], PATHS) == ["a", "b", "c"]

    def test_an_array(self):
        array = np.eye(3)
        assert labels_of_paths(array, PATHS) is array

    def test_a_list_of_another_length(self):
        with pytest.raises(ValueError, match=r"2 entries for 3 files.*first 'a.jpg', last 'c.jpg'"):
            labels_of_paths([1, 2], PATHS)

    @pytest.mark.parametrize("labels", ["inferrred", 3, b"abc", iter([1, 2, 3])])
    def test_something_else(self, labels):
        with pytest.raises(TypeError, match="must be 'inferred' .*, None, a list .* or a function of the path"):
            labels_of_paths(labels, PATHS)


class TestNames:
    def test_int(self):
        assert_encoded(NAMES, "int", None, np.array([1, 0, 1], "int32"), [1, 0, 1], ["cat", "dog"])

    def test_categorical(self):
        expected = np.array([[0, 1], [1, 0], [0, 1]], "float32")
        assert_encoded(NAMES, "categorical", None, expected, [1, 0, 1], ["cat", "dog"])

    def test_binary(self):
        expected = np.array([[1], [0], [1]], "float32")
        assert_encoded(NAMES, "binary", None, expected, [1, 0, 1], ["cat", "dog"])

    def test_class_names_decide_the_numbers(self):
        given = ["dog", "cow", "cat"]
        assert_encoded(NAMES, "int", given, np.array([0, 2, 0], "int32"), [0, 2, 0], given)
        expected = np.array([[1, 0, 0], [0, 0, 1], [1, 0, 0]], "float32")
        assert_encoded(NAMES, "categorical", tuple(given), expected, [0, 2, 0], given)

    @pytest.mark.parametrize("labels", [np.array(NAMES), np.array(NAMES, object), tuple(NAMES)])
    def test_in_other_forms(self, labels):
        assert_encoded(labels, "int", None, np.array([1, 0, 1], "int32"), [1, 0, 1], ["cat", "dog"])

    def test_a_name_that_is_no_class(self):
        with pytest.raises(ValueError, match=r"Labels \['dog'\] are not in `class_names` \(\['cat', 'cow'\]\)"):
            encode_labels(NAMES, "int", ["cat", "cow"])

    def test_binary_needs_two(self):
        with pytest.raises(ValueError, match=r"needs two classes. There are 3: \['a', 'b', 'c'\]"):
            encode_labels(["a", "b", "c"], "binary", None)

    def test_names_must_differ(self):
        with pytest.raises(ValueError, match=r"must be different from one another. More than once: \['cat'\]"):
            encode_labels(NAMES, "int", ["cat", "dog", "cat"])

    def test_one_name_is_no_list(self):
        with pytest.raises(TypeError, match="must be a list of names. Received: 'cat'"):
            encode_labels(["c", "a"], "int", "cat")


class TestNumbers:
    @pytest.mark.parametrize("labels", [[2, 0, 2], np.array([2, 0, 2], "uint8"), np.array([2, 0, 2], "int64")])
    def test_int(self, labels):
        assert_encoded(labels, "int", None, np.array([2, 0, 2], "int32"), [2, 0, 2], ["0", "1", "2"])

    def test_categorical_has_as_many_columns_as_names(self):
        given = ["a", "b", "c", "d"]
        expected = np.array([[0, 0, 1, 0], [1, 0, 0, 0]], "float32")
        assert_encoded([2, 0], "categorical", given, expected, [2, 0], given)

    def test_truth_values(self):
        assert_encoded([True, False], "binary", None, np.array([[1], [0]], "float32"), [1, 0], ["0", "1"])

    def test_negative_ones(self):
        with pytest.raises(ValueError, match="must not be negative. Received: -1"):
            encode_labels([0, -1], "int", None)

    def test_more_than_names(self):
        with pytest.raises(ValueError, match="names 2 classes, but a label has the number 2"):
            encode_labels([0, 2], "int", ["a", "b"])


class TestRaw:
    @pytest.mark.parametrize(
        ("labels", "dtype"),
        [([0.5, 1.5], "float32"), (np.ones((2, 3)), "float32"), ([1, 2], "int64"), (["a", "b"], "<U1")],
    )
    def test_as_they_are(self, labels, dtype):
        encoded, numbers, names = encode_labels(labels, "raw", None)
        np.testing.assert_array_equal(encoded, labels)
        assert encoded.dtype == dtype
        assert numbers is None
        assert names is None

    def test_floats_as_keras_has_them(self):
        before = keras.config.floatx()
        keras.config.set_floatx("float64")
        try:
            assert encode_labels([0.5], "raw", None)[0].dtype == np.float64
        finally:
            keras.config.set_floatx(before)

    def test_of_unequal_lengths(self):
        with pytest.raises(TypeError, match="must have the same shape for each file"):
            encode_labels([[1, 2], [3]], "raw", None)


@pytest.mark.parametrize("labels", [[0.5, 1.0], [[0, 1], [1, 0]], [["a"], ["b"]], ["a", 1.5, None], [b"a", b"b"]])
def test_neither_names_nor_numbers(labels):
    with pytest.raises(TypeError, match=r"(names \(strings\) or class numbers.*label_mode='raw')|(same shape)"):
        encode_labels(np.array(labels, object) if None in labels else labels, "int", None)


@pytest.mark.parametrize("mode", ["integer", "", 3])
def test_unknown_modes(mode):
    with pytest.raises(ValueError, match=r"must be one of int, categorical, binary, raw, or None. Received: "):
        encode_labels(NAMES, mode, None)
