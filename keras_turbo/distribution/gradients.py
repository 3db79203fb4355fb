"""The one place where gradients are summed over replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_turbo.distribution.communication import sum_over_replicas
from keras_turbo.distribution.sparse_gradients import has_any_length, sum_of_any_length


def reduce_gradients(gradients: Sequence[Any], *, one_of_several: bool) -> list[Any]:
    """Sums gradients over all replicas. To be called in a replica, outside of conditions and loops of that replica.

    Args:
        gradients: this replica's, already divided by whatever they are averaged by: tensors, `tf.IndexedSlices`, or
            None where there is none.
        one_of_several: whether they are those of one of the steps of an execution.

    Returns:
        The sums, equal on all replicas, with None where there was none.
    """
    if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
        return list(gradients)
    sums: list[Any] = [None] * len(gradients)
    given = [place for place, one in enumerate(gradients) if one is not None]
    of_any_length = [place for place in given if one_of_several and has_any_length(gradients[place])]
    for places, summed in (
        ([place for place in given if place not in of_any_length], sum_over_replicas),
        (of_any_length, sum_of_any_length),
    ):
        if places:
            for place, one in zip(places, summed([gradients[place] for place in places]), strict=True):
                sums[place] = one
    return sums
