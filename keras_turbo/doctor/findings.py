"""What the doctor found, and how it is told."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, Literal

from keras_turbo.wording import listed

Level = Literal["fine", "could be better", "wrong"]

# Below this width the third column of a table has no room for words.
_TABLE_COLUMNS = 72

_MARKS = {"fine": ("green", "fine"), "could be better": ("yellow", "could be better"), "wrong": ("bold red", "wrong")}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One fact and what it means.

    Attributes:
        topic: what it is about, such as "GPUs".
        level: "fine"; "could be better": it works, and something is given away; "wrong": something does not work, or
            will not.
        fact: what was found.
        to_do: what to do about it; None where nothing is to be done.
        figures: numbers of the fact for programs, with units in their names.
        subject: which of several things of a kind it is about, such as "GPU 0"; None where there is one.
    """

    topic: str
    level: Level
    fact: str
    to_do: str | None = None
    figures: Mapping[str, float | int | str | None] = dataclasses.field(default_factory=dict)
    subject: str | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """All findings, in the order in which they are shown.

    Attributes:
        version: of keras_turbo.
        findings: what was found.
    """

    version: str
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """1 where something is wrong, otherwise 0."""
        return int(any(one.level == "wrong" for one in self.findings))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "keras_turbo": self.version,
            "exit_code": self.exit_code,
            "findings": [dataclasses.asdict(_printable(one)) for one in self.findings],
        }

    def to_json(self) -> str:
        """One JSON object, in ASCII."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def print(self, file: IO[str] | None = None) -> None:
        """Prints a table; in a narrow terminal a list.

        Args:
            file: `sys.stdout` by default.

        Raises:
            OSError: the file takes nothing any longer: BrokenPipeError where it is a pipe that nobody reads.
        """
        import rich.console
        import rich.table
        import rich.text

        file = sys.stdout if file is None else file
        if file is None:  # a program that was started without an output
            return
        console = rich.console.Console(file=file)
        is_narrow = console.width < _TABLE_COLUMNS
        table = rich.table.Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        entries: list[rich.text.Text] = []
        topic = None
        for one, subjects in _joined(tuple(map(_printable, self.findings))):
            style, mark = _MARKS[one.level]
            text = rich.text.Text(f"{listed(subjects)}: {one.fact}" if subjects else one.fact)
            if one.to_do is not None:
                text.append(f"\n-> {one.to_do}", style="dim")
            table.add_row(one.topic if one.topic != topic else "", rich.text.Text(mark, style=style), text)
            entries.append(rich.text.Text.assemble(f"{one.topic}: ", (mark, style), "\n", text))
            topic = one.topic
        # What rich does with a closed pipe differs between its versions, and it knows nothing of what the file's
        # encoding can't take: so it only renders.
        with console.capture() as captured:
            for part in entries if is_narrow else [table]:
                console.print(part, overflow="fold")
            console.print(self.summary(), style="bold", highlight=False)
        text = "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
        encoding = getattr(file, "encoding", None) or "utf-8"
        file.write(text.encode(encoding, "backslashreplace").decode(encoding))
        file.flush()

    def summary(self) -> str:
        """How many findings there are of each level."""
        counts = {level: sum(one.level == level for one in self.findings) for level in _MARKS}
        return f"{counts['wrong']} wrong, {counts['could be better']} could be better, {counts['fine']} fine."


def _joined(findings: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    """What is the same of several things once, with what it is about: eight equal GPUs fit on a screen."""
    joined: dict[tuple[object, ...], tuple[Finding, list[str]]] = {}
    for place, one in enumerate(findings):
        key = (one.topic, one.level, one.fact, one.to_do, place if one.subject is None else None)
        _, subjects = joined.setdefault(key, (one, []))
        if one.subject is not None:
            subjects.append(one.subject)
    return list(joined.values())


def _printable(one: Finding) -> Finding:
    """The finding without control characters: what stands in variables and names of files may be anything."""
    to_do = None if one.to_do is None else _escaped(one.to_do)
    return dataclasses.replace(one, fact=_escaped(one.fact), to_do=to_do)


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def not_examined(topic: str, error: BaseException) -> Finding:
    """That a topic could not be looked at: a fault of the doctor's, or of a file system or driver that hangs."""
    text = str(error) or type(error).__name__
    hanging = isinstance(error, TimeoutError)
    return Finding(
        topic,
        "wrong" if hanging else "could be better",
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
