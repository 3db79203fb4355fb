"""Do the versions fit together?"""

from __future__ import annotations

import dataclasses

import keras
import pytest
import tensorflow as tf

from keras_turbo.doctor.versions import Versions, findings, read_versions
from tests.doctor.judging import NO_GPU, checked, counters, driver, only, worst

pytestmark = pytest.mark.compatibility

GOOD = Versions(
    python="3.11.7",
    tensorflow="2.21.0",
    keras="3.15.1",
    built_for_cuda="12.5.1",
    built_for_cudnn="9",
    capabilities=("sm_60", "sm_70", "sm_80", "sm_89", "compute_90"),
    packages={"CUDA runtime": "12.5.82", "cuDNN": "9.3.0.75", "NCCL": "2.25.1"},
    gpus_of_tensorflow=1,
)


def judged(machine=NO_GPU, **changes):
    return list(findings(dataclasses.replace(GOOD, **changes), machine))


@pytest.mark.parametrize("machine", [NO_GPU, driver()])
def test_all_fits(machine):
    assert {one.level for one in judged(machine)} == {"ok"}


@pytest.mark.parametrize(
    ("changes", "level", "part", "hint"),
    [
        ({"tensorflow": "2.16.2"}, "error", "TensorFlow 2.16.2", "2.17"),
        ({"keras": "3.11.0"}, "error", "Keras 3.11.0", "keras>=3.12,<4"),
        ({"keras": "4.0.0"}, "error", "Keras 4.0.0", "keras>=3.12,<4"),
        ({"backend": "jax"}, "warning", "Keras runs on jax", "KERAS_BACKEND=tensorflow"),
        ({"legacy_keras": True}, "error", "TF_USE_LEGACY_KERAS", "Unset"),
        ({"tensorflow_io": "0.37.1"}, "warning", "does not load on TensorFlow 2.21.0", "0.37.1"),
    ],
)
def test_packages_that_do_not_fit(changes, level, part, hint):
    found = checked(judged(**changes))
    assert worst(found) == level
    one = only(found, part)
    assert one.level == level
    assert hint in one.hint


@pytest.mark.parametrize("tensorflow", ["2.17.0rc1", "2.21.0+nv25.2", "2.22.0-dev20260101"])
def test_versions_with_more_than_numbers(tensorflow):
    assert worst(judged(tensorflow=tensorflow)) == "ok"


def test_tensorflow_io_that_fits():
    found = checked(judged(tensorflow="2.17.1", tensorflow_io="0.37.1"))
    assert only(found, "tensorflow-io").level == "ok"
    assert only(judged(tensorflow_io="0.38.0"), "not known to keras_turbo").level == "ok"


@pytest.mark.parametrize(
    ("changes", "level", "part", "hint"),
    [
        ({"built_for_cuda": None}, "error", "built without CUDA", 'pip install "tensorflow[and-cuda]==2.21.0"'),
        ({"gpus_of_tensorflow": 0}, "error", "TensorFlow lists none", "tensorflow[and-cuda]"),
        ({"packages": {"CUDA runtime": "11.8.89", "cuDNN": "9.3.0"}}, "error", "CUDA runtime 11.8.89", "and-cuda"),
        (
            {"packages": {"CUDA runtime": "12.3.1", "cuDNN": "9.3.0"}},
            "warning",
            "runtime 12.3.1 is",
            "and-cuda",
        ),
        ({"packages": {"cuDNN": "8.9.7"}}, "error", "cuDNN 8.9.7", "and-cuda"),
        ({"packages": {"cuDNN": "9.3.0"}}, "warning", "CUDA runtime, NCCL is not there", "and-cuda"),
    ],
)
def test_cuda_that_does_not_fit(changes, level, part, hint):
    found = checked(judged(driver(), **changes))
    assert worst(found) == level
    assert hint in only(found, part).hint


def test_cuda_of_the_system():
    found = judged(driver(), packages={})
    assert worst(found) == "ok"
    assert only(found, "the system's are taken")


@pytest.mark.parametrize(
    ("cuda_version", "level"),
    [((11, 8), "error"), ((12, 2), "warning"), ((12, 5), "ok"), ((13, 0), "ok"), (None, "ok")],
)
def test_drivers(cuda_version, level):
    found = checked(judged(driver(cuda_version=cuda_version)))
    assert only(found, "NVIDIA driver 570.86.15").level == level


@pytest.mark.parametrize(
    ("capability", "level"),
    [((5, 2), "error"), ((6, 0), "ok"), ((8, 6), "ok"), ((9, 0), "ok"), ((12, 0), "warning")],
)
def test_capabilities(capability, level):
    assert worst(checked(judged(driver(counters(capability=capability))))) == level


def test_gpus_that_only_tensorflow_knows():
    assert only(judged(gpus_of_tensorflow=1), "TensorFlow lists GPUs: 1.").level == "ok"
    assert only(judged(gpus_of_tensorflow=0), "no GPU is there.").level == "ok"


def test_fewer_gpus_in_tensorflow_than_the_driver_has():
    found = judged(driver(counters(0), counters(1)))
    assert only(found, "has 2 GPUs for this process, TensorFlow lists 1").level == "warning"


def test_this_environment():
    versions = read_versions()
    assert (versions.tensorflow, versions.keras) == (tf.__version__, keras.__version__)
    assert versions.backend == "tensorflow"
    assert versions.gpus_of_tensorflow == len(tf.config.list_physical_devices("GPU"))
    assert worst(findings(versions, NO_GPU)) == "ok"
