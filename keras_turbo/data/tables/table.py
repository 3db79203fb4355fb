"""What is known of a table before its rows are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_turbo.data.failures import SkippedExample
from keras_turbo.data.sources.files import files_content
from keras_turbo.data.sources.source import Identity
from keras_turbo.data.tables.columns import Column
from keras_turbo.data.tables.parts import Parts


@dataclasses.dataclass(frozen=True)
class Table:
    """What is known of a table before its rows are read.

    Attributes:
        kind: "parquet" or "csv".
        paths: of the files, for the identity.
        columns: what is read.
        parts: what of an element they are.
        fills: what stands for missing values, by column.
        left_out: what can't be read, and is left out.
        window: row groups whose rows are shuffled together, also where the table is in memory; None for all that can.
        written_as: how the files are to be read, as far as it is not in them, made of JSON's types; None where all is.
    """

    kind: str
    paths: list[str]
    columns: list[Column]
    parts: Parts
    fills: Mapping[str, Any]
    left_out: list[SkippedExample]
    window: int | None = None
    written_as: Any = None

    def identity(self) -> Identity:
        content = files_content(self.paths)
        recipe = {
            "kind": self.kind,
            "files": [path for path, *_ in content],
            "written_as": self.written_as,
            "columns": repr(self.columns),
            "parts": repr(self.parts),
            "missing": repr(sorted(self.fills.items())),
            "left_out": [list(dataclasses.astuple(one)) for one in self.left_out],
        }
        return Identity(recipe=recipe, content={"files": content})
