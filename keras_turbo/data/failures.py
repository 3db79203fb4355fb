"""Examples that can't be loaded: named in an error, or left out and listed."""

from __future__ import annotations

import dataclasses
import re
import threading
import warnings
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_turbo.data.shared_arrays import aligned_zeros, tensor_view

ON_ERROR = ("raise", "skip")

# A reason is TensorFlow's message without the graph nodes behind it; more than this of it helps nobody.
_LONGEST_REASON = 300

_PASSING_FAULT = "it failed once and could be loaded when tried again: a passing fault of its disk or network?"

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
    """Keeps account of the examples that could not be loaded.

    tf.data can drop the elements whose map function fails, but tells neither which they are nor why. So examples carry
    ordinals, a gap between ordinals is what failed, and loading that one again gives the reason.

    Args:
        on_error: "raise" or "skip".
        num_examples: number of positions in the source.
        describe: gives the name of the example at a position.
        load_again: loads the example at a position in an epoch once more, raising what it raises.
    """

    def __init__(
        self, on_error: str, num_examples: int, describe: Callable[[int], str], load_again: Callable[[int, int], object]
    ) -> None:
        self.on_error = on_error
        self.skipped: dict[int, SkippedExample] = {}
        self._describe = describe
        self._load_again = load_again
        self._failed = aligned_zeros((num_examples,), np.bool_)
        self._passed = np.zeros(num_examples, np.bool_)
        #: First missing position and epoch of the last error, and its text.
        self._raised: tuple[int, int, str] = (-1, -1, "")
        #: What is known of failures beforehand, by position and epoch: the reason, and details for an error.
        self._told: dict[tuple[int, int], tuple[str, str]] = {}
        self._lock = threading.Lock()
        with tf.device("CPU:0"):
            #: bool, shape (num_examples,): what was skipped so far, for graph code.
            self.failed_view = tensor_view(self._failed)

    def are_failed(self, positions: np.ndarray) -> np.ndarray:
        """Which of some positions are known to fail: bool, of the same shape."""
        return self._failed[positions]

    def are_known(self, positions: np.ndarray) -> bool:
        """Whether epochs have been through all of some positions, so that it is known which of them fail."""
        return bool(self._passed[positions].all())

    def tell(self, position: int, epoch: int, reason: str, details: str) -> None:
        """Tells why an example can't be loaded that will be missed, so that it need not be loaded again."""
        self._told[position, epoch] = _in_a_sentence(reason), f"\n\n{details}"

    def report(self, positions: np.ndarray, epoch: int) -> None:
        """Accounts for examples that an epoch asked for and that did not arrive.

        Raises:
            ExampleLoadError: with `on_error="raise"`.
        """
        missing = positions[~self._failed[positions]].tolist()
        if self.on_error == "raise" and missing:
            self._raise_one(missing, epoch)
        for position in missing:
            reason, _ = self._why(position, epoch)
            self._skip(position, reason)

    def first_that_fails(self, positions: np.ndarray, epoch: int) -> str | None:
        """Loads examples until one fails; gives its description and the reason, None where none fails."""
        for position in positions.tolist():
            reason, _ = self._why(position, epoch)
            if reason != _PASSING_FAULT:
                return f"{self._describe(position)}: {reason}"
        return None

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

    def _raise_one(self, missing: list[int], epoch: int) -> None:
        if self._raised[:2] == (missing[0], epoch):
            # tf.data goes on to the next batches in the background, which meet the same gap. Loading again for each
            # would only keep a process busy that is about to end.
            raise ExampleLoadError(self._raised[2])
        # Examples that are made together are missing together: whose fault it is, loading them one by one tells.
        for position in missing:
            reason, details = self._why(position, epoch)
            if reason != _PASSING_FAULT:
                break
        else:
            position, reason, details = missing[0], _PASSING_FAULT, ""
        text = f"{self._describe(position)}: {reason} (on_error='skip' leaves such examples out and lists them.)"
        self._raised = (missing[0], epoch, text + details)
        raise ExampleLoadError(text + details)

    def _why(self, position: int, epoch: int) -> tuple[str, str]:
        """Why an example could not be loaded, and details for an error."""
        told = self._told.pop((position, epoch), None)
        if told is not None:
            return told
        try:
            self._load_again(position, epoch)
        except Exception as error:  # whatever the user's own function raises is the reason
            return reason_of(error), ""
        return _PASSING_FAULT, ""

    def _skip(self, position: int, reason: str) -> None:
        path = self._describe(position)
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


def reason_of(error: Exception) -> str:
    """What went wrong, as a sentence, without what TensorFlow puts around it."""
    text = getattr(error, "message", None) or str(error) or type(error).__name__
    return _in_a_sentence(_OP_NOISE.sub(" ", _ASSERTED.sub(_as_it_was, text)))


def _as_it_was(asserted: re.Match[str]) -> str:
    # TensorFlow writes quotes, backslashes and ends of lines as C does.
    return asserted[1].encode("latin-1", "backslashreplace").decode("unicode_escape", "replace")


def _in_a_sentence(text: str) -> str:
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + "..."
    return text if text.endswith((".", "!", "?")) else text + "."
