"""Audio files as bytes: which kind one is, what its header says, and the samples of a WAV. Python that graphs call."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from keras_turbo.data.flac_streams import flac_channels, flac_stream

AUDIO_ENDINGS = (".wav", ".wave", ".flac", ".mp3", ".ogg", ".oga")
"""The endings, in lower case, of the files that can be read. A file's content decides what it is, all the same."""

PACKED_ENDINGS = tuple(ending for ending in AUDIO_ENDINGS if not ending.startswith(".wav"))
"""Those of them that tensorflow-io decodes."""

# What wFormatTag says in Microsoft's mmreg.h. The extensible one has the real one at the beginning of its GUID.
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_OTHER_FORMATS = {2: "ADPCM", 6: "A-law", 7: "mu-law", 17: "ADPCM", 85: "MP3 in WAV"}

# Who writes to a pipe can't know the length, and writes the largest there is, or about half of that (sox).
_UNKNOWN_LENGTH_FROM = 0x7FFFF000

# Of no recorder; a FLAC file can't say more either.
_LARGEST_RATE = 2**20 - 1

# More than any recorder has, and than Vorbis can; a sample of them all is still small.
_MOST_CHANNELS = 1024

# ISO 11172-3, in the order of the two bits in a frame's header; 13818-3 halves them, and MPEG 2.5 does again.
_MP3_RATES = (44100, 48000, 32000)
_MP3_VERSION_DIVISORS = {3: 1, 2: 2, 0: 4}


class AudioHeader(NamedTuple):
    """What the header of a file says.

    Attributes:
        kind: "wav", "flac", "ogg" or "mp3".
        sample_rate: in Hz.
        channels: their number.
        bits: of a sample; 0 where it has none.
        num_samples: of each channel; 0 where the file does not tell.
    """

    kind: str
    sample_rate: int
    channels: int
    bits: int = 0
    num_samples: int = 0


def audio_kind(data: bytes) -> str | None:
    """Tells what kind of audio a file is by its first bytes (64 or more): None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "wav"
    if data.startswith(b"fLaC"):
        return "flac"
    if data.startswith(b"OggS"):
        return "ogg"
    if data.startswith(b"ID3") or _is_mp3_frame(data):
        return "mp3"
    return None


def audio_header(data: bytes) -> AudioHeader:
    """Reads what the header of a file says, and finds out whether the file ends early where that can be told.

    Raises:
        ValueError: it is no audio file that can be read, or not a whole one; the text is a sentence.
    """
    kind = audio_kind(data)
    if kind is None:
        raise ValueError(_why_no_audio(data))
    try:
        header = _HEADERS[kind](data)
    except (struct.error, IndexError):
        raise ValueError(f"the {kind} file is truncated: it ends in its header, after {len(data)} bytes.") from None
    if not 0 < header.sample_rate <= _LARGEST_RATE or not header.channels:
        raise ValueError(f"the {kind} file is damaged: {header.channels} channels at {header.sample_rate} Hz.")
    return header


def channels_in(head: bytes) -> int | None:
    """The number of channels that a file has by its first bytes; None where these do not tell."""
    try:
        kind = audio_kind(head)
        if kind == "wav":
            formats = (_wav_format(head, at) for name, at, _ in _wav_chunks(head) if name == b"fmt ")
            return next((one.channels for one in formats), None)
        if kind == "flac":
            return flac_channels(head)
        if kind == "ogg":
            return _vorbis_header(head)[0]
    except (struct.error, IndexError, ValueError):  # reading the file will tell
        return None
    return None  # the first frame of an MP3 may lie behind a picture


def wav_samples(data: bytes) -> np.ndarray:
    """The samples of a WAV file, which `audio_header` has accepted.

    Returns:
        float32, shape `(samples, channels)`. Integers of n bits are divided by 2**(n-1), as `tf.audio.decode_wav` does;
        floats are as they are.
    """
    wav = _parse_wav(data)
    return _AS_FLOATS[wav.format, wav.bits](data[wav.begin : wav.end]).reshape(-1, wav.channels)


class _Wav(NamedTuple):
    format: int
    channels: int
    sample_rate: int
    bits: int
    begin: int
    end: int


class _WavFormat(NamedTuple):
    tag: int
    channels: int
    sample_rate: int
    frame_bytes: int
    bits: int


def _wav_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The names of the chunks of a WAV file, and where they begin and how long they say that they are."""
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        yield name, at + 8, size
        at += 8 + size + size % 2


def _wav_format(data: bytes, at: int) -> _WavFormat:
    tag, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", data, at)
    if tag == _EXTENSIBLE:
        (tag,) = struct.unpack_from("<H", data, at + 24)
    return _WavFormat(tag, channels, rate, frame_bytes, bits)


