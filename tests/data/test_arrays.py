"""Arrays in every form that fit() takes become examples, row by row, with the types that fit() gives them."""

from __future__ import annotations

import os
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.sources.arrays import ArraySource
from tests.data.epochs import batches_of, rows_of

N = 7
ROWS = np.arange(N * 3, dtype="float32").reshape(N, 3)
OTHER_ROWS = ROWS[:, :2] + 100
LABELS = np.arange(N)
WEIGHTS = np.linspace(0, 1, N, dtype="float32")


def gathered(source: ArraySource, positions=(5, 0, 5)):
    columns, failures = source.load(np.array(positions, np.int64), None, None)
    assert not failures
    return tf.nest.pack_sequence_as(source.elements.spec, columns)


def assert_same(structure, expected) -> None:
    tf.nest.assert_same_structure(structure, expected)
    for ours, theirs in zip(tf.nest.flatten(structure), tf.nest.flatten(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


class TestStructures:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ((ROWS,), lambda p: ROWS[p]),
            ((ROWS, LABELS), lambda p: (ROWS[p], LABELS[p])),
            ((ROWS, LABELS, WEIGHTS), lambda p: (ROWS[p], LABELS[p], WEIGHTS[p])),
            (({"a": ROWS, "b": OTHER_ROWS},), lambda p: {"a": ROWS[p], "b": OTHER_ROWS[p]}),
            (((ROWS, OTHER_ROWS), LABELS), lambda p: ((ROWS[p], OTHER_ROWS[p]), LABELS[p])),
            (([ROWS, OTHER_ROWS], [LABELS, WEIGHTS]), lambda p: ((ROWS[p], OTHER_ROWS[p]), (LABELS[p], WEIGHTS[p]))),
            # x alone, so not (x, y).
            (((ROWS, LABELS),), lambda p: ((ROWS[p], LABELS[p]),)),
            (([ROWS, LABELS],), lambda p: ((ROWS[p], LABELS[p]),)),
            (
                ({"a": [ROWS, {"b": OTHER_ROWS}], "c": LABELS}, {"d": (LABELS,)}, {"d": (WEIGHTS,)}),
                lambda p: (
                    {"a": (ROWS[p], {"b": OTHER_ROWS[p]}), "c": LABELS[p]}, {"d": (LABELS[p],)}, {"d": (WEIGHTS[p],)}
                ),
            ),
            (([[ROWS, OTHER_ROWS], LABELS], LABELS), lambda p: (((ROWS[p], OTHER_ROWS[p]), LABELS[p]), LABELS[p])),
        ],
        ids=[
            "x", "x y", "x y w", "dict", "tuple", "lists", "tuple alone", "list alone", "nested", "nested lists",
        ],
    )  # fmt: skip
    def test_rows_are_gathered(self, arguments, expected):
        assert_same(gathered(ArraySource(*arguments)), expected([5, 0, 5]))

    def test_labels(self):
        assert ArraySource(ROWS, LABELS).labels_at(np.array([3, 1])).tolist() == [3, 1]
        named = ArraySource(ROWS, {"a": LABELS, "b": WEIGHTS}).labels_at(np.array([3, 1]))
        assert named["a"].tolist() == [3, 1]
        assert ArraySource(ROWS).labels_at(np.array([3, 1])) is None

    def test_what_an_example_is_called(self):
        assert ArraySource(ROWS).name(3) == "the example at index 3"


class TensorRecorder(keras.Model):
    """Keeps what fit() hands to a training step."""

    def train_step(self, data):
        self.seen = tf.nest.map_structure(lambda tensor: tensor.dtype.name, data)
        return {"loss": tf.constant(0.0)}


