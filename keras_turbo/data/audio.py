"""Bytes of an audio file to samples: of one rate, number of channels and length."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import math
import numbers
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from keras_turbo.data.audio_files import AudioHeader, audio_header, wav_samples
from keras_turbo.data.python_calls import call_on
from keras_turbo.data.resampling import resample

INSTALLATION = 'pip install "tensorflow>=2.17,<2.18" and pip install "keras_turbo[io]"'
"""What brings tensorflow-io, which decodes what is packed."""

ALIGNS = ("start", "center", "end")

# What `decode_audio` decodes by which branch; FLAC by the type that TensorFlow I/O gives for its bits.
_WAV, _VORBIS, _MP3, _FLAC_8, _FLAC_16, _FLAC_32 = range(6)


@dataclasses.dataclass(frozen=True)
class AudioOptions:
    """What samples are wanted of an audio file.

    Args:
        sample_rate: in Hz.
        length_samples: number of samples of each channel; None keeps each file's own.
        length_seconds: the same in seconds, in its place.
        align: where a file of another length lies: "start", "center" or "end".
        channels: 1 for the mean of all channels, or the number that each file must have.

    Raises:
        TypeError, ValueError: one that can't be.
    """

    sample_rate: int
    length_samples: int | None = None
    length_seconds: dataclasses.InitVar[float | None] = None
    align: Literal["start", "center", "end"] = "start"
    channels: int = 1

    def __post_init__(self, length_seconds: float | None) -> None:
        for name in ("sample_rate", "channels", "length_samples"):
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


def can_decode_packed() -> bool:
    """Whether FLAC, Ogg and MP3 can be decoded here, which takes a tensorflow-io that loads."""
    return _tensorflow_io_audio() is not None


@functools.cache
def _tensorflow_io_audio() -> Any:
    if importlib.util.find_spec("tensorflow_io") is None:
        return None
    try:
        audio = importlib.import_module("tensorflow_io").audio
        # It looks for its native library when that is first used.
        audio.encode_wav(tf.zeros([1, 1], tf.int16), rate=1)
    except Exception:  # a library for another TensorFlow fails in as many ways as there are symbols
        return None
    return audio


@tf.autograph.experimental.do_not_convert
def decode_audio(data: tf.Tensor, options: AudioOptions) -> tf.Tensor:
    """Decodes an audio file. Graph code for `tf.data` maps.

    The file is recognised by its content: WAV (PCM of 8, 16, 24 or 32 bits, floats), and where tensorflow-io loads
    FLAC, Ogg Vorbis and MP3.

    Args:
        data: scalar string, the file's bytes.
        options: what samples are wanted.

    Returns:
        float32, shape `(samples, channels)`, as static as `length_samples` allows. Integers are divided such that they
        lie between -1 and 1.

    Raises:
        tf.errors.InvalidArgumentError: when it runs: a file that is empty, truncated, damaged or no such audio, or has
            another number of channels.
    """
    packed = _tensorflow_io_audio()
    samples, branch, rate, problem = call_on(options, _read, [data], [tf.float32, tf.int32, tf.int32, tf.string])
    # An assertion, since an error in the Python function would bring that function's traceback along.
    with tf.control_dependencies([tf.debugging.Assert(problem == b"", [problem])]):
        data, samples, rate = tf.identity(data), tf.identity(samples), tf.ensure_shape(tf.identity(rate), [])
    if packed is not None:
        samples = tf.switch_case(
            branch,
            [
                lambda: samples,
                lambda: packed.decode_vorbis(data),
                lambda: packed.decode_mp3(data),
                lambda: _as_floats(packed.decode_flac(data, dtype=tf.uint8)),
                lambda: _as_floats(packed.decode_flac(data, dtype=tf.int16)),
                lambda: _as_floats(packed.decode_flac(data, dtype=tf.int32)),
            ],
        )
    samples = tf.ensure_shape(samples, [None, None])
    if options.channels == 1:
        samples = tf.reduce_mean(samples, axis=1, keepdims=True)
    samples = tf.ensure_shape(samples, [None, options.channels])
    samples = tf.cond(
        rate == options.sample_rate, lambda: samples, lambda: resample(samples, rate, options.sample_rate)
    )
    if options.length_samples is not None:
        samples = _of_length(samples, options.length_samples, options.align)
    return tf.ensure_shape(samples, [options.length_samples, options.channels])


def _as_floats(samples: tf.Tensor) -> tf.Tensor:
    if samples.dtype == tf.uint8:
        return tf.cast(samples, tf.float32) / 128.0 - 1.0
    return tf.cast(samples, tf.float32) / float(-samples.dtype.min)


def _of_length(samples: tf.Tensor, length: int, align: str) -> tf.Tensor:
    """Leaves out what is too much, or puts silence in place of what is missing."""
    missing = length - tf.shape(samples)[0]
    before = {"start": 0, "center": missing // 2, "end": missing}[align]
    # A negative one is the number of samples to leave out.
    samples = samples[tf.maximum(-before, 0) :][:length]
    before = tf.maximum(before, 0)
    return tf.pad(samples, [[before, length - before - tf.shape(samples)[0]], [0, 0]])


def _read(options: AudioOptions, data: bytes | np.ndarray) -> tuple[np.ndarray, Any, Any, bytes]:
    """Reads a header, and a WAV file whole.

    Returns:
        The samples of a WAV file, or none; the branch that decodes it; its rate; and what is wrong with it in ASCII, or
        b"".
    """
    content: bytes = data if isinstance(data, bytes) else data.item()
    nothing = np.zeros((0, 0), np.float32)
    try:
        header = audio_header(content)
        _check(header, options.channels, can_decode_packed())
        samples = wav_samples(content) if header.kind == "wav" else nothing
    except ValueError as error:
        return nothing, np.int32(_WAV), np.int32(1), str(error).encode("ascii", "backslashreplace")
    branch = {
        "wav": _WAV,
        "ogg": _VORBIS,
        "mp3": _MP3,
        "flac": _FLAC_8 if header.bits <= 8 else _FLAC_16 if header.bits <= 16 else _FLAC_32,
    }[header.kind]
    return samples, np.int32(branch), np.int32(header.sample_rate), b""


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


def _check(header: AudioHeader, channels: int, reads_packed: bool) -> None:
    check_channels(header.channels, channels)
    if header.kind != "wav" and not reads_packed:
        raise ValueError(
            f"the file is {header.kind.upper()}, whatever its name, which needs tensorflow-io: {INSTALLATION}."
        )
