"""What is known of a table before its rows are read: by what the user says of it, and its files of themselves."""

from __future__ import annotations

import collections
import dataclasses
import glob
import numbers
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from keras_turbo import files as storage
from keras_turbo.data.engine.failures import ExampleLoadError, SkippedExample
from keras_turbo.data.sources.files import find_files
from keras_turbo.data.tables.columns import NUMBERS, TEXT, arrow_type, cast, field_of, is_list, load_pyarrow, name_of

T = TypeVar("T")


class DisagreementError(ValueError):
    """A column has one type in one file and another in another."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of an element: the columns that are `x`, or the one that is it itself; and `y` and the weight."""

    x: str | tuple[str, ...]
    targets: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """All columns that are read, in the order in which TensorFlow takes an element apart."""
        return tf.nest.flatten(self.element(lambda name: name))

    def element(self, of: Callable[[str], Any]) -> Any:
        """`x`, `(x, y)` or `(x, y, sample_weight)`, of what there is for each column."""
        x = of(self.x) if isinstance(self.x, str) else {name: of(name) for name in self.x}
        return (x, *map(of, self.targets)) if self.targets else x


@dataclasses.dataclass(frozen=True)
class Table:
    """What is known of a table before its rows are read.

    Attributes:
        paths: of the files, for the identity.
        schema: `pyarrow.Schema` of what is made of them, in the order of the tensors of an element.
        parts: what of an element the columns are.
        fills: what stands for missing values, by column: scalars of Arrow.
        left_out: what can't be read, and is left out.
        window: row groups whose rows are shuffled together, also where the table is in memory; None for all that can.
        written_as: how the files are to be read, as far as it is not in them.
    """

    paths: list[str]
    schema: Any
    parts: Parts
    fills: Mapping[str, Any]
    left_out: list[SkippedExample]
    window: int | None = None
    written_as: str = ""

    @property
    def how(self) -> list[str]:
        """All that decides what a row of a file becomes."""
        return [self.written_as, str(self.schema), repr(sorted(self.fills.items()))]


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user wants of a table, as `FastDataset.from_parquet` documents it; raises where that can't be."""

    columns: Any
    label: Any
    sample_weight: Any
    dtypes: Any
    missing: Any

    @property
    def types(self) -> dict[str, str]:
        """What was given as `dtypes`, by TensorFlow's names of the types."""
        dtypes = self.dtypes or {}
        if not isinstance(dtypes, Mapping) or not all(isinstance(name, str) for name in dtypes):
            raise TypeError(f"`dtypes` must be a dict of names of columns and types. Received: {dtypes!r}.")
        names = {}
        for column, dtype in dtypes.items():
            try:
                names[column] = TEXT if dtype in (str, bytes) else tf.as_dtype(dtype).name
            except (TypeError, ValueError):
                names[column] = ""
            if names[column] not in (*NUMBERS, TEXT):
                known = ", ".join((*NUMBERS, TEXT))
                raise ValueError(f"`dtypes[{column!r}]` must be one of {known}. Received: {dtype!r}.")
        return names

    def parts(self, available: Sequence[str], path: str, hidden: Container[str] = ()) -> Parts:
        """The parts of the elements, of the columns of the file at `path`, of which some are read only if named."""
        names = [self.columns] if isinstance(self.columns, str) else self.columns
        if names is not None and not (isinstance(names, Sequence) and all(isinstance(name, str) for name in names)):
            raise TypeError(f"`columns` must be names of columns, one name, or None for all. Received: {names!r}.")
        given = {"label": self.label, "sample_weight": self.sample_weight}
        for argument, name in given.items():
            if not isinstance(name, (str, type(None))):
                raise TypeError(f"`{argument}` must be the name of a column, or None. Received: {name!r}.")
        if self.sample_weight is not None and self.label is None:
            raise ValueError("`sample_weight` was given without `label`: weights belong to targets. Give `label` too.")
        targets = [name for name in given.values() if name is not None]
        if names is None:
            names = [name for name in available if name not in targets and name not in hidden]
        known = set(available)
        mentioned = {"columns": names, "label": targets[:1], "sample_weight": targets[1:], "dtypes": [*self.types]}
        for argument, wanted in mentioned.items():
            for name in wanted:
                if name not in known:
                    raise ValueError(f"{path} has no column {name!r}, as `{argument}` has it. It has: {available}.")
        _check_once([*names, *targets], available, path)
        doubled = _doubled([*names, *targets])
        if doubled:
            raise ValueError(f"A column is one of `columns`, `label` and `sample_weight`, once. Twice: {doubled}.")
        if not names:
            raise ValueError(f"`columns` is empty: no column is `x` beside {targets}. {path} has: {available}.")
        return Parts(self.columns if isinstance(self.columns, str) else tuple(names), tuple(targets))

    def table(
        self,
        files: Sequence[tuple[str, Any]],
        parts: Parts,
        length_of: Callable[[str], int | None] | None = None,
        **known: Any,
    ) -> tuple[Table, dict[str, Any]]:
        """What is known of a table of files (as path and schema), and of which types its columns are there, by name.

        `length_of` gives the number of values in all lists of a column, where it is the same. None: types were
        inferred, of text; then integers here and floats there are floats, as is what has no value.
        """
        pa = load_pyarrow()
        types, widens = self.types, length_of is None
        kinds = _agreed_types(files, None if self.columns is None else parts.names, types, widens=widens)
        fields = []
        for name in parts.names:
            if widens and pa.types.is_null(kinds[name]):
                kinds[name] = pa.float64()
            length = None if length_of is None else length_of(name)
            fields.append(field_of(pa.field(name, kinds[name]), types.get(name), length, files[0][0]))
        schema = pa.schema(fields)
        return Table(schema=schema, parts=parts, fills=self._fills(schema), **known), kinds

    def _fills(self, schema: Any) -> dict[str, Any]:
        """What stands for missing values in those columns of a schema that have something: scalars of Arrow."""
        missing = self.missing
        if isinstance(missing, Mapping):
            for name, value in missing.items():
                if name not in schema.names:
                    known = f"which is none of the columns that are read: {schema.names}"
                    raise ValueError(f"`missing` names {name!r}, {known}.")
                if _fill(schema.field(name), value) is None:
                    what = f"{value!r} for the column {name!r}, which is {name_of(schema.field(name).type)}"
                    remedy = "Give another value, or another type as `dtypes`."
                    raise ValueError(f"`missing` gives {what} and can't hold it. {remedy}")
            return {name: _fill(schema.field(name), value) for name, value in missing.items()}
        is_number = isinstance(missing, numbers.Real) and not isinstance(missing, bool)
        if not is_number and missing not in ("raise", "nan"):
            remedy = "a dict of columns and values, such as {'age': 0, 'city': ''}"
            raise ValueError(f"`missing` must be 'raise', 'nan', a number, or {remedy}. Received: {missing!r}.")
        filled = [] if missing == "raise" else [field for field in schema if name_of(field.type) != TEXT]
        fills = {field.name: _fill(field, missing) for field in filled}
        return {name: fill for name, fill in fills.items() if fill is not None}