def _parse_wav(data: bytes) -> _Wav:
    found = None
    for name, at, size in _wav_chunks(data):
        if name == b"fmt ":
            found = _wav_format(data, at)
        elif name == b"data" and found is not None:
            tag, channels, rate, frame_bytes, bits = found
            if (tag, bits) not in _AS_FLOATS:
                what = _OTHER_FORMATS.get(tag, f"format {tag}")
                raise ValueError(
                    f"the WAV file holds {what} of {bits} bits. Read are PCM of 8, 16, 24 and 32 bits, and floats."
                )
            if channels and frame_bytes != channels * bits // 8:
                raise ValueError(
                    f"the WAV file is damaged, or of another format: it says {channels} channels of {bits} bits, and "
                    f"{frame_bytes} bytes for all of them together."
                )
            if at + size > len(data) and size < _UNKNOWN_LENGTH_FROM:
                raise ValueError(
                    f"the WAV file is truncated: it says {size} bytes of samples, and {len(data) - at} are there."
                )
            there = min(size, len(data) - at)
            if 0 < there < frame_bytes:
                raise ValueError(
                    f"the WAV file is truncated or damaged: a sample of its {channels} channels takes {frame_bytes} "
                    f"bytes, and {there} are there."
                )
            return _Wav(tag, channels, rate, bits, at, at + there // max(1, frame_bytes) * frame_bytes)
    what = "the description of its samples" if found is None else "its samples"
    raise ValueError(f"the WAV file is truncated or damaged: {what} can't be found in its {len(data)} bytes.")


def _from_24_bits(data: bytes) -> np.ndarray:
    padded = np.zeros((len(data) // 3, 4), np.uint8)
    padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return padded.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)


_AS_FLOATS: dict[tuple[int, int], Callable[[bytes], np.ndarray]] = {
    (_PCM, 8): lambda data: np.frombuffer(data, np.uint8).astype(np.float32) / np.float32(2**7) - np.float32(1),
    (_PCM, 16): lambda data: np.frombuffer(data, "<i2").astype(np.float32) / np.float32(2**15),
    (_PCM, 24): _from_24_bits,
    (_PCM, 32): lambda data: np.frombuffer(data, "<i4").astype(np.float32) / np.float32(2**31),
    (_FLOAT, 32): lambda data: np.frombuffer(data, "<f4").astype(np.float32),
    (_FLOAT, 64): lambda data: np.frombuffer(data, "<f8").astype(np.float32),
}


def _wav_header(data: bytes) -> AudioHeader:
    wav = _parse_wav(data)
    frame = max(1, wav.channels * wav.bits // 8)
    if wav.channels > _MOST_CHANNELS:
        raise ValueError(f"the WAV file is damaged: it says {wav.channels} channels.")
    return AudioHeader("wav", wav.sample_rate, wav.channels, wav.bits, (wav.end - wav.begin) // frame)


def _flac_header(data: bytes) -> AudioHeader:
    stream = flac_stream(data)
    return AudioHeader("flac", stream.sample_rate, stream.channels, stream.bits, stream.num_samples)


def _vorbis_header(data: bytes) -> tuple[int, int]:
    """The channels and the rate of an Ogg file."""
    packet = 27 + data[26]  # behind the page's header and its table of segments
    if data[packet : packet + 7] != b"\x01vorbis":
        raise ValueError(f"the Ogg file does not hold Vorbis but {data[packet : packet + 8]!r}. Read is Vorbis.")
    channels, rate = struct.unpack_from("<BI", data, packet + 11)
    return channels, rate


def _ogg_header(data: bytes) -> AudioHeader:
    channels, rate = _vorbis_header(data)
    last = data.rfind(b"OggS")
    is_last_page = data[last + 5] & 4
    if not is_last_page or last + 27 + data[last + 26] + sum(data[last + 27 : last + 27 + data[last + 26]]) > len(data):
        raise ValueError(f"the Ogg file is truncated: its {len(data)} bytes end before its last page does.")
    return AudioHeader("ogg", rate, channels)


def _mp3_header(data: bytes) -> AudioHeader:
    at = 0
    if data.startswith(b"ID3"):
        # The size of the tag has seven bits a byte.
        at = 10 + (data[6] << 21 | data[7] << 14 | data[8] << 7 | data[9])
    while at < len(data) and not _is_mp3_frame(data[at : at + 4]):
        at = data.find(b"\xff", at + 1)
        if at < 0:
            break
    if not 0 <= at < len(data):
        raise ValueError(f"the MP3 file is truncated or damaged: there is no frame in its {len(data)} bytes.")
    divisor = _MP3_VERSION_DIVISORS[data[at + 1] >> 3 & 3]
    is_mono = data[at + 3] >> 6 == 3
    return AudioHeader("mp3", _MP3_RATES[data[at + 2] >> 2 & 3] // divisor, 1 if is_mono else 2)


def _is_mp3_frame(data: bytes) -> bool:
    """Whether bytes begin with the header of a frame of layer III."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return False
    version, layer = data[1] >> 3 & 3, data[1] >> 1 & 3
    bit_rate, rate = data[2] >> 4, data[2] >> 2 & 3
    return version != 1 and layer == 1 and bit_rate not in (0, 15) and rate != 3


def _why_no_audio(data: bytes) -> str:
    if not data:
        return "the file is empty (0 bytes)."
    return f"not an audio file that can be read: WAV, FLAC, Ogg and MP3 are, and its first bytes are {data[:16]!r}."


_HEADERS = {"wav": _wav_header, "flac": _flac_header, "ogg": _ogg_header, "mp3": _mp3_header}
