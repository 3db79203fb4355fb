"""The whole examination, topic by topic; a topic that fails or hangs leaves the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from keras_turbo.doctor import cluster, disk, gpus, network, processor, versions
from keras_turbo.doctor.findings import Examination, Finding, not_examined
from keras_turbo.doctor.gpu_wiring import Driver, read_driver
from keras_turbo.monitor.time_limit import answer_within

T = TypeVar("T")

# To wake GPUs that nobody uses takes 1 to 3 s for each.
_DRIVER_SECONDS = 30.0
# TensorFlow starts its GPU runtime in it.
_TENSORFLOW_SECONDS = 120.0
# What the kernel and the name server tell comes in milliseconds; the name server has a limit of its own below this one.
_SYSTEM_SECONDS = 10.0
# The measurement takes 3 s; on a busy network disk the last block may take longer.
_DISK_SECONDS = 20.0


def examine(version: str, folder: Path) -> Examination:
    """Looks at this machine. It takes a few seconds, and leaves nothing behind.

    Args:
        version: of keras_turbo.
        folder: whose disk is measured: see `disk.located`.

    Returns:
        The report.
    """
    # First, since TensorFlow's start takes memory of the GPUs.
    driver, found_of_gpus = _asked(gpus.TOPIC, _DRIVER_SECONDS, read_driver, "The NVIDIA driver")
    driver = Driver() if driver is None else driver
    installed, found_of_versions = _asked(
        versions.TOPIC, _TENSORFLOW_SECONDS, versions.read_versions, "TensorFlow's start"
    )
    gpus_of_tensorflow = None if installed is None else installed.gpus_of_tensorflow
    gpu_number = max(len(driver.gpus), gpus_of_tensorflow or 0)
    if installed is not None:
        found_of_versions += _judged(versions.TOPIC, lambda: versions.findings(installed, driver))
    if not found_of_gpus:
        found_of_gpus += _judged(gpus.TOPIC, lambda: gpus.findings(driver, os.environ, gpus_of_tensorflow))
    nodes, found_of_cluster = _asked(
        cluster.TOPIC, _SYSTEM_SECONDS, lambda: cluster.read_cluster(os.environ), "What the cluster's variables name"
    )
    if nodes is not None:
        found_of_cluster += nodes.findings
    wires, found_of_network = _asked(network.TOPIC, _SYSTEM_SECONDS, network.read_network, "The kernel (/sys)")
    if wires is not None:
        found_of_network += _judged(
            network.TOPIC,
            lambda: network.findings(
                wires,
                os.environ,
                gpu_number=gpu_number,
                has_many_machines=nodes is not None and nodes.machines > 1,
                nccl=None if installed is None else installed.packages.get("NCCL"),
            ),
        )
    have, found_of_processor = _asked(
        processor.TOPIC, _SYSTEM_SECONDS, processor.read_processor, "The kernel (/proc, /sys, /dev/shm)"
    )
    if have is not None:
        found_of_processor += _judged(processor.TOPIC, lambda: processor.findings(have, os.environ, gpu_number))
    measured, found_of_disk = _asked(disk.TOPIC, _DISK_SECONDS, lambda: disk.read_disk(folder), f"The disk of {folder}")
    if measured is not None:
        found_of_disk += _judged(disk.TOPIC, lambda: disk.findings(measured))
    return Examination(
        version,
        (
            *found_of_versions,
            *found_of_gpus,
            *found_of_network,
            *found_of_processor,
            *found_of_disk,
            *found_of_cluster,
        ),
    )


def _asked(topic: str, seconds: float, ask: Callable[[], T], subject: str) -> tuple[T | None, list[Finding]]:
    """The answer, or None and a finding that there is none."""
    try:
        return answer_within(seconds, ask, subject), []
    except Exception as error:
        return None, [not_examined(topic, error)]


def _judged(topic: str, judge: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return judge()
    except Exception as error:
        return [not_examined(topic, error)]
