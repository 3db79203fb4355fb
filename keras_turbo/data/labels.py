"""Labels as a model wants them: integers, one-hot rows, zeros and ones, or as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

LABEL_MODES = ("int", "categorical", "binary", "raw")


def labels_of_paths(labels: Any, paths: Sequence[str]) -> list[Any] | np.ndarray:
    """One label for each path, from a list or from a function of the path.

    Raises:
        ValueError: a list of another length.
        TypeError: neither a list nor a function.
    """
    if isinstance(labels, Callable):
        return [labels(path) for path in paths]
    if isinstance(labels, (str, bytes)) or not hasattr(labels, "__len__"):
        raise TypeError(
            "`labels` must be 'inferred' (class folders), None, a list with one label for each file in sorted order, "
            f"or a function of the path. Received: {labels!r}."
        )
    if len(labels) != len(paths):
        raise ValueError(
            f"`labels` has {len(labels)} entries for {len(paths)} files; it must have one for each, in the files' "
            f"sorted order (first {os.path.basename(paths[0])!r}, last {os.path.basename(paths[-1])!r})."
        )
    return labels


def check_class_names(class_names: Sequence[str]) -> None:
    """Checks that class names can be numbered.

    Raises:
        TypeError: one string in place of several.
        ValueError: a name that occurs twice.
    """
    if isinstance(class_names, (str, bytes)):
        raise TypeError(f"`class_names` must be a list of names. Received: {class_names!r}.")
    twice = sorted({name for name in class_names if list(class_names).count(name) > 1})
    if twice:
        raise ValueError(f"`class_names` must be different from one another. More than once: {twice}.")


def encode_labels(
    labels: Sequence[Any] | np.ndarray, label_mode: str, class_names: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray | None, list[str] | None]:
    """Encodes labels.

    Args:
        labels: names of classes (strings), or numbers of classes (integers); with "raw" anything regular.
        label_mode: "int" gives int32 of shape (n,), "categorical" float32 one-hot rows of shape (n, classes), "binary"
            float32 zeros and ones of shape (n, 1), as `keras.utils.image_dataset_from_directory` gives them; "raw" the
            values as they are (floats as Keras' floatx), for regression.
        class_names: names in the order of their numbers; by default the names that occur, sorted. With integer labels
            it may name the classes, and gives their number.

    Returns:
        The encoded labels, the class numbers (int32, shape (n,)), and the names of the classes; the latter two are None
        with "raw".

    Raises:
        ValueError: an unknown mode, a label that is not in `class_names`, a negative number, other than two classes
            for "binary".
        TypeError: labels that are neither all strings nor all integers.
    """
    if label_mode not in LABEL_MODES:
        raise ValueError(f"`label_mode` must be one of {', '.join(LABEL_MODES)}, or None. Received: {label_mode!r}.")
    if class_names is not None:
        check_class_names(class_names)
    try:
        array = np.asarray(labels)
    except ValueError as error:
        raise TypeError(f"`labels` must have the same shape for each file. {error}") from error
    if label_mode == "raw":
        return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array, None, None
    are_strings = array.dtype.kind == "U" or (
        array.dtype == object and all(isinstance(item, str) for item in array.flat)
    )
    if are_strings and array.ndim == 1:
        names = [str(label) for label in array]
        known = list(class_names) if class_names is not None else sorted(set(names))
        numbers = {name: number for number, name in enumerate(known)}
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise ValueError(f"Labels {unknown} are not in `class_names` ({known}).")
        classes = np.array([numbers[name] for name in names], np.int32)
    elif array.dtype.kind in "iub" and array.ndim == 1:
        classes = array.astype(np.int32)
        if classes.min() < 0:
            raise ValueError(f"Class numbers must not be negative. Received: {int(classes.min())}.")
        count = int(classes.max()) + 1
        known = list(class_names) if class_names is not None else [str(number) for number in range(count)]
        if count > len(known):
            raise ValueError(f"`class_names` names {len(known)} classes, but a label has the number {count - 1}.")
    else:
        raise TypeError(
            f"With label_mode={label_mode!r} labels must be class names (strings) or class numbers (integers). "
            f"Received values of type {array.dtype} and shape {array.shape}. For other targets use label_mode='raw'."
        )
    if label_mode == "binary":
        if len(known) != 2:
            raise ValueError(f"label_mode='binary' needs two classes. There are {len(known)}: {known}.")
        return classes.astype(np.float32)[:, None], classes, known
    if label_mode == "categorical":
        return np.eye(len(known), dtype=np.float32)[classes], classes, known
    return classes, classes, known
