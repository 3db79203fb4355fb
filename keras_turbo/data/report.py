"""How fast each stage of a dataset is, which is the slowest, and what to change."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.example_store import bytes_per_example, fits_in_memory, memory_store
from keras_turbo.data.pipeline import Pipeline, data_options
from keras_turbo.data.sources.files import FileSource
from keras_turbo.report import Block, Report, Table

# Examples that are measured, over and over: enough for many batches, few enough to be read from disk in no time.
_SAMPLE_EXAMPLES = 256

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


def measure_pipeline(pipeline: Pipeline, seconds: float) -> PipelineReport:
    """Measures the stages of a pipeline on some of its own examples.

    Each stage is run together with those before it, and has what it adds to the time of an example.
    """
    if seconds <= 0:
        raise ValueError(f"`seconds` must be positive. Received: {seconds}.")
    source = pipeline.source
    sample = np.unique(np.linspace(0, source.num_examples - 1, _SAMPLE_EXAMPLES).astype(np.int64))
    seed = tf.zeros([2], tf.int64)
    runs: list[tuple[str, Callable[[tf.Tensor], Any]]] = []
    if isinstance(source, FileSource):
        runs.append(("read", source.read))
    first = "gather" if source.in_memory else source.loading_is_called
    runs.append((first, lambda position: source.load(position, seed)))
    if pipeline.map_fn is not None:
        runs.append(("map", pipeline.example))
    if pipeline.augment_fn is not None:
        runs.append(("augment", lambda position: pipeline.loaded_example(position, tf.constant(0, tf.int64))))
    budget = seconds / (len(runs) + 2)

    cumulative = {name: _seconds_per_example(_one_by_one(pipeline, sample, run), budget) for name, run in runs}
    if pipeline.batch_size is not None:
        batched = _examples(pipeline, sample, runs[-1][1]).batch(pipeline.batch_size)
        cumulative["batch"] = _seconds_per_example(batched, budget)
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
        limit_examples_per_second=1 / cumulative[first],
        stored_examples_per_second=_stored_rate(pipeline, sample, budget),
        slowest=slowest,
        advice=_ADVICE[slowest],
    )


def _examples(pipeline: Pipeline, sample: np.ndarray, run: Callable) -> tf.data.Dataset:
    positions = tf.data.Dataset.from_tensor_slices(sample)

    def made(of: tf.data.Dataset) -> tf.data.Dataset:
        return of.map(run, num_parallel_calls=pipeline.parallel_calls).ignore_errors(log_warning=False)

    # Repeated and with errors ignored, examples that all fail would be tried for ever.
    if not any(True for _ in made(positions).take(1)):
        first = pipeline.source.describe(int(sample[0]))
        raise ValueError(f"None of {len(sample)} examples that were tried can be loaded, the first being {first}.")
    return made(positions.repeat())


def _one_by_one(pipeline: Pipeline, sample: np.ndarray, run: Callable) -> tf.data.Dataset:
    # One number of each tensor comes out, 32 at a time, so that neither batching nor Python is measured. Its size would
    # not do: where that is known beforehand, TensorFlow leaves the tensor itself out.
    def first_numbers(position: tf.Tensor) -> list[tf.Tensor]:
        return [tf.reshape(leaf, [-1])[:1] for leaf in tf.nest.flatten(run(position))]

    return _examples(pipeline, sample, lambda position: tuple(first_numbers(position))).batch(32)


def _stored_rate(pipeline: Pipeline, sample: np.ndarray, budget: float) -> float | None:
    if pipeline.store is None or pipeline.batch_size is None or pipeline.augment_fn is not None:
        return None
    spec = pipeline.store.element_spec
    if not fits_in_memory(len(sample) * bytes_per_example(spec)):
        return None
    scratch = memory_store(spec, len(sample))
    size = min(pipeline.batch_size, len(sample))
    starts = tf.data.Dataset.range(len(sample) // size).repeat()
    gathered = starts.map(lambda k: scratch.gather(tf.range(k * size, (k + 1) * size)), num_parallel_calls=2)
    return 1 / _seconds_per_example(gathered, budget)


def _seconds_per_example(batches: tf.data.Dataset, budget: float) -> float:
    iterator = iter(batches.prefetch(2).with_options(data_options()))
    next(iterator)
    examples, start = 0, time.perf_counter()
    while True:
        batch = next(iterator)
        examples += int(tf.nest.flatten(batch)[0].shape[0])
        elapsed = time.perf_counter() - start
        if elapsed > budget:
            return elapsed / examples
