"""The remedy for a callback that takes long at every step: it is asked less often."""

from __future__ import annotations

from keras_turbo.auditing.bench import Bench
from keras_turbo.auditing.remedies.remedy import Remedy, does_not_apply

# A callback that takes less than this share of a step can't be what is slow.
_LEAST_SHARE = 0.05


def slow_callback(bench: Bench) -> Remedy:
    """The slowest callback left out, as it nearly is where it does its work each hundredth batch."""
    name, parts = "callbacks", bench.parts
    if not bench.callbacks.run:
        return does_not_apply(name, "no callbacks were given: audit(model, data, callbacks=[...]) measures them")
    times = {} if parts is None else parts.callbacks_ms
    slowest = max(times, key=lambda each: times[each], default=None)
    if slowest is None or parts is None or times[slowest] < _LEAST_SHARE * parts.step_ms:
        return does_not_apply(name, "none takes 5 % of a step")
    return bench.compare(
        name,
        lambda: bench.turn(without=[slowest]),
        measured=f"fit without {slowest}, which takes {times[slowest]:.3g} ms a step",
        changes=f"{slowest} sees fewer batches",
        code=f"if batch % 100 == 0:  # in {slowest}.on_train_batch_end; or do it in on_epoch_end",
    )
