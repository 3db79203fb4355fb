"""Audio files as examples: decoded by libsndfile, resampled by soxr, brought to one length."""

from __future__ import annotations

import dataclasses
import io
import math
import numbers
import os
import struct
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from keras_turbo import files
from keras_turbo.data.engine.failures import ExampleLoadError
from keras_turbo.data.sources.class_folders import (
    FileKind,
    Subset,
    check_split,
    class_folder_sources,
    find_class_files,
)
from keras_turbo.data.sources.files import DecodedFiles

ALIGNS = ("start", "center", "end")

AUDIO_ENDINGS = (".wav", ".wave", ".flac", ".ogg", ".oga", ".mp3", ".aif", ".aiff", ".aifc")
"""The endings, in lower case, of the files that can be read. A file's content decides what it is, all the same."""

# 70 minutes of one channel at 16 kHz, 256 MB as floats.
MOST_SAMPLES = 1 << 26

# So many files are looked at beforehand, by so much of each.
_LOOKED_AT = 4
_HEAD_BYTES = 4096

# What a WAV file says of the length of its data if it was written to a pipe.
_UNKNOWN_SIZES = (0x7FFFF000, 0xFFFFFFFF)
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE

_INSTALLATION = "pip install 'keras_turbo[audio]'"


@dataclasses.dataclass(frozen=True)
class AudioOptions:
    """What samples are wanted of an audio file.

    Args:
        sample_rate: in Hz.
        length_samples: number of samples of each channel; None keeps each file's own.
        length_seconds: the same in seconds, in its place.
        align: where a file of another length lies: "start", "center" or "end".
        channels: 1 for the mean of all channels, or the number that each file must have.
        max_samples: a file that declares more, over all channels and at its own rate or the wanted one, is refused
            before any memory is taken. Default: 67 million.

    Raises:
        TypeError, ValueError: one that can't be.
    """

    sample_rate: int
    length_samples: int | None = None
    length_seconds: dataclasses.InitVar[float | None] = None
    align: Literal["start", "center", "end"] = "start"
    channels: int = 1
    max_samples: int = MOST_SAMPLES

    def __post_init__(self, length_seconds: float | None) -> None:
        for name in ("sample_rate", "channels", "length_samples", "max_samples"):
            value = getattr(self, name)
            if name == "length_samples" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise TypeError(f"`{name}` must be a positive integer. Received: {name}={value!r}.")
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value!r}.")
            object.__setattr__(self, name, int(value))
        if self.align not in ALIGNS:
            raise ValueError(f"`align` must be one of {', '.join(ALIGNS)}. Received: align={self.align!r}.")
        if length_seconds is None:
            return
        if self.length_samples is not None:
            raise ValueError("Give `length_samples` or `length_seconds`, not both.")
        if isinstance(length_seconds, bool) or not isinstance(length_seconds, numbers.Real):
            raise TypeError(f"`length_seconds` must be a number. Received: length_seconds={length_seconds!r}.")
        length = float(length_seconds) * self.sample_rate
        if not math.isfinite(length) or round(length) < 1:
            raise ValueError(
                f"`length_seconds` must be the length of a sample (1 / {self.sample_rate}) at least. Received: "
                f"length_seconds={length_seconds!r}."
            )
        object.__setattr__(self, "length_samples", round(length))

    def require_batchable(self, batch_size: int | None) -> None:
        """Checks that examples have one length if they are batched.

        Raises:
            ValueError: they keep their own.
        """
        if self.length_samples is None and batch_size is not None:
            raise ValueError(
                "Without `length_seconds` or `length_samples` each file keeps its own length, and batches need one. "
                "Give one of them, or batch_size=None."
            )


class AudioDecoder:
    """Decodes audio files: WAV, FLAC, Ogg, MP3, AIFF, recognised by content.

    Args:
        options: what samples are wanted.
    """

    dtype = np.dtype(np.float32)
    is_random = False

    def __init__(self, options: AudioOptions) -> None:
        self.options = options
        self.shape = (options.length_samples, options.channels)

    def decode(self, data: bytes, seed: np.ndarray | None, out: np.ndarray | None) -> np.ndarray:
        """Decodes a file.

        Args:
            data: its bytes.
            seed: of no account.
            out: where the samples are to be; None for a new array.

        Returns:
            float32, shape `(samples, channels)`. Integers are divided such that they lie between -1 and 1.

        Raises:
            ValueError: a file that is empty, truncated, damaged, too long or no such audio, or has another number of
                channels; the text is a sentence.
        """
        options = self.options
        kind = audio_kind(data)
        if kind is None:
            raise ValueError(_why_no_audio(data))
        read = _simple_wav(data) if kind == "wav" else None
        rate, samples = read or _by_libsndfile(data, kind, options)
        check_channels(samples.shape[1], options.channels)
        if options.channels == 1 and samples.shape[1] > 1:
            samples = samples.mean(1, dtype=np.float32, keepdims=True)
        if rate != options.sample_rate:
            _check_length(len(samples) / rate, samples.shape[1], options)
            samples = _library("soxr").resample(samples, rate, options.sample_rate)
        return _of_length(samples, options, out)


