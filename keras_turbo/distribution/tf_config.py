"""TF_CONFIG, by which Kubeflow, Vertex AI, Ray and `launch` tell a process its cluster."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from keras_turbo.distribution.cluster import Cluster, ClusterError, check_addresses
from keras_turbo.report import listed, quoted

VARIABLE = "TF_CONFIG"

# What TensorFlow's strategies take.
_TASK_TYPES = ("chief", "worker", "ps", "evaluator")

_FORM = (
    'It has to read like {"cluster": {"worker": ["host1:12345", "host2:12345"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


def read_tf_config(text: str) -> Cluster | None:
    """The cluster that TF_CONFIG describes.

    Args:
        text: its value.

    Returns:
        The cluster, with the tasks of all types; None where it names none: launchers write that for a single machine.

    Raises:
        ClusterError: it can't be.
    """
    config = _parsed(text)
    cluster, task = config.get("cluster", {}), config.get("task")
    if not isinstance(cluster, dict):
        _refuse(f'"cluster" has to be an object. Received: {quoted(cluster)}.')
    if not cluster:
        return None
    for kind, addresses in cluster.items():
        _check_kind(kind, addresses)
    if not isinstance(task, dict):
        _refuse('it has no "task": this process does not know which one it is.')
    check_addresses(VARIABLE, [address for addresses in cluster.values() for address in addresses])
    tasks = {kind: tuple(addresses) for kind, addresses in cluster.items()}
    kind, index = task.get("type"), _index(task.get("index"))
    if kind == "evaluator" and kind not in cluster:
        return Cluster(VARIABLE, VARIABLE, tasks, "evaluator", index or 0)
    if not isinstance(kind, str) or kind not in cluster:
        _refuse(f"this task is of type {quoted(kind)}, the cluster has {listed(list(cluster))}.", "Correct task.type.")
    if index is None:
        _refuse(f"task.index is {quoted(task.get('index'))}, no whole number.", "Number the tasks of a type from 0.")
    number = len(tasks[kind])
    if not 0 <= index < number:
        _refuse(
            f"task.index is {quoted(index)}, and the cluster's list of type {kind!r} has {number}"
            + (f": 0 to {number - 1} can be." if number > 1 else ": 0 can be." if number else "."),
            "Number the tasks of a type from 0; see that all machines have the same list.",
        )
    return Cluster(VARIABLE, VARIABLE, tasks, kind, index)


def _parsed(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except RecursionError:
        _refuse("it is nested too deep.")
    except ValueError as error:
        _refuse(f"no JSON: {error}.")
    if not isinstance(config, dict):
        _refuse(f"a JSON object was expected. Received: {quoted(config)}.")
    return config


def _check_kind(kind: str, addresses: Any) -> None:
    if kind not in _TASK_TYPES:
        _refuse(f"tasks of type {quoted(kind)} are unknown to TensorFlow.", f"It has {listed(_TASK_TYPES)}.")
    if not isinstance(addresses, list) or not all(isinstance(one, str) for one in addresses):
        _refuse(f'"{kind}" has to be a list of addresses. Received: {quoted(addresses)}.')
    if kind in ("chief", "evaluator") and len(addresses) > 1:
        _refuse(f"there are {len(addresses)} of type {kind!r}.", f"Leave one {kind}; the others are workers.")


def _index(value: Any) -> int | None:
    """A whole number, also in quotes: TensorFlow takes both."""
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"[+-]?[0-9]{1,9}", value.strip()) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _refuse(fact: str, remedy: str = _FORM) -> NoReturn:
    raise ClusterError(VARIABLE, fact, remedy)
