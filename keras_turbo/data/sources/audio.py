"""Folders of audio files, one class a folder."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo import files as storage
from keras_turbo.data.audio import INSTALLATION, AudioOptions, can_decode_packed, check_channels, decode_audio
from keras_turbo.data.audio_files import AUDIO_ENDINGS, PACKED_ENDINGS, audio_kind, channels_in
from keras_turbo.data.failures import ExampleLoadError
from keras_turbo.data.sources.class_folders import (
    FileKind,
    Loader,
    Subset,
    check_split,
    class_folder_sources,
    find_class_files,
)
from keras_turbo.data.sources.files import FileSource

# So many files are looked at beforehand, by so much of each.
_LOOKED_AT = 4
_HEAD_BYTES = 4096

_WHY_NOT_REMOTE = (
    "sounds are decoded with the help of Python of this one (decode WAV files of 16 bits by tf.audio.decode_wav in a "
    "load_fn of from_files)"
)

_AUDIO = FileKind("audio", "audio files", AUDIO_ENDINGS, lambda head: audio_kind(head) is not None)


def audio_folder_sources(
    directory: str | os.PathLike,
    options: AudioOptions,
    *,
    labels: Any,
    label_mode: str | None,
    class_names: Sequence[str] | None,
    validation_split: float | None,
    subset: Subset | None,
    seed: int | None,
    may_skip: bool,
) -> tuple[dict[str, FileSource], list[str] | None]:
    """The sources of `FastDataset.from_audio_folder`, by the name of their part, and the class names."""
    check_split(validation_split, subset, _AUDIO)
    files = find_class_files(directory, _AUDIO, isinstance(labels, str) and labels == "inferred", class_names)
    _require_decoders(files.paths, directory)
    if not may_skip:
        _require_channels(files.paths, options.channels)
    loader = Loader(lambda path, seed: decode_audio(tf.io.read_file(path), options), dataclasses.asdict(options))
    sources, names = class_folder_sources(
        files,
        _AUDIO,
        lambda is_whole: loader,
        directory=directory,
        labels=labels,
        label_mode=label_mode,
        class_names=class_names,
        validation_split=validation_split,
        subset=subset,
        seed=seed,
    )
    for source in sources.values():
        source.why_not_remote = _WHY_NOT_REMOTE
    return sources, names


def _require_channels(paths: Sequence[str], channels: int) -> None:
    """Looks at some files, so that a wrong `channels` is told before the first epoch; others are when they are read.

    Raises:
        ExampleLoadError: one has another number of channels.
    """
    if channels == 1:
        return
    numbers: list[int] = np.unique(np.linspace(0, len(paths) - 1, _LOOKED_AT).astype(int)).tolist()
    some = [paths[number] for number in numbers]
    for path, found in zip(some, storage.each_of(_channels_of, some), strict=True):
        if found is not None:
            try:
                check_channels(found, channels)
            except ValueError as error:
                text = f"{path}: {error} (on_error='skip' leaves such files out and lists them.)"
                raise ExampleLoadError(text) from None


def _channels_of(path: str) -> int | None:
    try:
        return channels_in(storage.read_at(path, 0, _HEAD_BYTES))
    except OSError:  # reading it will tell
        return None


def require_length(options: AudioOptions, batch_size: int | None) -> None:
    """Checks that examples can be batched.

    Raises:
        ValueError: they keep their own lengths.
    """
    if options.length_samples is None and batch_size is not None:
        raise ValueError(
            "Without `length_seconds` or `length_samples` each file keeps its own length, and batches need one. Give "
            "one of them, or batch_size=None."
        )


def _require_decoders(paths: Sequence[str], directory: str | os.PathLike) -> None:
    """Refuses files that can't be decoded here, before any is read.

    Raises:
        ValueError: there are some; the text says what brings their decoders.
    """
    packed = [path for path in paths if os.path.splitext(path)[1].lower() in PACKED_ENDINGS]
    if not packed or can_decode_packed():
        return
    endings = collections.Counter(os.path.splitext(path)[1].lower() for path in packed)
    counts = ", ".join(f"{count} {ending}" for ending, count in endings.most_common())
    raise ValueError(
        f"{len(packed)} of the {len(paths)} audio files under {os.fspath(directory)!r} can't be decoded here: "
        f"{counts}, {packed[0]!r} among them. They need tensorflow-io, which loads on TensorFlow 2.17 only (this is "
        f"{tf.__version__}): {INSTALLATION}. Or convert them to WAV."
    )
