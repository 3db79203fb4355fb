"""Rows of tables, decoded: all in memory, or a row group at a time."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_turbo.data.failures import ExampleLoadError, SkippedExample
from keras_turbo.data.tables.columns import Column, Values, joined
from keras_turbo.data.tables.decoding import Flaw, decoded
from keras_turbo.data.tables.row_groups import RowGroup


@dataclasses.dataclass(frozen=True)
class Rows:
    """Decoded rows.

    Attributes:
        columns: by name.
        flaws: what is wrong with some of them, whose values then say nothing.
        num_rows: how many there are.
    """

    columns: dict[str, Values]
    flaws: list[Flaw]
    num_rows: int

    @property
    def are_whole(self) -> np.ndarray:
        """Which rows have all their values: bool."""
        whole = np.ones(self.num_rows, np.bool_)
        for flaw in self.flaws:
            whole[flaw.rows] = False
        return whole

    def reason(self, row: int) -> str:
        """What is wrong with a row, as a sentence; empty where nothing is."""
        for flaw in self.flaws:
            if row in flaw.rows:
                return f"{flaw.reason(row)}. {flaw.remedy}"
        return ""


def decode_rows(table: Any, columns: Sequence[Column], fills: Mapping[str, Any]) -> Rows:
    """Decodes a `pyarrow.Table`."""
    values, flaws = {}, []
    for column in columns:
        values[column.name], found = decoded(table[column.name], column, fills.get(column.name))
        flaws += found
    return Rows(values, flaws, table.num_rows)


def read_rows(group: RowGroup, columns: Sequence[Column], fills: Mapping[str, Any]) -> Rows:
    """Reads and decodes a row group.

    Raises:
        ExampleLoadError: it can't be read.
    """
    table = group.read([column.name for column in columns])
    try:
        return decode_rows(table, columns, fills)
    except ExampleLoadError as error:
        raise ExampleLoadError(f"{group.name}: {error}") from error


def raise_first_flaw(rows: Rows, name: str, numbers: Sequence[int] | np.ndarray) -> None:
    """Raises where rows have a flaw.

    Args:
        rows: which may have some.
        name: of their file.
        numbers: of the rows in it.

    Raises:
        ExampleLoadError: it names file, row and column, and counts the rows with the same flaw.
    """
    if not rows.flaws:
        return
    flaw = min(rows.flaws, key=lambda one: one.rows[0])
    row = int(flaw.rows[0])
    more = len(flaw.rows) - 1
    others = f", as in {more} more of the {len(numbers)} rows read with it" if more else ""
    raise ExampleLoadError(
        f"{name}, row {numbers[row]}: {flaw.reason(row)}{others}. {flaw.remedy} "
        "(on_error='skip' leaves such rows out and lists them.)"
    )


def left_out_rows(rows: Rows, name: str, numbers: Sequence[int] | np.ndarray) -> list[SkippedExample]:
    """The rows with flaws, to be listed."""
    reasons: dict[int, str] = {}
    for flaw in rows.flaws:
        for row in flaw.rows.tolist():
            reasons.setdefault(row, f"{flaw.reason(row)}.")
    return [SkippedExample(f"{name}, row {numbers[row]}", reason) for row, reason in sorted(reasons.items())]


class GroupReader:
    """Rows of row groups by position, of which the latest groups are kept decoded.

    Args:
        groups: in the order of positions.
        columns: what is decoded.
        fills: what stands for missing values, by column.
        most_kept: how many groups are kept.
    """

    def __init__(
        self, groups: Sequence[RowGroup], columns: Sequence[Column], fills: Mapping[str, Any], most_kept: int
    ) -> None:
        self._groups = list(groups)
        self._columns = list(columns)
        self._fills = dict(fills)
        self._most_kept = most_kept
        sizes = np.array([group.num_rows for group in groups], np.int64)
        self._ends = np.cumsum(sizes)
        self._begins = self._ends - sizes
        self._kept: collections.OrderedDict[int, _KeptGroup] = collections.OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_rows(self) -> int:
        """Number of positions."""
        return int(self._ends[-1])

    def describe(self, position: int) -> str:
        """The file of a position, and the number of the row in it."""
        number, row = self._place(position)
        group = self._groups[number]
        return f"{group.file.name}, row {group.row_numbers[row]}"

    def problem(self, position: int) -> str:
        """What is wrong with the row at a position, as a sentence; empty where nothing is."""
        number, row = self._place(position)
        try:
            return self._rows_of(number).reason(row)
        except ExampleLoadError as error:
            return self._groups[number].reason_in(error)

    def read(self, positions: np.ndarray, names: Sequence[str]) -> tuple[dict[str, Values], np.ndarray]:
        """Reads rows.

        Args:
            positions: int64 vector.
            names: of the columns that are wanted.

        Returns:
            The columns, with strings as they are, in the order of positions but without the rows that can't be read;
            and for each position whether it could be (bool).
        """
        numbers = np.searchsorted(self._ends, positions, "right")
        pieces: dict[str, list[Values]] = {name: [] for name in names}
        places = []
        for number in np.unique(numbers).tolist():
            wanted = np.flatnonzero(numbers == number)
            try:
                rows = self._rows_of(number)
            except ExampleLoadError:
                continue
            of_group = positions[wanted] - self._begins[number]
            if rows.flaws:
                whole = rows.are_whole[of_group]
                wanted, of_group = wanted[whole], of_group[whole]
            places.append(wanted)
            for name in names:
                pieces[name].append(rows.columns[name].take(of_group).with_strings())
        are_whole = np.zeros(len(positions), np.bool_)
        if not places:
            return {column.name: column.empty() for column in self._columns if column.name in names}, are_whole
        found = np.concatenate(places)
        are_whole[found] = True
        order = np.argsort(found, kind="stable")
        return {name: joined(parts).take(order) for name, parts in pieces.items()}, are_whole

    def check_all(self) -> None:
        """Decodes all groups, of which as many are kept as can be.

        Raises:
            ExampleLoadError: one can't be read, or a row has a flaw.
        """
        for number, group in enumerate(self._groups):
            raise_first_flaw(self._rows_of(number), group.file.name, group.row_numbers)

    def _place(self, position: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._ends, position, "right"))
        return number, position - int(self._begins[number])

    def _rows_of(self, number: int) -> Rows:
        with self._lock:
            kept = self._kept.setdefault(number, _KeptGroup())
            self._kept.move_to_end(number)
            while len(self._kept) > self._most_kept:
                self._kept.popitem(last=False)
        # Others wait here for the one that reads the group, and only for that.
        with kept.lock:
            if kept.problem is not None:
                # A new error each time: one that is raised again keeps all the frames that it has ever passed.
                raise ExampleLoadError(kept.problem)
            if kept.rows is None:
                try:
                    kept.rows = self._decode(number)
                except ExampleLoadError as error:
                    kept.problem = str(error)
                    raise
            return kept.rows

    def _decode(self, number: int) -> Rows:
        return read_rows(self._groups[number], self._columns, self._fills)


class _KeptGroup:
    """A row group that is decoded, or is going to be."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: Rows | None = None
        self.problem: str | None = None


def all_rows(parts: Sequence[Rows], name: str) -> Values:
    """The whole rows of several parts, one after the other, in one column."""
    return joined(
        [
            part.columns[name].take(np.flatnonzero(part.are_whole)) if part.flaws else part.columns[name]
            for part in parts
        ]
    )
