"""One audit from its beginning to its end: the parts of a step, then the remedies, then everything as it was."""

from __future__ import annotations

import contextlib
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.auditing.bench import Bench
from keras_turbo.auditing.callback_times import UserCallbacks
from keras_turbo.auditing.checkpoint_times import CheckpointTimes, checkpoint_times
from keras_turbo.auditing.fit_input import FitInput, held
from keras_turbo.auditing.fit_runs import FitRuns, Reset
from keras_turbo.auditing.input_alone import first_batches, input_ms
from keras_turbo.auditing.parts import StepParts
from keras_turbo.auditing.pipeline_graph import pipeline_graph
from keras_turbo.auditing.remedies.callback import slow_callback
from keras_turbo.auditing.remedies.execution import multi_step, xla
from keras_turbo.auditing.remedies.input_remedies import cache, fast_dataset, workers
from keras_turbo.auditing.remedies.larger_batch import larger_batch
from keras_turbo.auditing.remedies.mixed_precision import mixed_precision
from keras_turbo.auditing.remedies.remedy import Remedy, not_measured
from keras_turbo.auditing.remedies.together import together
from keras_turbo.auditing.remedies.uint8 import uint8_input
from keras_turbo.auditing.report import AuditReport
from keras_turbo.auditing.utilization import Recorder, Utilization
from keras_turbo.data.profile import PipelineReport
from keras_turbo.execution.candidates import KINDS, candidate_settings
from keras_turbo.execution.installation import remove_setting, why_not_settable, without_setting
from keras_turbo.execution.programs import Steps
from keras_turbo.execution.race import Race, short_reason
from keras_turbo.execution.sample import Sample
from keras_turbo.execution.setting import ExecutionSetting
from keras_turbo.fit.random_states import kept_random_states
from keras_turbo.fit.training_state import KeptState, NotBuiltError, raw
from keras_turbo.monitor.verdict import judge
from keras_turbo.report import progress_bar

_SAMPLE_BATCHES = 64
# Turns of the training as it is and of its steps on batches that are ready.
_LEAST_ROUNDS, _MOST_ROUNDS, _ROUNDS_SHARE = 3, 6, 0.15
# How much of the budget may pass before no further way to run the steps is compiled, and what their race may take.
_ENTRY_SHARE = 0.25
_RACE_SHARE = 0.1
_STAGES_SHARE = 0.05
# A way to run the steps that is so much slower is not tried for more of them.
_HOPELESS = 1.5

# With so few batches an epoch, what comes between epochs is told of.
_FEW_BATCHES = 5

# In the order in which they are tried: what gains most, most often, is first.
REMEDIES: dict[str, Callable[[Bench], Remedy]] = {
    "cache": cache,
    "workers": workers,
    "FastDataset": fast_dataset,
    "callbacks": slow_callback,
    "multi-step": multi_step,
    "XLA": xla,
    "mixed precision": mixed_precision,
    "larger batch": larger_batch,
    "uint8 input": uint8_input,
}
# What fit leaves on a model, and what is traced for it.
_ATTRIBUTES = ("history", "stop_training", "train_function", "test_function", "predict_function")


def audit_fit(
    model: keras.Model,
    data: FitInput,
    callbacks: Any,
    *,
    steps: int,
    budget_seconds: float,
    remedies: Sequence[str] = tuple(REMEDIES),
) -> AuditReport:
    """Measures a `fit`; see `audit`.

    Args:
        model: a compiled model without a strategy, which does not run eagerly.
        data: what `fit` is given.
        callbacks: what `fit` is given.
        steps: of each turn.
        budget_seconds: after which nothing more is begun.
        remedies: names of those that are tried.
    """
    start = time.perf_counter()
    if data.moves_on is not None:
        warnings.warn(f"audit(): {data.moves_on}.", stacklevel=3)
    users = UserCallbacks(callbacks)
    with contextlib.ExitStack() as contexts:
        current = contexts.enter_context(without_setting(model))
        contexts.enter_context(_kept_attributes(model))
        advance = contexts.enter_context(progress_bar("audit(): parts of a step, then remedies", 4 + len(remedies)))
        recorder = Recorder()
        contexts.callback(recorder.close)
        sample, state = _looked_at(model, data)
        advance(1)
        reset = Reset(state, data.put_back)
        contexts.callback(reset)
        contexts.enter_context(kept_random_states())
        bench = Bench(
            model=model,
            data=data,
            callbacks=users,
            runs=FitRuns(users, reset),
            sample=sample,
            steps=steps,
            deadline=start + budget_seconds,
            budget_seconds=budget_seconds,
            race=Race(model, sample, state),
            current=current,
            recorder=recorder,
        )
        saves = _measure_parts(bench, remedies, advance)
        if bench.parts is None:
            raise RuntimeError("The parts of a step were not measured.")
        utilization = recorder.so_far()
        figures = bench.parts.figures(
            steps_per_execution=max(model.steps_per_execution, current.steps_per_execution),
            reads_fast_dataset=data.kind == "FastDataset",
            **utilization.figures(bench.parts.step_ms / bench.parts.whole_ms),
        )
        tried = []
        for name in remedies:
            with recorder.phase(name):
                tried.append(_tried(bench, name, REMEDIES[name]))
            advance(1)
        with recorder.phase("together"):
            both = _tried(bench, "together", lambda bench: together(bench, tried))
        with recorder.phase("stages"):
            stages = _stages(bench)
        utilization = recorder.so_far()
        advance(1)
    return AuditReport(
        verdict=judge(figures),
        parts=bench.parts,
        remedies=_sorted([*tried, *([] if both is None else [both])]),
        utilization=utilization,
        pipeline=_pipeline(data),
        stages=stages,
        facts=_facts(bench, utilization),
        notes=(*saves.notes, *_notes(bench, saves)),
        seconds=time.perf_counter() - start,
    )


