"""Files, arrays and other datasets -> batches: `fast_dataset.py` joins the parts."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_turbo.data.convert import ConversionError, convert_images, write_tfrecords
    from keras_turbo.data.engine.failures import ExampleLoadError
    from keras_turbo.data.functions import PythonFunction
    from keras_turbo.data.images import RandomResizedCrop

# Not imported with the package: who trains needs few of them.
_MODULES = {
    "ConversionError": "convert",
    "ExampleLoadError": "engine.failures",
    "PythonFunction": "functions",
    "RandomResizedCrop": "images",
    "convert_images": "convert",
    "write_tfrecords": "convert",
}

__all__ = [
    "ConversionError",
    "ExampleLoadError",
    "PythonFunction",
    "RandomResizedCrop",
    "convert_images",
    "write_tfrecords",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
