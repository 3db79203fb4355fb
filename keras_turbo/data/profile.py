"""How fast each stage of a dataset is, which is the slowest, and what to change."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_turbo.data.engine.recipe import Recipe
from keras_turbo.data.engine.store import fits_in_memory, memory_store
from keras_turbo.report import Block, Report, Table

# Examples that are measured, over and over: enough for many batches, few enough to be read from disk in no time.
_SAMPLE_EXAMPLES = 256

# Examples that a thread takes at a time.
_ROWS_A_CALL = 16

_ADVICE = {
    "read": "Put the files on a local disk, or keep fewer and larger ones: reading waits for the disk or the network.",
    "decode": "Keep decoded examples (cache='auto', 'memory' or 'disk'), give scaled_decode=True if the files are much "
    "larger than image_size, or store smaller files.",
    "load": "Keep loaded examples: cache='auto', 'memory' or 'disk'.",
    "map": "Keep mapped examples (cache), or move the work of map_fn into the model, where it runs on whole batches.",
    "augment": "Move augmentation into the model as Keras layers, where it runs on whole batches (and on the GPU).",
    "batch": "Make examples smaller: uint8 up to the model instead of float32.",
    "gather": "Nothing here needs changing: batches are copied from memory. If training waits for them, it is bound by "
    "memory bandwidth; make examples smaller.",
}


@dataclasses.dataclass(frozen=True)
class StageFigures:
    """One stage of a dataset.

    Attributes:
        name: "read", "decode" (of images) or "load", "map", "augment", "batch", or "gather" from memory.
        examples_per_second: its rate if it were alone, on all cores.
        microseconds_per_example: the time it adds to each example, with all cores at work.
        share_of_time: its part in an example's time, 0 to 1.
    """

    name: str
    examples_per_second: float
    microseconds_per_example: float
    share_of_time: float


@dataclasses.dataclass(frozen=True)
class PipelineReport(Report):
    """What `FastDataset.report()` found.

    Attributes:
        stages: in the order in which an example passes them, for an epoch that loads every example.
        examples_per_second: of such an epoch, all stages together.
        limit_examples_per_second: of loading (reading and decoding) and nothing else; of gathering, for arrays.
        stored_examples_per_second: of an epoch that finds every example in the store; None without one.
        slowest: name of the slowest stage.
        advice: what to change about it.
    """

    stages: tuple[StageFigures, ...]
    examples_per_second: float
    limit_examples_per_second: float
    stored_examples_per_second: float | None
    slowest: str
    advice: str

    @property
    def share_of_limit(self) -> float:
        """Rate of the whole over that of the limit."""
        return self.examples_per_second / self.limit_examples_per_second

    def to_dict(self) -> dict[str, Any]:
        """All figures, made of JSON's types."""
        return super().to_dict() | {"share_of_limit": self.share_of_limit}

    def blocks(self) -> Iterator[Block]:
        """The stages in a table, and the advice."""
        rows = [
            (
                stage.name + (" (slowest)" if stage.name == self.slowest else ""),
                f"{stage.examples_per_second:,.0f}",
                f"{stage.microseconds_per_example:,.1f}",
                f"{stage.share_of_time:.0%}",
            )
            for stage in self.stages
        ]
        totals = [
            ("all stages", f"{self.examples_per_second:,.0f}", f"{1e6 / self.examples_per_second:,.1f}", ""),
            ("limit: loading and nothing else", f"{self.limit_examples_per_second:,.0f}", "", ""),
        ]
        if self.stored_examples_per_second is not None:
            totals.append(("from the store, later epochs", f"{self.stored_examples_per_second:,.0f}", "", ""))
        columns = ("stage", "examples/s alone", "µs an example", "share of time")
        yield Table("FastDataset, stage by stage", columns, rows, totals)
        yield f"{self.share_of_limit:.0%} of the limit. Slowest: {self.slowest}. {self.advice}"


