"""What is told of one remedy."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Status = Literal["gain", "no gain", "does not apply", "not measured"]

# A gain below this is within what two runs of the same training differ by on a shared machine.
LEAST_GAIN = 0.05


@dataclasses.dataclass(frozen=True)
class Remedy:
    """One remedy and what it gained.

    Attributes:
        name: a short one.
        status: "gain": it was measured to gain, beyond the noise. "no gain": it was measured, and did not. "does not
            apply" and "not measured": see `reason`.
        before_ms: milliseconds a step in `fit` before; None where nothing was measured.
        after_ms: with the remedy, for as many examples as a step had before.
        measured: what was measured.
        changes: what it changes about the results; empty for nothing.
        code: lines to add.
        reason: why it does not apply or was not measured, or what else is to be known; may be empty.
    """

    name: str
    status: Status
    before_ms: float | None = None
    after_ms: float | None = None
    measured: str = ""
    changes: str = ""
    code: str = ""
    reason: str = ""

    @property
    def times(self) -> float | None:
        """How many times as fast the training is with it."""
        if self.before_ms is None or self.after_ms is None:
            return None
        return self.before_ms / max(self.after_ms, 1e-6)

    @property
    def saved_percent(self) -> float | None:
        """How much of a step's time it saves; negative where it costs."""
        if self.before_ms is None or self.after_ms is None:
            return None
        return 100 * (1 - self.after_ms / self.before_ms)

    def to_dict(self) -> dict[str, Any]:
        """All figures, made of JSON's types."""
        return dataclasses.asdict(self) | {"times": self.times, "saved_percent": self.saved_percent}


def does_not_apply(name: str, reason: str) -> Remedy:
    """A remedy that there is nothing to measure of."""
    return Remedy(name, "does not apply", reason=reason)


def not_measured(name: str, reason: str, code: str = "") -> Remedy:
    """A remedy that might apply."""
    return Remedy(name, "not measured", reason=reason, code=code)
