"""Which dtype policy this hardware runs fastest."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

import keras
import tensorflow as tf

from keras_turbo.machine import CpuFeatures, GpuFeatures, cpu_features, gpu_features
from keras_turbo.precision.measurement import HalfPrecisionSpeed, half_precision_speed
from keras_turbo.precision.policy_trials import FastestPolicy, choose_policy
from keras_turbo.precision.warn_once import PrecisionWarning
from keras_turbo.report import show

# From what every GPU runs to what the fewest run: several GPUs take the least of what each would take.
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")


class _NameAndReason(NamedTuple):
    name: str
    reason: str


class PolicyChoice(_NameAndReason):
    """A dtype policy's name and why it was chosen.

    It unpacks like a pair. As a context manager it puts back, at its end, the global policy that held before.

    Attributes:
        name: of the policy, such as "mixed_float16".
        reason: in a sentence.
    """

    _before: Any = None

    def __enter__(self) -> PolicyChoice:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        if self._before is not None:
            keras.config.set_dtype_policy(self._before)


@overload
def use_mixed_precision(policy: str = "auto", data: None = None, *, verbose: bool = True) -> PolicyChoice: ...
@overload
def use_mixed_precision(policy: Callable[[], keras.Model], data: Any, *, verbose: bool = True) -> FastestPolicy: ...
def use_mixed_precision(policy: Any = "auto", data: Any = None, *, verbose: bool = True) -> Any:
    """Sets the global dtype policy to what this hardware runs fastest; or measures what a model trains fastest under.

    **With a function and data** it builds the model under each policy that this hardware has instructions for, trains
    some steps of each in turn (about three seconds, and the time to trace them), and gives the model that is fastest,
    made safe (`make_precision_safe`) and not trained yet. Less than 5 % is not taken for a gain. The global policy
    stays as it was. The model's weights and names, and all random numbers after it, are as if `build()` had been called
    once. It needs memory for one model more for each policy.

    **Without data** call it before the model is built: layers take the global policy when they are made. "auto" decides

    - on NVIDIA's GPUs by compute capability: `float32` below 7.0, with a warning, since there are no Tensor Cores;
      `mixed_float16` for 7.x; `mixed_bfloat16` from 8.0 on, which is as fast as float16 there, has the range of float32
      and needs no loss scaling. `mixed_float16` keeps three more bits of fraction: ask for it where those matter more
      than range, and scale the loss (`SafeLossScaleOptimizer`);
    - on AMD's Instinct GPUs by their name; on a GPU that nothing is known of, `float32`;
    - on several GPUs by the weakest;
    - on a TPU, `mixed_bfloat16`;
    - on a CPU, `float32`, unless it has bfloat16 instructions and half a second of measuring shows that matrix products
      gain and convolutions do not lose (`float16` is emulated on CPUs, and slow). A warning names the layers that lose
      there all the same: recurrent ones and depthwise convolutions. The measurement starts TensorFlow's runtime, so
      configure devices before.

    Example:

    ```python
    keras_turbo.use_mixed_precision()
    name, reason = keras_turbo.use_mixed_precision("mixed_float16", verbose=False)
    with keras_turbo.use_mixed_precision("mixed_bfloat16"):
        model = build()
    # here the policy before holds again

    model = keras_turbo.use_mixed_precision(build, train).model  # build() gives a new, compiled model
    ```

    Args:
        policy: "auto" by default, or "float32", "mixed_float16" or "mixed_bfloat16" to ask for one. Or a function
            without arguments that makes and compiles a new model in each call.
        data: with a function: a `tf.data.Dataset` or another iterable of batches, of which three at most are used; or
            arrays `(x, y)` or `(x, y, sample_weight)` in a tuple, of which the first 32 examples are.
        verbose: whether it is printed what was chosen and why. True by default.

    Returns:
        The policy's name and the reason; as a context manager it puts back the policy before. With a function, a report
        with `model`, `name`, `reason` and the `steps` of each policy.

    Raises:
        ValueError: `policy` is none of these, or comes without the data or with data that it has no use for; `data` is
            empty; what the function gives is no compiled model, or the same one twice.
    """
    if callable(policy) and not isinstance(policy, keras.DTypePolicy):
        if data is None:
            raise ValueError("use_mixed_precision(build, data) needs `data`: batches to train some steps on.")
        names, why = hardware_policies()
        build: Any = policy
        chosen = choose_policy(build, data, names, why)
        if verbose:
            chosen.print()
        return chosen
    if not isinstance(policy, str) or policy not in ("auto", *POLICIES):
        raise ValueError(
            f"`policy` of use_mixed_precision must be one of {('auto', *POLICIES)}. Received: policy={policy!r}. Other "
            "policies are set with `keras.config.set_dtype_policy`."
        )
    if data is not None:
        raise ValueError(
            "`data` goes with a function that builds the model: use_mixed_precision(build, data). Received: "
            f"policy={policy!r}."
        )
    choice = fastest_policy() if policy == "auto" else PolicyChoice(policy, "it was asked for")
    choice._before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(choice.name)
    if policy == "auto" and choice.name != "float32" and not _has_tpu() and not visible_gpus():
        warnings.warn(
            f"The policy is {choice.name} on a CPU. Recurrent layers (LSTM, GRU) and depthwise convolutions "
            "(MobileNet) are slower under it; models with them ask use_mixed_precision(build, data), which measures.",
            PrecisionWarning,
            stacklevel=2,
        )
    if verbose:
        show([f"Dtype policy {choice.name}: {choice.reason}."])
    return choice


def fastest_policy() -> PolicyChoice:
    """What "auto" means on this machine; sets nothing.

    Returns:
        The policy's name and the reason.
    """
    if _has_tpu():
        return PolicyChoice("mixed_bfloat16", "a TPU multiplies bfloat16")
    gpus = [gpu_features(tf.config.experimental.get_device_details(gpu)) for gpu in visible_gpus()]
    if gpus:
        return policy_for_gpus(gpus)
    return policy_for_cpu(cpu_features(), half_precision_speed)


def hardware_policies() -> tuple[list[str], str]:
    """The policies that this machine has instructions for, float32 first, and why it is these.

    A GPU that nothing is known of is taken to have all.
    """
    if _has_tpu():
        return ["float32", "mixed_bfloat16"], "a TPU multiplies bfloat16"
    gpus = [gpu_features(tf.config.experimental.get_device_details(gpu)) for gpu in visible_gpus()]
    if not gpus:
        cpu = cpu_features()
        if cpu.bfloat16_instructions:
            return ["float32", "mixed_bfloat16"], f"{cpu.name} multiplies bfloat16"
        return ["float32"], f"there is no GPU, and {cpu.name} has no bfloat16 instructions"
    names = ", ".join(sorted({str(gpu) for gpu in gpus}))
    if any(gpu.tensor_cores is False for gpu in gpus):
        return ["float32"], f"{names}: no Tensor Cores"
    if all(gpu.bfloat16 or gpu.tensor_cores is None for gpu in gpus):
        return ["float32", "mixed_bfloat16", "mixed_float16"], f"{names} multiplies both"
    return ["float32", "mixed_float16"], f"{names} multiplies float16"


def _has_tpu() -> bool:
    is_over_tpus = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
    return is_over_tpus or bool(tf.config.list_physical_devices("TPU"))


def visible_gpus() -> list[Any]:
    """TensorFlow's GPUs that are not hidden from it."""
    return tf.config.get_visible_devices("GPU")