def measure(recipe: Recipe, seconds: float) -> PipelineReport:
    """Measures the stages of a dataset on some of its own examples.

    Each stage is run together with those before it, and has what it adds to the time of an example.

    Raises:
        ValueError: `seconds` is not positive; none of the examples can be loaded.
    """
    if seconds <= 0:
        raise ValueError(f"`seconds` must be positive. Received: {seconds}.")
    source, map_fn, augment_fn = recipe.source, recipe.map_fn, recipe.augment_fn
    sample = np.unique(np.linspace(0, len(source) - 1, _SAMPLE_EXAMPLES).astype(np.int64))

    def seeds(positions: np.ndarray) -> np.ndarray:
        return np.stack([np.zeros_like(positions), positions], axis=1)

    def load(positions: np.ndarray) -> Any:
        return source.load(positions, seeds(positions), None)

    def mapped(positions: np.ndarray) -> Any:
        columns, failed = load(positions)
        return (columns, failed) if map_fn is None else map_fn(columns, seeds(positions))

    def augmented(positions: np.ndarray) -> Any:
        columns, failed = mapped(positions)
        return (columns, failed) if augment_fn is None else augment_fn(columns, seeds(positions))

    _, failed = load(sample)
    if len(failed) == len(sample):
        raise ValueError(
            f"None of {len(sample)} examples that were tried can be loaded, the first being "
            f"{source.name(int(sample[0]))}."
        )
    sample = np.delete(sample, list(failed))
    loading = source.loading_is_called or "load"
    runs: dict[str, Callable[[np.ndarray], Any]] = {}
    if hasattr(source, "read"):
        runs["read"] = lambda positions: [source.read(position) for position in positions.tolist()]
    runs[loading] = load
    if map_fn is not None:
        runs["map"] = mapped
    if augment_fn is not None:
        runs["augment"] = augmented
    if recipe.batches.batch_size is not None:
        runs["batch"] = lambda positions: [
            np.array(array) for array in recipe.elements.components(augmented(positions)[0])
        ]
    budget = seconds / (len(runs) + 1)
    cumulative = {name: _seconds_per_example(recipe, sample, run, budget) for name, run in runs.items()}
    whole = max(cumulative.values())
    stages, before = [], 0.0
    for name, until_here in cumulative.items():
        # Noise can make a stage seem to take less than nothing.
        added = max(until_here - before, 1e-9)
        stages.append(StageFigures(name, 1 / added, added * 1e6, min(added / whole, 1.0)))
        before = max(before, until_here)
    slowest = max(stages, key=lambda stage: stage.microseconds_per_example).name
    return PipelineReport(
        stages=tuple(stages),
        examples_per_second=1 / whole,
        limit_examples_per_second=1 / cumulative[loading],
        stored_examples_per_second=_stored_rate(recipe, sample, mapped(sample)[0], budget),
        slowest=slowest,
        advice=_ADVICE[slowest],
    )


def _stored_rate(recipe: Recipe, sample: np.ndarray, columns: Any, budget: float) -> float | None:
    is_kept = recipe.store is not None and recipe.store is not recipe.source.as_store()
    if not is_kept or recipe.batches.batch_size is None or recipe.augment_fn is not None:
        return None
    elements = recipe.elements
    if not fits_in_memory(len(sample) * elements.row_bytes):
        return None
    places = np.arange(len(sample))
    scratch = memory_store(elements, len(sample))
    scratch.put(places, columns)
    rows = elements.zeros(min(recipe.batches.batch_size, len(sample)))
    out = [np.asarray(column) for column in rows]
    return 1 / _seconds_per_example(
        recipe, places[: len(out[0])], lambda some: scratch.gather(some, out), budget, len(out[0]), 1
    )


def _seconds_per_example(
    recipe: Recipe,
    sample: np.ndarray,
    run: Callable[[np.ndarray], Any],
    budget: float,
    rows: int = _ROWS_A_CALL,
    threads: int | None = None,
) -> float:
    """Seconds that an example takes when all threads are at work."""
    chunks = [sample[begin : begin + rows] for begin in range(0, len(sample), rows)]
    threads = threads or recipe.workers
    run(chunks[0])  # what is done once
    start = time.perf_counter()

    def examples_done(thread: int) -> int:
        done = 0
        for chunk in itertools.islice(itertools.cycle(chunks), thread, None):
            run(chunk)
            done += len(chunk)
            if time.perf_counter() - start > budget:
                break
        return done

    with ThreadPoolExecutor(threads, "keras_turbo") as pool:
        done = sum(pool.map(examples_done, range(threads)))
    return (time.perf_counter() - start) / done
