"""How replicas send one another their gradients: by which library, in which packs, in which precision."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, get_args

import tensorflow as tf

from keras_turbo.distribution.gradient_compression import COMPRESSIONS, Compression, compressed_sum

#: What sends: "nccl" between GPUs, "ring" is TensorFlow's own over the network, "auto" is what TensorFlow picks.
Implementation = Literal["auto", "ring", "nccl"]
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)

_SUM = tf.distribute.ReduceOp.SUM

# Where a strategy of ours keeps its settings.
_ATTRIBUTE = "_keras_turbo_communication"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Communication:
    """How replicas communicate.

    Args:
        implementation: "auto" (default), "ring" or "nccl".
        bytes_per_pack: gradients are sent in packs of about so many bytes, so that the first are under way while the
            last are computed. Default 0: all in one pack, which has the fewest latencies.
        timeout_seconds: an exchange between workers that takes longer fails with `tf.errors.DeadlineExceededError`, in
            place of waiting for ever for a worker that is gone. Default None: no limit.
        gradient_compression: "float16" or "bfloat16" sends half the bytes, rounded; see
            `keras_turbo.distribution.gradient_compression` for by how much. Default None: as they are.

    Raises:
        TypeError, ValueError: a setting that can't be.
    """

    implementation: Implementation = "auto"
    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    gradient_compression: Compression | None = None

    def __post_init__(self) -> None:
        if self.implementation not in IMPLEMENTATIONS:
            raise ValueError(f"`communication` must be 'auto', 'ring' or 'nccl'. Received: {self.implementation!r}.")
        if isinstance(self.bytes_per_pack, bool) or not hasattr(type(self.bytes_per_pack), "__index__"):
            raise TypeError(f"`bytes_per_pack` must be an integer. Received: bytes_per_pack={self.bytes_per_pack!r}.")
        if operator.index(self.bytes_per_pack) < 0:
            raise ValueError(
                "`bytes_per_pack` must be at least 0, which means one pack for all. Received: "
                f"bytes_per_pack={self.bytes_per_pack}."
            )
        if self.timeout_seconds is not None:
            if isinstance(self.timeout_seconds, bool) or not isinstance(self.timeout_seconds, (int, float)):
                raise TypeError(
                    "`timeout_seconds` must be a number of seconds or None, for no limit. Received: "
                    f"timeout_seconds={self.timeout_seconds!r}."
                )
            if not 0 < self.timeout_seconds < math.inf:
                raise ValueError(
                    "`timeout_seconds` must be above 0, or None for no limit. Received: "
                    f"timeout_seconds={self.timeout_seconds}."
                )
        if self.gradient_compression is not None and self.gradient_compression not in COMPRESSIONS:
            raise ValueError(
                "`gradient_compression` must be 'float16', 'bfloat16' or None. Received: "
                f"gradient_compression={self.gradient_compression!r}."
            )

    def require_devices(self, device_types: Sequence[str]) -> None:
        """Checks that the implementation can send between such devices.

        Args:
            device_types: those of the replicas, as "GPU" and "CPU".

        Raises:
            ValueError: "nccl" without GPUs.
        """
        others = sorted(set(device_types) - {"GPU"})
        if self.implementation == "nccl" and others:
            raise ValueError(
                f"communication='nccl' sends between NVIDIA GPUs, and the replicas are on {', '.join(others)}. Use "
                "communication='auto' or 'ring'. (If there should be GPUs: python -m keras_turbo doctor.)"
            )

    def options(self) -> Any:
        """The same as `tf.distribute.experimental.CommunicationOptions`."""
        return tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=self.bytes_per_pack,
            timeout_seconds=self.timeout_seconds,
            implementation=tf.distribute.experimental.CommunicationImplementation[self.implementation.upper()],
        )

    def cross_device_ops(self, device_types: Sequence[str]) -> tf.distribute.CrossDeviceOps | None:
        """What a MirroredStrategy over such devices takes; None for TensorFlow's choice.

        TensorFlow's choice is NCCL between physical GPUs and its own ring between anything else, and both take packs
        with each call (`options_of`). So there is one thing to choose: another way than NCCL between GPUs.

        Raises:
            ValueError: as `require_devices`.
        """
        self.require_devices(device_types)
        if self.implementation == "ring" and "GPU" in device_types:
            return tf.distribute.HierarchicalCopyAllReduce()
        return None

    def __str__(self) -> str:
        parts = [self.implementation]
        if self.bytes_per_pack:
            parts.append(f"packs of {self.bytes_per_pack / 1e6:g} MB")
        if self.gradient_compression:
            parts.append(f"gradients as {self.gradient_compression}")
        if self.timeout_seconds:
            parts.append(f"timeout {self.timeout_seconds:g} s")
        return ", ".join(parts)


def set_communication(strategy: tf.distribute.Strategy, communication: Communication) -> None:
    """Lets a strategy of ours reduce gradients so."""
    setattr(strategy, _ATTRIBUTE, communication)


def communication_of(strategy: tf.distribute.Strategy) -> Communication:
    """How a strategy reduces gradients."""
    return getattr(strategy, _ATTRIBUTE, Communication())


def sum_over_replicas(values: Sequence[Any]) -> list[Any]:
    """The sums of gradients over all replicas, sent as the strategy says. In replica context, all replicas together.

    Args:
        values: tensors or `tf.IndexedSlices`, of the same shapes on all replicas.
    """
    context = tf.distribute.get_replica_context()
    communication = communication_of(context.strategy)
    # Given with each call: in a graph, MultiWorkerMirroredStrategy forgets the packs that it was made with.
    options = communication.options()

    def all_reduce(tensors: list[Any]) -> list[Any]:
        sums: list[Any] = [None] * len(tensors)
        # Each dtype by itself, since TensorFlow packs what it is given together into one vector.
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            alike = [tensors[place] for place in places]
            for place, one in zip(places, context.all_reduce(_SUM, alike, options=options), strict=True):
                sums[place] = one
        return sums

    values = list(values)
    if not values:
        return []
    if communication.gradient_compression is None or context.num_replicas_in_sync == 1:
        return all_reduce(values)
    return compressed_sum(values, communication.gradient_compression, all_reduce)
