"""The one place where gradients are summed over replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_turbo.distribution.communication import sum_over_replicas


def reduce_gradients(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Sums gradients over all replicas. To be called in a replica, outside of conditions and loops of that replica.

    Args:
        gradients: this replica's, already divided by whatever they are averaged by: tensors, `tf.IndexedSlices`, or
            None where there is none.
        variables: theirs.

    Returns:
        The sums, equal on all replicas, with None where there was none.
    """
    del variables
    present = [one for one in gradients if one is not None]
    context = tf.distribute.get_replica_context()
    if not present or context.num_replicas_in_sync == 1:
        return list(gradients)
    sums = iter(sum_over_replicas(present))
    return [None if one is None else next(sums) for one in gradients]
