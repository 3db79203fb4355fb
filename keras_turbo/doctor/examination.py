"""The whole examination, topic by topic; a topic that fails or hangs leaves the others."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from keras_turbo.doctor import cluster, disk, gpus, processor, versions
from keras_turbo.doctor.findings import Examination, Finding, not_examined
from keras_turbo.monitor.time_limit import answer_within

T = TypeVar("T")

_TOPICS = ("versions", "GPUs", "network", "CPU and memory", "disk", "cluster")
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
    """
    found: dict[str, list[Finding]] = {topic: [] for topic in _TOPICS}

    def ask(topic: str, seconds: float, subject: str, question: Callable[[], T]) -> T | None:
        try:
            return answer_within(seconds, question, subject)
        except Exception as failure:
            found[topic].append(not_examined(failure))
            return None

    def look(topic: str, subject: str, findings: Callable[[], Iterable[Finding]], seconds: float) -> None:
        found[topic] += ask(topic, seconds, subject, lambda: list(findings())) or []

    # First, since TensorFlow's start takes memory of the GPUs.
    driver = ask("GPUs", _DRIVER_SECONDS, "The NVIDIA driver", gpus.read_driver)
    installed = ask("versions", _TENSORFLOW_SECONDS, "TensorFlow's start", versions.read_versions)
    of_tensorflow = None if installed is None else installed.gpus_of_tensorflow
    number = max(len(driver.gpus) if driver else 0, of_tensorflow or 0)
    system = _SYSTEM_SECONDS
    if installed is not None:
        known = driver or gpus.Driver()
        look("versions", "What is installed", lambda: versions.findings(installed, known), system)
    if driver is not None:
        look("GPUs", "The kernel (/dev)", lambda: gpus.findings(driver, os.environ, of_tensorflow), system)
    look("cluster", "What the cluster's variables name", lambda: cluster.findings(os.environ), system)
    machines = max([int(one.figures.get("machines") or 1) for one in found["cluster"]], default=1)
    nccl = None if installed is None else installed.packages.get("NCCL")
    look("network", "The kernel (/sys)", lambda: cluster.network(os.environ, number, machines, nccl), system)
    look("CPU and memory", "The kernel (/proc, /sys, /dev/shm)", lambda: processor.findings(os.environ, number), system)
    look("disk", f"The disk of {folder}", lambda: disk.findings(disk.read_disk(folder)), _DISK_SECONDS)
    return Examination(
        version, tuple(dataclasses.replace(one, topic=topic) for topic in _TOPICS for one in found[topic])
    )
