"""What `tune()` measured and chose, as a table and as plain values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from keras_turbo.execution.batch_size import BatchSizes
from keras_turbo.execution.setting import ExecutionSetting
from keras_turbo.report import Block, Report, Table


@dataclasses.dataclass(frozen=True)
class CandidateFigures:
    """One setting.

    Attributes:
        setting: how steps run.
        step_ms: milliseconds a step inside `fit`, callbacks included, on batches that are ready; None if it failed or
            was not measured.
        spread: how far apart its turns were, as a share of the median.
        compile_seconds: tracing and compiling, once.
        memory_mb: peak on the GPUs, or what the process grew by at its largest; None where unknown.
        failed: why it can't run; None if it can.
    """

    setting: ExecutionSetting
    step_ms: float | None
    spread: float
    compile_seconds: float
    memory_mb: float | None
    failed: str | None


@dataclasses.dataclass(frozen=True)
class TuneReport(Report):
    """What `tune()` returns.

    Attributes:
        candidates: all settings measured; the first is the model as `compile` set it up.
        winner: the setting that the model has now.
        speedup: stock milliseconds a step over the winner's, 1.0 where the stock setting stays.
        input_ms: milliseconds that the data takes for a batch, measured alone; None where it was not measured.
        input_limits: whether the data takes longer for a batch than the winner for a step.
        left_out: kinds of settings that could not be tried, and why.
        notes: what is worth knowing about the choice.
        seconds: what `tune()` took.
        reused: whether the result was read from a file.
        batch_sizes: with `find_batch_size`; else None.
    """

    candidates: tuple[CandidateFigures, ...]
    winner: ExecutionSetting
    speedup: float
    input_ms: float | None
    input_limits: bool
    left_out: dict[str, str]
    notes: tuple[str, ...]
    seconds: float
    reused: bool = False
    batch_sizes: BatchSizes | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TuneReport:
        """The report that `to_dict` wrote.

        Raises:
            KeyError, TypeError, ValueError: other values.
        """
        candidates = tuple(
            CandidateFigures(**{**each, "setting": ExecutionSetting(**each["setting"])})
            for each in values["candidates"]
        )
        changed = {
            "candidates": candidates,
            "winner": ExecutionSetting(**values["winner"]),
            "notes": tuple(values["notes"]),
            "batch_sizes": None if values["batch_sizes"] is None else BatchSizes.from_dict(values["batch_sizes"]),
        }
        return cls(**{**values, **changed})

    @property
    def pays_back_steps(self) -> int | None:
        """After how many steps the choice has gained what `tune()` took; None where it gains nothing."""
        chosen = next((each.step_ms for each in self.candidates if each.setting == self.winner), None)
        stock = self.candidates[0].step_ms
        if stock is None or chosen is None or chosen >= stock:
            return None
        return math.ceil(0.0 if self.reused else self.seconds * 1e3 / (stock - chosen))

    def blocks(self) -> Iterator[Block]:
        """The settings in a table, and what is to be known besides."""
        stock_ms = self.candidates[0].step_ms
        rows = []
        for each in self.candidates:
            name = each.setting.name + (" (chosen)" if each.setting == self.winner else "")
            if each.step_ms is None:
                rows.append((name, "not measured" if each.failed is None else "failed", "", "", ""))
                continue
            rows.append(
                (
                    name,
                    f"{each.step_ms:.3f}",
                    "" if stock_ms is None else f"{stock_ms / each.step_ms:.2f}",
                    f"{each.compile_seconds:.1f}",
                    "" if each.memory_mb is None else f"{each.memory_mb:,.0f}",
                )
            )
        columns = ("setting", "ms a step", "times stock", "compile s", "memory MB")
        yield Table("tune(): how the steps of this model run", columns, rows)
        yield from self._lines()

    def _lines(self) -> list[str]:
        lines = [f"Failed: {each.setting.name}: {each.failed}" for each in self.candidates if each.failed is not None]
        lines += [f"Not tried: {kind}: {reason}" for kind, reason in self.left_out.items()]
        if self.input_ms is not None:
            lines.append(f"The data takes {self.input_ms:.3f} ms for a batch.")
        if self.batch_sizes is not None:
            lines += self.batch_sizes.lines()
        lines += self.notes
        took = "read from the file" if self.reused else f"took {self.seconds:.1f} s"
        pays = self.pays_back_steps
        after = f" That pays back after {pays:,} steps." if pays else ""
        lines.append(f"The model runs {self.winner.name}: {self.speedup:.2f} x stock ({took}).{after}")
        return lines
