"""What is likely to go wrong with a model in half precision, said before it does."""

from __future__ import annotations

import keras


def check_precision(model: keras.Model) -> None:
    """Stub."""
