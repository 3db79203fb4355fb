"""What the doctor found, and how it is told."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from keras_turbo.report import Block, Heading, Report, Table, listed, printable

Level = Literal["ok", "warning", "error"]

_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One fact and what it means.

    Attributes:
        topic: what it is about, such as "GPUs".
        level: "ok"; "warning": it works, and something is given away; "error": something does not work, or will not.
        fact: what was found.
        hint: what to do about it; None where nothing is to be done.
        figures: numbers of the fact for programs, with units in their names.
        subject: which of several things of a kind it is about, such as "GPU 0"; None where there is one.
    """

    topic: str
    level: Level
    fact: str
    hint: str | None = None
    figures: Mapping[str, float | int | str | None] = dataclasses.field(default_factory=dict)
    subject: str | None = None


# The examination knows the topic.
def ok(fact: str, **figures: Any) -> Finding:
    """A fact that needs nothing done."""
    return Finding("", "ok", fact, None, figures)


def warning(fact: str, hint: str, **figures: Any) -> Finding:
    """Something works, and gives something away."""
    return Finding("", "warning", fact, hint, figures)


def error(fact: str, hint: str, **figures: Any) -> Finding:
    """Something does not work, or will not."""
    return Finding("", "error", fact, hint, figures)


def not_examined(failure: BaseException) -> Finding:
    """That a topic could not be looked at: a fault of the doctor's, or of a file system or driver that hangs."""
    if isinstance(failure, TimeoutError):
        return error(f"Not examined: {failure}", "Something that should answer at once hangs: look at it first.")
    return warning(
        f"Not examined: {type(failure).__name__}: {str(failure) or 'no message'}",
        "This machine is in a way that the doctor does not know: please report it with this line.",
    )


@dataclasses.dataclass(frozen=True)
class Examination(Report):
    """All findings, in the order in which they are shown.

    Attributes:
        version: of keras_turbo.
        findings: what was found.
    """

    version: str
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """1 where there is an error, otherwise 0."""
        return int(any(one.level == "error" for one in self.findings))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        findings = [dataclasses.asdict(_on_one_line(one)) for one in self.findings]
        return {"keras_turbo": self.version, "exit_code": self.exit_code, "findings": findings}

    def blocks(self) -> Iterator[Block]:
        """A table for each topic; what is the same of several GPUs stands there once."""
        for topic, found in itertools.groupby(map(_on_one_line, self.findings), lambda one: one.topic):
            yield Heading(topic)
            subjects: dict[tuple[object, ...], list[str]] = {}
            for place, one in enumerate(found):
                told = one.fact if one.hint is None else f"{one.fact}\n-> {one.hint}"
                named = subjects.setdefault((one.level, told, place if one.subject is None else None), [])
                named += [] if one.subject is None else [one.subject]
            rows = [(str(key[0]), f"{listed(of)}: {key[1]}" if of else str(key[1])) for key, of in subjects.items()]
            yield Table("", ("", ""), rows, words=(0, 1), styles=_STYLES)
        yield Heading(
            listed([f"{sum(one.level == level for one in self.findings)} {level}" for level in _STYLES]) + "."
        )


def _on_one_line(one: Finding) -> Finding:
    """What stands in variables and names of files may be anything, line breaks included."""
    hint = None if one.hint is None else printable(one.hint, keep="")
    return dataclasses.replace(one, fact=printable(one.fact, keep=""), hint=hint)
