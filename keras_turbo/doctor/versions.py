"""Do TensorFlow, Keras, tensorflow-io, CUDA, cuDNN and the driver fit together?"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator, Mapping

from keras_turbo.doctor.findings import Finding, error, ok, warning
from keras_turbo.doctor.gpus import Driver
from keras_turbo.report import listed

# What setup.cfg asks for.
_OLDEST_TENSORFLOW = (2, 17)
_OLDEST_KERAS = (3, 12)
_TOO_NEW_KERAS = (4,)
# The native library of tensorflow-io 0.37 loads on these versions of TensorFlow.
_OF_TENSORFLOW_IO_0_37 = ((2, 16), (2, 17))
# Packages of pip that bring CUDA's libraries: `pip install tensorflow[and-cuda]`. The names end in CUDA's major
# version.
_CUDA_PACKAGES = {"CUDA runtime": "nvidia-cuda-runtime", "cuDNN": "nvidia-cudnn", "NCCL": "nvidia-nccl"}


@dataclasses.dataclass(frozen=True)
class Versions:
    """What is installed; None is what is not there, or was not asked.

    Attributes:
        legacy_keras: whether tf.keras is told to be Keras 2.
        built_for_cuda: what this TensorFlow was built for.
        capabilities: such as ("sm_60", "compute_90"): the GPUs that it was built for.
        packages: versions of CUDA's libraries that pip installed, by the names of `_CUDA_PACKAGES`.
        gpus_of_tensorflow: how many GPUs TensorFlow lists.
    """

    python: str
    tensorflow: str
    keras: str
    backend: str = "tensorflow"
    legacy_keras: bool = False
    tensorflow_io: str | None = None
    built_for_cuda: str | None = None
    built_for_cudnn: str | None = None
    capabilities: tuple[str, ...] = ()
    packages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gpus_of_tensorflow: int | None = None


def read_versions() -> Versions:
    """Asks what is installed here; imports TensorFlow and starts its GPU runtime."""
    import keras
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    cuda = str(build.get("cuda_version") or "") if build.get("is_cuda_build") else ""
    found = {name: _installed(f"{package}-cu{cuda.partition('.')[0]}") for name, package in _CUDA_PACKAGES.items()}
    return Versions(
        python=platform.python_version(),
        tensorflow=tf.__version__,
        keras=keras.__version__,
        backend=keras.config.backend(),
        legacy_keras=os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"),
        tensorflow_io=_installed("tensorflow-io"),
        built_for_cuda=cuda or None,
        built_for_cudnn=str(build.get("cudnn_version") or "") or None,
        capabilities=tuple(build.get("cuda_compute_capabilities") or ()),
        packages={name: version for name, version in found.items() if cuda and version is not None},
        gpus_of_tensorflow=len(tf.config.list_physical_devices("GPU")),
    )


def findings(versions: Versions, driver: Driver) -> Iterator[Finding]:
    """What the versions mean, with what NVML says of the driver."""
    yield _python_packages(versions)
    if versions.backend != "tensorflow":
        hint = "FastDataset, tune and distribute are for TensorFlow: set KERAS_BACKEND=tensorflow."
        yield warning(f"Keras runs on {versions.backend}.", hint)
    if versions.legacy_keras:
        yield error(
            "TF_USE_LEGACY_KERAS is set: tf.keras is Keras 2, whose models are not those of keras.",
            "Unset TF_USE_LEGACY_KERAS, or write keras.* everywhere instead of tf.keras.*.",
        )
    if versions.tensorflow_io is not None:
        yield _tensorflow_io(versions.tensorflow_io, versions.tensorflow)
    if driver.gpus:
        yield from _cuda(versions, driver)
    elif versions.gpus_of_tensorflow:
        yield ok(f"TensorFlow lists GPUs: {versions.gpus_of_tensorflow}.")
    elif versions.built_for_cuda is not None:
        yield ok(f"This TensorFlow was built for CUDA {versions.built_for_cuda}; no GPU is there.")


def _python_packages(versions: Versions) -> Finding:
    fact = f"Python {versions.python}, TensorFlow {versions.tensorflow}, Keras {versions.keras}."
    if _numbers(versions.tensorflow) < _OLDEST_TENSORFLOW:
        return error(fact, "TensorFlow 2.17 or later is needed: pip install -U tensorflow.")
    if not _OLDEST_KERAS <= _numbers(versions.keras) < _TOO_NEW_KERAS:
        return error(fact, 'Keras from 3.12 to below 4 is needed: pip install "keras>=3.12,<4".')
    return ok(fact)


def _tensorflow_io(installed: str, tensorflow: str) -> Finding:
    if _numbers(installed)[:2] != (0, 37):
        return ok(f"tensorflow-io {installed}: not known to keras_turbo.")
    if _numbers(tensorflow)[:2] in _OF_TENSORFLOW_IO_0_37:
        return ok(f"tensorflow-io {installed} fits this TensorFlow.")
    return warning(
        f"tensorflow-io {installed} does not load on TensorFlow {tensorflow}; keras_turbo reads s3:// and sounds "
        "without it.",
        "pip uninstall tensorflow-io; tensorflow-io 0.37.1 is for TensorFlow 2.17 alone.",
    )


def _cuda(versions: Versions, driver: Driver) -> Iterator[Finding]:
    with_cuda = f'pip install "tensorflow[and-cuda]=={versions.tensorflow}"'
    there, listed_ones = len(driver.gpus), versions.gpus_of_tensorflow
    gpus = "One NVIDIA GPU" if there == 1 else f"{there} NVIDIA GPUs"
    if versions.built_for_cuda is None:
        fact = f"{gpus}, and this TensorFlow was built without CUDA: it trains on the CPU."
        yield error(fact, f"pip uninstall tensorflow-cpu; {with_cuda}")
        return
    yield _driver(versions.built_for_cuda, driver)
    yield _libraries(versions, with_cuda)
    yield from _capabilities(versions, driver)
    if listed_ones == 0:
        yield error(
            f"{gpus}, and TensorFlow lists none: it found no CUDA libraries that fit. It names those that are missing "
            "when it is imported without TF_CPP_MIN_LOG_LEVEL.",
            f"{with_cuda}, and take other CUDA folders out of LD_LIBRARY_PATH.",
        )
    elif listed_ones is not None and listed_ones < there:
        yield warning(
            f"The driver has {there} GPUs for this process, TensorFlow lists {listed_ones}.",
            "TensorFlow leaves out GPUs that are much slower than the others (TF_MIN_GPU_MULTIPROCESSOR_COUNT).",
        )


def _driver(built_for: str, driver: Driver) -> Finding:
    fact, runs, build = (
        f"NVIDIA driver {driver.version or 'of unknown version'}",
        driver.cuda_version,
        _numbers(built_for),
    )
    if runs is None:
        return ok(f"{fact}; TensorFlow was built for CUDA {built_for}.")
    fact += f" runs CUDA up to {runs[0]}.{runs[1]}; TensorFlow was built for {built_for}."
    if runs[0] < build[0]:
        return error(fact, f"Install a driver for CUDA {build[0]} or later.")
    # NVIDIA promises that programs run on an older driver of the same major version, but its compiler for XLA does not
    # take newer code.
    return warning(fact, "It works; XLA may not. Install a newer driver.") if runs < build[:2] else ok(fact)


def _libraries(versions: Versions, with_cuda: str) -> Finding:
    if not versions.packages:
        return ok("CUDA's libraries are not those of pip: the system's are taken, if they are there.")
    for name, built_for in (("CUDA runtime", versions.built_for_cuda), ("cuDNN", versions.built_for_cudnn)):
        installed = versions.packages.get(name)
        if installed is None or built_for is None:
            continue
        needed, there = _numbers(built_for)[:2], _numbers(installed)[:2]
        if there[:1] != needed[:1] or there[: len(needed)] < needed:
            # TensorFlow refuses an older cuDNN. An older CUDA runtime of the same major version may do.
            told = error if name == "cuDNN" or there[:1] != needed[:1] else warning
            return told(f"{name} {installed} is installed; this TensorFlow was built for {built_for}.", with_cuda)
    names = listed([f"{name} {version}" for name, version in versions.packages.items()])
    missing = [name for name in _CUDA_PACKAGES if name not in versions.packages]
    return warning(f"{names}; of pip's, {listed(missing)} is not there.", with_cuda) if missing else ok(f"{names}.")


def _capabilities(versions: Versions, driver: Driver) -> Iterator[Finding]:
    built = [int(digits) for one in versions.capabilities if (digits := one.rpartition("_")[2]).isdigit()]
    for gpu in [counters.gpu for counters in driver.gpus if built and counters.gpu.compute_capability]:
        major, minor = gpu.compute_capability or (0, 0)
        if major * 10 + minor < min(built):
            yield error(
                f"{gpu.hardware} is older than anything this TensorFlow was built for.",
                "Train on another GPU, or build TensorFlow for this one.",
            )
        elif major > max(built) // 10:
            yield warning(
                f"{gpu.hardware} is newer than anything this TensorFlow was built for: its first start compiles all "
                "operations, which takes up to half an hour.",
                "Keep what it compiled: CUDA_CACHE_MAXSIZE=4294967296. Or take a newer TensorFlow.",
            )


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 21, 0) of "2.21.0rc1"."""
    return tuple(int(number) for number in re.sub(r"[^\d.].*", "", version).split(".") if number)


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