def _fill(field: Any, value: Any) -> Any:
    """A value in the type of a column; None where it can't be."""
    pa = load_pyarrow()
    name = name_of(field.type)
    if isinstance(value, (str, bytes)) != (name == TEXT) and not (value == "nan" and name.startswith("float")):
        return None
    try:
        return cast(pa.array([value]), arrow_type(name))[0] if name != "bool" or value in (0, 1) else None
    except (pa.ArrowException, TypeError):
        return None


def _doubled(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in collections.Counter(names).items() if count > 1)


def _check_once(names: Iterable[str], available: Sequence[str], path: str) -> None:
    twice = sorted(set(_doubled(available)).intersection(names))
    if twice:
        raise ValueError(f"{path} has several columns of one name: {', '.join(map(repr, twice))}. Rename them.")


def _agreed_types(
    files: Sequence[tuple[str, Any]], names: Sequence[str] | None, given: Container[str], *, widens: bool
) -> dict[str, Any]:
    """The types of the columns that all files have, but for those `given`; raises where two files do not agree.

    What has no value in one file is what it is in others. How strings and lists are kept makes no difference.
    """
    pa = load_pyarrow()
    first_path, first = files[0]
    for path, schema in files[1:]:
        here, there = set(schema.names), set(first.names)
        for name in sorted(here ^ there) if names is None else [name for name in names if name not in here]:
            has, lacks = (path, first_path) if name in here else (first_path, path)
            remedy = "Name the columns that all files have as `columns`, or read them apart."
            raise ValueError(f"{lacks} has no column {name!r}, which {has} has. {remedy}")
        _check_once(first.names if names is None else names, schema.names, path)
    kinds = {}
    for name in first.names if names is None else names:
        where, kind = first_path, first.field(name).type
        for path, schema in files[1:]:
            other = schema.field(name).type
            if pa.types.is_null(kind):
                where, kind = path, other
            elif widens and {kind, other} == {pa.int64(), pa.float64()}:
                kind = pa.float64()
            elif not (name in given or pa.types.is_null(other) or _compared(kind) == _compared(other)):
                remedy = f"Say which it shall be: dtypes={{{name!r}: ...}}."
                raise DisagreementError(f"The column {name!r} is {kind} in {where} and {other} in {path}. {remedy}")
        kinds[name] = kind
    return kinds


