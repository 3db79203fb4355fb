"""Which files make up a table, and which of them can be read."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from keras_turbo import files as storage
from keras_turbo.data.failures import ExampleLoadError, SkippedExample
from keras_turbo.data.sources.files import find_files
from keras_turbo.files import resolved

T = TypeVar("T")


def find_table_files(
    pattern: str | os.PathLike | Sequence[str | os.PathLike], endings: Sequence[str], kind: str
) -> list[str]:
    """The files that are meant by a folder, a pattern, or a list of patterns; sorted.

    Args:
        pattern: as `FastDataset.from_parquet` documents it.
        endings: what names of files in a folder have in them, such as ".parquet" in "part-0.parquet.gz".
        kind: what an error calls such files.

    Raises:
        TypeError, ValueError: it is something else; there are none; no file system here has its scheme.
        OSError: the store behind a scheme can't be asked.
    """
    if not isinstance(pattern, (str, os.PathLike, Sequence)):
        raise TypeError(f"`pattern` must be a pattern, a path or a list of them. Received: {pattern!r}.")
    if not isinstance(pattern, (str, os.PathLike)):
        return find_files(pattern)
    folder = resolved(pattern, "pattern")
    if not storage.is_folder(folder):
        return find_files(pattern)

    def is_one(path: str) -> bool:
        # Names that begin so are marks and metadata of those who write tables.
        name = storage.name_of(path)
        return any(ending in name.lower() for ending in endings) and not name.startswith((".", "_"))

    found = storage.entries(folder)
    paths = [storage.join(folder, name) for name, is_folder in found if is_one(name) and not is_folder]
    if not paths:
        escaped = glob.escape(folder)
        patterns = [storage.join(escaped, "*", f"*{ending}*") for ending in endings]
        below = any(is_one(path) for one in patterns for path in storage.find(one))
        hint = f" There are some below: give {storage.join(escaped, '**', '*' + endings[0])!r}." if below else ""
        raise ValueError(f"No {kind} files in {folder!r}: no name with {' or '.join(endings)} in it.{hint}")
    return paths


def each_file(
    paths: Sequence[str], look: Callable[[str], T | None], *, skip: bool
) -> tuple[list[T], list[SkippedExample]]:
    """What a function finds of each file, without those of which it finds nothing.

    Args:
        paths: the files; where one is behind a scheme, many are looked at at a time.
        look: takes a path; gives None for a file that holds no row, and raises `ExampleLoadError` for one that can't be
            read.
        skip: whether those are left out.

    Returns:
        What was found, and what was left out.

    Raises:
        ExampleLoadError: one can't be read and `skip` is False, or none can.
    """

    def looked_at(path: str) -> T | SkippedExample | None:
        try:
            return look(path)
        except ExampleLoadError as error:
            if not skip:
                raise ExampleLoadError(f"{error} (on_error='skip' leaves such files out and lists them.)") from error
            return SkippedExample(path, str(error).removeprefix(f"{path}: "))

    results = storage.each_path(looked_at, paths)
    found: list[T] = []
    left_out: list[SkippedExample] = []
    for one in results:
        if isinstance(one, SkippedExample):
            left_out.append(one)
        elif one is not None:
            found.append(one)
    if left_out and not found:
        raise ExampleLoadError(
            f"None of {len(left_out)} files can be read. The first: {left_out[0].path}: {left_out[0].reason}"
        )
    return found, left_out
