"""Measures how the steps of a model run fastest, and leaves the model set so."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from typing import Any, Literal, get_args

import keras

from keras_turbo import files
from keras_turbo.execution.batch_callbacks import needs_every_batch
from keras_turbo.execution.batch_size import find_batch_sizes
from keras_turbo.execution.candidates import KINDS, XLA_TRACINGS, Kind, candidate_settings, why_not_worth_it
from keras_turbo.execution.installation import apply_setting, remove_setting, why_not_settable
from keras_turbo.execution.programs import Steps
from keras_turbo.execution.race import ROUNDS, Candidate, Race, short_reason
from keras_turbo.execution.results_file import ResultsFile, result_key
from keras_turbo.execution.retracing import warn_if_eager
from keras_turbo.execution.sample import Sample
from keras_turbo.execution.setting import ExecutionSetting
from keras_turbo.execution.tune_report import CandidateFigures, TuneReport
from keras_turbo.fit.training_state import KeptState
from keras_turbo.report import progress_bar

Objective = Literal["throughput", "memory"]

# A gain below this is within what two runs of the same code differ by, on a quiet machine.
_LEAST_GAIN = 0.03
# A candidate of which compiling took longer than this share of the budget is not compiled for a second block length.
_COSTLY_COMPILE = 0.2
# How much of the budget may pass before nothing new is compiled; the rest is for turns.
_ENTRY_SHARE = 0.6
_INPUT_SHARE = 0.05
_SAMPLE_BATCHES = 128


def tune(
    model: keras.Model,
    data: Any,
    *,
    batch_size: int = 32,
    budget_seconds: float = 30.0,
    objective: Objective = "throughput",
    allow: tuple[Kind, ...] = KINDS,
    callbacks: Any = None,
    find_batch_size: bool = False,
    results_file: str | os.PathLike | None = "auto",
) -> TuneReport:
    """Measures how the steps of a model run fastest on this machine, and sets the model so for `fit`.

    Stock `fit` calls TensorFlow from Python for each step, which takes longer than the step of a small model. Several
    steps in one call, or XLA, make one model many times faster and another one slower. So the settings are tried, in
    turns, inside `fit`, on batches of the data, and the fastest stays. Nothing else is changed: weights, the
    optimizer's variables, metrics, seeds and the position of the data are afterwards as before.

    The setting holds until `compile` is called again. It is not saved with the model.

    Example:

    ```python
    model.compile("adam", "mse")
    print(keras_turbo.tune(model, train))
    model.fit(train, epochs=10)
    ```

    Args:
        model: a compiled model. If it is not built yet, it is built from the data.
        data: what `fit` will get: a `FastDataset`, a `tf.data.Dataset` of batches, a `keras.utils.PyDataset`, or a
            tuple `(x, y)` or `(x, y, sample_weight)` of arrays.
        batch_size: examples a batch, default 32. For arrays; a dataset has batches of its own.
        budget_seconds: how long to measure at most, default 30. It takes less where nothing can be gained any more. A
            compilation that has begun is waited for; none begins that is expected to go beyond the budget.
        objective: "throughput" (default): the least time for a step. "memory": the least memory, among those that are
            not slower than stock.
        allow: what may be tried, default all: "multi_step" (several steps in a graph loop), "jit" (steps compiled by
            XLA), "xla_loop" (several steps in one XLA program).
        callbacks: those that `fit` will get. One that must be called for each batch keeps one step at a time: one
            with a hook for batches that is not Keras' own, unless its attribute `needs_every_batch` is False.
        find_batch_size: whether to look for the largest batch that fits and for the one with the most examples a
            second, too, for as long again as `budget_seconds`, with Keras' own loop. Default False. The data keeps its
            batches and the optimizer its learning rate: another batch size is another training run.
        results_file: JSON file in which results are kept by model, data, devices, versions and arguments, and looked
            up. "auto" (default): `keras_turbo/tune.json` in the user's cache folder (`$XDG_CACHE_HOME`, else
            `~/.cache`), if it can be written. None: measure.

    Returns:
        The figures of each setting, which print as a table.

    Raises:
        TypeError: `model` or `data` of another kind.
        ValueError: a model that is not compiled; another value of an argument.
    """
    _check(model, batch_size, budget_seconds, objective, allow, callbacks)
    remove_setting(model)
    warn_if_eager(model)
    reason = why_not_settable(model)
    if reason is not None:
        if find_batch_size:
            raise ValueError(f"`find_batch_size` needs a model whose steps can be measured; of this one, {reason}.")
        return _not_measured(reason)
    sample = Sample(data, batch_size=batch_size, most_batches=_SAMPLE_BATCHES)
    if find_batch_size and sample.stack is None:
        raise ValueError(
            "`find_batch_size` needs batches of dense tensors of one shape, which larger ones can be made of. "
            f"Received: {sample.element_spec}."
        )
    every_batch = needs_every_batch(callbacks)
    # Creates all variables that training needs, as the first step of `fit` would, without a step.
    try:
        variables = Steps(model, model.train_step, lambda batch: None).variables(sample.element_spec)
    except Exception as error:
        if type(error).__name__ != "UnliftableError":  # which TensorFlow keeps private
            raise
        return _not_measured(f"its step can't be traced apart from Keras' own function ({short_reason(error)})")
    state = KeptState(model, variables)
    file, key = _results_file(results_file), ""
    if file is not None:
        asked = {
            "objective": objective,
            "allow": sorted(allow),
            "budget_seconds": budget_seconds,
            "every_batch": every_batch,
            "find_batch_size": bool(find_batch_size),
        }
        key = result_key(model, sample, asked)
        known = file.look_up(key)
        if known is not None:
            apply_setting(model, known.winner)
            return known
    batch_sizes = None
    if find_batch_size:
        batch_sizes = find_batch_sizes(model, sample.first_batch, sample.element_spec, state, float(budget_seconds))
    report = _measured(model, sample, state, float(budget_seconds), objective, allow, every_batch)
    report = dataclasses.replace(report, batch_sizes=batch_sizes)
    if file is not None:
        file.keep(key, report)
    return report


def _results_file(path: str | os.PathLike | None) -> ResultsFile | None:
    if path is None:
        return None
    if path != "auto":
        return ResultsFile(path)
    try:
        return ResultsFile(files.default_cache_dir() / "tune.json")
    except (OSError, ValueError):  # nobody has asked for it by name
        return None


def _check(model: Any, batch_size: Any, budget_seconds: Any, objective: Any, allow: Any, callbacks: Any) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a keras.Model. Received: {type(model).__name__}.")
    if not model.compiled:
        raise ValueError(f"The model {model.name!r} must be compiled before it is tuned: call its compile() first.")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"`batch_size` must be an integer from 1. Received: {batch_size!r}.")
    if isinstance(budget_seconds, bool) or not isinstance(budget_seconds, (int, float)) or not budget_seconds > 0:
        raise ValueError(f"`budget_seconds` must be a number of seconds above 0. Received: {budget_seconds!r}.")
    if objective not in get_args(Objective):
        raise ValueError(f"`objective` must be one of {get_args(Objective)}. Received: {objective!r}.")
    given = callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else callbacks
    for callback in given if isinstance(given, (list, tuple)) else [] if given is None else [given]:
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(f"`callbacks` must be those that fit() takes. Received: {callback!r}.")
    unknown = [kind for kind in ([allow] if isinstance(allow, str) else allow) if kind not in KINDS]
    if isinstance(allow, str) or unknown:
        raise ValueError(f"`allow` must be a tuple with some of {KINDS}. Received: {allow!r}.")


def _not_measured(reason: str) -> TuneReport:
    """The report for a model that only Keras' own loop can run."""
    stock = Candidate(ExecutionSetting())
    return TuneReport(
        candidates=(_figures(stock),),
        winner=stock.setting,
        speedup=1.0,
        input_ms=None,
        input_limits=False,
        left_out={"anything but Keras' own loop": reason},
        notes=(),
        seconds=0.0,
    )


