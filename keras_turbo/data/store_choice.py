"""Whether examples are kept once they are made, and where."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_turbo.data.batch_store import BatchStore, stored_spec
from keras_turbo.data.disk_store import fits_on_disk, open_disk_store, private_disk_store
from keras_turbo.data.example_store import (
    ExampleStore,
    bytes_per_example,
    fits_in_memory,
    memory_store,
    why_not_storable,
)
from keras_turbo.data.fingerprint import function_fingerprint
from keras_turbo.data.python_items import placeholder
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.python_source import PythonSource
from keras_turbo.data.sources.source import Source
from keras_turbo.data.sources.tf_dataset import TfDatasetSource
from keras_turbo.data.stateless_random import random_ops_of
from keras_turbo.data.user_functions import ElementFunction
from keras_turbo.machine import free_memory_bytes


def require_known_length(settings: Settings, source: Source) -> None:
    """Checks that there is a number of examples, as positions need it.

    Raises:
        ValueError: unknown, or infinite.
    """
    if source.num_examples < 0:
        raise ValueError(
            f"cache={settings.cache!r} needs to know how many examples there are, and {_name_of(source)} has "
            f"{'infinitely many' if source.num_examples == tf.data.INFINITE_CARDINALITY else 'an unknown number'}. "
            "Apply tf.data.experimental.assert_cardinality to a tf.data.Dataset, give data in Python as a PyDataset, "
            "or use cache=False."
        )


def _name_of(source: Source) -> str:
    return source.is_called if isinstance(source, TfDatasetSource) else "the source"


def python_store(
    settings: Settings, source: PythonSource, map_fn: ElementFunction | None
) -> ExampleStore | BatchStore | None:
    """As `choose_store`, for examples that Python code makes, which may be batches; as it is, nothing is made here."""

    def mapped() -> Any:
        example = source.example()
        return example if map_fn is None else map_fn(example)

    if not source.form.are_batches:
        return choose_store(settings, source, map_fn, lambda position: mapped())
    if settings.cache is False:
        return None
    spec = tf.data.Dataset.range(1).map(lambda position: mapped()).element_spec
    if any(not leaf.shape.rank for leaf in tf.nest.flatten(spec)):
        raise ValueError(f"cache={settings.cache!r} keeps rows of batches, and map_fn gives something without rows.")
    kept = stored_spec(spec, source.most_rows)

    def stored(position: tf.Tensor) -> Any:  # noqa: ARG001 (all batches are stored alike)
        mapped()  # what is random in it is looked for
        return tf.nest.map_structure(lambda leaf: placeholder(tuple(leaf.shape), leaf.dtype), kept)

    store = choose_store(settings, source, map_fn, stored)
    return None if store is None else BatchStore(store, spec)


def choose_store(
    settings: Settings, source: Source, map_fn: ElementFunction | None, make_example: Callable[[tf.Tensor], Any]
) -> ExampleStore | None:
    """Opens or makes the store that `cache` asks for, or that fits where it is "auto".

    Args:
        settings: of which `cache` and `cache_folder` count.
        source: where the examples come from, of known length.
        map_fn: what is applied to them before they are kept.
        make_example: graph code: one example as it would be kept, by its position.

    Returns:
        The store, or None.

    Raises:
        ValueError: a store was asked for and can't be.
        OSError: a store on disk was asked for, and the disk is full or the folder can't be written.
    """
    if settings.cache is False:
        return None
    asked_for = settings.cache != "auto"
    if source.is_random:
        if asked_for:
            raise ValueError(
                f"cache={settings.cache!r} would keep one random crop of each image for ever. Use cache=False with "
                "`random_resized_crop`, or crop in `augment_fn`, which comes after the store."
            )
        return None
    spec = tf.data.Dataset.range(1).map(make_example).element_spec
    obstacle = why_not_storable(spec)
    if obstacle is not None:
        if asked_for:
            raise ValueError(
                f"cache={settings.cache!r} needs examples of one fixed shape and type, but {obstacle}. Give "
                "image_size, pad or tf.ensure_shape in map_fn, or use cache=False."
            )
        return None
    random_ops = random_ops_of(make_example, [tf.TensorSpec([], tf.int64)])
    if random_ops:
        warnings.warn(
            f"The examples are made with random numbers ({', '.join(random_ops)}), and "
            + (
                f"cache={settings.cache!r} keeps what was drawn first for all epochs. "
                if asked_for
                else "so they are not cached. "
            )
            + "Move what is random from map_fn or load_fn to augment_fn, which comes after the store.",
            stacklevel=5,
        )
        if not asked_for:
            return None
    num_bytes = source.num_examples * bytes_per_example(spec)
    if settings.cache == "memory":
        free = free_memory_bytes()
        if num_bytes > free:
            raise ValueError(
                f"cache='memory' needs {_gigabytes(num_bytes)} for {source.num_examples} examples, but "
                f"{_gigabytes(free)} are free. Use cache='disk', smaller examples, or cache='auto'."
            )
        return memory_store(spec, source.num_examples)
    if settings.cache == "disk":
        try:
            return _disk_store(settings, source, map_fn, spec)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cache='disk' needs {_gigabytes(num_bytes)} in a folder that can be written, and "
                f"{settings.cache_folder} is none ({error}). Give another folder as `cache_dir`, or cache='memory'",
            ) from error
    if fits_in_memory(num_bytes):
        return memory_store(spec, source.num_examples)
    if fits_on_disk(num_bytes, settings.cache_folder):
        try:
            return _disk_store(settings, source, map_fn, spec)
        except OSError as error:
            warnings.warn(
                f"The examples are not cached: {settings.cache_folder} can't take {_gigabytes(num_bytes)} ({error}). "
                "Give another folder as `cache_dir`.",
                stacklevel=5,
            )
    return None


def _disk_store(settings: Settings, source: Source, map_fn: ElementFunction | None, spec: Any) -> ExampleStore:
    identity = source.identity()
    map_digest: str | None = "none"
    if identity is not None and map_fn is not None:
        source_spec = tf.data.Dataset.range(1).map(lambda p: source.load(p, tf.zeros([2], tf.int64))).element_spec
        map_digest = function_fingerprint(
            lambda *leaves: map_fn(tf.nest.pack_sequence_as(source_spec, leaves)), tf.nest.flatten(source_spec)
        )
    folder = settings.cache_folder
    if identity is None or map_digest is None:
        return private_disk_store(spec, source.num_examples, folder)
    recipe = {"source": identity.recipe, "map_fn": map_digest, "tensorflow": tf.__version__}
    return open_disk_store(spec, source.num_examples, folder, recipe, identity.content)


def _gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
