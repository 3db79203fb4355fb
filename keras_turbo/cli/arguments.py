"""What the commands' arguments may be."""

from __future__ import annotations

import argparse
from collections.abc import Callable

PROGRAM = "python -m keras_turbo"


def port(text: str) -> int:
    """A port; 0 for any free one."""
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535. Received: {text!r}.")
    return int(text)


def size(text: str) -> tuple[int, int]:
    """Height and width in pixels, of "224x224"."""
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise argparse.ArgumentTypeError(f"must be height and width in pixels, as 224x224. Received: {text!r}.")
    return int(height), int(width)


def integer_from(smallest: int) -> Callable[[str], int]:
    """A type of arguments: integers from `smallest` on."""

    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < smallest:
            raise argparse.ArgumentTypeError(f"must be an integer from {smallest}. Received: {text!r}.")
        return value

    return integer
