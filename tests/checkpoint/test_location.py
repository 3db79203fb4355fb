"""What a path stands for; a scheme that nothing here can write is refused before anything is made."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from keras_turbo.checkpoint import latest, verify
from keras_turbo.checkpoint.directory import DirectoryLock
from keras_turbo.checkpoint.location import LocalFiles, RemoteFiles, locate


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/a/b", "/a/b"),
        (Path("/a/b/"), "/a/b"),
        ("/a/b/../c", "/a/c"),
        ("file:///a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        (Path("file:///a/b"), "/a/b"),
        ("/größe/日本", "/größe/日本"),
        ("/with:colon/x", "/with:colon/x"),
        ("c:/x", os.path.join(os.getcwd(), "c:/x")),
        ("relative", os.path.join(os.getcwd(), "relative")),
        ("~/x", os.path.expanduser("~/x")),
    ],
)
def test_local_paths(given, path):
    location = locate(given)
    assert isinstance(location.files, LocalFiles)
    assert location.path == path
    assert location.public(path) == Path(path)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("gs://bucket/run/", "gs://bucket/run"),
        ("GS://bucket", "gs://bucket"),
        (Path("gs://bucket/run"), "gs://bucket/run"),
    ],
)
def test_paths_with_a_scheme(given, path):
    location = locate(given)
    assert isinstance(location.files, RemoteFiles)
    assert location.path == path
    assert location.public(path) == path
    assert location.child("x") == f"{path}/x"


def test_a_scheme_without_its_file_system_says_what_brings_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    for act in (DirectoryLock, latest, verify):
        for path in ("s3a://bucket/run", Path("s3a://bucket/run")):
            with pytest.raises(ValueError, match=r's3a://bucket/run.*pip install "keras_turbo\[remote\]"'):
                act(path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("foo://x/y", "No file system is installed for 'foo://x/y'"),
        ("https://x/y", "can't be written"),
        ("s3:/bucket", r"Meant: s3://bucket\?"),
        ("gs://", "must name a bucket"),
        ("file://x", "must be absolute"),
        ("", "must be the path of a folder"),
        ("  ", "must be the path of a folder"),
        ("a\0b", "must be a path"),
        (3, "must be text or a Path"),
        (None, "must be text or a Path"),
    ],
)
def test_paths_that_can_not_be(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        locate(path)
    assert os.listdir(tmp_path) == []
