"""Which of several workers this process is."""

from __future__ import annotations

from typing import Any


def worker_of(strategy: Any) -> tuple[int, int]:
    """The index of this worker and the number of workers; (0, 1) where the model trains in one process.

    Args:
        strategy: a `tf.distribute.Strategy`.
    """
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is None or not resolver.task_type:
        return 0, 1
    tasks = resolver.cluster_spec().as_dict()
    # A chief is the first of all; where there is none, worker 0 is.
    number = sum(len(tasks.get(kind, ())) for kind in ("chief", "worker"))
    index = int(resolver.task_id or 0)
    return (index + len(tasks.get("chief", ())) if resolver.task_type == "worker" else 0), max(1, number)


def is_chief(strategy: Any) -> bool:
    """Whether this process is the one that writes files and prints: worker 0, or the only one.

    Example:

    ```python
    if keras_turbo.distribution.is_chief(strategy):
        model.save("model.keras")
    ```

    Args:
        strategy: what `with distribute() as strategy` gives.
    """
    return worker_of(strategy)[0] == 0
