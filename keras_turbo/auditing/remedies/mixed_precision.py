"""The remedy for steps that multiply in float32: half precision, where this hardware runs it faster."""

from __future__ import annotations

import warnings

import keras

from keras_turbo.auditing.bench import Bench
from keras_turbo.auditing.remedies.copies import compile_alike, why_not_copyable
from keras_turbo.auditing.remedies.remedy import Remedy, does_not_apply, not_measured
from keras_turbo.execution.race import short_reason
from keras_turbo.precision.fragile_layers import half_layers
from keras_turbo.precision.policy import fastest_policy
from keras_turbo.precision.policy_run import layers_to_vary, set_policy
from keras_turbo.precision.safe_model import make_precision_safe

# Where the model computes for less than this share of a step, half precision can't be what it lacks.
_LEAST_COMPUTE_SHARE = 0.1


def mixed_precision(bench: Bench) -> Remedy:
    """A copy of the model under the policy that `use_mixed_precision` would choose."""
    name, model, parts = "mixed precision", bench.model, bench.parts
    if half_layers(model):
        return does_not_apply(name, "the model computes in half precision already")
    if parts is not None and parts.compute_ms < _LEAST_COMPUTE_SHARE * parts.step_ms:
        return does_not_apply(name, f"the model computes for {parts.compute_ms:.3g} of a step's {parts.step_ms:.3g} ms")
    reason = why_not_copyable(model)
    policy = fastest_policy()
    if policy.name == "float32":
        return does_not_apply(name, policy.reason)
    code = (
        f'keras_turbo.use_mixed_precision("{policy.name}")  # before the model is built\n'
        "keras_turbo.make_precision_safe(model)  # after compile"
    )
    if reason is not None:
        return not_measured(name, reason, code)
    try:
        other = _copy_under(model, policy.name)
    except Exception as error:  # whatever a user's layers raise is a reason not to copy them
        return not_measured(name, f"a copy of the model can't be made: {short_reason(error)}", code)
    return bench.compare(
        name,
        lambda: bench.turn(model=other),
        measured=f"fit of a copy of the model under {policy.name}, made precision-safe",
        changes=f"most layers compute in {policy.name.removeprefix('mixed_')}: compare the validation loss, or ask "
        "keras_turbo.precision.precision_report(model, data)",
        code=code,
        reason=policy.reason,
    )


def _copy_under(model: keras.Model, policy: str) -> keras.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is to be said of half precision is said when it is chosen
        other = keras.models.clone_model(model)
        other.set_weights(model.get_weights())
        set_policy(other, layers_to_vary(other), policy)
        compile_alike(other, model)
        make_precision_safe(other, verbose=False)
    return other