@contextlib.contextmanager
def _kept_attributes(model: keras.Model) -> Iterator[None]:
    before = {name: vars(model)[name] for name in _ATTRIBUTES if name in vars(model)}
    try:
        yield
    finally:
        for name in _ATTRIBUTES:
            vars(model).pop(name, None)
        vars(model).update(before)


def _looked_at(model: keras.Model, data: FitInput) -> tuple[Sample, KeptState]:
    """Batches of the data and the state to put back, of a model that is built now if it was not."""
    # To look at the data resets the metrics.
    before = None
    with contextlib.suppress(NotBuiltError):
        before = KeptState(model)
    with kept_random_states():
        try:
            batches, element_spec = first_batches(model, data, _SAMPLE_BATCHES)
        finally:
            if before is not None:
                before.restore()
        sample = Sample(held(batches, element_spec), batch_size=1, most_batches=len(batches))
    sample.num_batches = data.num_batches
    # Creates all variables that training needs, as the first step of `fit` would, from the random numbers that it
    # would draw.
    variables = Steps(model, model.train_step, lambda batch: None).variables(element_spec)
    return sample, KeptState(model, variables)


def _measure_parts(bench: Bench, remedies: Sequence[str], advance: Callable[[int], None]) -> CheckpointTimes:
    race = bench.race
    start = time.perf_counter()
    with bench.recorder.phase("steps on batches that are ready"):
        bench.candidates = [race.enter(bench.current)]
    # The first run of the training as it is fills what it fills, and is not counted.
    bench.baseline_turn()
    bench.baseline_ms.clear()
    advance(1)
    with bench.recorder.phase("ways to run the steps"):
        _enter_candidates(bench, remedies, start)
        advance(1)
        deadline = time.perf_counter() + _RACE_SHARE * bench.budget_seconds
        race.run([each for each in bench.candidates if each.failed is None], deadline, lambda rounds: None)
        remove_setting(bench.model)
    times, ready, turns_begun_at = [], [], time.perf_counter()
    for round_number in range(_MOST_ROUNDS):
        late = time.perf_counter() - turns_begun_at > _ROUNDS_SHARE * bench.budget_seconds
        if late and round_number >= _LEAST_ROUNDS:
            break
        times.append(bench.baseline_turn())
        with bench.recorder.phase("steps on batches that are ready"):
            ready.append(bench.ready_turn().step_ms)
    with bench.recorder.phase("input alone"):
        try:
            alone_ms = input_ms(bench.model, bench.data, steps=bench.steps, seconds=bench.turn_seconds)
        finally:
            bench.runs.put_back()
    with bench.recorder.phase("checkpoints"):
        saves = checkpoint_times(bench.model, bench.callbacks.left_out, bench.data.num_batches, bench.turn_seconds)
    # Of what is to be compared, the best turns are: another process disturbs one turn and not the next.
    best, ready_ms, share = min(times, key=lambda each: each.step_ms), min(ready), _share_in_graph(bench)
    bench.parts = StepParts(
        step_ms=best.step_ms,
        input_alone_ms=alone_ms,
        ready_ms=ready_ms,
        graph_ms=None if share is None else share * ready_ms,
        callbacks_ms=best.callbacks_ms,
        checkpoints_ms=saves.ms,
    )
    return saves


def _share_in_graph(bench: Bench) -> float | None:
    """How much of a step's time on batches that are ready is left where many steps run in one graph."""
    jit = bool(bench.model.jit_compile)
    in_graph = [
        min(each.turns_ms)
        for each in bench.candidates[1:]
        if each.failed is None
        and each.setting.loop == "graph"
        and each.setting.jit_compile is jit
        and each.setting.steps_per_execution > 1
    ]
    return min(1.0, min(in_graph) / min(bench.candidates[0].turns_ms)) if in_graph else None


