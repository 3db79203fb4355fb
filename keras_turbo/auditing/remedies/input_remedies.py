"""The remedies for input that training waits for: a cache, workers, and a `FastDataset` in place of arrays."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from keras_turbo.auditing.bench import Bench
from keras_turbo.auditing.pipeline_graph import PipelineGraph, pipeline_graph, with_parallel_maps
from keras_turbo.auditing.remedies.remedy import Remedy, does_not_apply, not_measured
from keras_turbo.data.fast_dataset import FastDataset
from keras_turbo.data.settings import available_cores
from keras_turbo.machine import free_memory_bytes

# Where training waits for less than this share of a step, input can't be what is slow, and nothing is measured.
LEAST_WAIT_SHARE = 0.05
# As the cache of a FastDataset: half of what is free.
_MOST_OF_FREE_MEMORY = 0.5
# Batches of a sample that are cached while others are measured.
_MOST_CACHED_BYTES = 512 << 20


def why_no_need(bench: Bench) -> str | None:
    """Why faster input can't gain; None where it can."""
    parts = bench.parts
    if parts is None or parts.input_wait_ms >= LEAST_WAIT_SHARE * parts.step_ms:
        return None
    return f"fit waits {parts.input_wait_ms:.3g} of a step's {parts.step_ms:.3g} ms for its input"