DTYPES = ["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]


@pytest.mark.parametrize("floatx", ["float32", "float64"])
def test_types_are_those_that_fit_gives(floatx):
    before = keras.config.floatx()
    keras.config.set_floatx(floatx)
    try:
        arrays = {name: np.ones((4, 2), name) for name in DTYPES}
        model = TensorRecorder()
        model.compile(run_eagerly=True)
        model.fit(arrays, arrays["float64"], sample_weight=np.ones(4, "float16"), batch_size=4, verbose=0)
        by_keras = model.seen
        model.fit(FastDataset(arrays, arrays["float64"], np.ones(4, "float16"), batch_size=4), verbose=0)
        assert model.seen == by_keras
        assert by_keras[0]["float16"] == floatx
    finally:
        keras.config.set_floatx(before)


class TestForms:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ([1, 2, 3], np.array([1, 2, 3])),
            ([[1.5, 2], [3, 4]], np.array([[1.5, 2], [3, 4]], "float32")),
            (((1, 2), (3, 4)), np.array([[1, 2], [3, 4]])),
            ([True, False], np.array([True, False])),
            (tf.constant([[1.0], [2.0]]), np.array([[1.0], [2.0]], "float32")),
            (tf.Variable([1, 2]), np.array([1, 2], "int32")),
            (np.arange(6).reshape(2, 3)[:, ::-1], np.array([[2, 1, 0], [5, 4, 3]])),
            (np.arange(6, dtype=">i4").reshape(2, 3), np.arange(6, dtype="int32").reshape(2, 3)),
            (np.arange(4, dtype=">f8"), np.arange(4, dtype="float32")),
            (np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(6, dtype="float32").reshape(2, 3)),
            (np.zeros((3, 0)), np.zeros((3, 0), "float32")),
        ],
        ids=[
            "ints", "floats", "tuples", "bools", "tensor", "variable", "reversed", "big-endian", "big-endian floats",
            "Fortran order", "no columns",
        ],
    )  # fmt: skip
    def test_numbers(self, given, expected):
        source = ArraySource(given)
        rows = gathered(source, range(len(expected)))
        np.testing.assert_array_equal(rows, expected)
        assert rows.dtype == expected.dtype
        assert len(source) == len(expected)

    @pytest.mark.parametrize(
        "given",
        [
            ["a", "bc", "é"],
            np.array(["a", "bc", "é"]),
            np.array(["a", "bc", "é"], object),
            tf.constant(["a", "bc", "é"]),
        ],
        ids=["list", "array", "objects", "tensor"],
    )
    def test_strings(self, given):
        dataset = FastDataset(given, batch_size=2)
        assert [text.decode() for batch in batches_of(dataset) for text in batch] == ["a", "bc", "é"]

    def test_a_frame_of_numbers(self):
        """pandas' frames and series are known by `iloc`; they are arrays to numpy."""

        class Frame:
            shape = (N, 3)
            iloc = None

            def __array__(self, dtype=None, copy=None):
                return ROWS if dtype is None else ROWS.astype(dtype)

            def __len__(self):
                return N

        assert_same(gathered(ArraySource(Frame(), LABELS)), (ROWS[[5, 0, 5]], LABELS[[5, 0, 5]]))
        assert_same(gathered(ArraySource([Frame(), Frame()])), ((ROWS[[5, 0, 5]], ROWS[[5, 0, 5]]),))

    def test_arrays_are_read_where_they_are(self):
        x = ROWS.copy()
        source = ArraySource({"x": x, "doubles": ROWS.astype("float64")})
        assert any(np.shares_memory(leaf, x) for leaf in source.as_store()._leaves)


@pytest.fixture
def on_disk(tmp_path):
    """Makes a numpy.memmap of an array."""

    def make(array: np.ndarray) -> np.memmap:
        path = tmp_path / f"{len(os.listdir(tmp_path))}.bin"
        written = np.memmap(path, array.dtype, "w+", shape=array.shape)
        written[:] = array
        written.flush()
        return np.memmap(path, array.dtype, "r", shape=array.shape)

    return make


