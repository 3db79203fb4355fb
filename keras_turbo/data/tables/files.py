"""Which files make up a table."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from keras_turbo.data.sources.files import find_files


def find_table_files(
    pattern: str | os.PathLike | Sequence[str | os.PathLike], endings: Sequence[str], kind: str
) -> list[str]:
    """The files that are meant by a folder, a pattern, or a list of patterns; sorted.

    Args:
        pattern: as `FastDataset.from_parquet` documents it.
        endings: what names of files in a folder have in them, such as ".parquet" in "part-0.parquet.gz".
        kind: what an error calls such files.

    Raises:
        TypeError, ValueError: it is something else; there are none.
    """
    if not isinstance(pattern, (str, os.PathLike, Sequence)):
        raise TypeError(f"`pattern` must be a pattern, a path or a list of them. Received: {pattern!r}.")
    if not isinstance(pattern, (str, os.PathLike)) or not os.path.isdir(pattern):
        return find_files(pattern)
    folder = pathlib.Path(os.fspath(pattern))

    def is_one(name: str) -> bool:
        # Names that begin so are marks and metadata of those who write tables.
        return any(ending in name.lower() for ending in endings) and not name.startswith((".", "_"))

    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file() and is_one(entry.name))
    if not names:
        below = any(is_one(path.name) for ending in endings for path in folder.glob(f"*/*{ending}*"))
        hint = f" There are some below: give {str(folder / '**' / ('*' + endings[0]))!r}." if below else ""
        raise ValueError(f"No {kind} files in {str(folder)!r}: no name with {' or '.join(endings)} in it.{hint}")
    return [str(folder / name) for name in names]
