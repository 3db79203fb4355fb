"""Which of several workers this process is."""

from __future__ import annotations

from typing import Any

from keras_turbo.fit.workers import worker_of


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
