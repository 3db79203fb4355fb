"""How everything here tells what it has found: text and tables in a terminal, JSON, a page; and how far long work is.

A report says once what it consists of (`Report.blocks`); printing, JSON and pages are the same for all. Whatever stands
in them is text: names from elsewhere are neither markup nor control characters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from keras_turbo import files

if TYPE_CHECKING:
    import rich.console

# Of a page whose text was made for a terminal.
_PAGE_COLUMNS = 120


class Heading(str):
    """A line that stands out."""

    __slots__ = ()


class Code(str):
    """Lines to be copied, which are not broken."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of texts.

    Args:
        title: above it; empty for none.
        columns: their headings; all empty for none. A column without a heading is for bars, and is cut off where there
            is no room.
        rows: as many texts each. Lines may be broken in them.
        totals: rows below a rule.
        words: numbers of the columns that hold words, and stand left. All others hold numbers.
        styles: how certain texts look, such as {"error": "bold red"}.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    totals: Sequence[Sequence[str]] = ()
    words: Sequence[int] = (0,)
    styles: Mapping[str, str] = dataclasses.field(default_factory=dict)


Block = str | Heading | Code | Table


class Report:
    """What was found, for people and for programs; its subclasses are dataclasses."""

    def blocks(self) -> Iterable[Block]:
        """What is told, in order."""
        raise NotImplementedError

    def print(self, file: IO[str] | None = None) -> None:
        """Prints it, to standard output by default.

        Raises:
            OSError: the file takes nothing any longer: BrokenPipeError where it is a pipe that nobody reads.
        """
        show(self.blocks(), file)

    def __str__(self) -> str:
        text = io.StringIO()
        show(self.blocks(), text)
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """All figures, made of JSON's types, but for those that are not finite."""
        this: Any = self
        return dataclasses.asdict(this)

    def to_json(self) -> str:
        """One JSON object, in ASCII; numbers that are not finite are null."""
        return json.dumps(_finite(self.to_dict()), indent=2, allow_nan=False)

    def to_html(self) -> str:
        """A page that needs nothing else: no network, no other file."""
        console = _console(io.StringIO(), record=True, width=_PAGE_COLUMNS)
        _render(self.blocks(), console)
        return console.export_html()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page.

        Args:
            path: of the file, which is replaced whole or not at all.

        Raises:
            FileNotFoundError: its folder does not exist.
            IsADirectoryError: it is a folder.
        """
        target = Path(path)
        if target.is_dir():
            raise IsADirectoryError(f"{target} is a folder. Give the name of the page's file, such as {target}/a.html.")
        if not target.parent.is_dir():
            raise FileNotFoundError(
                f"The folder {target.parent.absolute()} does not exist, so that {target.name} can't be written there. "
                "Make it first, or give another path."
            )
        files.write_whole(str(target), self.to_html().encode())


def show(blocks: Iterable[Block], file: IO[str] | None = None) -> None:
    """Prints text and tables, to standard output by default; what the file's encoding can't take is escaped."""
    file = sys.stdout if file is None else file
    if file is None:  # a program that was started without an output
        return
    console = _console(file)
    # What rich does with a closed pipe differs between its versions, and it knows nothing of encodings: so it only
    # renders.
    with console.capture() as captured:
        _render(blocks, console)
    text = "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
    encoding = getattr(file, "encoding", None) or "utf-8"
    file.write(text.encode(encoding, "backslashreplace").decode(encoding))
    file.flush()


def _console(file: IO[str], **options: Any) -> rich.console.Console:
    import rich.console

    return rich.console.Console(file=file, force_jupyter=False, highlight=False, **options)


def _render(blocks: Iterable[Block], console: rich.console.Console) -> None:
    import rich.text

    for block in blocks:
        if isinstance(block, Table):
            if block.title:
                console.print(rich.text.Text(printable(block.title), style="italic"), soft_wrap=True)
            console.print(_table(block))
        elif isinstance(block, Code):
            for line in block.splitlines():
                console.print(rich.text.Text(f"    {printable(line, keep=chr(9))}"), soft_wrap=True)
        else:
            style = "bold" if isinstance(block, Heading) else ""
            console.print(rich.text.Text(printable(block), style=style), soft_wrap=True)


def _table(block: Table) -> Any:
    import rich.box
    import rich.table
    import rich.text

    table = rich.table.Table(box=rich.box.SIMPLE, show_header=any(block.columns), pad_edge=False)
    for number, heading in enumerate(block.columns):
        is_bar = any(block.columns) and not heading
        table.add_column(
            rich.text.Text(printable(heading)),
            justify="left" if number in block.words or is_bar else "right",
            overflow="crop" if is_bar else "fold",
            no_wrap=is_bar,
        )
    for rows in (block.rows, block.totals):
        for row in rows:
            table.add_row(*(rich.text.Text(printable(cell), style=block.styles.get(cell, "")) for cell in row))
        table.add_section()
    return table


def printable(text: str, keep: str = "\n") -> str:
    """The text without control characters and broken bytes, which names of files and variables may have."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else one.encode("unicode_escape").decode() for one in text)


def listed(items: Sequence[object], most: int | None = None) -> str:
    """The items with commas between them; of more than `most` only the first ones, and how many more there are."""
    shown = ", ".join(map(str, items[:most]))
    return shown if most is None or len(items) <= most else f"{shown} and {len(items) - most} more"


def quoted(value: object, most: int = 80) -> str:
    """The value as Python writes it, cut short where it is long: variables may hold anything."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _finite(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _finite(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


@contextlib.contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows how far some work is, and goes away when it ends.

    Args:
        description: what is being done.
        total: number of steps.

    Yields:
        A function that takes the number of steps done since the last call. Where standard error is no terminal, it
        does nothing.
    """
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    import rich.console
    import rich.progress

    console = rich.console.Console(stderr=True)
    columns = (*rich.progress.Progress.get_default_columns(), rich.progress.MofNCompleteColumn())
    with rich.progress.Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=total)
        yield lambda steps: progress.advance(task, steps)
