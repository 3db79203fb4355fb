"""Marks functions that run as Python, since TensorFlow can't trace them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PythonFunction:
    """A `map_fn` or `load_fn` that uses NumPy, Pillow, OpenCV and the like, which TensorFlow can't trace.

    It runs as it is, on numpy arrays, in this process or in worker processes (`workers`). For worker processes it must
    stand at the top level of a module. It is said and not guessed, since a function of TensorFlow that has a mistake
    can't be told from one that was never meant for it.

    Example:

    ```python
    def load(path):  # Pillow, NumPy, anything
        return np.asarray(Image.open(path).resize((224, 224)))


    train = FastDataset.from_files("photos/**/*.jpg", PythonFunction(load), labels=label_of, workers=4)
    ```

    Args:
        function: takes `x`, or `x, y` (and `sample_weight`), as arrays of one example; as `load_fn` it takes
            the path, a `str`.

    Raises:
        TypeError: it can't be called.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"PythonFunction takes a function. Received: {function!r}.")
        self.function = function

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)
