"""Which TFRecord files are meant, and what their folder's manifest says of them."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Sequence

from keras_turbo import files as storage
from keras_turbo.data.records.manifest import MANIFEST_NAME, Manifest, load_manifest
from keras_turbo.data.sources.files import find_files
from keras_turbo.files import is_remote, resolved

# In a folder without a manifest: `a.tfrecord`, `a.tfrecords.gz`, `a.tfrec`, `a.tfrecord-00000-of-00008`.
_IN_NAMES = ".tfrec"

# Where a conversion that is not finished keeps its plan, and what there is while `write_tfrecords` puts files in place.
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
    manifest: Manifest | None = None
    are_all: bool = False
    counts: Sequence[int] = ()

    def check_counts(self, found: Sequence[int], *, may_be_damaged: bool) -> None:
        """Refuses files with another number of records than the manifest says: one cut between two looks whole."""
        for path, count, expected in zip(self.paths, found, self.counts, strict=False):
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
    """The files that are meant by a folder, a pattern, or a list of patterns; raises ValueError if there are none."""
    if isinstance(pattern, (str, os.PathLike)):
        folder = resolved(pattern, "pattern")
        if storage.is_folder(folder):
            return _in_folder(folder.rstrip("/") if is_remote(folder) else folder, reads_manifest)
    paths = find_files(pattern)
    folders = [storage.parent_of(path) for path in paths]
    names = [storage.name_of(path) for path in paths]
    manifests = {}
    for folder in dict.fromkeys(folders) if reads_manifest else ():
        manifest = load_manifest(folder)
        own = {name for name, parent in zip(names, folders, strict=True) if parent == folder}
        if manifest is not None and own <= manifest.files.keys():  # else it is of other files
            manifests[folder] = manifest
    if not manifests:
        return Shards(paths)
    kinds = [(one.element, one.class_names, one.compression, one.label) for one in manifests.values()]
    if len(kinds) < len(set(folders)) or any(kind != kinds[0] for kind in kinds):
        raise ValueError(
            f"The files that match {pattern!r} are of different kinds: {MANIFEST_NAME} in their folders does not say "
            "the same of all of them. Read them apart, or give `features`."
        )
    counts = [manifests[folder].files[name] for folder, name in zip(folders, names, strict=True)]
    first = manifests[folders[0]]
    return Shards(paths, first, len(kinds) == 1 and names == list(first.files), counts)


def _in_folder(folder: str, reads_manifest: bool) -> Shards:
    manifest = load_manifest(folder)
    if manifest is None:
        if storage.exists(storage.join(folder, CONVERTING_FOLDER)):
            raise ValueError(
                f"The conversion into {folder!r} is not finished. Run the same command again: it goes on where it was "
                "ended."
            )
        if storage.exists(storage.join(folder, WRITING_FOLDER)):
            raise ValueError(
                f"write_tfrecords() into {folder!r} is not finished, or was killed: some of its files may be missing. "
                "Wait for it, or call it again."
            )
    there = set(storage.names_in(folder))
    names = record_files_in(folder) if manifest is None else list(manifest.files)
    paths = [storage.join(folder, name) for name in names]
    if not names:
        below = [name for name in sorted(there) if storage.exists(storage.join(folder, name, MANIFEST_NAME))]
        hint = f" There are some in the folders {', '.join(below)} in it." if below else ""
        raise ValueError(f"No TFRecord files in {folder!r}: no name with {_IN_NAMES!r} in it.{hint}")
    missing = [path for path, name in zip(paths, names, strict=True) if name not in there]
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(paths)} files that {storage.join(folder, MANIFEST_NAME)!r} names are missing, "
            f"{missing[0]!r} among them. Restore them, or give a pattern of those that are there."
        )
    if manifest is None or not reads_manifest:
        return Shards(paths)
    return Shards(paths, manifest, True, list(manifest.files.values()))


def record_files_in(folder: str) -> list[str]:
    """The names of the TFRecord files in a folder, sorted; none where there is no folder."""
    names = storage.names_in(folder) if storage.is_folder(folder) else []
    return [name for name in names if _IN_NAMES in name and not name.startswith(".")]