def policy_for_gpus(gpus: Sequence[GpuFeatures]) -> PolicyChoice:
    """The policy that all of some GPUs run fast.

    Args:
        gpus: at least one.

    Returns:
        What the weakest of them would be given alone.
    """
    choices = [_policy_for_gpu(gpu) for gpu in gpus]
    weakest = min(choices, key=lambda choice: POLICIES.index(choice.name))
    without = sorted({str(gpu) for gpu in gpus if gpu.tensor_cores is False})
    if without:
        warnings.warn(
            f"{', '.join(without)}: no Tensor Cores, so half precision would save memory and no time. The policy is "
            "float32.",
            PrecisionWarning,
            stacklevel=4,
        )
    if len({choice.name for choice in choices}) > 1:
        return PolicyChoice(weakest.name, f"{weakest.reason}, the weakest of {len(gpus)} GPUs")
    return weakest


def _policy_for_gpu(gpu: GpuFeatures) -> PolicyChoice:
    if gpu.tensor_cores is None:
        return PolicyChoice("float32", f"nothing is known of the half precision of {gpu}; ask for a policy to try it")
    if not gpu.tensor_cores:
        return PolicyChoice("float32", f"{gpu} has no Tensor Cores")
    if gpu.bfloat16:
        return PolicyChoice("mixed_bfloat16", f"{gpu} multiplies bfloat16 as fast as float16, and it can't overflow")
    return PolicyChoice("mixed_float16", f"{gpu} multiplies float16 in Tensor Cores, and bfloat16 slowly or not at all")


def policy_for_cpu(cpu: CpuFeatures, measure: Callable[[str], HalfPrecisionSpeed]) -> PolicyChoice:
    """The policy for a machine without a GPU.

    Args:
        cpu: what the processor has.
        measure: how fast a dtype is; called only where there are instructions for bfloat16.

    Returns:
        bfloat16 where it is measured to gain, else float32.
    """
    if not cpu.bfloat16_instructions:
        return PolicyChoice("float32", f"there is no GPU, and {cpu.name} has no bfloat16 instructions")
    speed = measure("bfloat16")
    if speed.gains:
        return PolicyChoice("mixed_bfloat16", f"there is no GPU, but {speed}")
    return PolicyChoice("float32", f"there is no GPU, and {speed}")
