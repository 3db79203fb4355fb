"""Files are found by pattern, sorted, each once; and loaded by a function of the path."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.sources.files import TracedFiles, find_files
from tests.data.epochs import batches_of, rows_of


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder, current while the test runs."""
    for name in ("b.txt", "a.txt", "c.bin", "sub/d.txt", "sub/deeper/e.txt", "odd [1].txt", ".hidden.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.stem)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestFindFiles:
    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("*.txt", ["a.txt", "b.txt", "odd [1].txt"]),
            ("**/*.txt", ["a.txt", "b.txt", "odd [1].txt", "sub/d.txt", "sub/deeper/e.txt"]),
            ("sub/*", ["sub/d.txt"]),
            ("[bc].*", ["b.txt", "c.bin"]),
            ("a.txt", ["a.txt"]),
            ("odd [1].txt", ["odd [1].txt"]),
            (["c.bin", "b.txt"], ["b.txt", "c.bin"]),
            (["*.txt", "a.*", Path("a.txt")], ["a.txt", "b.txt", "odd [1].txt"]),
            (Path("sub") / "*.txt", ["sub/d.txt"]),
        ],
    )
    def test_patterns(self, folder, pattern, expected):
        assert find_files(pattern) == expected

    def test_whole_paths(self, folder):
        assert find_files(folder / "*.bin") == [str(folder / "c.bin")]

    def test_folders_are_no_files(self, folder):
        (folder / "x.txt").mkdir()
        assert find_files("*.txt") == ["a.txt", "b.txt", "odd [1].txt"]

    @pytest.mark.parametrize(
        ("pattern", "where"),
        [
            ("*.jpg", r"'\*\.jpg' \(the folder '\.' exists\)"),
            ("sub/none/*.txt", r"'sub/none/\*\.txt' \(the folder 'sub' exists\)"),
            ("sub", r"'sub' \(the folder 'sub' exists\)"),
            (["*.txt", "*.jpg"], r"'\*\.jpg'"),
        ],
    )
    def test_nothing_matches(self, folder, pattern, where):
        """Case 13."""
        with pytest.raises(ValueError, match=rf"No file matches the pattern {where}.*`\*\*` is needed"):
            find_files(pattern)

    def test_no_patterns(self):
        with pytest.raises(ValueError, match="`pattern` is an empty list"):
            find_files([])


def read(path: tf.Tensor) -> tf.Tensor:
    return tf.io.read_file(path)


def strings_of(batch) -> list[str]:
    return [text.decode() for text in batch]


class TestFromFiles:
    def test_what_the_function_returns_is_the_element(self, folder):
        dataset = FastDataset.from_files("**/*.txt", read, batch_size=3)
        assert [strings_of(batch) for batch in batches_of(dataset)] == [["a", "b", "odd [1]"], ["d", "e"]]
        pairs = FastDataset.from_files("*.txt", lambda path: (read(path), path), batch_size=3)
        ((texts, paths),) = batches_of(pairs)
        assert strings_of(texts) == ["a", "b", "odd [1]"]
        assert strings_of(paths) == [os.path.abspath(path) for path in pairs.file_paths]

    def test_labels_are_put_beside_it(self, folder):
        dataset = FastDataset.from_files("*.txt", read, labels=[0.5, 1.5, 2.5], batch_size=3)
        ((texts, labels),) = batches_of(dataset)
        assert strings_of(texts) == ["a", "b", "odd [1]"]
        assert labels.tolist() == [0.5, 1.5, 2.5]
        assert dataset.labels.tolist() == [0.5, 1.5, 2.5]
        assert dataset.class_names is None

    def test_labels_by_a_function_of_the_path(self, folder):
        dataset = FastDataset.from_files(
            "**/*.txt", read, labels=lambda path: os.path.dirname(path) or "top", label_mode="categorical", batch_size=5
        )
        ((_, labels),) = batches_of(dataset)
        assert dataset.class_names == ["sub", "sub/deeper", "top"]
        assert labels.tolist() == np.eye(3)[[2, 2, 2, 0, 1]].tolist()
        # Where there are classes, labels are their numbers.
        assert dataset.labels.tolist() == [2, 2, 2, 0, 1]

    def test_paths_are_in_the_order_of_examples(self, folder):
        dataset = FastDataset.from_files("**/*.txt", read, shuffle=True, seed=1, reshuffle_each_epoch=False)
        texts = strings_of(rows_of(dataset))
        assert [Path(path).stem for path in dataset.file_paths] == texts
        assert texts != sorted(texts)

    def test_a_pattern_without_files_is_an_error_at_once(self, folder):
        with pytest.raises(ValueError, match=r"No file matches the pattern '\*\.jpg'"):
            FastDataset.from_files("*.jpg", read)

    def test_a_load_fn_that_is_no_function(self, folder):
        with pytest.raises(TypeError, match="`load_fn` must be a function of a path. Received: 'read'"):
            FastDataset.from_files("*.txt", "read")

    def test_labels_of_another_length(self, folder):
        with pytest.raises(ValueError, match="`labels` has 2 entries for 3 files"):
            FastDataset.from_files("*.txt", read, labels=[1, 2])


@pytest.mark.parametrize("batch_size", [2, None])
def test_shapes_that_nobody_knows(folder, batch_size):
    """tf.numpy_function tells no shape; tf.data batches its results all the same."""

    def load(path):
        return tf.numpy_function(lambda path: np.full((2, 3), len(path), "int32"), [path], tf.int32)

    dataset = FastDataset.from_files("*.txt", load, batch_size=batch_size)
    assert dataset.stored_in is None
    for _ in range(2):
        rows = np.concatenate([np.reshape(batch, (-1, 2, 3)) for batch in batches_of(dataset)])
        assert rows[:, 0, 0].tolist() == [len(os.path.abspath(path)) for path in dataset.file_paths]


class TestIdentity:
    def source(self, folder: Path, **options) -> TracedFiles:
        return FastDataset.from_files(f"{folder}/*.txt", options.pop("load_fn", read), **options)._source

    def test_is_json_and_the_same_again(self, folder):
        import json

        one, other = (self.source(folder, labels=[1, 2, 3], label_mode="int").identity() for _ in range(2))
        assert one == other
        assert json.loads(json.dumps([one.recipe, one.content])) == [one.recipe, one.content]

    def test_size_time_and_labels_are_content(self, folder):
        before = self.source(folder).identity()
        (folder / "a.txt").write_text("A")
        os.utime(folder / "a.txt", ns=(1, 1))
        touched = self.source(folder).identity()
        labelled = self.source(folder, labels=[1, 2, 3]).identity()
        assert before.recipe == touched.recipe
        assert before.content != touched.content
        assert touched.content != labelled.content

    def test_the_function_is_the_recipe(self, folder):
        one = self.source(folder).identity()
        other = self.source(folder, load_fn=lambda path: tf.strings.lower(read(path))).identity()
        assert one.recipe != other.recipe

    def test_none_where_the_function_cannot_be_recognised(self, folder):
        def load(path):
            return tf.numpy_function(lambda path: Path(path.decode()).read_bytes(), [path], tf.string)

        assert self.source(folder, load_fn=load).identity() is None

    def test_a_file_that_is_gone(self, folder):
        source = self.source(folder)
        (folder / "a.txt").unlink()
        assert source.identity().content["files"][0][1:] == [-1, -1]