def _compared(kind: Any) -> tuple[Any, ...]:
    return is_list(kind), getattr(kind, "list_size", None), name_of(kind)


def find_table_files(pattern: Any, endings: Sequence[str], kind: str) -> list[str]:
    """The files that are meant by a folder, a pattern, or a list of patterns; sorted.

    In a folder, names of files have one of the endings in them, such as ".parquet" in "part-0.parquet.gz".
    """
    if not isinstance(pattern, (str, os.PathLike, Sequence)):
        raise TypeError(f"`pattern` must be a pattern, a path or a list of them. Received: {pattern!r}.")
    if not isinstance(pattern, (str, os.PathLike)) or not storage.is_folder(storage.resolved(pattern, "pattern")):
        return find_files(pattern)
    folder = storage.resolved(pattern, "pattern")

    def is_one(path: str) -> bool:
        # Names that begin so are marks and metadata of those who write tables.
        name = storage.name_of(path)
        return any(ending in name.lower() for ending in endings) and not name.startswith((".", "_"))

    named = [storage.join(folder, name) for name in storage.names_in(folder) if is_one(name)]
    are_folders = storage.each_path(storage.is_folder, named)
    paths = [path for path, is_folder in zip(named, are_folders, strict=True) if not is_folder]
    if not paths:
        escaped = glob.escape(folder)
        patterns = [storage.join(escaped, "*", f"*{ending}*") for ending in endings]
        below = any(is_one(path) for one in patterns for path in storage.find(one))
        hint = f" There are some below: give {storage.join(escaped, '**', '*' + endings[0])!r}." if below else ""
        raise ValueError(f"No {kind} files in {folder!r}: no name with {' or '.join(endings)} in it.{hint}")
    return paths


def each_file(
    paths: Sequence[str], look: Callable[[str], T | None], *, skip: bool
) -> tuple[list[T], list[SkippedExample]]:
    """What a function finds of each file that has a row, and with `skip` those that can't be read."""

    def looked_at(path: str) -> T | SkippedExample | None:
        try:
            # What is neither a file nor a folder has no size, and is refused when it is opened.
            return look(path) if storage.status_of(path).size or not storage.is_file(path) else None
        except ExampleLoadError as error:
            if not skip:
                hint = "" if "on_error=" in str(error) else " (on_error='skip' leaves such files out and lists them.)"
                raise ExampleLoadError(f"{error}{hint}") from error
            return SkippedExample(path, str(error).removeprefix(f"{path}: "))

    results = storage.each_path(looked_at, paths)
    left_out = [one for one in results if isinstance(one, SkippedExample)]
    found = [one for one in results if one is not None and not isinstance(one, SkippedExample)]
    if not found:
        raise no_row(paths, left_out)
    return found, left_out


def no_row(paths: Sequence[str], left_out: Sequence[SkippedExample]) -> ValueError:
    """The error that there is nothing to train on."""
    if not left_out:
        return ValueError(f"The {len(paths)} files hold no row, {paths[0]!r} among them.")
    first = f"The first: {left_out[0].path}: {left_out[0].reason}"
    return ExampleLoadError(f"None of {len(paths)} files can be read, or no row of them. {first}")
