"""Joins an input, its order, its functions and its store."""

from __future__ import annotations

import dataclasses
import os
import warnings
from typing import Any

import tensorflow as tf

from keras_turbo.data.engine.batch_store import BatchStore, stored_elements
from keras_turbo.data.engine.batches import Batches, WholeBatches
from keras_turbo.data.engine.buckets import BucketBatches, buckets_of
from keras_turbo.data.engine.disk_store import fits_on_disk, open_disk_store, private_disk_store
from keras_turbo.data.engine.elements import Elements
from keras_turbo.data.engine.failures import Failures
from keras_turbo.data.engine.order import EpochCounter, ExampleOrder
from keras_turbo.data.engine.recipe import Recipe
from keras_turbo.data.engine.store import ExampleStore, fits_in_memory, memory_store, why_not_storable
from keras_turbo.data.fingerprint import function_fingerprint
from keras_turbo.data.functions import ElementFunction, PythonFunction, RandomFunction, RowFunction
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.arrays import ArraySource
from keras_turbo.data.sources.python_code import PyDatasetSource, RowsSource, is_py_dataset, num_batches
from keras_turbo.data.sources.python_streams import EndlessPyDataset, GeneratorStream
from keras_turbo.data.sources.sequences import SequenceSource
from keras_turbo.data.sources.source import Source
from keras_turbo.data.sources.streams import (
    OfOneShape,
    StoredStream,
    Stream,
    TfDatasetStream,
    check_not_batched,
    count_elements,
    read_into_memory,
)
from keras_turbo.data.streams import stream_dataset
from keras_turbo.machine import free_memory_bytes


def input_of(x: Any, y: Any, sample_weight: Any, settings: Settings) -> Source | Stream:
    """What a user gave as x, y and sample_weight; raises what `FastDataset` documents."""
    if isinstance(x, tf.data.Dataset):
        if y is not None or sample_weight is not None:
            raise ValueError(
                "`y` and `sample_weight` can't be given beside a tf.data.Dataset: its elements are (x, y) or "
                "(x, y, sample_weight). Use tf.data.Dataset.zip."
            )
        check_not_batched(x, settings.batch_size)
        return TfDatasetStream(x)
    if isinstance(x, (str, os.PathLike)):
        raise TypeError(
            "`x` must be arrays, a tf.data.Dataset, a PyDataset or a generator function. Received the path "
            f"{os.fspath(x)!r}. For images in a folder use "
            "FastDataset.from_image_folder, for tables FastDataset.from_parquet or from_csv, for other files "
            "FastDataset.from_files."
        )
    if hasattr(x, "__next__"):
        raise TypeError(
            f"`x` is a {type(x).__name__}, which can be read once only. Give the function that makes it, without "
            "calling it: FastDataset(batches) in place of FastDataset(batches())."
        )
    if is_py_dataset(x) or callable(x):
        if y is not None or sample_weight is not None:
            raise ValueError(
                "`y` and `sample_weight` can't be given beside a PyDataset or a generator function: what these give is "
                "(x, y) or (x, y, sample_weight)."
            )
        if not is_py_dataset(x):
            return GeneratorStream(x, settings)
        return EndlessPyDataset(x, settings) if num_batches(x) is None else PyDatasetSource(x, settings)
    if isinstance(settings.map_fn, PythonFunction):
        return RowsSource.of_arrays(x, y, sample_weight, settings)
    if settings.bucket_by_length is not None:
        return SequenceSource(x, y, sample_weight)
    return ArraySource(x, y, sample_weight, memory_maps_stay_on_disk=settings.cache != "memory")


@dataclasses.dataclass
class Functions:
    """A user's functions, as graph code.

    Attributes:
        map_fn: the deterministic one, or None.
        augment_fn: the random one, or None.
    """

    map_fn: ElementFunction | None
    augment_fn: RandomFunction | None

    @classmethod
    def of(cls, settings: Settings) -> Functions:
        """Those of some settings; a PythonFunction is called by the source, if at all."""
        if isinstance(settings.map_fn, PythonFunction):
            raise TypeError(
                "A PythonFunction as `map_fn` is for arrays. Call it in the PyDataset or generator function itself; "
                "for files, give it as `load_fn` of from_files."
            )
        return cls(
            None if settings.map_fn is None else ElementFunction(settings.map_fn, "map_fn"),
            None if settings.augment_fn is None else RandomFunction(settings.augment_fn),
        )

    def traced(self, elements: Elements) -> tuple[RowFunction | None, RowFunction | None]:
        """The two for examples of a form."""
        map_fn = augment_fn = None
        if self.map_fn is not None:
            function = self.map_fn
            map_fn = RowFunction(lambda element, _: function(element), elements, "map_fn")
            elements = map_fn.elements
        if self.augment_fn is not None:
            augment_fn = RowFunction(self.augment_fn, elements, "augment_fn")
        return map_fn, augment_fn

    def warn_of_randomness(self) -> None:
        """Says what in `augment_fn` is not a function of the seed, once it has been traced."""
        function = self.augment_fn
        if function is not None and function.leftover_ops:
            warnings.warn(
                f"augment_fn ({function.name}) keeps a random state of its own in {', '.join(function.leftover_ops)}"
                ": the same seed will not give the same bytes. Give it a parameter named `seed` and use "
                "tf.random.stateless_* or tf.image.stateless_random_*.",
                stacklevel=5,
            )
        if function is not None and function.draws_in_python:
            warnings.warn(
                f"augment_fn ({function.name}) draws from Python's or NumPy's random numbers. That happens once, when "
                "TensorFlow traces it, so that all examples get the same. Give it a parameter named `seed` and use "
                "tf.random.stateless_*, or draw with tf.random.*.",
                stacklevel=5,
            )


