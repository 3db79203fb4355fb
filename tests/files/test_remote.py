"""Files behind a scheme: TensorFlow's in-memory file system, fsspec's, and a real S3 server."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from keras_turbo import files
from keras_turbo.files.remote import RemoteFile, system_of

pytestmark = pytest.mark.compatibility  # fsspec's and TensorFlow's ways to fail, list and read

HAS_TENSORFLOW_IO = importlib.util.find_spec("tensorflow_io") is not None


@pytest.fixture(params=["ram", "memory"])
def store(request, tmp_path):
    """A folder in memory: in TensorFlow's file system, and in one of fsspec's."""
    path = f"{request.param}://{tmp_path.name}/store"
    yield files.resolved(path, "path")
    with contextlib.suppress(FileNotFoundError):
        files.remove_folder(f"{request.param}://{tmp_path.name}")


def write(path, content):
    files.make_folder(files.parent_of(path))
    files.remove_file(path)  # TensorFlow's appends to what is there
    files.write_whole(path, content)


def test_patterns_mean_what_they_mean_here(tmp_path, store):
    here = tmp_path / "files"
    for name in ("a.bin", "b.txt", "sub/c.bin", "sub/deep er/ü.bin", ".hidden/d.bin", "sub/.e.bin", "[x].bin", "x"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name)
        write(f"{store}/{name}", name.encode())
    for pattern in ("*.bin", "**/*.bin", "*", "*/*.bin", "sub/**", "sub/deep*/*", "?.txt", "**/.e.bin", "none*", "x"):
        found = [path for path in glob.glob(f"{here}/{pattern}", recursive=True) if os.path.isfile(path)]
        expected = sorted(f"{store}/{os.path.relpath(path, here)}" for path in found)
        assert files.find(f"{store}/{pattern}") == expected, pattern


@pytest.mark.parametrize("store", ["ram"], indirect=True)  # the other one tells by itself
def test_one_name_of_each_ending_is_asked_about(store, monkeypatch):
    for name in (*(f"{number}.png" for number in range(20)), "v1.0/x", "v1.1/x", "v2.0/x", "plain", "folder/x"):
        write(f"{store}/{name}", b"x")
    asked, stat = [], tf.io.gfile.stat
    monkeypatch.setattr(tf.io.gfile, "stat", lambda path: asked.append(path) or stat(path))
    folders = [name for name, is_folder in files.entries(store) if is_folder]
    assert folders == ["folder", "v1.0", "v1.1", "v2.0"]
    assert len(asked) == 6


def test_a_remote_file_is_read_as_a_local_one(tmp_path, store, monkeypatch):
    monkeypatch.setattr(files.remote, "_PART_BYTES", 7)
    content = bytes(range(100))
    (tmp_path / "a").write_bytes(content)
    write(f"{store}/a", content)
    for read_ahead in (0, 16):
        with (
            files.opened(f"{store}/a", read_ahead_bytes=read_ahead) as (far, status),
            open(tmp_path / "a", "rb") as near,
        ):
            assert status.size == 100
            for file in (far, near):
                assert (file.seek(-30, os.SEEK_END), file.read(20)) == (70, content[70:90])
                assert (file.read(20), file.read(5), file.tell()) == (content[90:], b"", 100)
                assert (file.seek(200), file.read(5), file.tell()) == (200, b"", 200)
                assert (file.seek(3), file.seek(4, os.SEEK_CUR), file.read()) == (3, 7, content[7:])
                with pytest.raises((OSError, ValueError), match=r"argument|before start"):
                    file.seek(-101, os.SEEK_END)
        with pytest.raises(ValueError, match="closed"):
            far.read(1)
    with RemoteFile(f"{store}/a", 101, 0) as cut, pytest.raises(OSError, match="ended before its 101 bytes"):
        cut.read()


def test_what_passes_is_tried_again(store, monkeypatch):
    monkeypatch.setattr(files.attempts, "_WAITS_SECONDS", (0, 0))
    write(f"{store}/a", b"abc")
    kind, calls = type(system_of(store)[0]), []
    whole = kind.cat_file

    def flaky(self, *arguments, **keywords):
        calls.append(arguments)
        if len(calls) % 3:
            raise tf.errors.UnavailableError(None, None, "Slow down")
        return whole(self, *arguments, **keywords)

    monkeypatch.setattr(kind, "cat_file", flaky)
    with files.opened(f"{store}/a") as (file, _):
        assert file.read() == b"abc"
    assert len(calls) == 3
    monkeypatch.setattr(files.attempts, "_WAITS_SECONDS", (0,))
    with pytest.raises(BlockingIOError, match=r"Slow down: '.*/store/a'"):
        files.read_bytes(f"{store}/a")


def test_what_is_not_there(store):
    write(f"{store}/file", b"x")
    for act in (files.names_in, files.entries, files.read_bytes, files.status_of):
        with pytest.raises(FileNotFoundError, match=f"{store}/no"):
            act(f"{store}/no")
    with pytest.raises(NotADirectoryError, match=f"{store}/file"):
        files.names_in(f"{store}/file")
    assert files.find(f"{store}/no/*") == files.find(f"{store}/file/*") == []
    files.remove_file(f"{store}/no")
    files.remove_folder(f"{store}/no")


def test_an_error_leaves_what_was_there(store):
    write(f"{store}/file", b"before")
    with pytest.raises(ZeroDivisionError), files.writing(f"{store}/file") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert files.read_bytes(f"{store}/file") == b"before"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("foo://x/y", r"No file system is installed for 'foo://x/y': Protocol not known: foo.*local one"),
        ("s3:/bucket", r"Meant: s3://bucket\?"),
        ("file://x", "must be absolute"),
        ("a\0b", "must be a path"),
        (3, "must be text or a Path"),
    ],
)
def test_paths_that_can_not_be(path, message):
    with pytest.raises(ValueError, match=message):
        files.resolved(path, "path")


def test_what_is_missing_is_told_with_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_io", None)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    files.remote._is_known_to_tensorflow.cache_clear()
    for path in ("s3a://bucket/run", Path("s3a://bucket/run")):
        message = r'for \'s3a://bucket/run\': Install s3fs.*`pip install "keras_turbo\[remote\]"`'
        with pytest.raises(ValueError, match=message):
            files.resolved(path, "path")
    with pytest.raises(ValueError, match="can't be written"):
        files.resolved("https://x/y", "path", writes=True)


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["fsspec", "tensorflow-io"])
def test_s3(s3_environment, tmp_path, reader):
    """One process tries it all; what it asserts fails this test."""
    if reader == "tensorflow-io" and not HAS_TENSORFLOW_IO:
        pytest.skip("tensorflow-io loads on TensorFlow 2.17 only")
    environment = {**os.environ, **s3_environment, "TMPDIR": str(tmp_path)}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("s3_run.py")), reader],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "done"
    assert os.listdir(tmp_path) == []
