"""The remedies for steps that are short or not compiled: several in one execution, and XLA."""

from __future__ import annotations

from keras_turbo.auditing.bench import Bench
from keras_turbo.auditing.remedies.remedy import LEAST_GAIN, Remedy, does_not_apply
from keras_turbo.execution.batch_callbacks import needs_every_batch
from keras_turbo.execution.race import Candidate


def multi_step(bench: Bench) -> Remedy:
    """Several steps in one call from Python."""
    name = "multi-step"
    if needs_every_batch(bench.callbacks.run):
        return does_not_apply(name, "a callback needs every batch")
    code = 'keras_turbo.tune(model, train, allow=("multi_step",))  # before fit, after compile'
    return _best_of(
        bench,
        name,
        [each for each in bench.candidates[1:] if each.setting.loop == "graph" and not each.setting.jit_compile],
        "steps in a graph loop",
        code,
        "results are the same, bit for bit",
    )


def xla(bench: Bench) -> Remedy:
    """Steps compiled by XLA, one by one or several in one program."""
    every_batch = needs_every_batch(bench.callbacks.run)
    code = "keras_turbo.tune(model, train)  # before fit, after compile"
    return _best_of(
        bench,
        "XLA",
        [
            each
            for each in bench.candidates[1:]
            if each.setting.jit_compile and (each.setting.loop == "graph" or not every_batch)
        ],
        "steps in one XLA program",
        code,
        "sums are added in another order, which agrees to about 1e-6 of their size a step; dropout draws other numbers",
    )


def _best_of(bench: Bench, name: str, candidates: list[Candidate], left_out_as: str, code: str, changes: str) -> Remedy:
    if bench.current.loop != "keras":
        return does_not_apply(name, f"tune() has set the model to run {bench.current.name}")
    able = [each for each in candidates if each.failed is None]
    if not able:
        failed = [f"it fails: {each.failed}" for each in candidates if each.failed is not None]
        reasons = failed or [bench.left_out[key] for key in bench.left_out if key == left_out_as]
        return does_not_apply(name, (reasons or list(bench.left_out.values()) or ["no such way was found"])[0])
    best = min(able, key=lambda each: each.step_ms)
    stock = bench.candidates[0]
    if best.step_ms >= min(stock.turns_ms) * (1 - LEAST_GAIN):
        # On batches that are ready, so that nothing else could hide a gain.
        return Remedy(
            name,
            "no gain",
            stock.step_ms,
            best.step_ms,
            f"{best.setting.name}, on batches that are ready",
            code=code,
        )
    parts = bench.parts
    saved_ms = stock.step_ms - best.step_ms
    if parts is not None and saved_ms < LEAST_GAIN * parts.step_ms:
        return does_not_apply(
            name,
            f"{best.setting.name} would save {saved_ms:.3g} of a step's {parts.step_ms:.3g} ms; something else takes "
            "the time",
        )
    steps = best.setting.steps_per_execution
    found = bench.compare(
        name,
        lambda: bench.turn(setting=best.setting),
        measured=f"fit with {best.setting.name}",
        changes=changes + (f"; callbacks are called once for {steps} batches" if steps > 1 else ""),
        code=code,
        reason=f"on batches that are ready, {stock.step_ms / best.step_ms:.1f} times as fast",
    )
    if found.status == "gain" and best.step_ms < bench.best_ready_ms:
        bench.setting, bench.best_ready_ms = best.setting, best.step_ms
    return found