class TestMemoryMaps:
    @pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "float64", "float16"])
    def test_rows_are_those_of_the_array(self, on_disk, dtype):
        array = ROWS.astype(dtype)
        from_disk, from_memory = ArraySource(on_disk(array), LABELS), ArraySource(array, LABELS)
        for positions in ([5, 0, 5], [3]):
            ours, theirs = gathered(from_disk, positions), gathered(from_memory, positions)
            assert_same(ours, theirs)
            assert ours[0].dtype == theirs[0].dtype

    def test_they_stay_on_disk(self, on_disk):
        mapped = on_disk(ROWS)
        source = ArraySource({"a": mapped, "b": ROWS})
        assert any(held is mapped for held in source.as_store()._leaves)

    @pytest.mark.parametrize("dtype", ["uint8", "float64"])
    def test_in_memory_where_that_is_asked_for(self, on_disk, dtype):
        mapped = on_disk(ROWS.astype(dtype))
        source = ArraySource(mapped, memory_maps_stay_on_disk=False)
        assert not any(isinstance(held, np.memmap) for held in source.as_store()._leaves)
        rows = gathered(source)
        np.testing.assert_array_equal(rows, ROWS[[5, 0, 5]].astype(dtype))
        assert rows.dtype == ("uint8" if dtype == "uint8" else "float32")

    @pytest.mark.parametrize(
        ("cache", "map_fn"),
        [
            ("auto", None),
            ("memory", None),
            ("memory", lambda x: x * 2),
            ("disk", lambda x: x * 2),
            (False, lambda x: x * 2),
        ],
    )
    def test_in_a_dataset(self, on_disk, tmp_path, cache, map_fn):
        x = ROWS.astype("float64")
        options = {"batch_size": 2, "shuffle": True, "seed": 1, "map_fn": map_fn, "cache_dir": tmp_path / "cache"}
        mapped, plain = FastDataset(on_disk(x), cache=cache, **options), FastDataset(x, cache=cache, **options)
        assert mapped.element_spec == plain.element_spec
        for _ in range(2):
            np.testing.assert_array_equal(rows_of(mapped), rows_of(plain))

    def test_static_shapes_are_known(self, on_disk):
        dataset = FastDataset(on_disk(ROWS), batch_size=2, drop_remainder=True)
        assert dataset.element_spec.shape.as_list() == [2, 3]

    def test_a_part_of_one(self, on_disk):
        assert_same(gathered(ArraySource(on_disk(ROWS)[2:]), [0, 1]), ROWS[[2, 3]])


class TestIdentity:
    def test_depends_on_the_data_alone(self, on_disk):
        one = ArraySource(ROWS, LABELS).identity()
        assert one == ArraySource(ROWS.copy(), LABELS.copy()).identity()
        assert one == ArraySource(on_disk(ROWS), LABELS).identity()
        changed = ROWS.copy()
        changed[6, 2] += 1e-5
        assert one != ArraySource(changed, LABELS).identity()
        assert one != ArraySource(ROWS, LABELS[::-1]).identity()
        assert one != ArraySource(ROWS).identity()
        assert ArraySource(ROWS).identity() != ArraySource(ROWS.reshape(N, 3, 1)).identity()
        assert ArraySource(ROWS).identity() != ArraySource(ROWS.view("int32")).identity()

    def test_of_strings(self):
        assert ArraySource(["ab", "c"]).identity() == ArraySource(["ab", "c"]).identity()
        assert ArraySource(["ab", "c"]).identity() != ArraySource(["a", "bc"]).identity()
        objects = [np.array(strings, object) for strings in (["ab", "c"], ["a", "bc"])]
        assert ArraySource(objects[0]).identity() != ArraySource(objects[1]).identity()


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "listed"),
        [
            ((ROWS, LABELS[:-1]), "x: 7, y: 6"),
            ((ROWS, LABELS, WEIGHTS[:2]), "x: 7, y: 7, sample_weight: 2"),
            (([ROWS, ROWS[:3]],), r"x\[0\]: 7, x\[1\]: 3"),
            (({"left": ROWS, "right": ROWS[:3]}, LABELS), r"x\['left'\]: 7, x\['right'\]: 3, y: 7"),
        ],
    )
    def test_unequal_lengths_are_listed(self, arguments, listed):
        with pytest.raises(ValueError, match=rf"same number of examples \(rows\)\. Received {listed}\."):
            FastDataset(*arguments)

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [((3,), "x"), ((np.float32(3),), "x"), ((ROWS, 1), "y"), (({"a": 1},), r"x\['a'\]")],
    )
    def test_scalars(self, arguments, name):
        with pytest.raises(
            TypeError, match=rf"`{name}` must hold arrays with one row for each example. Received a scalar"
        ):
            FastDataset(*arguments)

    @pytest.mark.parametrize(
        "x", [np.array([{}, {}], object), np.array(["a", None], object), [None, 1]], ids=["dicts", "missing", "None"]
    )
    def test_objects(self, x):
        with pytest.raises(TypeError, match=r"`x` must hold numbers or strings.*\(one of them a (dict|NoneType)\)"):
            FastDataset(x)

    @pytest.mark.parametrize("x", [[[1, 2], [3]], [[1.0], 2.0], {"a": [[1], [2, 3]]}])
    def test_ragged_lists(self, x):
        with pytest.raises(
            TypeError, match=r"`x` must hold arrays of a regular shape.*Pad ragged rows, give bucket_by_length="
        ):
            FastDataset(x)

    @pytest.mark.parametrize("x", [np.zeros((0, 3)), [], {"a": np.zeros(0)}])
    def test_no_rows(self, x):
        with pytest.raises(ValueError, match="The arrays hold no example: their first axis has length 0"):
            FastDataset(x)

    @pytest.mark.parametrize("x", [{}, None, ()])
    def test_no_arrays(self, x):
        with pytest.raises((ValueError, TypeError), match="`x` (holds no array|must hold arrays)|hold no example"):
            FastDataset(x)

    @pytest.mark.parametrize("x", ["photos", Path("photos")])
    def test_paths(self, x):
        with pytest.raises(TypeError, match=r"Received the path 'photos'.*from_image_folder.*from_files"):
            FastDataset(x)

    def test_weights_without_targets(self):
        with pytest.raises(ValueError, match="`sample_weight` was given without `y`"):
            FastDataset(ROWS, sample_weight=WEIGHTS)

    @pytest.mark.parametrize("x", [(value for value in [1]), iter([1])])
    def test_what_can_be_read_once_only(self, x):
        with pytest.raises(TypeError, match=r"can be read once only\. Give the function that makes it"):
            FastDataset(x)

    def test_a_function_that_is_no_generator(self):
        with pytest.raises(ValueError, match=r"Item 0 of .*<lambda> can't be made:\n.*'int' object is not iterable"):
            FastDataset(lambda: 3)

    @pytest.mark.parametrize("options", [{"y": LABELS}, {"y": LABELS, "sample_weight": WEIGHTS}])
    def test_targets_beside_a_dataset(self, options):
        with pytest.raises(ValueError, match="`y` and `sample_weight` can't be given beside a tf.data.Dataset"):
            FastDataset(tf.data.Dataset.range(7), **options)


