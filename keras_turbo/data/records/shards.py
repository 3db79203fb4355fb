"""Which TFRecord files are meant, and what their folder's manifest says of them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

from keras_turbo.data.records.manifest import MANIFEST_NAME, Manifest, load_manifest
from keras_turbo.data.records.reader import RecordReader
from keras_turbo.data.sources.files import find_files

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
    if isinstance(pattern, (str, os.PathLike)) and os.path.isdir(pattern):
        return _in_folder(pathlib.Path(os.fspath(pattern)), reads_manifest)
    paths = find_files(pattern)
    if not reads_manifest:
        return Shards(paths, None, are_all=False)
    folders = {path: pathlib.Path(path).parent for path in paths}
    manifests = {folder: load_manifest(folder) for folder in dict.fromkeys(folders.values())}
    for path, folder in folders.items():
        manifest = manifests[folder]
        if manifest is not None and os.path.basename(path) not in manifest.files:
            manifests[folder] = None  # of other files
    found = [manifest for manifest in manifests.values() if manifest is not None]
    if not found:
        return Shards(paths, None, are_all=False)
    if len(found) < len(manifests) or any(_kind(one) != _kind(found[0]) for one in found):
        raise ValueError(
            f"The files that match {pattern!r} are of different kinds: {MANIFEST_NAME} in their folders does not say "
            "the same of all of them. Read them apart, or give `features`."
        )
    names = [os.path.basename(path) for path in paths]
    counts = []
    for path, name in zip(paths, names, strict=True):
        manifest = manifests[folders[path]]
        counts.append(0 if manifest is None else manifest.files[name])
    return Shards(paths, found[0], are_all=len(found) == 1 and names == list(found[0].files), counts=counts)


def _kind(manifest: Manifest) -> Any:
    return manifest.element, manifest.class_names, manifest.compression, manifest.label


def _refuse_unfinished(folder: pathlib.Path) -> None:
    if (folder / CONVERTING_FOLDER).exists():
        raise ValueError(
            f"The conversion into {str(folder)!r} is not finished. Run the same command again: it goes on where it "
            "was ended."
        )
    if (folder / WRITING_FOLDER).exists():
        raise ValueError(
            f"write_tfrecords() into {str(folder)!r} is not finished, or was killed: some of its files may be missing. "
            "Wait for it, or call it again."
        )


def _in_folder(folder: pathlib.Path, reads_manifest: bool) -> Shards:
    manifest = load_manifest(folder)
    if manifest is None:
        _refuse_unfinished(folder)
        names = sorted(name for name in os.listdir(folder) if _IN_NAMES in name and not name.startswith("."))
        if not names:
            below = sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST_NAME}"))
            hint = f" There are some in the folders {', '.join(below)} in it." if below else ""
            raise ValueError(f"No TFRecord files in {str(folder)!r}: no name with {_IN_NAMES!r} in it.{hint}")
        return Shards([str(folder / name) for name in names], None, are_all=False)
    paths = [str(folder / name) for name in manifest.files]
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(paths)} files that {str(folder / MANIFEST_NAME)!r} names are missing, "
            f"{missing[0]!r} among them. Restore them, or give a pattern of those that are there."
        )
    if not reads_manifest:
        return Shards(paths, None, are_all=False)
    return Shards(paths, manifest, are_all=True, counts=list(manifest.files.values()))