def assemble_stream(stream: Stream, settings: Settings, counter: EpochCounter) -> tf.data.Dataset:
    """The dataset of a stream that is not kept."""
    _check_stream(stream, settings)
    if settings.shuffle:
        stream.warn_of_buffered_shuffle()
    functions = Functions.of(settings)
    with tf.device("CPU:0"):
        dataset = stream_dataset(stream, settings, functions.map_fn, functions.augment_fn, counter)
    functions.warn_of_randomness()
    return dataset


def _check_stream(stream: Stream, settings: Settings) -> None:
    check_buckets(stream, settings)
    if settings.on_error == "skip":
        raise ValueError(
            f"on_error='skip' needs examples that can be loaded one by one, and a {stream.kind} can only be "
            "read from its beginning. Catch errors in it (a tf.data.Dataset has .ignore_errors()), or build the "
            "FastDataset from files."
        )


def assemble_stored(stream: Stream, settings: Settings, counter: EpochCounter) -> Recipe:
    """The recipe of a stream that is read once, into a store."""
    _check_stream(stream, settings)
    functions = Functions.of(settings)
    if stream.number == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            f"cache={settings.cache!r} keeps all examples, and a {stream.kind} has infinitely many. Use cache=False."
        )
    seed = settings.settled_seed
    map_element = functions.map_fn or (lambda element: element)
    is_open = any(not leaf.shape.is_fully_defined() for leaf in tf.nest.flatten(_dense_spec(stream)))
    if is_open and functions.map_fn is None:
        stream = OfOneShape(stream, seed)
    given = Elements(_dense_spec(stream))
    map_fn, _ = functions.traced(given)
    kept = given if map_fn is None else map_fn.elements
    obstacle = why_not_storable(kept)
    if obstacle is not None:
        raise ValueError(_not_storable_error(settings, obstacle))
    if stream.number < 0 and settings.cache == "memory":
        store = read_into_memory(stream, kept, map_element, seed)
        source, number = StoredStream(stream, len(store)), len(store)
    else:
        number = stream.number if stream.number >= 0 else count_elements(stream, seed)
        source = StoredStream(stream, number)
        store = choose_store(settings, source, map_fn)
    recipe = make_recipe(source, settings, counter, store=store, functions=functions)
    if store is not None and not store.is_complete:
        recipe.fill_store = lambda: source.fill(store, map_element, seed)
    return recipe


def make_recipe(
    source: Source,
    settings: Settings,
    counter: EpochCounter,
    *,
    order: ExampleOrder | None = None,
    like: Recipe | None = None,
    store: ExampleStore | None = None,
    functions: Functions | None = None,
) -> Recipe:
    """The recipe of a source.

    Args:
        source: where examples come from.
        settings: with a seed.
        counter: counts the epochs as they begin.
        order: the order of a shard; None for the whole.
        like: the recipe of what a shard is part of: its store and its account of what fails are shared.
        store: where examples are kept; None to choose it.
        functions: the user's; None for those of the settings.
    """
    kept: ExampleStore | BatchStore | None
    if like is None:
        functions = functions or Functions.of(settings)
        map_fn, augment_fn = functions.traced(source.elements)
        functions.warn_of_randomness()
        failures = Failures(settings.on_error, len(source), source.name)
        chosen = store or choose_store(settings, source, map_fn)
        kept = chosen if chosen is None or source.most_rows is None else BatchStore(chosen)
        fill_store = None
    else:
        map_fn, augment_fn = like.map_fn, like.augment_fn
        failures, kept, fill_store = like.failures, like.store, like.fill_store
    if settings.bucket_by_length is not None:
        check_buckets(source, settings)
        assert isinstance(source, SequenceSource)  # noqa: S101 (as has been checked)
        buckets = buckets_of(source, source.lengths, settings)
        order = order or ExampleOrder(
            buckets.num_batches, settings.shuffle, settings.settled_seed, settings.reshuffle_each_epoch
        )
        batches: Batches = BucketBatches(buckets, order)
    else:
        order = order or source.order(
            shuffle=settings.shuffle,
            seed=settings.settled_seed,
            reshuffle_each_epoch=settings.reshuffle_each_epoch,
        )
        batches = WholeBatches(order, settings.batch_size, settings.drop_remainder)
    return Recipe(
        source=source,
        order=order,
        batches=batches,
        seed=settings.settled_seed,
        map_fn=map_fn,
        augment_fn=augment_fn,
        store=kept,
        failures=failures,
        workers=source.most_threads or settings.parallel_calls,
        counter=counter,
        fill_store=fill_store,
    )