def _measured(
    model: keras.Model,
    sample: Sample,
    state: KeptState,
    budget_seconds: float,
    objective: Objective,
    allow: tuple[Kind, ...],
    every_batch: bool,
) -> TuneReport:
    start = time.perf_counter()
    deadline = start + budget_seconds
    race = Race(model, sample, state)
    try:
        stock = race.enter(ExecutionSetting())
        candidates = [stock]
        hopeless = why_not_worth_it(model, stock.step_ms, allow)
        settings, left_out = candidate_settings(
            allow=tuple(kind for kind in allow if kind not in hopeless),
            stock_ms=stock.step_ms,
            num_batches=sample.num_batches,
            batch_bytes=sample.batch_bytes,
            element_spec=sample.element_spec,
            every_batch=every_batch,
        )
        left_out |= hopeless
        with progress_bar("tune(): settings of the model", len(settings) + ROUNDS) as advance:
            for setting in settings:
                reason = _why_not_now(setting, candidates, start, budget_seconds)
                if reason is None:
                    candidates.append(race.enter(setting))
                else:
                    left_out[setting.name] = reason
                advance(1)
            input_ms = sample.input_ms(min(1.0, _INPUT_SHARE * budget_seconds))
            if len(candidates) > 1:
                race.run([each for each in candidates if each.failed is None], deadline, advance)
        winner = _choose(candidates, objective)
    finally:
        # Keras' own functions were traced for the state that is put back, and may stay.
        remove_setting(model)
        state.restore()
    race.keep(winner.setting)
    return TuneReport(
        candidates=tuple(_figures(each) for each in candidates),
        winner=winner.setting,
        speedup=stock.step_ms / winner.step_ms,
        input_ms=input_ms,
        input_limits=input_ms is not None and input_ms >= winner.step_ms,
        left_out=left_out,
        notes=tuple(_notes(model, sample, winner, input_ms)),
        seconds=time.perf_counter() - start,
    )


