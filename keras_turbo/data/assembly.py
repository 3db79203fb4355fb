"""Joins a source, its order, its functions and its store into one graph."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_turbo.data.bucket_pipeline import BucketPipeline, buckets_of, check_for_buckets
from keras_turbo.data.example_order import EpochCounter, ExampleOrder
from keras_turbo.data.failures import ExampleLoadError, Failures
from keras_turbo.data.pipeline import Pipeline
from keras_turbo.data.python_function import PythonFunction
from keras_turbo.data.python_pipeline import PythonPipeline
from keras_turbo.data.service.address import ServiceAddress
from keras_turbo.data.service_pipeline import ServicePipeline, check_for_service
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.arrays import ArraySource
from keras_turbo.data.sources.generator import GeneratorSource
from keras_turbo.data.sources.mapped_rows import MappedRowsSource, mapped_arrays_source
from keras_turbo.data.sources.py_dataset import (
    EndlessPyDatasetSource,
    PyDatasetSource,
    is_py_dataset,
    py_dataset_source,
)
from keras_turbo.data.sources.python_source import PythonSource
from keras_turbo.data.sources.sequences import SequenceSource
from keras_turbo.data.sources.source import Source
from keras_turbo.data.sources.tf_dataset import TfDatasetSource
from keras_turbo.data.store_choice import choose_store, python_store, require_known_length
from keras_turbo.data.stream_buckets import StreamBuckets
from keras_turbo.data.stream_pipeline import stream_dataset
from keras_turbo.data.user_functions import ElementFunction, RandomFunction


def source_of(x: Any, y: Any, sample_weight: Any, settings: Settings) -> Source:
    """The source of what a user gave as x, y and sample_weight; raises what `FastDataset` documents."""
    if isinstance(x, tf.data.Dataset):
        if y is not None or sample_weight is not None:
            raise ValueError(
                "`y` and `sample_weight` can't be given beside a tf.data.Dataset: its elements are (x, y) or "
                "(x, y, sample_weight). Use tf.data.Dataset.zip."
            )
        return TfDatasetSource(x, int(x.cardinality()))
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
        return _python_source_of(x, y, sample_weight, settings)
    if isinstance(settings.map_fn, PythonFunction):
        return mapped_arrays_source(x, y, sample_weight, settings.map_fn, settings)
    if settings.bucket_by_length is not None:
        return SequenceSource(x, y, sample_weight)
    return ArraySource(x, y, sample_weight, memory_maps_stay_on_disk=settings.cache != "memory")


def _python_source_of(x: Any, y: Any, sample_weight: Any, settings: Settings) -> Source:
    if y is not None or sample_weight is not None:
        raise ValueError(
            "`y` and `sample_weight` can't be given beside a PyDataset or a generator function: what these give is "
            "(x, y) or (x, y, sample_weight)."
        )
    refuse_in_script_of_worker()
    return py_dataset_source(x, settings) if is_py_dataset(x) else GeneratorSource(x, settings)


def refuse_in_script_of_worker() -> None:
    """Raises where a worker process has begun to run the user's script, which would start workers without end."""
    worker = sys.modules.get("keras_turbo_worker.main")
    if worker is not None and worker.is_loading_main_script:
        raise RuntimeError(
            "A worker process runs the script again to find the code of the data, and came to where it makes a "
            "FastDataset. Put what the script does below `if __name__ == '__main__':`."
        )


def assemble(
    source: Source, settings: Settings, *, order: ExampleOrder | None, like: Pipeline | None, counter: EpochCounter
) -> tuple[Pipeline | None, tf.data.Dataset]:
    """Builds the graph of a dataset.

    Args:
        source: where examples come from.
        settings: with a seed.
        order: the order of a shard; None for the whole.
        like: the pipeline of what a shard is part of; None for the whole.
        counter: counts the epochs as they begin.

    Returns:
        The parts, None for a stream without positions, and the dataset that they make.
    """
    if settings.service is not None:
        check_for_service(settings, source)
    if settings.bucket_by_length is not None:
        check_for_buckets(settings, source)
    settings = _settings_for(source, settings)
    map_fn = None if settings.map_fn is None else ElementFunction(settings.map_fn, "map_fn")
    augment_fn = None if settings.augment_fn is None else RandomFunction(settings.augment_fn)
    pipeline = None
    with tf.device("CPU:0"):
        if isinstance(source, TfDatasetSource) and settings.on_error == "skip":
            raise ValueError(
                f"on_error='skip' needs examples that can be loaded one by one, and {source.is_called} can only be "
                "read from its beginning. Catch errors in it (a tf.data.Dataset has .ignore_errors()), or build the "
                "FastDataset from files."
            )
        if isinstance(source, TfDatasetSource) and settings.cache in ("auto", False):
            dataset = _stream(source, settings, map_fn, augment_fn, counter)
        else:
            pipeline = _make_pipeline(source, settings, map_fn, augment_fn, order, like, counter)
            if isinstance(pipeline, ServicePipeline):
                pipeline.check()
            dataset = pipeline.dataset()
    if augment_fn is not None and augment_fn.leftover_ops:
        warnings.warn(
            f"augment_fn ({augment_fn.name}) keeps a random state of its own in {', '.join(augment_fn.leftover_ops)}"
            ": the same seed will not give the same bytes. Give it a parameter named `seed` and use "
            "tf.random.stateless_* or tf.image.stateless_random_*.",
            stacklevel=4,
        )
    if augment_fn is not None and augment_fn.draws_in_python:
        warnings.warn(
            f"augment_fn ({augment_fn.name}) draws from Python's or NumPy's random numbers. That happens once, when "
            "TensorFlow traces it, so that all examples get the same. Give it a parameter named `seed` and use "
            "tf.random.stateless_*, or draw with tf.random.*.",
            stacklevel=4,
        )
    return pipeline, dataset


