"""Which TFRecord files are meant, and what their folder's manifest says of them."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Sequence
from typing import Any

from keras_turbo import files as storage
from keras_turbo.data.records.manifest import MANIFEST_NAME, Manifest, load_manifest
from keras_turbo.data.records.reader import RecordReader
from keras_turbo.data.sources.files import find_files
from keras_turbo.files import is_remote, resolved

# In a folder without a manifest: `a.tfrecord`, `a.tfrecords.gz`, `a.tfrec`, `a.tfrecord-00000-of-00008`.
_IN_NAMES = ".tfrec"

# Where a conversion that is not finished keeps its plan, and where `write_tfrecords` has files until all are whole.
CONVERTING_FOLDER = ".converting"
WRITING_FOLDER = ".writing"


@dataclasses.dataclass(frozen=True)
class Shards:
    """Files of records.

    Attributes:
        paths: of the files, in order.
        manifest: what is known of them; None where nothing is.
        are_all: whether they are all files of one manifest, in its order.
        counts: how many records the manifest says that each has; empty without one.
    """

    paths: list[str]
    manifest: Manifest | None
    are_all: bool
    counts: list[int] = dataclasses.field(default_factory=list)

    def check_counts(self, reader: RecordReader, *, may_be_damaged: bool) -> None:
        """Checks that files have as many records as the manifest says, as a file cut between two looks whole.

        Raises:
            ValueError: one has not, unless files `may_be_damaged`, when a warning says so.
        """
        if self.manifest is None:
            return
        for path, count, expected in zip(self.paths, reader.whole_counts, self.counts, strict=True):
            if count == expected:
                continue
            text = f"{path} has {count} records, and {MANIFEST_NAME} beside it says {expected}."
            if not may_be_damaged:
                raise ValueError(
                    f"{text} It is not the file that was written: restore it, or write the records again. "
                    "(on_error='skip' takes what is there.)"
                )
            warnings.warn(text, stacklevel=4)  # where from_tfrecord is called


def find_shards(pattern: str | os.PathLike | Sequence[str | os.PathLike], *, reads_manifest: bool) -> Shards:
    """The files that are meant by a folder, a pattern, or a list of patterns.

    Raises:
        ValueError: there are none, a conversion into their folder is not finished, or manifests do not agree.
    """
    if isinstance(pattern, (str, os.PathLike)):
        folder = resolved(pattern, "pattern")
        if storage.is_folder(folder):
            return _in_folder(folder.rstrip("/") if is_remote(folder) else folder, reads_manifest)
    paths = find_files(pattern)
    if not reads_manifest:
        return Shards(paths, None, are_all=False)
    folders = {path: storage.parent_of(path) for path in paths}
    manifests = {folder: load_manifest(folder) for folder in dict.fromkeys(folders.values())}
    for path, folder in folders.items():
        manifest = manifests[folder]
        if manifest is not None and storage.name_of(path) not in manifest.files:
            manifests[folder] = None  # of other files
    found = [manifest for manifest in manifests.values() if manifest is not None]
    if not found:
        return Shards(paths, None, are_all=False)
    if len(found) < len(manifests) or any(_kind(one) != _kind(found[0]) for one in found):
        raise ValueError(
            f"The files that match {pattern!r} are of different kinds: {MANIFEST_NAME} in their folders does not say "
            "the same of all of them. Read them apart, or give `features`."
        )
    names = [storage.name_of(path) for path in paths]
    counts = []
    for path, name in zip(paths, names, strict=True):
        manifest = manifests[folders[path]]
        counts.append(0 if manifest is None else manifest.files[name])
    return Shards(paths, found[0], are_all=len(found) == 1 and names == list(found[0].files), counts=counts)


def _kind(manifest: Manifest) -> Any:
    return manifest.element, manifest.class_names, manifest.compression, manifest.label


def _refuse_unfinished(folder: str) -> None:
    if storage.exists(storage.join(folder, CONVERTING_FOLDER)):
        raise ValueError(
            f"The conversion into {folder!r} is not finished. Run the same command again: it goes on where it "
            "was ended."
        )
    if storage.exists(storage.join(folder, WRITING_FOLDER)):
        raise ValueError(
            f"write_tfrecords() into {folder!r} is not finished, or was killed: some of its files may be missing. "
            "Wait for it, or call it again."
        )


def _in_folder(folder: str, reads_manifest: bool) -> Shards:
    manifest = load_manifest(folder)
    there = storage.names_in(folder)
    if manifest is None:
        _refuse_unfinished(folder)
        names = [name for name in there if _is_record_file(name)]
        if not names:
            raise ValueError(
                f"No TFRecord files in {folder!r}: no name with {_IN_NAMES!r} in it.{_folders_with_some(folder, there)}"
            )
        return Shards([storage.join(folder, name) for name in names], None, are_all=False)
    paths = [storage.join(folder, name) for name in manifest.files]
    missing = [storage.join(folder, name) for name in manifest.files if name not in set(there)]
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(paths)} files that {storage.join(folder, MANIFEST_NAME)!r} names are missing, "
            f"{missing[0]!r} among them. Restore them, or give a pattern of those that are there."
        )
    if not reads_manifest:
        return Shards(paths, None, are_all=False)
    return Shards(paths, manifest, are_all=True, counts=list(manifest.files.values()))


def record_files_in(folder: str) -> list[str]:
    """The names of the TFRecord files in a folder, sorted; none where there is no folder."""
    if not storage.is_folder(folder):
        return []
    return [name for name in storage.names_in(folder) if _is_record_file(name)]


def _is_record_file(name: str) -> bool:
    return _IN_NAMES in name and not name.startswith(".")


def _folders_with_some(folder: str, names: list[str]) -> str:
    below = [name for name in names if storage.exists(storage.join(folder, name, MANIFEST_NAME))]
    return f" There are some in the folders {', '.join(below)} in it." if below else ""
