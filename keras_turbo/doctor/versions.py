"""Do TensorFlow, Keras, tensorflow-io, CUDA, cuDNN and the driver fit together?"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
from collections.abc import Mapping

from keras_turbo.doctor.findings import Finding, version_tuple
from keras_turbo.doctor.gpu_wiring import Driver
from keras_turbo.report import listed

TOPIC = "versions"

# What setup.cfg asks for.
_OLDEST_TENSORFLOW = (2, 17)
_OLDEST_KERAS = (3, 12)
_TOO_NEW_KERAS = (4,)

# The native library of tensorflow-io, by its version, loads on these versions of TensorFlow.
_TENSORFLOW_IO: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {(0, 37): ((2, 16), (2, 17))}

# Packages of pip that bring CUDA's libraries: `pip install tensorflow[and-cuda]`. The names end in CUDA's major
# version.
_CUDA_PACKAGES = {"CUDA runtime": "nvidia-cuda-runtime", "cuDNN": "nvidia-cudnn", "NCCL": "nvidia-nccl"}


@dataclasses.dataclass(frozen=True)
class Versions:
    """What is installed.

    Attributes:
        python: such as "3.11.4".
        tensorflow: its version.
        keras: its version.
        backend: of Keras.
        legacy_keras: whether tf.keras is told to be Keras 2.
        tensorflow_io: its version; None where it is not installed.
        built_for_cuda: what this TensorFlow was built for; None for a build without CUDA.
        built_for_cudnn: likewise.
        capabilities: such as ("sm_60", "compute_90"): the GPUs that it was built for.
        packages: versions of CUDA's libraries that pip installed, by the names of `_CUDA_PACKAGES`.
        gpus_of_tensorflow: how many GPUs TensorFlow lists; None where it was not asked.
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
    is_cuda = bool(build.get("is_cuda_build"))
    cuda = str(build.get("cuda_version") or "") if is_cuda else ""
    major = cuda.partition(".")[0]
    packages = {name: _installed(f"{package}-cu{major}") for name, package in _CUDA_PACKAGES.items()} if major else {}
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
        packages={name: version for name, version in packages.items() if version is not None},
        gpus_of_tensorflow=len(tf.config.list_physical_devices("GPU")),
    )


def findings(versions: Versions, driver: Driver) -> list[Finding]:
    """What the versions mean.

    Args:
        versions: what is installed.
        driver: what NVML says.

    Returns:
        The findings.
    """
    found = [_python_packages(versions)]
    if versions.backend != "tensorflow":
        found.append(
            Finding(
                TOPIC,
                "warning",
                f"Keras runs on {versions.backend}.",
                "FastDataset, tune and distribute are for TensorFlow: set KERAS_BACKEND=tensorflow.",
            )
        )
    if versions.legacy_keras:
        found.append(
            Finding(
                TOPIC,
                "error",
                "TF_USE_LEGACY_KERAS is set: tf.keras is Keras 2, whose models are not those of keras.",
                "Unset TF_USE_LEGACY_KERAS, or write keras.* everywhere instead of tf.keras.*.",
            )
        )
    found += _tensorflow_io(versions)
    if driver.gpus:
        found += _cuda(versions, driver)
    elif versions.gpus_of_tensorflow:
        found.append(Finding(TOPIC, "ok", f"TensorFlow lists GPUs: {versions.gpus_of_tensorflow}."))
    elif versions.built_for_cuda is not None:
        found.append(
            Finding(TOPIC, "ok", f"This TensorFlow was built for CUDA {versions.built_for_cuda}; no GPU is there.")
        )
    return found


def _python_packages(versions: Versions) -> Finding:
    fact = f"Python {versions.python}, TensorFlow {versions.tensorflow}, Keras {versions.keras}."
    if version_tuple(versions.tensorflow) < _OLDEST_TENSORFLOW:
        return Finding(TOPIC, "error", fact, "TensorFlow 2.17 or later is needed: pip install -U tensorflow.")
    if not _OLDEST_KERAS <= version_tuple(versions.keras) < _TOO_NEW_KERAS:
        return Finding(TOPIC, "error", fact, 'Keras from 3.12 to below 4 is needed: pip install "keras>=3.12,<4".')
    return Finding(TOPIC, "ok", fact)


def _tensorflow_io(versions: Versions) -> list[Finding]:
    if versions.tensorflow_io is None:
        return []
    fact = f"tensorflow-io {versions.tensorflow_io}"
    fitting = _TENSORFLOW_IO.get(version_tuple(versions.tensorflow_io)[:2])
    if fitting is None:
        return [Finding(TOPIC, "ok", f"{fact}: not known to keras_turbo.")]
    if version_tuple(versions.tensorflow)[:2] in fitting:
        return [Finding(TOPIC, "ok", f"{fact} fits this TensorFlow.")]
    return [
        Finding(
            TOPIC,
            "warning",
            f"{fact} does not load on TensorFlow {versions.tensorflow}; keras_turbo reads s3:// and sounds without it.",
            "pip uninstall tensorflow-io; tensorflow-io 0.37.1 is for TensorFlow 2.17 alone.",
        )
    ]