def _settings_for(source: Source, settings: Settings) -> Settings:
    """The settings as they apply to a source."""
    if isinstance(source, MappedRowsSource):
        # The source itself calls a PythonFunction.
        is_called = isinstance(settings.map_fn, PythonFunction)
        settings = dataclasses.replace(settings, map_fn=None if is_called else settings.map_fn)
    if isinstance(settings.map_fn, PythonFunction):
        raise TypeError(
            "A PythonFunction as `map_fn` is for arrays. Call it in the PyDataset or the generator function itself; "
            "for files, give it as `load_fn` of from_files."
        )
    if isinstance(source, (PyDatasetSource, EndlessPyDatasetSource)):
        settings = dataclasses.replace(settings, batch_size=None)
    if isinstance(source, PyDatasetSource) and settings.cache == "auto":
        # What is random in a PyDataset would be kept for ever, and nobody can see whether anything is.
        settings = dataclasses.replace(settings, cache=False)
    if isinstance(source, (PythonSource, EndlessPyDatasetSource, GeneratorSource)):
        # Workers are processes there, which are not many calls at a time of what TensorFlow does afterwards.
        is_bare = settings.map_fn is None and settings.augment_fn is None
        settings = dataclasses.replace(settings, workers=1 if is_bare else None)
    return settings


def _make_pipeline(
    source: Source,
    settings: Settings,
    map_fn: ElementFunction | None,
    augment_fn: RandomFunction | None,
    order: ExampleOrder | None,
    like: Pipeline | None,
    counter: EpochCounter,
) -> Pipeline:
    require_known_length(settings, source)
    buckets = buckets_of(source, settings) if isinstance(source, SequenceSource) else None
    if order is None:
        make_order = source.order if buckets is None else functools.partial(ExampleOrder, buckets.num_batches)
        order = make_order(
            shuffle=settings.shuffle,
            seed=settings.settled_seed,
            reshuffle_each_epoch=settings.reshuffle_each_epoch,
        )

    @functools.cache
    def loading_graph() -> Callable:
        # As a graph, since augment_fn is rewritten as one.
        number = tf.TensorSpec([], tf.int64)
        return tf.function(pipeline.loaded_example).get_concrete_function(number, number)

    def load_again(position: int, epoch: int) -> None:
        reason = source.known_failure(position)
        if reason:
            raise ExampleLoadError(reason)
        loading_graph()(tf.constant(position, tf.int64), tf.constant(epoch, tf.int64))

    kind: Callable[..., Pipeline] = PythonPipeline if isinstance(source, PythonSource) else Pipeline
    if buckets is not None:
        kind = functools.partial(BucketPipeline, buckets=buckets, truncates=settings.too_long == "truncate")
    parallel_calls = settings.parallel_calls
    if settings.service is not None:
        kind = functools.partial(ServicePipeline, address=ServiceAddress.parse(settings.service))
        # How many cores a worker has is known there.
        parallel_calls = settings.workers or tf.data.AUTOTUNE
    pipeline = kind(
        source=source,
        order=order,
        seed=settings.settled_seed,
        # Of buckets, what has positions are the batches.
        batch_size=settings.batch_size if buckets is None else None,
        drop_remainder=settings.drop_remainder,
        map_fn=map_fn,
        augment_fn=augment_fn,
        store=None,
        failures=Failures(settings.on_error, source.num_examples, source.describe, load_again),
        parallel_calls=parallel_calls,
        counter=counter,
    )
    if settings.service is not None or buckets is not None:
        return pipeline
    if like is not None:
        # A shard of a dataset: the same examples, so the same store, and the same account of what fails.
        pipeline.store = like.store
        pipeline.failures = like.failures
        pipeline.fill_store = like.fill_store
    elif isinstance(source, TfDatasetSource):
        map_element = (lambda element: element) if map_fn is None else map_fn
        store = choose_store(settings, source, map_fn, lambda position: map_element(source.any_element()))
        if store is not None:
            pipeline.store = store
            pipeline.fill_store = lambda: source.fill(store, map_element)
    elif isinstance(source, PythonSource):
        pipeline.store = python_store(settings, source, map_fn)
    elif not source.in_memory or map_fn is not None:
        pipeline.store = choose_store(settings, source, map_fn, pipeline.example)
    return pipeline


def _stream(
    source: TfDatasetSource,
    settings: Settings,
    map_fn: ElementFunction | None,
    augment_fn: RandomFunction | None,
    counter: EpochCounter,
) -> tf.data.Dataset:
    if settings.shuffle:
        source.warn_of_buffered_shuffle()
    return stream_dataset(
        source,
        shuffle=settings.shuffle,
        reshuffle_each_epoch=settings.reshuffle_each_epoch,
        seed=settings.settled_seed,
        batch_size=settings.batch_size,
        drop_remainder=settings.drop_remainder,
        map_fn=map_fn,
        augment_fn=augment_fn,
        parallel_calls=settings.parallel_calls,
        counter=counter,
        buckets=None if settings.bucket_by_length is None else StreamBuckets.of(settings),
    )
