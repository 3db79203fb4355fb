"""What the doctor found, and how it is told."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
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
        return {
            "keras_turbo": self.version,
            "exit_code": self.exit_code,
            "findings": [dataclasses.asdict(_on_one_line(one)) for one in self.findings],
        }

    def blocks(self) -> Iterator[Block]:
        """A table for each topic."""
        for topic, found in itertools.groupby(map(_on_one_line, self.findings), lambda one: one.topic):
            yield Heading(topic)
            rows = []
            for one, subjects in _joined(list(found)):
                text = f"{listed(subjects)}: {one.fact}" if subjects else one.fact
                rows.append((one.level, text if one.hint is None else f"{text}\n-> {one.hint}"))
            yield Table("", ("", ""), rows, words=(0, 1), styles=_STYLES)
        yield Heading(self.summary())

    def summary(self) -> str:
        """How many findings there are of each level."""
        return listed([f"{sum(one.level == level for one in self.findings)} {level}" for level in _STYLES]) + "."


def _joined(findings: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    """What is the same of several things once, with what it is about: eight equal GPUs fit on a screen."""
    joined: dict[tuple[object, ...], tuple[Finding, list[str]]] = {}
    for place, one in enumerate(findings):
        key = (one.topic, one.level, one.fact, one.hint, place if one.subject is None else None)
        _, subjects = joined.setdefault(key, (one, []))
        if one.subject is not None:
            subjects.append(one.subject)
    return list(joined.values())


def _on_one_line(one: Finding) -> Finding:
    """What stands in variables and names of files may be anything, line breaks included."""
    hint = None if one.hint is None else printable(one.hint, keep="")
    return dataclasses.replace(one, fact=printable(one.fact, keep=""), hint=hint)


def not_examined(topic: str, error: BaseException) -> Finding:
    """That a topic could not be looked at: a fault of the doctor's, or of a file system or driver that hangs."""
    text = str(error) or type(error).__name__
    hanging = isinstance(error, TimeoutError)
    return Finding(
        topic,
        "error" if hanging else "warning",
        f"Not examined: {text}" if hanging else f"Not examined: {type(error).__name__}: {text}",
        "Something that should answer at once hangs: look at it first."
        if hanging
        else "This machine is in a way that the doctor does not know: please report it with this line.",
    )


def version_tuple(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 21, 0) of "2.21.0rc1"."""
    numbers: list[int] = []
    for part in text.split("."):
        digits = ""
        for character in part:
            if not character.isdigit():
                break
            digits += character
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