def check_buckets(source: Source | Stream, settings: Settings) -> None:
    """Checks what can't be together with `bucket_by_length`.

    Raises:
        ValueError: an input whose lengths are not known, or another option.
    """
    if settings.bucket_by_length is None:
        return
    if not isinstance(source, (Stream, SequenceSource)):
        raise ValueError(
            "`bucket_by_length` needs sequences in memory, or a tf.data.Dataset of single examples. Any FastDataset "
            "is one: FastDataset(FastDataset.from_tfrecord(..., batch_size=None), bucket_by_length=[...])."
        )
    if settings.cache not in ("auto", False):
        raise ValueError(
            f"cache={settings.cache!r} keeps examples of one shape, and `bucket_by_length` is for others. Leave "
            "`cache` out, or cache the tf.data.Dataset itself."
        )
    if settings.on_error != "raise":
        raise ValueError("on_error='skip' is not possible with `bucket_by_length`: batches are composed beforehand.")


def choose_store(settings: Settings, source: Source, map_fn: RowFunction | None) -> ExampleStore | None:
    """Opens or makes the store that `cache` asks for, or that fits where it is "auto".

    Args:
        settings: of which `cache` and `cache_folder` count.
        source: where the examples come from.
        map_fn: what is applied to them before they are kept.

    Raises:
        ValueError: a store was asked for and can't be.
        OSError: a store on disk was asked for, and the disk is full or the folder can't be written.
    """
    ready = source.as_store()
    if ready is not None and map_fn is None:
        return ready
    if settings.cache is False or settings.bucket_by_length is not None:
        return None
    asked_for = settings.cache != "auto"
    if source.is_random:
        if asked_for:
            raise ValueError(
                f"cache={settings.cache!r} would keep one random crop of each image for ever. Use cache=False with "
                "`random_resized_crop`, or crop in `augment_fn`, which comes after the store."
            )
        return None
    elements = source.elements if map_fn is None else map_fn.elements
    if source.most_rows is not None:
        elements = stored_elements(elements, source.most_rows)
    obstacle = why_not_storable(elements)
    if obstacle is not None:
        if asked_for:
            raise ValueError(_not_storable_error(settings, obstacle))
        return None
    random_ops: list[str] = sorted({*source.random_ops, *([] if map_fn is None else map_fn.random_ops)})
    if random_ops:
        kept = f"cache={settings.cache!r} keeps what was drawn first for all epochs. "
        warnings.warn(
            f"The examples are made with random numbers ({', '.join(random_ops)}), and "
            f"{kept if asked_for else 'so they are not cached. '}"
            "Move what is random from map_fn or load_fn to augment_fn, which comes after the store.",
            stacklevel=6,
        )
        if not asked_for:
            return None
    num_bytes = len(source) * elements.row_bytes
    if settings.cache == "memory":
        free = free_memory_bytes()
        if num_bytes > free:
            raise ValueError(
                f"cache='memory' needs {_gigabytes(num_bytes)} for {len(source)} examples, but "
                f"{_gigabytes(free)} are free. Use cache='disk', smaller examples, or cache='auto'."
            )
        return memory_store(elements, len(source))
    if settings.cache == "disk":
        try:
            return _disk_store(settings, source, map_fn, elements)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cache='disk' needs {_gigabytes(num_bytes)} in a folder that can be written, and "
                f"{settings.cache_folder} is none ({error}). Give another folder as `cache_dir`, or cache='memory'",
            ) from error
    if fits_in_memory(num_bytes):
        return memory_store(elements, len(source))
    if fits_on_disk(num_bytes, settings.cache_folder):
        try:
            return _disk_store(settings, source, map_fn, elements)
        except OSError as error:
            warnings.warn(
                f"The examples are not cached: {settings.cache_folder} can't take {_gigabytes(num_bytes)} ({error}). "
                "Give another folder as `cache_dir`.",
                stacklevel=6,
            )
    return None


def _disk_store(settings: Settings, source: Source, map_fn: RowFunction | None, elements: Elements) -> ExampleStore:
    identity = source.identity()
    map_digest = "none" if map_fn is None or identity is None else function_fingerprint(map_fn)
    folder = settings.cache_folder
    if identity is None or map_digest is None:
        return private_disk_store(elements, len(source), folder)
    recipe = {"source": identity.recipe, "map_fn": map_digest, "tensorflow": tf.__version__}
    return open_disk_store(elements, len(source), folder, recipe, identity.content)


def _dense_spec(stream: Stream) -> Any:
    for leaf in tf.nest.flatten(stream.element_spec):
        if not isinstance(leaf, tf.TensorSpec):
            raise ValueError(
                f"Examples that are kept must be dense tensors, and one holds a {type(leaf).__name__}. Use cache=False."
            )
    return stream.element_spec


def _not_storable_error(settings: Settings, obstacle: str) -> str:
    return (
        f"cache={settings.cache!r} needs examples of one fixed shape and type, but {obstacle}. Give "
        "image_size, pad or tf.ensure_shape in map_fn, or use cache=False."
    )


def _gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