def audio_kind(header: bytes) -> str | None:
    """Tells what kind of audio a file is by its first 64 bytes: "wav", "flac", "ogg", "mp3" or "aiff"; None if none."""
    if header.startswith((b"RIFF", b"RF64")) and header[8:12] == b"WAVE":
        return "wav"
    if header.startswith(b"FORM") and header[8:12] in (b"AIFF", b"AIFC"):
        return "aiff"
    for kind, magic in (("flac", b"fLaC"), ("ogg", b"OggS"), ("mp3", b"ID3")):
        if header.startswith(magic):
            return kind
    # A frame of MPEG audio: eleven bits of sync, then version, layer III, and a bit rate and a sample rate that are.
    if len(header) >= 4 and header[0] == 0xFF and header[1] & 0xE6 == 0xE2 and header[1] & 0x18 != 0x08:
        return "mp3" if header[2] & 0xF0 not in (0, 0xF0) and header[2] & 0x0C != 0x0C else None
    return None


def _simple_wav(data: bytes) -> tuple[int, np.ndarray] | None:
    """Rate and samples of a WAV file of 16-bit integers or 32-bit floats; None for others, which take a library.

    The usual kind is read here since a library takes twice as long, as it calls Python for each part of a file.

    Raises:
        ValueError: it is truncated, of whatever kind it is.
    """
    form: tuple[int, ...] = ()
    position = 12
    while position + 8 <= len(data):
        name, size = data[position : position + 4], int.from_bytes(data[position + 4 : position + 8], "little")
        begin = position + 8
        if name == b"fmt " and len(data) >= begin + 16:
            form = struct.unpack_from("<HHIIHH", data, begin)
            if form[0] == _EXTENSIBLE and len(data) >= begin + 26:
                form = (int.from_bytes(data[begin + 24 : begin + 26], "little"), *form[1:])
        if name == b"data" and form:
            there = len(data) - begin
            if size > there and size not in _UNKNOWN_SIZES and not data.startswith(b"RF64"):
                raise ValueError(f"the WAV file is truncated: it says {size} bytes of samples, and {there} are there.")
            tag, channels, rate, _, frame_bytes, bits = form
            if (tag, bits) not in ((_PCM, 16), (_FLOAT, 32)) or not rate or frame_bytes != channels * bits // 8:
                return None
            count = min(size, there) // frame_bytes * channels if frame_bytes else 0
            samples = np.frombuffer(data, "<i2" if tag == _PCM else "<f4", count, begin).reshape(-1, channels)
            return rate, samples.astype(np.float32) / (1 << 15) if tag == _PCM else samples
        position = begin + size + (size & 1)
    raise ValueError("the WAV file is truncated: it ends before its samples begin.")


def _by_libsndfile(data: bytes, kind: str, options: AudioOptions) -> tuple[int, np.ndarray]:
    """Rate and samples of a file."""
    soundfile = _library("soundfile")
    if kind == "ogg":
        _check_last_page(data)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            check_channels(file.channels, options.channels)
            _check_length(file.frames / file.samplerate, file.channels, options, file.frames)
            samples = file.read(dtype="float32", always_2d=True)
            # Of an MP3 the length is an estimate.
            if len(samples) < file.frames and kind != "mp3":
                raise ValueError(
                    f"the {kind.upper()} file is truncated or damaged: it says {file.frames} samples, and "
                    f"{len(samples)} are there."
                )
            return file.samplerate, samples
    except soundfile.LibsndfileError as error:
        raise ValueError(f"the {kind.upper()} file is truncated or damaged: {error.error_string}") from None


def _check_length(seconds: float, channels: int, options: AudioOptions, frames: int = 0) -> None:
    most = max(frames, seconds * options.sample_rate) * channels
    if most > options.max_samples:
        raise ValueError(
            f"the file declares {most:.0f} samples, more than max_samples={options.max_samples}. If you trust it, give "
            "a larger `max_samples`, or cut the file."
        )