def _enter_candidates(bench: Bench, remedies: Sequence[str], start: float) -> None:
    """Compiles the ways to run the steps, Keras' own aside."""
    reason = why_not_settable(bench.model)
    if reason is not None:
        bench.left_out = {"anything but Keras' own loop": reason}
        return
    if bench.current.loop != "keras":
        return
    stock = bench.candidates[0]
    settings, bench.left_out = candidate_settings(
        # Where XLA compiles the steps already, it does so in the loop that dispatch is told by.
        allow=KINDS if "XLA" in remedies or bench.model.jit_compile is True else ("multi_step",),
        stock_ms=stock.step_ms,
        num_batches=bench.sample.num_batches,
        batch_bytes=bench.sample.batch_bytes,
        element_spec=bench.sample.element_spec,
        # What the steps take in a graph tells dispatch from computing, whatever callbacks need.
        every_batch=False,
    )
    compiled = [setting for setting in settings if setting.jit_compile]
    # What a graph loop compiles takes next to nothing, and tells dispatch from computing.
    bench.candidates += [bench.race.enter(setting) for setting in settings if setting not in compiled]
    if any(setting.loop == "graph" for setting in compiled):
        # Two steps are compiled first: XLA makes some models many times slower, and a program of a hundred of their
        # steps would take a minute. (Of the loop's executions the first step compiles apart, so that one is too few.)
        probe = bench.race.enter(ExecutionSetting("graph", 2, jit_compile=True))
        bench.candidates.append(probe)
        if probe.failed is not None or probe.step_ms > _HOPELESS * stock.step_ms:
            return
    for setting in compiled:
        if time.perf_counter() - start > _ENTRY_SHARE * bench.budget_seconds and len(bench.candidates) > 1:
            bench.left_out[setting.name] = (
                f"compiling took a quarter of the budget of {bench.budget_seconds:g} s; budget_seconds gives more"
            )
            continue
        bench.candidates.append(bench.race.enter(setting))


def _tried(bench: Bench, name: str, try_it: Callable[[Bench], Any]) -> Any:
    try:
        return try_it(bench)
    except Exception as error:  # a remedy that a user's model or data can't take is none
        return not_measured(name, f"it fails: {short_reason(error)}")


def _stages(bench: Bench) -> PipelineReport | None:
    if bench.data.kind != "FastDataset":
        return None
    try:
        return bench.data.x.report(_STAGES_SHARE * bench.budget_seconds, verbose=False)
    except ValueError:  # the stages of a tf.data.Dataset can't be told apart
        return None


def _pipeline(data: FitInput) -> tuple[str, ...]:
    graph = pipeline_graph(data.arguments()["x"]) if data.kind == "tf.data.Dataset" else None
    return () if graph is None else graph.stages


def _sorted(remedies: list[Remedy]) -> tuple[Remedy, ...]:
    order = ("gain", "no gain", "not measured", "does not apply")
    return tuple(sorted(remedies, key=lambda each: (order.index(each.status), -(each.times or 0.0))))


def _facts(bench: Bench, utilization: Utilization) -> dict[str, str]:
    data, sample = bench.data, bench.sample
    batches = "unknown" if data.num_batches is None else f"{data.num_batches:,}"
    # Not count_params(), which refuses a model that nobody calls.
    parameters = sum(weight.shape.num_elements() for weight in map(raw, bench.model.weights))
    return {
        "model": f"{bench.model.name} ({type(bench.model).__name__}), {parameters:,} parameters",
        "steps": f"run by {bench.current.name}"
        + (f", {bench.model.steps_per_execution} an execution" if bench.model.steps_per_execution > 1 else ""),
        "data": f"{data.kind}, {sample.batch_rows} examples a batch, {batches} batches an epoch",
        "device": ", ".join(utilization.gpu_names)
        or f"CPU ({platform.machine()}){'' if utilization.problem is None else '; ' + utilization.problem}",
        "versions": f"TensorFlow {tf.__version__}, Keras {keras.__version__}, Python {platform.python_version()}",
    }


def _notes(bench: Bench, saves: CheckpointTimes) -> Iterator[str]:
    names = [type(each).__name__ for each in bench.callbacks.left_out]
    if names:
        untimed = " GpuUtilization times it while you train." if set(names) - set(saves.ms) else ""
        yield f"Not run: {', '.join(names)}: what saves, restores, logs or measures.{untimed}"
    batches = bench.data.num_batches
    if batches is not None and batches < _FEW_BATCHES:
        yield (
            f"An epoch has {batches} {'batch' if batches == 1 else 'batches'}, so that what fit does between epochs is "
            "much of the input wait: fewer, longer epochs (train.repeat(), steps_per_epoch) have less of it."
        )
    if bench.data.moves_on is not None:
        yield f"{bench.data.moves_on[0].upper()}{bench.data.moves_on[1:]}."
