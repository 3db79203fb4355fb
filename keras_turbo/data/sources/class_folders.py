"""Folders of files of one kind, one class a folder: which files are read, what class each has, how they are split."""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from keras_turbo import files as storage
from keras_turbo.data.labels import check_class_names, encode_labels, labels_of_paths
from keras_turbo.data.sources.files import DecodedFiles, Decoder, Files
from keras_turbo.files import is_remote, resolved

Subset = Literal["training", "validation", "both"]

# The longest magic number of all kinds of files, with some to spare.
_HEADER_BYTES = 64


@dataclasses.dataclass(frozen=True)
class FileKind:
    """What is looked for in a folder.

    Attributes:
        name: of one, as in "image_folder".
        plural: what an error calls them.
        endings: in lower case. A file with one of them is one; what it really is shows when it is read.
        is_one: tells by its first 64 bytes whether a file with another ending is one.
    """

    name: str
    plural: str
    endings: Sequence[str]
    is_one: Callable[[bytes], bool]


@dataclasses.dataclass(frozen=True)
class ClassFiles:
    """The files of a kind found under a folder.

    Attributes:
        paths: sorted; where there are classes, within each class, in the order of their numbers.
        class_of: for each path the name of its class folder; empty where classes were not asked for.
        class_names: the class folders, in the order of their numbers.
    """

    paths: list[str]
    class_of: list[str]
    class_names: list[str]


def find_class_files(
    directory: str | os.PathLike,
    kind: FileKind,
    by_class: bool,
    class_names: Sequence[str] | None = None,
    follow_links: bool = True,
) -> ClassFiles:
    """Finds the files of a kind under a folder, and in its class folders if asked.

    A file is one by its ending, or by its first bytes where the ending is unknown. Hidden files are passed over.
    Whatever else is left out is counted in one warning, by ending.

    Args:
        directory: the folder, on this machine or behind a scheme.
        kind: what is looked for.
        by_class: whether each folder in it is a class.
        class_names: the class folders to read, in the order of their numbers; by default all, sorted by name.
        follow_links: whether links to folders are followed, but for those that lead back into the directory. A class
            folder may be a link in any case.

    Raises:
        FileNotFoundError: no such folder.
        NotADirectoryError: it is a file.
        OSError: the store behind the scheme can't be asked.
        ValueError: no such files, no class folders, or a name in `class_names` without a folder.
    """
    root = resolved(directory, "directory")
    root = root.rstrip("/") if is_remote(root) else str(pathlib.Path(root))
    _require_folder(root, kind)
    left_out: collections.Counter[str] = collections.Counter()
    folders: list[str] = []
    class_of: list[str] = []
    if not by_class:
        paths = _files_below(root, root, kind, left_out, follow_links)
    else:
        folders, files_beside = _folders_and_files(root, kind.endings)
        if class_names is not None:
            check_class_names(class_names)
            missing = [name for name in class_names if name not in folders]
            if missing:
                raise ValueError(f"`class_names` has {missing}, for which {root!r} has no folder. It has: {folders}.")
            folders = list(class_names)
        if not folders:
            raise ValueError(
                f"{root!r} has no class folders: with labels='inferred' each class is a folder of {kind.plural} in it. "
                "For a flat folder give `labels` as a list or a function of the path, or labels=None."
            )
        _warn_of_files_beside(root, files_beside, kind)
        paths = []
        for name in folders:
            of_class = _files_below(root, storage.join(root, name), kind, left_out, follow_links)
            paths += of_class
            class_of += [name] * len(of_class)
    if left_out:
        counts = ", ".join(f"{count} {ending or '(no ending)'}" for ending, count in left_out.most_common())
        warnings.warn(
            f"{sum(left_out.values())} files under {root!r} are not among the {kind.plural} that can be read and were "
            f"left out: {counts}. Read are {', '.join(sorted(kind.endings))}.",
            stacklevel=5,  # where from_image_folder is called
        )
    if not paths:
        raise ValueError(
            f"No {kind.plural} under {root!r}. Looked for {', '.join(sorted(kind.endings))}, by content too. "
            f"If the {kind.plural} are elsewhere, give that folder."
        )
    return ClassFiles(paths, class_of, folders)


