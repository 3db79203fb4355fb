"""Which strategy trains a model: by name, by what there is, or the one that is given."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from typing import Any, Literal, get_args

import keras
import tensorflow as tf

from keras_turbo.distribution.cluster import Cluster, ClusterError
from keras_turbo.distribution.communication import Communication, set_communication
from keras_turbo.distribution.environment import check_cluster, cluster_of
from keras_turbo.distribution.meeting import meet
from keras_turbo.distribution.server_start import give_sigterm_back, reach_directly
from keras_turbo.distribution.strategies import is_ours, mirrored, multi_worker
from keras_turbo.report import quoted

Name = Literal["auto", "mirrored", "multi_worker", "one_device", "tpu"]
NAMES: tuple[Name, ...] = get_args(Name)

# By which a machine with TPUs, or one that is to reach them, is told.
_TPU_VARIABLES = ("TPU_NAME", "COLAB_TPU_ADDR", "TPU_WORKER_HOSTNAMES")

_PARAMETER_SERVERS = (
    "Parameter servers are not supported: Keras 3 can't train with them. What is: several workers that keep equal "
    'weights ("multi_worker"), the GPUs of one machine ("mirrored"), "one_device" and "tpu"; "auto" picks.'
)

# "No limit" for a socket that waits for the others at the start.
_FOR_EVER_SECONDS = 30 * 86_400.0


def require_known(strategy: Any) -> None:
    """Refuses what is no strategy.

    Raises:
        ValueError, TypeError: with what can be.
    """
    if isinstance(strategy, str):
        if strategy == "parameter_server":
            raise ValueError(_PARAMETER_SERVERS)
        if strategy not in NAMES:
            raise ValueError(
                f"`strategy` must be one of {', '.join(map(repr, NAMES))}, or a tf.distribute.Strategy. Received: "
                f"{quoted(strategy)}."
            )
    elif not isinstance(strategy, tf.distribute.Strategy):
        raise TypeError(
            f"`strategy` must be one of {', '.join(map(repr, NAMES))}, a tf.distribute.Strategy or a keras.Model. "
            f"Received: {quoted(strategy)} (of type {type(strategy).__name__})."
        )
    elif isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise ValueError(_PARAMETER_SERVERS)


def resolved_name(name: Name, environ: Mapping[str, str]) -> tuple[Name, Cluster | None]:
    """What "auto" stands for here, and the cluster of this process.

    Args:
        name: as given.
        environ: the environment of the process.

    Raises:
        ClusterError: the cluster's variables can't be.
        ValueError: "multi_worker" without a cluster.
    """
    cluster = cluster_of(environ) if name in ("auto", "multi_worker") else None
    if cluster is not None:
        return "multi_worker", cluster
    if name == "multi_worker":
        raise ValueError(
            "'multi_worker' needs to know the workers, and neither TF_CONFIG nor Slurm nor Kubernetes names more than "
            "one. To start several on this machine: python -m keras_turbo launch --workers 2 SCRIPT."
        )
    if name != "auto":
        return name, None
    if any(environ.get(variable) for variable in _TPU_VARIABLES):
        return "tpu", None
    return ("mirrored" if len(tf.config.get_visible_devices("GPU")) > 1 else "one_device"), None


def make_strategy(name: Name, cluster: Cluster | None, communication: Communication) -> tf.distribute.Strategy:
    """Makes a strategy.

    Args:
        name: any but "auto".
        cluster: that of "multi_worker".
        communication: how replicas communicate.

    Raises:
        ClusterError, RuntimeError, ValueError: it can't be made here; with the remedy.
    """
    if name == "multi_worker" and cluster is not None:
        return _of_workers(cluster, communication)
    if name == "mirrored":
        return _of_devices([device.name for device in _devices()], communication)
    if name == "tpu":
        return _of_tpu()
    # As without distribute(): nothing has to be different on one device.
    return tf.distribute.get_strategy()


def adapted(strategy: tf.distribute.Strategy, communication: Communication) -> tf.distribute.Strategy:
    """A strategy that the user has made, as one that Keras can use.

    Raises:
        ValueError: a MultiWorkerMirroredStrategy, which can't be made a second time.
    """
    if is_ours(strategy):
        return strategy
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        raise ValueError(
            "Keras 3 fails under TensorFlow's own MultiWorkerMirroredStrategy, and a process can make one only. Let "
            "distribute() make it: `with keras_turbo.distribute():` reads the same TF_CONFIG."
        )
    if isinstance(strategy, tf.distribute.MirroredStrategy):
        return _of_devices(list(strategy.extended.worker_devices), communication)
    return strategy


def _devices() -> list[Any]:
    # Without GPUs: the virtual devices into which the processor was divided.
    return tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")


def _of_devices(devices: list[str], communication: Communication) -> tf.distribute.Strategy:
    types = [tf.DeviceSpec.from_string(device).device_type or "CPU" for device in devices]
    strategy = mirrored(devices, cross_device_ops=communication.cross_device_ops(types))
    set_communication(strategy, communication)
    return strategy


def _of_workers(cluster: Cluster, communication: Communication) -> tf.distribute.Strategy:
    require_program_start(cluster)
    take_gpus(cluster)
    gpus = _gpu_number()
    communication.require_devices(["GPU" if gpus else "CPU"])
    fault = None
    try:
        check_cluster(cluster, os.environ)
    except ClusterError as error:
        fault = error
    meet(cluster, _facts(gpus, communication), communication.timeout_seconds or _FOR_EVER_SECONDS, fault)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(
            {kind: list(addresses) for kind, addresses in cluster.tasks.items() if kind != "evaluator"}
        ),
        task_type=cluster.task_type,
        task_id=cluster.task_index,
        num_accelerators={"GPU": gpus},
        rpc_layer="grpc",
    )
    reach_directly(cluster.addresses, os.environ)
    strategy = multi_worker(resolver, communication_options=communication.options())
    give_sigterm_back()
    set_communication(strategy, communication)
    return strategy


def _facts(gpus: int, communication: Communication) -> dict[str, str]:
    """What has to be equal on all workers: otherwise TensorFlow hangs, or fails much later by something else."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "TensorFlow": tf.__version__,
        "Keras": keras.__version__,
        # This module is a part of it, so that it is loaded.
        "keras_turbo": sys.modules["keras_turbo"].__version__,
        "GPUs": str(gpus),
        "communication": str(communication),
    }