def cache(bench: Bench) -> Remedy:
    """Keeps examples once they are made."""
    name = "cache"
    kind = bench.data.kind
    if kind == "arrays":
        return does_not_apply(name, "arrays are in memory already")
    if kind == "FastDataset" and bench.data.x.is_ready:
        return does_not_apply(name, "this FastDataset has all its examples ready")
    reason = why_no_need(bench)
    if reason is not None:
        return does_not_apply(name, reason)
    if kind in ("PyDataset", "generator"):
        return does_not_apply(
            name,
            f"the batches of a {kind} are made in Python; where they are made of files or arrays, a FastDataset keeps "
            "them: FastDataset.from_files(...), FastDataset(x, y)",
        )
    graph = pipeline_graph(bench.data.arguments()["x"])
    if graph is not None and graph.has_cache:
        return does_not_apply(name, "the pipeline has a cache already")
    batches = bench.data.num_batches
    fills_itself = kind == "FastDataset" and bench.data.x.stored_in is not None
    if fills_itself:
        code = "# Nothing to add: this FastDataset fills its store in the first epoch."
    elif kind == "FastDataset":
        code = 'train = FastDataset(..., cache="memory")  # in place of cache=False'
    else:
        code = "train = train.cache()  # before .shuffle(), random augmentation and .batch()"
    needed = None if batches is None else batches * bench.sample.batch_bytes
    free = free_memory_bytes()
    if not fills_itself and needed is not None and needed > _MOST_OF_FREE_MEMORY * free:
        return not_measured(
            name,
            f"an epoch takes about {needed / 1e9:.1f} GB, more than half of the {free / 1e9:.1f} GB that are free; "
            "cache on disk, or store smaller examples (uint8)",
            code.replace(".cache()", '.cache("/fast/disk/cache")').replace('"memory"', '"disk"'),
        )
    in_time = 2 * bench.turn_seconds * 1e3 / max(0.001, (bench.parts.input_alone_ms if bench.parts else None) or 0.001)
    taken = max(2, min(bench.steps, _MOST_CACHED_BYTES // max(bench.sample.batch_bytes, 1), int(in_time)))
    taken = taken if batches is None else min(taken, batches)
    kept = bench.data.arguments()["x"].take(taken).cache()
    if bench.why_no_time() is None:
        for _ in kept:  # the first epoch, which fills it
            pass
    bench.data.put_back()
    turn = {"arguments": bench.data.arguments(kept.repeat()), "num_batches": None}
    found = bench.compare(
        name,
        lambda: bench.turn(**turn),
        measured=f"fit on {taken} batches that are cached in memory, as in every epoch after the first",
        changes=_changes_of_cache(graph),
        code=code,
        reason="" if needed is None else f"an epoch takes about {needed / 1e6:,.3g} MB",
    )
    _remember_input(bench, found, turn)
    return found


def workers(bench: Bench) -> Remedy:
    """Makes examples several at a time, and ahead of the step."""
    kind = bench.data.kind
    reason = why_no_need(bench)
    if kind == "FastDataset":
        return does_not_apply("workers", "a FastDataset makes several examples at a time, and reads ahead")
    if kind == "arrays":
        return does_not_apply("workers", "arrays need no workers; see FastDataset")
    if reason is not None:
        return does_not_apply("workers", reason)
    if kind == "generator":
        return does_not_apply(
            "workers",
            "a generator is one Python thread, whatever asks it; make a keras.utils.PyDataset of it, or "
            "FastDataset.from_files(...)",
        )
    return _of_py_dataset(bench) if kind == "PyDataset" else _of_tf_dataset(bench)


def fast_dataset(bench: Bench) -> Remedy:
    """A `FastDataset` of the user's arrays."""
    name = "FastDataset"
    data = bench.data
    if data.kind != "arrays":
        return does_not_apply(
            name,
            "the data is one already"
            if data.kind == "FastDataset"
            else f"how the batches of a {data.kind} are made can't be seen; FastDataset.from_image_folder(...) and "
            "from_files(...) make them from files",
        )
    reason = why_no_need(bench)
    if reason is not None:
        return does_not_apply(name, reason)
    arguments = data.arguments()
    made_of = [arguments.get(part) for part in ("x", "y", "sample_weight")]
    try:
        dataset = FastDataset(*made_of, batch_size=data.batch_size, shuffle=True, seed=0)
    except (TypeError, ValueError) as error:
        return not_measured(name, str(error))
    shuffles = bool(arguments.get("shuffle", True))
    arguments = data.arguments(dataset, y=None, sample_weight=None, batch_size=None, shuffle=False)
    found = bench.compare(
        name,
        lambda: bench.turn(arguments),
        measured="fit on a FastDataset of the same arrays",
        changes="the shuffled order is another one, from the seed" if shuffles else "examples are shuffled",
        code=f"train = keras_turbo.FastDataset(x, y, batch_size={data.batch_size}, shuffle=True, seed=0)",
    )
    _remember_input(bench, found, {"arguments": arguments})
    return found


def _of_py_dataset(bench: Bench) -> Remedy:
    data = bench.data.x
    more = max(2 * available_cores(), 4)
    if data.workers >= more:
        return does_not_apply("workers", f"the PyDataset has {data.workers} workers already")
    busier = copy.copy(data)
    busier.workers, busier.max_queue_size = more, max(data.max_queue_size, 2 * more)
    arguments = bench.data.arguments(busier)
    found = bench.compare(
        "workers",
        lambda: bench.turn(arguments),
        measured=f"fit on the PyDataset with {more} workers in place of {data.workers}",
        changes="nothing, as long as __getitem__ may be called from several threads; numbers that it draws from one "
        "generator go to other batches",
        code=f"train = {type(data).__name__}(..., workers={more})  # passed on to super().__init__(**kwargs)",
    )
    _remember_input(bench, found, {"arguments": arguments})
    return found


def _of_tf_dataset(bench: Bench) -> Remedy:
    dataset = bench.data.arguments()["x"]
    graph = pipeline_graph(dataset)
    parallel = with_parallel_maps(dataset)
    reads_ahead = graph is not None and graph.stages[-1:] == ("prefetch",)
    if parallel is None and reads_ahead:
        where = "comes from a Python generator" if graph is not None and graph.from_python else "has no map to run so"
        return does_not_apply("workers", f"the pipeline reads ahead already, and {where}")
    lines = []
    if parallel is not None:
        lines.append("train = train.map(load, num_parallel_calls=tf.data.AUTOTUNE)  # each map of the pipeline")
    if not reads_ahead:
        lines.append("train = train.prefetch(tf.data.AUTOTUNE)  # the last line of the pipeline")
    changed = dataset if parallel is None else parallel
    arguments = bench.data.arguments(changed if reads_ahead else changed.prefetch(tf.data.AUTOTUNE))
    is_random = parallel is not None and graph is not None and graph.is_random
    found = bench.compare(
        "workers",
        lambda: bench.turn(arguments),
        measured="fit on the same pipeline "
        + " and ".join(
            (["with its maps in parallel"] if parallel is not None else [])
            + (["reading ahead"] if not reads_ahead else [])
        ),
        changes="random numbers of the maps go to other examples" if is_random else "",
        code="\n".join(lines),
    )
    _remember_input(bench, found, {"arguments": arguments})
    return found


def _changes_of_cache(graph: PipelineGraph | None) -> str:
    if graph is None:
        return "what is random in the pipeline is kept as it was drawn first: put the cache before it"
    kept = [
        what for what, there in (("random numbers", graph.is_random), ("a shuffled order", graph.shuffles)) if there
    ]
    if not kept:
        return ""
    return f"{' and '.join(kept)} would be kept as drawn first: put the cache before them"


def _remember_input(bench: Bench, found: Remedy, turn: Mapping[str, Any]) -> None:
    if found.status == "gain" and found.after_ms is not None and found.after_ms < bench.best_input_ms:
        bench.best_input_ms, bench.input_turn = found.after_ms, turn