def has_class_folders(directory: str | os.PathLike) -> bool:
    """Whether there are folders in a folder, apart from hidden ones, or files alone."""
    root = resolved(directory, "directory")
    if not is_remote(root):
        return os.path.isdir(root) and any(
            p.is_dir() and not p.name.startswith(".") for p in pathlib.Path(root).iterdir()
        )
    try:
        folders, _ = _folders_and_files(root.rstrip("/"), ())
    except (FileNotFoundError, NotADirectoryError):  # find_class_files says so
        return False
    return bool(folders)


def _require_folder(root: str, kind: FileKind) -> None:
    if storage.is_folder(root):
        return
    if storage.exists(root):
        raise NotADirectoryError(f"{root!r} is a file. Give the folder that holds the {kind.plural}.")
    if is_remote(root):
        storage.require_reachable(root)
    where = "" if is_remote(root) else f" (it is relative to {os.getcwd()!r})"
    raise FileNotFoundError(f"There is no folder {root!r}. Check the path{where}.")


def _folders_and_files(root: str, endings: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names of the folders in a folder, and of the files of the kind beside them; without hidden ones."""
    folders, files = [], []
    if not is_remote(root):
        for path in pathlib.Path(root).iterdir():
            if not path.name.startswith("."):
                (folders if path.is_dir() else files).append(path.name)
    else:
        for name, is_folder in storage.entries(root):
            if not name.startswith("."):
                (folders if is_folder else files).append(name)
    return sorted(folders), sorted(name for name in files if _ending(name) in endings)


def _warn_of_files_beside(root: str, beside: list[str], kind: FileKind) -> None:
    if beside:
        warnings.warn(
            f"{len(beside)} {kind.plural} lie beside the class folders of {root!r} and were left out, {beside[0]!r} "
            "among them: they have no class.",
            stacklevel=6,
        )


def _files_below(
    root: str, folder: str, kind: FileKind, left_out: collections.Counter[str], follow_links: bool
) -> list[str]:
    found, others = [], []
    for path in _remote_files(folder) if is_remote(folder) else _local_files(root, folder, follow_links):
        (found if _ending(storage.name_of(path)) in kind.endings else others).append(path)
    if others:
        heads = storage.each_path(_head, others)
        for path, head in zip(others, heads, strict=True):
            if kind.is_one(head):
                found.append(path)
            else:
                left_out[_ending(storage.name_of(path))] += 1
    return sorted(found)


def _local_files(root: str, folder: str, follow_links: bool) -> Iterator[str]:
    been_in = set()
    for parent, folders, names in os.walk(folder, followlinks=follow_links):
        if os.path.realpath(parent) in been_in:  # a link to a folder above would lead round and round
            folders.clear()
            continue
        been_in.add(os.path.realpath(parent))
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and not _leads_back(os.path.join(parent, name), root)
        )
        for name in names:
            if not name.startswith("."):
                yield os.path.join(parent, name)


def _remote_files(folder: str) -> Iterator[str]:
    waiting = [folder]
    while waiting:
        parent = waiting.pop()
        for name, is_folder in storage.entries(parent):
            if name.startswith("."):
                continue
            if is_folder:
                waiting.append(storage.join(parent, name))
            else:
                yield storage.join(parent, name)


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _leads_back(folder: str, root: str) -> bool:
    """Whether a link leads to the files that are looked through anyway, in which each has its place and its class."""
    if not os.path.islink(folder):
        return False
    target, whole = pathlib.Path(folder).resolve(), pathlib.Path(root).resolve()
    return target == whole or target in whole.parents or whole in target.parents


def _head(path: str) -> bytes:
    if is_remote(path):
        return storage.read_at(path, 0, _HEADER_BYTES)
    if not os.path.isfile(path):  # a pipe would keep its reader waiting
        return b""
    try:
        return storage.read_at(path, 0, _HEADER_BYTES)
    except OSError:  # closed to this user, perhaps
        return b""


def class_folder_sources(
    files: ClassFiles,
    kind: FileKind,
    decoder_of: Callable[[bool], tuple[Decoder, dict[str, Any]]],
    *,
    directory: str | os.PathLike,
    labels: Any,
    label_mode: str | None,
    class_names: Sequence[str] | None,
    validation_split: float | None,
    subset: Subset | None,
    seed: int | None,
) -> tuple[dict[str, DecodedFiles], list[str] | None]:
    """The sources of files that were found, by the name of their part, and the class names.

    Args:
        files: what `find_class_files` found.
        kind: of these files.
        decoder_of: gives the decoder of a part, and what decides its result, made of JSON's types, by whether the part
            is held out of a training that is asked for with it: such files are looked at whole.
        directory: where they were found.
        labels: as `FastDataset.from_image_folder` documents; this one and those below.
        label_mode: "int", "categorical", "binary", "raw" or None.
        class_names: classes in the order of their numbers.
        validation_split: share of the files held out.
        subset: "training", "validation" or "both".
        seed: of the split.
    """
    encoded = numbers = names = None
    if labels is not None and label_mode is not None:
        found = files.class_of or labels_of_paths(labels, files.paths)
        # Folders without a file are classes all the same.
        known = files.class_names if files.class_of else class_names
        encoded, numbers, names = encode_labels(found, label_mode, known)

    held_out = np.zeros(len(files.paths), bool)
    if validation_split is not None:
        held_out = validation_mask(len(files.paths), validation_split, seed or 0)
    wanted = {"training": ~held_out, "validation": held_out}
    if subset != "both":
        wanted = {"training" if subset is None else subset: wanted["training" if subset is None else subset]}

    sources = {}
    for part, mask in wanted.items():
        if not mask.any():
            raise ValueError(
                f"validation_split={validation_split} of {len(files.paths)} {kind.plural} leaves none for {part}. Use "
                f"more {kind.plural} or another share."
            )
        decoder, options = decoder_of(part == "validation" and subset == "both")
        recipe = {
            "kind": f"{kind.name}_folder",
            "directory": storage.absolute(resolved(directory, "directory")),
            kind.plural: options,
            "classes": [labels if isinstance(labels, str) else labels is not None, label_mode, names],
            "part": [part, validation_split and float(validation_split), subset, seed and int(seed)],
        }
        of_part = Files(
            [path for path, is_wanted in zip(files.paths, mask, strict=True) if is_wanted],
            None if encoded is None else encoded[mask],
            None if numbers is None else numbers[mask],
        )
        sources[part] = DecodedFiles(of_part, decoder, recipe)
    return sources, names


def check_split(validation_split: float | None, subset: Subset | None, seed: int | None, kind: FileKind) -> None:
    """Checks the arguments of a split.

    Raises:
        ValueError: one that can't be, or one without the others.
    """
    if validation_split is None:
        if subset is not None:
            raise ValueError(f"subset={subset!r} needs `validation_split`, the share of the {kind.plural} to hold out.")
        return
    if isinstance(validation_split, (bool, str)) or not 0 < validation_split < 1:
        raise ValueError(f"`validation_split` must lie between 0 and 1. Received: {validation_split!r}.")
    if subset not in ("training", "validation", "both"):
        raise ValueError(
            "With `validation_split`, `subset` must be 'training', 'validation' or 'both'. "
            f"Received: subset={subset!r}."
        )
    if seed is None and subset != "both":
        raise ValueError(
            f"The {subset} part is drawn by `seed`, which must be the same for both parts, or some {kind.plural} are "
            "in both. Give a seed in both calls, or make both parts by one with subset='both'."
        )


def validation_mask(num_examples: int, validation_split: float, seed: int) -> np.ndarray:
    """Which examples are held out: bool, shape `(num_examples,)`, a random `validation_split` of them by the seed.

    The same number of examples and the same seed give the same mask, so that the two sets are disjoint.
    """
    order = np.random.default_rng(seed).permutation(num_examples)
    mask = np.zeros(num_examples, bool)
    # As many as in Keras, which cuts, too.
    mask[order[: int(num_examples * validation_split)]] = True
    return mask
