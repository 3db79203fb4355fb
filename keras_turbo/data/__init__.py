"""Files, arrays and other datasets -> batches: `fast_dataset.py` joins the parts."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_turbo.data.convert import ConversionError, convert_images, write_tfrecords

__all__ = ["ConversionError", "convert_images", "write_tfrecords"]


def __getattr__(name: str) -> Any:
    # Not needed by who trains, and so not imported with the package.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from keras_turbo.data import convert

    return getattr(convert, name)
