"""Which policy is chosen on which hardware, and that it holds as long as it should."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import keras_turbo as kt
from keras_turbo.machine import CpuFeatures, gpu_features
from keras_turbo.precision import PrecisionWarning, policy
from keras_turbo.precision.measurement import HalfPrecisionSpeed, half_precision_speed
from tests.precision.caught import precision_warnings

V100 = {"device_name": "Tesla V100-SXM2-16GB", "compute_capability": (7, 0)}
T4 = {"device_name": "Tesla T4", "compute_capability": (7, 5)}
A100 = {"device_name": "NVIDIA A100-SXM4-40GB", "compute_capability": (8, 0)}
H100 = {"device_name": "NVIDIA H100 80GB HBM3", "compute_capability": (9, 0)}
GTX_1080 = {"device_name": "NVIDIA GeForce GTX 1080", "compute_capability": (6, 1)}
AMD = {"device_name": "AMD Radeon RX 6800"}
INSTINCT = {"device_name": "AMD Instinct MI250X"}
APPLE = {"device_name": "Apple M1"}


@pytest.fixture
def have_gpus(monkeypatch, set_dtype_policy):
    """Gives a function that makes TensorFlow report GPUs of some details."""

    def have(*details):
        monkeypatch.setattr(policy, "visible_gpus", lambda: list(range(len(details))))
        monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda number: details[number])

    return have


@pytest.mark.parametrize(
    ("gpus", "name", "reason"),
    [
        ([V100], "mixed_float16", "Tesla V100"),
        ([T4], "mixed_float16", "compute capability 7.5"),
        ([A100], "mixed_bfloat16", "can't overflow"),
        ([H100, H100], "mixed_bfloat16", "NVIDIA H100"),
        ([INSTINCT], "mixed_bfloat16", "MI250X"),
        ([A100, V100, H100], "mixed_float16", "the weakest of 3 GPUs"),
        ([AMD], "float32", "nothing is known"),
        ([A100, AMD], "float32", "the weakest of 2 GPUs"),
    ],
)
def test_gpus_decide(have_gpus, gpus, name, reason, capsys):
    have_gpus(*gpus)
    choice = kt.use_mixed_precision()
    assert choice.name == keras.config.dtype_policy().name == name
    assert reason in choice.reason
    assert capsys.readouterr().out == f"Dtype policy {name}: {choice.reason}.\n"


@pytest.mark.parametrize("gpus", [[GTX_1080], [APPLE], [A100, GTX_1080]])
def test_a_gpu_without_tensor_cores_is_warned_of(have_gpus, gpus):
    have_gpus(*gpus)
    with pytest.warns(PrecisionWarning, match="no Tensor Cores"):
        choice = kt.use_mixed_precision(verbose=False)
    assert choice.name == "float32"
    assert "no Tensor Cores" in choice.reason


@pytest.mark.parametrize(
    ("gpus", "names", "why"),
    [
        ([H100], ["float32", "mixed_bfloat16", "mixed_float16"], "NVIDIA H100"),
        ([T4], ["float32", "mixed_float16"], "Tesla T4"),
        ([A100, V100], ["float32", "mixed_float16"], "Tesla V100"),
        ([AMD], ["float32", "mixed_bfloat16", "mixed_float16"], "Radeon"),
        ([A100, GTX_1080], ["float32"], "no Tensor Cores"),
    ],
)
def test_the_policies_to_measure(have_gpus, gpus, names, why):
    have_gpus(*gpus)
    found, reason = policy.hardware_policies()
    assert found == names
    assert why in reason


@pytest.mark.parametrize(("instructions", "names"), [(("amx_bf16",), ["float32", "mixed_bfloat16"]), ((), ["float32"])])
def test_the_policies_to_measure_on_a_cpu(have_gpus, monkeypatch, instructions, names):
    have_gpus()
    monkeypatch.setattr(policy, "cpu_features", lambda: CpuFeatures("Some CPU", instructions))
    found, reason = policy.hardware_policies()
    assert found == names
    assert "Some CPU" in reason


WITH_BFLOAT16 = CpuFeatures("Xeon", ("avx512_bf16", "amx_bf16"))


@pytest.mark.parametrize(
    ("products", "convolutions", "name"),
    [(1.5, 1.2, "mixed_bfloat16"), (1.5, 0.96, "mixed_bfloat16"), (1.5, 0.6, "float32"), (1.05, 1.5, "float32")],
)
def test_a_cpu_with_instructions_is_measured(products, convolutions, name):
    choice = policy.policy_for_cpu(WITH_BFLOAT16, lambda dtype: HalfPrecisionSpeed(dtype, products, convolutions))
    assert choice.name == name
    assert f"{products:.2f} times as fast as float32 in matrix products" in choice.reason


def test_a_cpu_without_instructions_is_not_measured():
    choice = policy.policy_for_cpu(CpuFeatures("Old CPU", ()), lambda dtype: pytest.fail("measured"))
    assert choice == ("float32", "there is no GPU, and Old CPU has no bfloat16 instructions")


def test_the_measurement_itself():
    speed = half_precision_speed("bfloat16")
    assert 0.01 < speed.matrix_products < 100
    assert 0.01 < speed.convolutions < 100
    assert half_precision_speed("bfloat16") is speed


def test_auto_on_this_machine(set_dtype_policy):
    with precision_warnings():
        name, reason = kt.use_mixed_precision()
    assert name == keras.config.dtype_policy().name
    assert "there is no GPU" in reason


@pytest.mark.parametrize("name", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_a_policy_asked_for(name, set_dtype_policy):
    assert kt.use_mixed_precision(name, verbose=False) == (name, "it was asked for")
    assert keras.layers.Dense(1).dtype_policy.name == name


@pytest.mark.parametrize("before", ["float32", "mixed_float16", "float64"])
def test_as_a_context_manager_it_restores(before, set_dtype_policy):
    set_dtype_policy(before)
    with kt.use_mixed_precision("mixed_bfloat16", verbose=False) as choice:
        assert keras.config.dtype_policy().name == choice.name == "mixed_bfloat16"
        with kt.use_mixed_precision("float32", verbose=False):
            assert keras.config.dtype_policy().name == "float32"
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    assert keras.config.dtype_policy().name == before


def test_it_restores_after_an_error(set_dtype_policy):
    with pytest.raises(RuntimeError), kt.use_mixed_precision("mixed_float16", verbose=False):
        raise RuntimeError
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize("value", ["float16", "fp16", "", None, True, 16, keras.DTypePolicy("mixed_float16")])
def test_another_policy_is_refused(value):
    with pytest.raises(ValueError, match="must be one of .*Received: policy="):
        kt.use_mixed_precision(value)
    assert keras.config.dtype_policy().name == "float32"


def test_quiet(capsys, set_dtype_policy):
    kt.use_mixed_precision("float32", verbose=False)
    assert capsys.readouterr().out == ""


def test_the_reason_of_a_gpu_names_it():
    assert "Tesla T4" in policy.policy_for_gpus([gpu_features(T4)]).reason
