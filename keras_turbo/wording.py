"""How values are told in messages."""

from __future__ import annotations

from collections.abc import Sequence


def listed(items: Sequence[object], most: int | None = None) -> str:
    """The items with commas between them; of more than `most` only the first ones, and how many more there are."""
    shown = ", ".join(map(str, items[:most]))
    return shown if most is None or len(items) <= most else f"{shown} and {len(items) - most} more"


def quoted(value: object, most: int = 80) -> str:
    """The value as Python writes it, cut short where it is long: variables may hold anything."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
