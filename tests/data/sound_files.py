"""Audio files for the tests, written by Python's own `wave` module or byte by byte."""

from __future__ import annotations

import io
import struct
import wave
from pathlib import Path

import numpy as np

RATE = 16_000


def tone(hertz: float, seconds: float = 0.1, rate: int = RATE, amplitude: float = 0.5) -> np.ndarray:
    """A sine of one channel, float64, shape `(samples, 1)`."""
    return amplitude * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)[:, None]


def pcm(samples: np.ndarray, bits: int) -> np.ndarray:
    """Floats as integers of so many bits."""
    return np.round(samples * (2 ** (bits - 1) - 1)).astype(np.int64)


def wav(integers: np.ndarray, bits: int = 16, rate: int = RATE) -> bytes:
    """A WAV file of integers of shape `(samples, channels)`, as Python's `wave` writes it."""
    unsigned = integers + 128 if bits == 8 else integers
    data = unsigned.astype("<i8").tobytes()
    width = bits // 8
    frames = b"".join(data[start : start + width] for start in range(0, len(data), 8))
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((integers.shape[1], width, rate, len(integers), "NONE", ""))
        writer.writeframes(frames)
    return file.getvalue()


def riff(tag: int, bits: int, channels: int, data: bytes, rate: int = RATE, extensible: bool = False) -> bytes:
    """A WAV file byte by byte, with a chunk of odd length before the format, for what `wave` does not write."""
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, channels, rate, rate * frame, frame, bits)
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 0, tag) + b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
    chunks = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    chunks += b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def write_wav(path: Path, hertz: float = 440, **options) -> np.ndarray:
    """Writes a tone of 16 bits to a file, whose folders are made, and gives its samples as they are to be read."""
    integers = pcm(tone(hertz, **options), 16)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(wav(integers, rate=options.get("rate", RATE)))
    return (integers / 2**15).astype(np.float32)
