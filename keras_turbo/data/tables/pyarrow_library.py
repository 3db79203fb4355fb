"""The library that reads tables, where it is installed."""

from __future__ import annotations

from typing import Any


def load_pyarrow(wanted_for: str) -> Any:
    """The module `pyarrow`, with the parts that are used here.

    Args:
        wanted_for: what needs it, for the error.

    Raises:
        ImportError: it is not installed, or can't be imported; the message says which command brings it.
    """
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"{wanted_for} reads tables by pyarrow, which can't be imported ({error}). Install it: "
            'pip install "keras_turbo[tabular]" (with NumPy before 2: pip install "pyarrow<22")'
        ) from error
    return pa
