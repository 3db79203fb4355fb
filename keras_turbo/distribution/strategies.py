"""TensorFlow's strategies, told apart from stock ones, with datasets split our way."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_turbo.distribution.distributed_data import distribute_dataset

# More exchanges than one strategy ever numbers.
_COLLECTIVES_OF_A_STRATEGY = 100_000


class _SplitsData:
    """What both strategies have beyond TensorFlow's."""

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Splits each batch of a dataset, which is a global batch, between all replicas.

        Args:
            dataset: of global batches.
            options: of TensorFlow.

        Returns:
            A distributed dataset.
        """
        distribute: Any = super().experimental_distribute_dataset  # type: ignore[misc]
        return distribute_dataset(self, dataset, options, distribute)  # type: ignore[arg-type]


class MirroredStrategy(_SplitsData, tf.distribute.MirroredStrategy):
    """Several devices of this machine. See `mirrored`."""

    _collective_key_base = 0


class MultiWorkerMirroredStrategy(_SplitsData, tf.distribute.MultiWorkerMirroredStrategy):
    """The devices of several workers. See `multi_worker`."""


def mirrored(
    devices: list[str] | None = None, *, cross_device_ops: tf.distribute.CrossDeviceOps | None = None
) -> MirroredStrategy:
    """Makes the strategy for several devices of this machine.

    Args:
        devices: names such as "GPU:0"; None for all GPUs, or the CPU where there is none.
        cross_device_ops: how values are summed over devices; None for TensorFlow's choice.

    Returns:
        A `tf.distribute.MirroredStrategy`. Models made under it and `keras_overrides.install` train right.
    """
    # Two strategies of one process would call their exchanges by the same numbers, and TensorFlow (2.17 to 2.21) fails
    # where these differ in shape ("Shape mismatch in the collective instance"). Its own tests help themselves so, too.
    MirroredStrategy._collective_key_base += _COLLECTIVES_OF_A_STRATEGY
    make: Any = MirroredStrategy
    return make(devices, cross_device_ops=cross_device_ops)


def multi_worker(
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
    *,
    communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
) -> MultiWorkerMirroredStrategy:
    """Makes the strategy for several workers, and waits until all of them are there.

    Args:
        cluster_resolver: who the workers are, and which one this is; None to read TF_CONFIG.
        communication_options: how values are summed over workers; None for TensorFlow's choice.

    Returns:
        A `tf.distribute.MultiWorkerMirroredStrategy`. Models made under it and `keras_overrides.install` train right.
    """
    make: Any = MultiWorkerMirroredStrategy
    return make(cluster_resolver, communication_options=communication_options)


def is_ours(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy was made here."""
    return isinstance(strategy, _SplitsData)
