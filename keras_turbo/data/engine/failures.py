"""Examples that can't be loaded: named in an error, or left out and listed."""

from __future__ import annotations

import dataclasses
import re
import threading
import warnings
from collections.abc import Callable
from typing import NoReturn

import numpy as np

ON_ERROR = ("raise", "skip")

# A reason is TensorFlow's message without the graph nodes behind it; more than this of it helps nobody.
_LONGEST_REASON = 300

# What TensorFlow puts around what went wrong: names of functions and nodes, and where they were traced.
_OP_NOISE = re.compile(
    r"\{\{function_node .*?\}\}|\[Op:\w+\].*|^Graph execution error:|^\s*Detected at node .*?$|^<stack traces .*?$"
    r"|^ *File \".*?$|\[\[.*?\]\]|^assertion failed: ",
    re.MULTILINE,
)
# An assertion of one text has it in brackets; of several, the brackets tell them apart.
_ASSERTED = re.compile(r"^assertion failed: \[([^\[\]]*)\]$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class SkippedExample:
    """An example that was left out.

    Attributes:
        path: its file, or a description by index.
        reason: why it could not be loaded.
    """

    path: str
    reason: str


class ExampleLoadError(ValueError):
    """An example can't be loaded; the message begins with its path."""


class Failures:
    """The account of the examples that could not be loaded.

    Args:
        on_error: "raise" or "skip".
        num_examples: number of positions in the source.
        name: gives the name of the example at a position.
    """

    def __init__(self, on_error: str, num_examples: int, name: Callable[[int], str]) -> None:
        self.on_error = on_error
        self.skipped: dict[int, SkippedExample] = {}
        self._name = name
        self._failed = np.zeros(num_examples, np.bool_)
        self._passed = np.zeros(num_examples, np.bool_)
        self._lock = threading.Lock()

    def have_failed(self, positions: np.ndarray) -> np.ndarray:
        """Which of some positions are known to fail: bool, of the same shape."""
        return self._failed[positions]

    def are_known(self, positions: np.ndarray) -> bool:
        """Whether epochs have been through all of some positions, so that it is known which of them fail."""
        return bool(self._passed[positions].all())

    def report(self, position: int, error: Exception) -> None:
        """Takes account of an example that could not be loaded.

        Raises:
            ExampleLoadError: with `on_error="raise"`.
        """
        reason = reason_of(error)
        if self.on_error == "raise":
            self._raise(position, reason, error)
        path = self._name(position)
        with self._lock:
            first = not self.skipped
            self.skipped.setdefault(position, SkippedExample(path, reason))
            self._failed[position] = True
        if first:
            warnings.warn(
                f"An example was left out, since it can't be loaded: {path}: {reason} Others are left out without a "
                "further warning; `skipped` of the dataset lists all.",
                stacklevel=2,
            )

    def end_pass(self, positions: np.ndarray) -> None:
        """Takes note that an epoch over these positions is through.

        Raises:
            ExampleLoadError: all of them fail.
        """
        if self._failed[positions].all():
            first = self.skipped[int(positions.min())]
            raise ExampleLoadError(
                f"All {len(positions)} examples failed to load, so there is nothing to train on. "
                f"The first: {first.path}: {first.reason}"
            )
        self._passed[positions] = True

    def _raise(self, position: int, reason: str, error: Exception) -> NoReturn:
        details = getattr(error, "details", "")
        raise ExampleLoadError(
            f"{self._name(position)}: {reason} (on_error='skip' leaves such examples out and lists them.)"
            + (f"\n\n{details}" if details else "")
        ) from error


def reason_of(error: Exception) -> str:
    """What went wrong, as a sentence, without what TensorFlow puts around it."""
    text = getattr(error, "message", None) or str(error) or type(error).__name__
    # Of an error in Python that a graph called, where it was raised comes along.
    text = text.partition("\nTraceback (most recent call last):")[0] or text
    return _in_a_sentence(_OP_NOISE.sub(" ", _ASSERTED.sub(_as_it_was, text)))


def _as_it_was(asserted: re.Match[str]) -> str:
    # TensorFlow writes quotes, backslashes and ends of lines as C does.
    return asserted[1].encode("latin-1", "backslashreplace").decode("unicode_escape", "replace")


def _in_a_sentence(text: str) -> str:
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + "..."
    return text if text.endswith((".", "!", "?")) else text + "."
