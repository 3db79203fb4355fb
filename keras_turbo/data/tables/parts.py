"""Which columns of a table are x, y and the weight."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of an element by the names of their columns.

    Attributes:
        x: one name, whose column is `x` itself, or names, for a dict.
        label: name of the column that is `y`, or None.
        sample_weight: name of the column that is the weight, or None.
    """

    x: str | tuple[str, ...]
    label: str | None
    sample_weight: str | None

    @property
    def names(self) -> list[str]:
        """All columns that are read."""
        x = [self.x] if isinstance(self.x, str) else list(self.x)
        return [*x, *self._targets]

    @property
    def _targets(self) -> list[str]:
        return [name for name in (self.label, self.sample_weight) if name is not None]

    def element(self, columns: Mapping[str, Any]) -> Any:
        """`x`, `(x, y)` or `(x, y, sample_weight)`, of what there is for each column."""
        x = columns[self.x] if isinstance(self.x, str) else {name: columns[name] for name in self.x}
        return (x, *(columns[name] for name in self._targets)) if self._targets else x


def check_names(columns: Any, label: Any, sample_weight: Any) -> None:
    """Checks what can be checked before there is a table.

    Raises:
        TypeError, ValueError: an argument that can't be.
    """
    is_list = isinstance(columns, Sequence) and all(isinstance(name, str) for name in columns)
    if columns is not None and not is_list:
        raise TypeError(f"`columns` must be names of columns, one name, or None for all. Received: {columns!r}.")
    if columns is not None and not len(columns):
        raise ValueError("`columns` is empty: name at least one column, or leave it out to have all.")
    for argument, name in (("label", label), ("sample_weight", sample_weight)):
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`{argument}` must be the name of a column, or None. Received: {name!r}.")
    if sample_weight is not None and label is None:
        raise ValueError("`sample_weight` was given without `label`: weights belong to targets. Give `label` too.")


def check_known(argument: str, names: Iterable[str], available: Sequence[str], path: str) -> None:
    """Checks that columns are there that an argument names.

    Raises:
        ValueError: one is not.
    """
    unknown = [name for name in dict.fromkeys(names) if name not in available]
    if unknown:
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, unknown))}, as {argument} has it. It has: {list(available)}."
        )


def check_once(names: Iterable[str], available: Sequence[str], path: str) -> None:
    """Checks that a file has no two columns of a name that is wanted.

    Raises:
        ValueError: it has.
    """
    twice = sorted({name for name in names if available.count(name) > 1})
    if twice:
        raise ValueError(f"{path} has several columns of one name: {', '.join(map(repr, twice))}. Rename them.")


def parts_of(
    columns: str | Sequence[str] | None,
    label: str | None,
    sample_weight: str | None,
    available: Sequence[str],
    path: str,
    *,
    hidden: Container[str] = (),
) -> Parts:
    """The parts of the elements of a table.

    Args:
        columns: as `FastDataset.from_parquet` documents it.
        label: the same.
        sample_weight: the same.
        available: the columns that there are.
        path: of the file that has them, for errors.
        hidden: those that are read only where they are named.

    Raises:
        ValueError: a column that is not there, that is there twice, or that has two parts.
    """
    check_names(columns, label, sample_weight)
    targets = [name for name in (label, sample_weight) if name is not None]
    names = [columns] if isinstance(columns, str) else columns
    if names is None:
        names = [name for name in available if name not in targets and name not in hidden]
    wanted = [*names, *targets]
    for argument, given in (("`columns`", names), ("`label`", targets[:1]), ("`sample_weight`", targets[1:])):
        check_known(argument, given, available, path)
    check_once(wanted, available, path)
    doubled = sorted({name for name in wanted if wanted.count(name) > 1})
    if doubled:
        raise ValueError(
            f"A column can be one of `columns`, `label` or `sample_weight`, and only once. Twice: {doubled}."
        )
    if not names:
        raise ValueError(f"No column of {path} is left for `x` beside {targets}.")
    return Parts(columns if isinstance(columns, str) else tuple(names), label, sample_weight)
