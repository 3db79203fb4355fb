"""The `tf.data.Dataset` that a stock `model.fit()` takes; joins the parts of this package."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_turbo.data.assembly import assemble, source_of
from keras_turbo.data.batch_parts import BatchParts, OrderOfParts, parts_of_own_batches, parts_of_whole_batches
from keras_turbo.data.class_weights import WeightedEpochs, weights_classes, with_all_classes
from keras_turbo.data.device_prefetch import device_iterator
from keras_turbo.data.epochs import Epochs
from keras_turbo.data.example_order import EpochCounter, ExampleOrder, Remainder
from keras_turbo.data.failures import SkippedExample
from keras_turbo.data.file_datasets import FileDatasets
from keras_turbo.data.report import PipelineReport, measure_pipeline
from keras_turbo.data.service_pipeline import ServicePipeline
from keras_turbo.data.settings import Cache, Settings, is_integer
from keras_turbo.data.sources.made_in_python import MadeInPython
from keras_turbo.data.sources.source import Source
from keras_turbo.data.sources.tf_dataset import TfDatasetSource


class FastDataset(FileDatasets):
    """Batches for `fit()`, as fast as the machine makes them, in an order that a seed decides.

    It is a `tf.data.Dataset`: `fit`, `evaluate`, `predict`, `tf.distribute` and every method of tf.data take it.
    Examples are read and decoded in parallel while the model trains, kept where they fit once they are decoded, and
    gathered by position from there, so that a full shuffle is free and the second epoch decodes nothing.

    Example:

    ```python
    train = FastDataset(x, y, batch_size=64, shuffle=True, seed=0)
    model.fit(train, epochs=3)
    ```

    An example passes, in this order: source -> `map_fn` -> cache -> `augment_fn` -> batch. A function that takes one
    argument is given `x` alone; one that takes two (or three) is given `x, y` (and `sample_weight`) and returns all.

    Every iteration from the start is an epoch. The order of epoch number e, and the random numbers of `augment_fn` in
    it, are functions of `seed` and e alone: the same seed gives the same bytes, however many threads work.

    Args:
        x: array or dict, tuple or list of arrays, each of shape `(examples, ...)`; or a `tf.data.Dataset` of single
            examples (of batches with `batch_size=None`). Floating-point arrays become Keras' `floatx`, as in
            `fit(x, y)`; a `numpy.memmap` is read from disk row by row. Or a `keras.utils.PyDataset`, whose batches
            pass as they are; `map_fn`, `augment_fn`, `shuffle`, `cache` and `shard` are then over batches. Or a
            function without parameters that returns an iterator, such as a generator function; what that gives are
            examples (batches with `batch_size=None`). It is called in each epoch, and once more when the dataset is
            built, which looks at two items (of a `PyDataset` also at the last).
        y: targets, in the same forms as `x`. Only with arrays; elements of other data hold them.
        sample_weight: weights, of shape `(examples,)`. Needs `y`.
        batch_size: examples a batch, default 32; on several devices or workers that of all together (the global batch),
            which they divide among themselves. None: one by one, without a batch axis; elements of a
            `tf.data.Dataset` then pass as they are. A `PyDataset` has batches of its own size.
        shuffle: whether each epoch has an order of its own: a full shuffle over all positions. Default False. A
            `tf.data.Dataset` has positions only with `cache="memory"` or `"disk"`; without, it is shuffled through a
            buffer, with a warning where that is smaller than the data.
        seed: integer from 0; decides order and augmentation. Default None: drawn from Python's `random`, which
            `keras.utils.set_random_seed` seeds; see the attribute `seed`.
        reshuffle_each_epoch: False keeps the shuffled order of the first epoch. Default True.
        map_fn: the deterministic part of preparing an example; its results may be cached. Traced by TensorFlow,
            unless it is a `keras_turbo.data.python_function.PythonFunction`, which runs as Python on arrays.
        augment_fn: the random part, called for each example in each epoch and never cached. It may take a parameter
            named `seed` (int64, shape (2,)) for `tf.random.stateless_*` and `tf.image.stateless_random_*`; it may be a
            Keras layer; `tf.random.uniform`, `tf.image.random_flip_left_right` and their like are made functions of
            that seed too.
        cache: where examples are kept after `map_fn`. "auto" (default): memory if they take at most half of what is
            free there (limits of containers included), else disk if they take at most half of what is free there,
            else nowhere; nowhere for a `tf.data.Dataset` or a `PyDataset`, which may be random. "memory", "disk":
            there. False: nowhere.
            Arrays without `map_fn` are in memory as they are.
        cache_dir: folder for stores on disk, default `~/.cache/keras_turbo/examples` (`$XDG_CACHE_HOME` counts).
        drop_remainder: whether a last batch that is not full is left out. Default False.
        workers: examples made at a time, default two for each core. Of data that Python code makes: processes that
            make them, 0 for this one; by default chosen by the time that an item takes, and logged.
        on_error: what happens when an example can't be loaded. "raise" (default): an error with its path. "skip": it is
            left out, listed in `skipped`, and the first is warned of.
        service: "grpc://host:port", the dispatcher of a tf.data service, whose workers make the batches: the same bytes
            in the same order, as docs/data_service.md describes. Needs arrays (small ones), images or files that
            TensorFlow's operations read, under paths that are the same on all machines. Nothing is cached. Default
            None: this process makes them.
        bucket_by_length: ascending lengths, such as `[32, 64, 128]`, for sequences of unequal lengths (the first axis
            of an example): a batch has examples of one bucket, filled up with zeros to its length, so that batches
            have few shapes and XLA compiles once for each. `x` is then a `tf.RaggedTensor`, a list of sequences, a
            dict or tuple of these and of arrays (`y` too), or a `tf.data.Dataset` of single examples. `shard` deals
            out batches.
        too_long: what becomes of sequences beyond the last length. "raise" (default): an error. "truncate": what is
            beyond it is cut off.

    Raises:
        TypeError, ValueError: an argument that can't be, when the dataset is built.
        DataServiceError: no dispatcher answers at `service`.

    Attributes:
        seed: the seed in use; give it again for the same run.
        class_names: names of the classes in the order of their numbers; None where there are none.
        stored_in: "memory", "disk" or None: what `cache` came to.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int | None = 32,
        shuffle: bool = False,
        seed: int | None = None,
        reshuffle_each_epoch: bool = True,
        map_fn: Callable | keras.Layer | None = None,
        augment_fn: Callable | keras.Layer | None = None,
        cache: Cache = "auto",
        cache_dir: str | os.PathLike | None = None,
        drop_remainder: bool = False,
        workers: int | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        service: str | None = None,
        bucket_by_length: Sequence[int] | None = None,
        too_long: Literal["raise", "truncate"] = "raise",
    ) -> None:
        settings = Settings(
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            reshuffle_each_epoch=reshuffle_each_epoch,
            map_fn=map_fn,
            augment_fn=augment_fn,
            cache=cache,
            cache_dir=cache_dir,
            drop_remainder=drop_remainder,
            workers=workers,
            on_error=on_error,
            service=service,
            bucket_by_length=bucket_by_length,
            too_long=too_long,
        )
        self._assemble(source_of(x, y, sample_weight, settings), settings)

    @classmethod
    def _of_source(cls, source: Source, settings: Settings, class_names: list[str] | None) -> FastDataset:
        dataset = cls.__new__(cls)
        dataset._assemble(source, settings, class_names)
        return dataset

    def _assemble(
        self,
        source: Source,
        settings: Settings,
        class_names: list[str] | None = None,
        order: ExampleOrder | None = None,
        like: FastDataset | None = None,
        counter: EpochCounter | None = None,
    ) -> None:
        self._source = source
        self.class_names = class_names
        self._seed_was_drawn = settings.seed is None if like is None else like._seed_was_drawn
        self.seed = random.randrange(2**31) if settings.seed is None else int(settings.seed)
        # From here on with the seed in use: a shard of the dataset must have the same order.
        self._settings = settings.with_seed(self.seed)
        self._counter = counter or EpochCounter()
        self._pipeline, self._dataset = assemble(
            source,
            self._settings,
            order=order,
            like=None if like is None else like._pipeline,
            counter=self._counter,
        )
        self._epochs = Epochs(self._pipeline, self._dataset)
        if isinstance(source, MadeInPython):
            source.used_by(self)
        if isinstance(self._pipeline, ServicePipeline):
            self._pipeline.used_by(self)
        variant = tf.data.experimental.to_variant(self._dataset)
        super().__init__(variant, self._dataset.element_spec, [self._dataset], holds=None)

    # What tf.data asks of a dataset.

    def __iter__(self) -> tf.data.Iterator:
        """As `tf.data.Dataset.__iter__`; the iterator has one more method, `stacks(count)`.

        As long as the iterator is unread, `iterator.stacks(count)` gives another one over the same epoch, for train
        functions that run several steps at a time: the same batches in stacks of `count`, each tensor of shape
        `(count, batch, ...)`. The last full batches may be fewer, and a last batch that is not full comes alone, as
        `(1, rows, ...)`. It gives None where batches can't be stacked: with `batch_size=None`, for a `tf.data.Dataset`
        without a store, and for tensors whose shapes differ.

        With a GPU and without a strategy, batches are copied to the GPU ahead of the step that takes them.
        """
        stored = self._epochs.stored() if tf.executing_eagerly() else None
        if stored is None:
            iterator = device_iterator(self, super().__iter__)
        else:
            iterator = device_iterator(stored, lambda: iter(stored))
        # An attribute, since what TensorFlow takes for an iterator in a train function is its own class alone. The
        # bound method also holds the dataset.
        iterator.stacks = self._stacks
        return iterator

    def _stacks(self, count: int) -> tf.data.Iterator | None:
        stacks = self._epochs.stacks(count)
        return None if stacks is None else iter(stacks)

    def map(self, map_func: Callable, *args: Any, **kwargs: Any) -> tf.data.Dataset:
        """As `tf.data.Dataset.map`; `class_weight` of `fit` may leave classes out, which then weigh 1."""
        mapped = super().map(with_all_classes(map_func), *args, **kwargs)
        if not weights_classes(map_func):
            return mapped
        return WeightedEpochs(self, mapped, lambda part: part.map(with_all_classes(map_func), *args, **kwargs))

    def cardinality(self) -> tf.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] (a tensor there, too)
        """Number of batches in an epoch, int64.

        `tf.data.UNKNOWN_CARDINALITY` as long as it can't be known: with `on_error="skip"` until one epoch is through.
        """
        return self._epochs.cardinality()

    def shard(  # pyright: ignore[reportIncompatibleMethodOverride] (there, tensors are numbers too)
        self, num_shards: int, index: int, name: str | None = None, *, remainder: Remainder = "keep"
    ) -> FastDataset:
        """One of `num_shards` disjoint parts of the examples; together they are all of them.

        Unlike that of other datasets it deals out examples, not batches, after the shuffle: in each epoch a shard has
        other examples if the dataset reshuffles. (Of a `PyDataset` the batches are dealt out, as they are.)

        Workers that train together need equally many batches, or the one that has another waits for ever: for those
        give `remainder="drop"` or `"fill"`.

        Args:
            num_shards: number of parts.
            index: which of them, from 0.
            name: name of the tf.data operation; not used.
            remainder: what becomes of examples that can't be dealt out evenly. "keep" (default): the first shards have
                one more. "drop": none has them in this epoch. "fill": the other shards get one of the first examples of
                the epoch a second time. With these two, all shards have equally many.

        Raises:
            TypeError: a number that is no integer.
            ValueError: `index` is not below `num_shards`; a shard would be empty; another `remainder`; a
                `tf.data.Dataset` without a store.
        """
        if self._pipeline is None:
            raise ValueError(
                "Only examples that have positions can be dealt out. Apply shard() to the tf.data.Dataset before it is "
                "given to FastDataset, or use cache='memory' or 'disk'; a generator function can give a part by itself."
            )
        if not (is_integer(num_shards) and is_integer(index)):
            raise TypeError(
                f"`num_shards` and `index` must be integers. Received: num_shards={num_shards!r}, index={index!r}."
            )
        order = self._pipeline.order.shard(int(num_shards), int(index), remainder)
        if order.num_examples == 0:
            raise ValueError(
                f"Shard {index} of {num_shards} would be empty: there are {self._pipeline.order.num_examples} examples."
            )
        return self._part(order, self._settings)

    def part_of_batches(self, num_workers: int, worker: int, replicas_per_worker: int = 1) -> tf.data.Dataset:
        """What one of several workers needs of every batch, so that together they train on the batches of this dataset.

        `keras_turbo.distribute` calls it. `batch_size` is that of all replicas together: with a batch of 64, two
        workers of two devices each give 16 examples to each device. All workers have equally many elements; where a
        last batch has too few rows, some are without rows. A worker makes its own rows only, where examples have
        positions; with `on_error="skip"`, of a `PyDataset` and of streams it makes all and keeps its part.

        Args:
            num_workers: number of workers. All must have the same data and the same `seed`.
            worker: which of them, from 0.
            replicas_per_worker: devices that each trains on. Default 1.

        Returns:
            A dataset with `replicas_per_worker` elements for each batch, in the order of the worker's devices. Its
            epochs are this dataset's: `resume_at` and `epochs_begun` of this one count for it.

        Raises:
            ValueError: numbers that can't be.
        """
        parts = BatchParts(num_workers, worker, replicas_per_worker)
        pipeline = self._pipeline
        if pipeline is None or pipeline.batch_size is None or pipeline.may_skip:
            return parts_of_whole_batches(self, parts)
        order = OrderOfParts.of(pipeline.order, pipeline.batch_size, pipeline.drop_remainder, parts)
        # Of one batch that is not full some worker may have no row. All have to cut it alike, those with rows, too.
        if pipeline.batch_size < parts.num_parts or order.num_full_batches == 0:
            return parts_of_whole_batches(self, parts)
        settings = dataclasses.replace(self._settings, batch_size=order.own_batch_size)
        own = self._part(order, settings, self._counter)
        return parts_of_own_batches(own, own._pipeline, order)

    def _part(self, order: ExampleOrder, settings: Settings, counter: EpochCounter | None = None) -> FastDataset:
        part = type(self).__new__(type(self))
        part._assemble(self._source, settings, self.class_names, order, like=self, counter=counter)
        return part

    @property
    def source_of_epochs(self) -> FastDataset:
        """The dataset itself, as what Keras makes of it has it under this name, too."""
        return self

    @property
    def seed_was_drawn(self) -> bool:
        """Whether nobody gave the seed."""
        return self._seed_was_drawn

    def adopt_seed(self, seed: int) -> None:
        """Takes another seed in place of one that was drawn, as workers do that train together.

        Raises:
            ValueError: the seed was given.
        """
        if not self._seed_was_drawn:
            raise ValueError(f"This dataset was given seed={self.seed}, and can't take the seed {seed} in its place.")
        if seed == self.seed:
            return
        # Iterators over the graph so far go on.
        self._replaced = [*getattr(self, "_replaced", []), (self._pipeline, self._epochs)]
        order = None if self._pipeline is None else dataclasses.replace(self._pipeline.order, seed=seed)
        settings = self._settings.with_seed(seed)
        self._assemble(self._source, settings, self.class_names, order, like=self, counter=self._counter)

    # What it knows of its examples.

    @property
    def order_settings(self) -> dict[str, Any]:
        """What decides which examples a batch has: where these are equal, so are the batches of equal data."""
        settings = self._settings
        # Where nothing is drawn, the seed is of no account; it may have been drawn itself.
        is_random = settings.shuffle or settings.augment_fn is not None or self._source.is_random
        order = None if self._pipeline is None else self._pipeline.order
        buckets = {} if settings.bucket_by_length is None else {"bucket_by_length": list(settings.bucket_by_length)}
        return buckets | {
            "num_examples": self._source.num_examples,
            "shard": [1, 0] if order is None else [order.num_shards, order.shard_index],
            "remainder": "keep" if order is None else order.remainder,
            "batch_size": settings.batch_size,
            "drop_remainder": settings.drop_remainder,
            "shuffle": settings.shuffle,
            "reshuffle_each_epoch": settings.reshuffle_each_epoch,
            "seed": self.seed if is_random else None,
            **({} if order is None else order.details),
        }

    @property
    def why_batches_are_read(self) -> str | None:
        """Why `resume_at` must read the batches before; None where it need not."""
        if isinstance(self._source, TfDatasetSource) and self._pipeline is None:
            if self._settings.bucket_by_length is not None:
                return f"which elements of {self._source.is_called} are in a batch is known once the batch is made"
            if self._source.can_seek:
                return None
            return f"{self._source.is_called} without a store has no positions (a tf.data.Dataset gets them by cache)"
        if self._pipeline is None:
            return None
        if self._pipeline.may_skip:
            return "on_error='skip' may have left examples out of them, and they must be loaded to know which"
        return None

    @property
    def is_stream(self) -> bool:
        """Whether examples can only be read one after another: those of a `tf.data.Dataset` without a store."""
        return self._pipeline is None

    @property
    def workers(self) -> int | None:
        """Processes that make examples in Python: 0 is this one. None where TensorFlow makes them, in threads."""
        return self._source.choice.number if isinstance(self._source, MadeInPython) else None

    @property
    def stored_in(self) -> Literal["memory", "disk"] | None:
        """Where examples are kept once they are made."""
        if self._pipeline is None or self._pipeline.store is None:
            return None
        return self._pipeline.store.kind

    @property
    def is_ready(self) -> bool:
        """Whether no epoch will load an example any more: all are in memory or in the store."""
        return self._pipeline is not None and self._pipeline.only_gathers()

    @property
    def labels(self) -> Any:
        """The labels in the order in which examples are yielded, before `map_fn`; class numbers if there are classes.

        Shape `(examples,)` for classes. What `drop_remainder` or `on_error="skip"` leave out is left out here too.

        Raises:
            ValueError: there are no labels, the order changes from epoch to epoch, or it is not known yet what will be
                skipped.
        """
        positions = self._epochs.fixed_positions("labels")
        labels = self._source.labels_at(positions)
        if labels is None:
            raise ValueError("This dataset has no labels: it was built without `y` or `labels`.")
        return labels

    @property
    def file_paths(self) -> list[str]:
        """The files in the order in which they are yielded; raises as `labels` does."""
        paths = getattr(self._source, "paths", None)
        if paths is None:
            raise ValueError("This dataset is not made of files, so it has no `file_paths`.")
        return [paths[position] for position in self._epochs.fixed_positions("file_paths")]

    @property
    def skipped(self) -> list[SkippedExample]:
        """What `on_error="skip"` has left out so far, with paths and reasons, in the order of positions."""
        if self._pipeline is None:
            return []
        return [*self._source.left_out, *(example for _, example in sorted(self._pipeline.failures.skipped.items()))]

    def report(self, seconds: float = 5.0, *, verbose: bool = True) -> PipelineReport:
        """Measures each stage by itself, and the whole, and prints a table.

        Args:
            seconds: about how long to measure, in all. Default 5.
            verbose: whether the table is printed. Default True.

        Returns:
            The figures: examples a second of each stage, its share of the time, the slowest one and what to change.
            No epoch is counted, and nothing is written to the store.

        Raises:
            ValueError: the dataset is over a `tf.data.Dataset` without a store, whose stages can't be seen.
        """
        if self._pipeline is None or not self._source.can_be_measured or self._settings.service is not None:
            raise ValueError(
                "report() measures arrays and files that TensorFlow reads in this process; the stages of a "
                "tf.data.Dataset, of Python code and of a data service can't be told apart."
            )
        report = measure_pipeline(self._pipeline, seconds)
        if verbose:
            report.print()
        return report