def _cuda(versions: Versions, driver: Driver) -> list[Finding]:
    with_cuda = f'pip install "tensorflow[and-cuda]=={versions.tensorflow}"'
    if versions.built_for_cuda is None:
        return [
            Finding(
                TOPIC,
                "error",
                f"{_gpus(len(driver.gpus))}, and this TensorFlow was built without CUDA: it trains on the CPU.",
                f"pip uninstall tensorflow-cpu; {with_cuda}",
            )
        ]
    found = [
        _driver(versions.built_for_cuda, driver),
        *_libraries(versions, with_cuda),
        *_capabilities(versions, driver),
    ]
    if versions.gpus_of_tensorflow == 0:
        found.append(
            Finding(
                TOPIC,
                "error",
                f"{_gpus(len(driver.gpus))}, and TensorFlow lists none: it found no CUDA libraries that fit. It names "
                "those that are missing when it is imported without TF_CPP_MIN_LOG_LEVEL.",
                f"{with_cuda}, and take other CUDA folders out of LD_LIBRARY_PATH.",
            )
        )
    elif versions.gpus_of_tensorflow is not None and versions.gpus_of_tensorflow < len(driver.gpus):
        found.append(
            Finding(
                TOPIC,
                "warning",
                f"The driver has {len(driver.gpus)} GPUs for this process, TensorFlow lists "
                f"{versions.gpus_of_tensorflow}.",
                "TensorFlow leaves out GPUs that are much slower than the others (TF_MIN_GPU_MULTIPROCESSOR_COUNT).",
            )
        )
    return found


def _driver(built_for: str, driver: Driver) -> Finding:
    build = version_tuple(built_for)[:2]
    fact = f"NVIDIA driver {driver.version or 'of unknown version'}"
    if driver.cuda_version is None:
        return Finding(TOPIC, "ok", f"{fact}; TensorFlow was built for CUDA {built_for}.")
    fact += f" runs CUDA up to {driver.cuda_version[0]}.{driver.cuda_version[1]}; TensorFlow was built for {built_for}."
    if driver.cuda_version[0] < build[0]:
        return Finding(TOPIC, "error", fact, f"Install a driver for CUDA {build[0]} or later.")
    if driver.cuda_version < build:
        # NVIDIA promises that programs run on an older driver of the same major version, but its compiler for XLA does
        # not take newer code.
        return Finding(TOPIC, "warning", fact, "It works; XLA may not. Install a newer driver.")
    return Finding(TOPIC, "ok", fact)


def _libraries(versions: Versions, with_cuda: str) -> list[Finding]:
    if not versions.packages:
        return [
            Finding(
                TOPIC,
                "ok",
                "CUDA's libraries are not those of pip: the system's are taken, if they are there.",
            )
        ]
    built = {"CUDA runtime": versions.built_for_cuda, "cuDNN": versions.built_for_cudnn}
    names = [f"{name} {version}" for name, version in versions.packages.items()]
    for name, built_for in built.items():
        installed = versions.packages.get(name)
        if installed is None or built_for is None:
            continue
        needed, there = version_tuple(built_for)[:2], version_tuple(installed)[:2]
        if there[:1] != needed[:1] or there[: len(needed)] < needed:
            # TensorFlow refuses an older cuDNN. An older CUDA runtime of the same major version may do.
            is_wrong = name == "cuDNN" or there[:1] != needed[:1]
            return [
                Finding(
                    TOPIC,
                    "error" if is_wrong else "warning",
                    f"{name} {installed} is installed; this TensorFlow was built for {built_for}.",
                    with_cuda,
                )
            ]
    missing = [name for name in _CUDA_PACKAGES if name not in versions.packages]
    if missing:
        return [Finding(TOPIC, "warning", f"{listed(names)}; of pip's, {listed(missing)} is not there.", with_cuda)]
    return [Finding(TOPIC, "ok", f"{listed(names)}.")]


def _capabilities(versions: Versions, driver: Driver) -> list[Finding]:
    built = [int(digits) for one in versions.capabilities if (digits := one.rpartition("_")[2]).isdigit()]
    if not built:
        return []
    found = []
    for counters in driver.gpus:
        capability = counters.gpu.compute_capability
        if capability is None:
            continue
        number = capability[0] * 10 + capability[1]
        if number < min(built):
            found.append(
                Finding(
                    TOPIC,
                    "error",
                    f"{counters.gpu.hardware} is older than anything this TensorFlow was built for.",
                    "Train on another GPU, or build TensorFlow for this one.",
                )
            )
        elif capability[0] > max(built) // 10:
            found.append(
                Finding(
                    TOPIC,
                    "warning",
                    f"{counters.gpu.hardware} is newer than anything this TensorFlow was built for: its first start "
                    "compiles all operations, which takes up to half an hour.",
                    "Keep what it compiled: CUDA_CACHE_MAXSIZE=4294967296. Or take a newer TensorFlow.",
                )
            )
    return found


def _gpus(number: int) -> str:
    return "One NVIDIA GPU" if number == 1 else f"{number} NVIDIA GPUs"


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