def require_program_start(cluster: Cluster) -> None:
    """Refuses a strategy over workers where TensorFlow has started without them.

    Raises:
        RuntimeError: it has.
    """
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    try:
        # Nothing public tells whether TensorFlow has started; settings that can't be changed from then on do.
        tf.config.threading.set_inter_op_parallelism_threads(threads + 1)
    except RuntimeError:
        raise RuntimeError(
            f"distribute() has to come before the first tensor, dataset and model of the program: {cluster.variable} "
            f"({cluster.source}) says that this is worker {cluster.index} of {len(cluster.addresses)}, and TensorFlow "
            "takes other workers at its start only. Move `with keras_turbo.distribute():` up, right behind the "
            "imports, and what made tensors (datasets, models, tf.constant) into it."
        ) from None
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def take_gpus(cluster: Cluster) -> None:
    """Leaves this worker its share of the machine's GPUs, where others of the machine see all of them, too."""
    if cluster.local_count == 1:
        return
    gpus = tf.config.get_visible_devices("GPU")
    on_machine = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if not gpus or not on_machine.isdecimal() or int(on_machine) != len(gpus):
        # Slurm has dealt them out already.
        return
    each = len(gpus) // cluster.local_count
    tf.config.set_visible_devices(gpus[cluster.local_index * each : (cluster.local_index + 1) * each], "GPU")


def _gpu_number() -> int:
    """GPUs as TensorFlow will have them, without starting it."""
    parts = (tf.config.get_logical_device_configuration(gpu) for gpu in tf.config.get_visible_devices("GPU"))
    return sum(len(one) if one else 1 for one in parts)


def _of_tpu() -> tf.distribute.Strategy:
    name = os.environ.get("TPU_NAME", "")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(name)
    except Exception as error:  # each kind of TPU fails in its own way
        raise RuntimeError(
            f"TPU_NAME={quoted(name)}: no TPU can be reached: {error} Unset TPU_NAME, COLAB_TPU_ADDR and "
            'TPU_WORKER_HOSTNAMES if there is none, or give distribute("mirrored") or distribute("one_device").'
        ) from error
    return tf.distribute.TPUStrategy(resolver)
