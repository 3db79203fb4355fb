"""What the remedies that gained give together."""

from __future__ import annotations

from collections.abc import Sequence

from keras_turbo.auditing.bench import Bench
from keras_turbo.auditing.remedies.remedy import LEAST_GAIN, Remedy
from keras_turbo.execution.setting import ExecutionSetting


def together(bench: Bench, remedies: Sequence[Remedy]) -> Remedy | None:
    """Faster input and the fastest way to run the steps at once; None where that is one remedy at most.

    With input that was waited for, faster steps gain little alone. So the fastest way that was found on batches that
    are ready is tried here, whatever it gained by itself.
    """
    input_turn = bench.input_turn
    if input_turn is None:
        return None
    setting = bench.setting or _fastest(bench)
    if setting is None:
        return None
    by_input = min(
        (each for each in remedies if each.status == "gain" and each.name in ("cache", "workers", "FastDataset")),
        key=lambda each: each.after_ms or 0.0,
    )
    by_steps = next((each for each in remedies if each.name == ("XLA" if setting.jit_compile else "multi-step")), None)
    if by_steps is None:
        return None
    return bench.compare(
        f"{by_input.name} and {by_steps.name}",
        lambda: bench.turn(setting=setting, **input_turn),
        measured=f"fit with {setting.name}, {by_input.measured.removeprefix('fit ')}",
        changes="; ".join(each for each in (by_input.changes, by_steps.changes) if each),
        code=f"{by_input.code}\n{by_steps.code}",
    )


def _fastest(bench: Bench) -> ExecutionSetting | None:
    able = [each for each in bench.candidates[1:] if each.failed is None]
    best = min(able, key=lambda each: each.step_ms, default=None)
    return None if best is None or best.step_ms > bench.candidates[0].step_ms * (1 - LEAST_GAIN) else best.setting