def _check_last_page(data: bytes) -> None:
    """Raises where the last page of an Ogg file is not there, or not whole."""
    last = data.rfind(b"OggS")
    table = data[last + 27 : last + 27 + (data[last + 26] if len(data) > last + 26 else 0)]
    is_whole = len(data) >= last + 27 + len(table) + sum(table) and len(data) > last + 26
    if not (is_whole and data[last + 5] & 4):
        raise ValueError("the OGG file is truncated: its last page is not there, or not whole.")


def _of_length(samples: np.ndarray, options: AudioOptions, out: np.ndarray | None) -> np.ndarray:
    """Leaves out what is too much, or puts silence in place of what is missing."""
    length = options.length_samples
    if length is None:
        return np.ascontiguousarray(samples, np.float32)
    if out is None:
        out = np.empty((length, options.channels), np.float32)
    missing = length - len(samples)
    before = {"start": 0, "center": missing // 2, "end": missing}[options.align]
    # A negative one is the number of samples to leave out.
    samples = samples[max(-before, 0) :][:length]
    before = max(before, 0)
    out[:before] = 0
    out[before : before + len(samples)] = samples
    out[before + len(samples) :] = 0
    return out


def check_channels(found: int, wanted: int) -> None:
    """Checks that a file has the channels that are asked for.

    Raises:
        ValueError: it has not; the text is a sentence.
    """
    if wanted not in (1, found):
        raise ValueError(
            f"the file has {found} channel{'s' * (found != 1)}, and channels={wanted} was asked for. channels=1 takes "
            "the mean of any number of channels."
        )


def _why_no_audio(data: bytes) -> str:
    if not data:
        return "the file is empty (0 bytes). Write it again, or remove it."
    return (
        f"not an audio file that can be read: WAV, FLAC, Ogg, MP3 and AIFF are, and its first bytes are {data[:16]!r}. "
        "Replace or remove it."
    )


def _library(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise ImportError(f"This audio needs the library {name}: {_INSTALLATION}") from error


_AUDIO = FileKind("audio", "audio files", AUDIO_ENDINGS, lambda head: audio_kind(head) is not None)


def audio_folder_sources(
    directory: str | os.PathLike,
    options: AudioOptions,
    *,
    labels: Any,
    class_names: Sequence[str] | None,
    validation_split: float | None,
    subset: Subset | None,
    seed: int | None,
    may_skip: bool,
    follow_links: bool = True,
    **others: Any,
) -> tuple[dict[str, DecodedFiles], list[str] | None]:
    """The sources of `FastDataset.from_audio_folder`, by the name of their part, and the class names."""
    check_split(validation_split, subset, seed, _AUDIO)
    by_class = isinstance(labels, str) and labels == "inferred"
    found = find_class_files(directory, _AUDIO, by_class, class_names, follow_links)
    if any(not path.lower().endswith((".wav", ".wave")) for path in found.paths):
        _library("soundfile")
    if not may_skip:
        _require_channels(found.paths, options.channels)
    decoder = AudioDecoder(options)
    return class_folder_sources(
        found,
        _AUDIO,
        lambda is_whole: (decoder, dataclasses.asdict(options)),
        directory=directory,
        labels=labels,
        class_names=class_names,
        validation_split=validation_split,
        subset=subset,
        seed=seed,
        **others,
    )


def _require_channels(paths: Sequence[str], channels: int) -> None:
    """Looks at some files, so that a wrong `channels` is told before the first epoch; others are when they are read.

    Raises:
        ExampleLoadError: one has another number of channels.
    """
    if channels == 1:
        return
    numbers_: list[int] = np.unique(np.linspace(0, len(paths) - 1, _LOOKED_AT).astype(int)).tolist()
    some = [paths[number] for number in numbers_]
    for path, found in zip(some, files.each_path(_channels_of, some), strict=True):
        if found is not None:
            try:
                check_channels(found, channels)
            except ValueError as error:
                text = f"{path}: {error} (on_error='skip' leaves such files out and lists them.)"
                raise ExampleLoadError(text) from None


def _channels_of(path: str) -> int | None:
    try:
        head = files.read_at(path, 0, _HEAD_BYTES)
        kind = audio_kind(head)
        form = head.find(b"fmt ")
        if kind is None or (kind == "wav" and form < 0):
            return None
        if kind == "wav":  # which needs no library
            return int.from_bytes(head[form + 10 : form + 12], "little")
        soundfile = _library("soundfile")
        with soundfile.SoundFile(io.BytesIO(head)) as file:
            return file.channels
    except (OSError, RuntimeError):  # reading it will tell
        return None
