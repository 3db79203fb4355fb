"""What `audit()` found, as a table, as plain values and as a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from keras_turbo.auditing.parts import StepParts
from keras_turbo.auditing.remedies.remedy import Remedy
from keras_turbo.auditing.utilization import Utilization
from keras_turbo.data.profile import PipelineReport
from keras_turbo.monitor.verdict import Verdict
from keras_turbo.report import Block, Code, Heading, Report, Table

_BAR_WIDTH = 60
# What no remedy that is tried here could gain from: what to do is told with the verdict.
_TOLD_BY_VERDICT = ("checkpoint-stalls", "throttled", "gpu-lagging")


@dataclasses.dataclass(frozen=True)
class AuditReport(Report):
    """What `audit()` returns.

    Attributes:
        verdict: what holds the training up most.
        parts: where the time of a step goes.
        remedies: what was tried, what gains most first, then what gained nothing or does not apply.
        utilization: of GPUs and CPU while the audit measured.
        pipeline: names of the stages of a tf.data pipeline; empty where they can't be seen.
        stages: how fast each stage of a `FastDataset` is; None for other data.
        facts: the model, the data and the machine, as names and values.
        notes: what else is to be known.
        seconds: what the audit took.
    """

    verdict: Verdict
    parts: StepParts
    remedies: tuple[Remedy, ...]
    utilization: Utilization
    pipeline: tuple[str, ...]
    stages: PipelineReport | None
    facts: dict[str, str]
    notes: tuple[str, ...]
    seconds: float

    @property
    def gains(self) -> tuple[Remedy, ...]:
        """The remedies that were measured to gain."""
        return tuple(each for each in self.remedies if each.status == "gain")

    @property
    def headline(self) -> str:
        """The verdict and the best remedy, in a sentence or two."""
        told = [f"{self.verdict.kind}: {self.verdict.text}", self.advice]
        if self.gains:
            best = self.gains[0]
            told.append(f"{best.name} made {self._it} {best.times:.1f} times as fast.")
        elif not self.advice:
            told.append("No remedy that was measured gained anything.")
        return " ".join(filter(None, told))

    @property
    def advice(self) -> str:
        """What to do, where none of the remedies that are tried could help; else empty."""
        return self.verdict.remedy if self.verdict.kind in _TOLD_BY_VERDICT else ""

    @property
    def _it(self) -> str:
        # Saves are no part of what is compared.
        return "the steps between saves" if self.parts.checkpoints_ms else "it"

    def to_dict(self) -> dict[str, Any]:
        """All figures, made of JSON's types."""
        return {
            "headline": self.headline,
            "verdict": dataclasses.asdict(self.verdict),
            "step": {
                "step_ms": self.parts.step_ms,
                "whole_ms": self.parts.whole_ms,
                "timeline_ms": self.parts.timeline(),
                "input_alone_ms": self.parts.input_alone_ms,
                "ready_ms": self.parts.ready_ms,
                "graph_ms": self.parts.graph_ms,
                "callbacks_ms": dict(self.parts.callbacks_ms),
                "checkpoints_ms": dict(self.parts.checkpoints_ms),
            },
            "remedies": [each.to_dict() for each in self.remedies],
            "utilization": dataclasses.asdict(self.utilization),
            "pipeline": list(self.pipeline),
            "stages": None if self.stages is None else self.stages.to_dict(),
            "facts": dict(self.facts),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }

    def to_html(self) -> str:
        """One page that needs nothing else: no network, no other file."""
        from keras_turbo.auditing.page import page_of

        return page_of(self)

    def blocks(self) -> Iterator[Block]:
        """The headline, the parts of a step, the remedies and their code, and what else is to be known."""
        yield Heading(self.headline)
        whole = self.parts.whole_ms
        steps = [
            (part, f"{ms:.3g}", f"{ms / whole:.0%}", "█" * round(_BAR_WIDTH * ms / whole / 2))
            for part, ms in self.parts.timeline().items()
        ]
        yield Table(f"a step of fit: {whole:.3g} ms", ("part", "ms", "share", ""), steps)
        measured = [
            (
                each.name,
                f"{each.before_ms:.3g}",
                f"{each.after_ms:.3g}",
                f"{each.times:.2f}",
                "gains" if each.status == "gain" else "no gain",
            )
            for each in self.remedies
            if each.after_ms is not None and each.times is not None
        ]
        if measured:
            columns = ("remedy", "before, ms", "after, ms", "times as fast", "result")
            yield Table("remedies, each measured in fit", columns, measured, words=(0, 4))
        for each in self.gains:
            yield Heading(f"{each.name}:")
            yield Code(each.code)
            yield f"  It changes: {each.changes or 'nothing'}."
        yield from self.lines()

    def lines(self) -> list[str]:
        """What was not measured and why, and the notes."""
        lines = [
            f"{'Does not apply' if each.status == 'does not apply' else 'Not measured'}: {each.name}: {each.reason}."
            for each in self.remedies
            if each.after_ms is None
        ]
        alone = self.parts.input_alone_ms
        if alone is not None:
            lines.append(
                f"The input alone takes {alone:.3g} ms for a batch; the step on batches that are ready "
                f"{self.parts.ready_ms:.3g} ms."
            )
        callbacks = sorted(self.parts.callbacks_ms.items(), key=lambda item: -item[1])
        lines += [f"Callback {name}: {ms:.3g} ms a step." for name, ms in callbacks]
        if self.stages is not None:
            lines.append(f"The slowest stage of the FastDataset is {self.stages.slowest!r}. {self.stages.advice}")
        return [*lines, *self.notes, f"The audit took {self.seconds:.0f} s. Everything is as it was before."]