def _why_not_now(
    setting: ExecutionSetting, candidates: list[Candidate], start: float, budget_seconds: float
) -> str | None:
    """Why a setting is not compiled any more; None if it is."""
    # Compiling by XLA takes several times as long as tracing the same steps, which Keras' own loop has shown.
    expected = candidates[0].compile_seconds * (XLA_TRACINGS if setting.jit_compile else 1.0)
    spent = time.perf_counter() - start
    if spent > _ENTRY_SHARE * budget_seconds or spent + expected > budget_seconds:
        return f"the budget of {budget_seconds:g} s was nearly spent; budget_seconds gives more"
    for each in candidates:
        if each.setting.loop == setting.loop and each.setting.jit_compile == setting.jit_compile:
            if each.failed is not None:
                return "it failed with another number of steps"
            if each.compile_seconds > _COSTLY_COMPILE * budget_seconds:
                return f"compiling it takes {each.compile_seconds:.1f} s; budget_seconds gives more"
    return None


def _choose(candidates: list[Candidate], objective: Objective) -> Candidate:
    stock = candidates[0]
    able = [each for each in candidates if each.failed is None]
    if objective == "memory":
        as_fast = [each for each in able if each.step_ms <= stock.step_ms * (1 + _LEAST_GAIN)]
        return min(as_fast, key=lambda each: math.inf if each.memory_mb is None else each.memory_mb)
    best = min(able, key=lambda each: each.step_ms)
    # Its usual turn must be faster than the best that stock managed.
    return best if best.step_ms < min(stock.turns_ms) * (1 - _LEAST_GAIN) else stock


def _figures(candidate: Candidate) -> CandidateFigures:
    able = bool(candidate.turns_ms)
    return CandidateFigures(
        setting=candidate.setting,
        step_ms=candidate.step_ms if able else None,
        spread=(max(candidate.turns_ms) - min(candidate.turns_ms)) / candidate.step_ms if able else 0.0,
        compile_seconds=candidate.compile_seconds,
        memory_mb=candidate.memory_mb,
        failed=candidate.failed,
    )


def _notes(model: keras.Model, sample: Sample, winner: Candidate, input_ms: float | None) -> list[str]:
    notes = []
    steps = winner.setting.steps_per_execution
    if input_ms is not None and input_ms >= winner.step_ms:
        notes.append(
            "The data is what limits: it takes longer for a batch than a step does now, so no other setting helps. "
            "A FastDataset with a cache, or less work for each batch in the dataset, does; FastDataset.report() shows "
            "its slowest stage."
        )
    if steps > 1:
        notes.append(f"Callbacks are called once for {steps} batches, and stop_training is looked at as often.")
        if sample.num_batches and sample.num_batches % steps:
            notes.append(
                f"An epoch of {sample.num_batches} batches is no multiple of {steps}: Keras tells callbacks a batch "
                "index beyond the last in the last execution. Count steps by optimizer.iterations."
            )
    if winner.setting.jit_compile:
        notes.append("XLA adds in another order: losses and weights agree to about 1e-6 of their size a step.")
        if any("seed" in variable.path.lower() for variable in model.non_trainable_variables):
            notes.append("XLA draws other random numbers for dropout and its like, from the same seeds.")
    return notes