def test_batches_of_many_sizes_hold_each_row_once():
    """Small batches are gathered many at a time and cut."""
    x = np.arange(1000)
    for batch_size, drop_remainder in [
        (1, False),
        (3, False),
        (3, True),
        (7, True),
        (250, False),
        (999, False),
        (2000, False),
    ]:
        batches = batches_of(FastDataset(x, batch_size=batch_size, drop_remainder=drop_remainder))
        rows = np.concatenate(batches) if batches else np.array([])
        whole = len(x) // batch_size * batch_size if drop_remainder else len(x)
        np.testing.assert_array_equal(rows, x[:whole])
        assert {len(batch) for batch in batches[:-1]} <= {batch_size}


MEMORY_OF_EPOCHS = """
import sys
import numpy as np
from keras_turbo import FastDataset

def memory():
    # What is mapped from files can be dropped at any time, and does not count.
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10

def epochs(x, cache):
    map_fn = None if cache is None else lambda x: x + 1
    options = {} if cache is None else {"cache": cache, "cache_dir": sys.argv[1]}
    dataset = FastDataset(x, batch_size=64, shuffle=True, seed=0, map_fn=map_fn, **options)
    for _ in range(2):
        for _ in dataset:
            pass
    return dataset

rows = np.ones((20_000, 1000), np.float32)
for cache in (None, "memory", "disk"):
    epochs(rows[:128], cache)  # what is loaded once
    before = memory()
    dataset = epochs(rows, cache)
    print(cache, round((memory() - before) / rows.nbytes, 2))
    del dataset
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is told by Linux")
def test_case_8_data_are_in_memory_no_more_often_than_they_must(run_python, tmp_path):
    """Once as tensors, and once more as what map_fn made of them where that is kept in memory."""
    printed = run_python(MEMORY_OF_EPOCHS, tmp_path)
    copies = {line.split()[0]: float(line.split()[1]) for line in printed.splitlines()}
    assert copies.keys() == {"None", "memory", "disk"}
    assert copies["None"] < 1.5
    assert copies["memory"] < 2.5
    assert copies["disk"] < 1.5
