"""Which files make up a table."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence

from keras_turbo.data.sources.files import find_files
from keras_turbo.storage import paths as storage
from keras_turbo.storage import remote
from keras_turbo.storage.globbing import remote_glob
from keras_turbo.storage.schemes import is_remote, resolved


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

    named = [storage.join(folder, name) for name in storage.names_in(folder) if is_one(name)]
    are_files = (remote.each_of if is_remote(folder) else map)(storage.is_file, named)
    paths = [path for path, is_file in zip(named, are_files, strict=True) if is_file]
    if not paths:
        escaped = glob.escape(folder)
        patterns = [storage.join(escaped, "*", f"*{ending}*") for ending in endings]
        below = any(is_one(path) for one in patterns for path in (remote_glob if is_remote(one) else glob.iglob)(one))
        hint = f" There are some below: give {storage.join(escaped, '**', '*' + endings[0])!r}." if below else ""
        raise ValueError(f"No {kind} files in {folder!r}: no name with {' or '.join(endings)} in it.{hint}")
    return paths
