"""Makes the image files that the tests of decoding read."""

from __future__ import annotations

import io
import struct

import numpy as np
from PIL import Image


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """An RGB picture with soft random colors, so that JPEG keeps it well, and no symmetry."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def tiff(
    orientation: int,
    order: str = "<",
    *,
    kind: int = 3,
    tag: int = 0x0112,
    before: int = 2,
    after: int = 1,
    directory_offset: int = 8,
    count: int | None = None,
) -> bytes:
    """A TIFF structure as Exif has it: the orientation among other entries of its first directory."""
    letters = b"II" if order == "<" else b"MM"
    entries = [struct.pack(f"{order}HHII", 0x0100 + number, 4, 1, 6) for number in range(before)]
    value = {1: "B3x", 2: "B3x", 3: "H2x", 4: "I"}[kind]
    entries.append(struct.pack(f"{order}HHI{value}", tag, kind, 1, orientation))
    entries += [struct.pack(f"{order}HHII", 0x0213 + number, 4, 1, 6) for number in range(after)]
    head = letters + struct.pack(f"{order}HI", 42, directory_offset)
    named = len(entries) if count is None else count
    return head.ljust(directory_offset, b"\0") + struct.pack(f"{order}H", named) + b"".join(entries) + b"\0\0\0\0"


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def exif_segment(tiff_bytes: bytes) -> bytes:
    return segment(0xE1, b"Exif\0\0" + tiff_bytes)


JFIF = segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
XMP = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>" + bytes(3000))
ICC = segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(2000))


def with_segments(jpeg: bytes, *segments: bytes, jfif: bool = True) -> bytes:
    """A JPEG of Pillow's with segments put before its tables."""
    assert jpeg[2:20] == JFIF
    return jpeg[:2] + (JFIF if jfif else b"") + b"".join(segments) + jpeg[20:]
