"""Glob patterns behind a scheme, with the meaning that Python's `glob` gives them on this machine.

TensorFlow's own `tf.io.gfile.glob` takes `**` for `*`, and whatever hinders it for a pattern that nothing matches.
"""

from __future__ import annotations

import fnmatch
import glob

from keras_turbo.storage import remote
from keras_turbo.storage.paths import join

_ANY_FOLDERS = "**"


def remote_glob(pattern: str) -> list[str]:
    """The files that a pattern with a scheme matches, sorted; `**` crosses folders, hidden names must be named.

    A name that ends as the pattern does (`*.png`) is taken for a file, since asking would be a request each.

    Raises:
        OSError: the store can't be asked.
    """
    scheme, _, rest = pattern.partition("://")
    # The first part is the bucket or host.
    bucket, *parts = rest.split("/")
    if glob.has_magic(bucket) or not parts:
        return []
    _, dot, ending = parts[-1].rpartition(".")
    names_of_files = f"*.{ending}" if dot and ending and not glob.has_magic(ending) else None
    return sorted(set(_Search(names_of_files).matches(f"{scheme}://{bucket}", parts)))


class _Search:
    """Goes through folders for a pattern.

    Args:
        names_of_files: a name that matches this is not asked about whether it is a folder's.
    """

    def __init__(self, names_of_files: str | None) -> None:
        self._names_of_files = names_of_files

    def matches(self, folder: str, parts: list[str]) -> list[str]:
        """The files in a folder that the parts of a pattern match."""
        part, *rest = parts
        if part == _ANY_FOLDERS:
            folders, files = self._told_apart(folder, "*")
            found = self.matches(folder, rest) if rest else files
            return found + [path for below in folders for path in self.matches(below, parts)]
        if glob.has_magic(part):
            folders, files = self._told_apart(folder, part)
            return [path for below in folders for path in self.matches(below, rest)] if rest else files
        path = join(folder, part)
        if rest:
            return self.matches(path, rest)
        return [path] if remote.exists(path) and not remote.is_folder(path) else []

    def _told_apart(self, folder: str, pattern: str) -> tuple[list[str], list[str]]:
        """The folders and the files in a folder whose names match a pattern."""
        try:
            found = remote.entries(folder)
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        is_folder: dict[str, bool | None] = {}
        for entry in found:
            if entry.name.startswith(".") and not pattern.startswith("."):
                continue
            if fnmatch.fnmatchcase(entry.name, pattern):
                is_file = self._names_of_files is not None and fnmatch.fnmatchcase(entry.name, self._names_of_files)
                is_folder[join(folder, entry.name)] = False if is_file and not entry.is_folder else entry.is_folder
        unknown = [path for path, answer in is_folder.items() if answer is None]
        is_folder.update(zip(unknown, remote.each_of(remote.is_folder, unknown), strict=True))
        return [path for path, answer in is_folder.items() if answer], [
            p for p, answer in is_folder.items() if not answer
        ]
