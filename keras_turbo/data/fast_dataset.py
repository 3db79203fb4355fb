"""The `tf.data.Dataset` that a stock `model.fit()` takes; joins the parts of this package."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.assembly import assemble_stored, assemble_stream, input_of, make_recipe
from keras_turbo.data.class_weights import WeightedEpochs, weights_classes, with_all_classes
from keras_turbo.data.constructors import Constructors
from keras_turbo.data.device_prefetch import device_iterator
from keras_turbo.data.engine.batches import BatchParts, PartsOfBatches, WholeBatches
from keras_turbo.data.engine.buckets import BucketBatches
from keras_turbo.data.engine.datasets import EpochDatasets
from keras_turbo.data.engine.failures import SkippedExample
from keras_turbo.data.engine.node import VariantDataset
from keras_turbo.data.engine.order import EpochCounter, ExampleOrder, Remainder
from keras_turbo.data.engine.recipe import Recipe
from keras_turbo.data.profile import PipelineReport, measure
from keras_turbo.data.settings import Cache, Settings, is_integer
from keras_turbo.data.sources.source import Source
from keras_turbo.data.sources.streams import Stream
from keras_turbo.data.workers.decoding import on_many_cores


class FastDataset(Constructors):
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
            examples (batches with `batch_size=None`). It must return another iterator at each call. It is called in
            each epoch, and when the dataset is built, which looks at two items (of a `PyDataset` also at the last).
        y: targets, in the same forms as `x`. Only with arrays; elements of other data hold them.
        sample_weight: weights, of shape `(examples,)`. Needs `y`.
        batch_size: examples a batch, default 32; on several devices or workers that of all together (the global batch),
            which they divide among themselves. None: one by one, without a batch axis; elements of a
            `tf.data.Dataset` then pass as they are. A `PyDataset` has batches of its own size.
        shuffle: whether each epoch has an order of its own: a full shuffle over all positions. Default False. A
            `tf.data.Dataset` has positions only with `cache="memory"` or `"disk"`; without, it is shuffled through a
            buffer, with a warning where that is smaller than the data.
        seed: integer from 0; decides order and augmentation. Default None: a function of the state of Python's
            `random`, which `keras.utils.set_random_seed` seeds, and which is left as it is; see the attribute `seed`.
        reshuffle_each_epoch: False keeps the shuffled order of the first epoch. Default True.
        map_fn: the deterministic part of preparing an example; its results may be cached. Traced by TensorFlow,
            unless it is a `keras_turbo.data.PythonFunction`, which runs as Python on arrays.
        augment_fn: the random part, called for each example in each epoch and never cached. It may take a parameter
            named `seed` (int64, shape (2,)) for `tf.random.stateless_*` and `tf.image.stateless_random_*`; it may be a
            Keras layer; `tf.random.uniform`, `tf.image.random_flip_left_right` and their like are made functions of
            that seed too.
        cache: where examples are kept after `map_fn`. "auto" (default): memory if they take at most half of what is
            free there (limits of containers included), else disk if they take at most half of what is free there,
            else nowhere; nowhere for a `tf.data.Dataset`, a generator or a `PyDataset`, which may be random. "memory",
            "disk": there; what has no length is read once then, to know it. False: nowhere.
            Arrays without `map_fn` are in memory as they are.
        cache_dir: folder for stores on disk, default `~/.cache/keras_turbo/examples` (`$XDG_CACHE_HOME` counts).
        drop_remainder: whether a last batch that is not full is left out. Default False.
        workers: examples made at a time, default two for each core. Of data that Python code makes: processes that
            make them, 0 for this one; by default chosen by the time that an item takes, and logged.
        on_error: what happens when an example can't be loaded. "raise" (default): an error with its path. "skip": it is
            left out, listed in `skipped`, and the first is warned of.
        bucket_by_length: ascending lengths, such as `[32, 64, 128]`, for sequences of unequal lengths (the first axis
            of an example): a batch has examples of one bucket, filled up with zeros to its length, so that batches
            have few shapes and XLA compiles once for each. `x` is then a `tf.RaggedTensor`, a list of sequences, a
            dict or tuple of these and of arrays (`y` too), or a `tf.data.Dataset` of single examples. `shard` deals
            out batches.
        too_long: what becomes of sequences beyond the last length. "raise" (default): an error. "truncate": what is
            beyond it is cut off.
        element_spec: structure of `tf.TensorSpec`s of what Python code gives: an item of a generator function, a batch
            of a `PyDataset`, a whole example behind a `PythonFunction`; None in a shape for sizes that differ. By
            default types and shapes are those of the items that are looked at. Where these are of one shape, other
            lengths (of the first axis) pass nevertheless if no batch needs one length: of a generator function with
            `batch_size=None`, or with a `map_fn` that pads.

    Raises:
        TypeError, ValueError: an argument that can't be, when the dataset is built.

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
        bucket_by_length: Sequence[int] | None = None,
        too_long: Literal["raise", "truncate"] = "raise",
        element_spec: Any = None,
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
            bucket_by_length=bucket_by_length,
            too_long=too_long,
            element_spec=element_spec,
        )
        self._assemble(input_of(x, y, sample_weight, settings), settings)

    @classmethod
    def _of_source(cls, source: Source | Stream, settings: Settings, class_names: list[str] | None) -> FastDataset:
        dataset = cls.__new__(cls)
        dataset._assemble(source, settings, class_names)
        return dataset

    def _assemble(
        self,
        source: Source | Stream,
        settings: Settings,
        class_names: list[str] | None = None,
        order: ExampleOrder | None = None,
        like: FastDataset | None = None,
        counter: EpochCounter | None = None,
    ) -> None:
        self._source = source = on_many_cores(source, settings)
        self.class_names = class_names
        self._seed_was_drawn = settings.seed is None if like is None else like._seed_was_drawn
        self.seed = _drawn_seed() if settings.seed is None else int(settings.seed)
        # From here on with the seed in use: a shard of the dataset must have the same order.
        settings = settings.with_seed(self.seed)
        self._settings = settings
        if settings.element_spec is not None and source.processes is None:
            raise ValueError(
                "`element_spec` is for what Python code makes: a PyDataset, a generator function, a PythonFunction. "
                "What other data is like is known. Leave it out."
            )
        settings = source.adapted(settings)
        self._counter = counter or EpochCounter()
        self._epochs: EpochDatasets | None = None
        if not isinstance(source, Stream):
            recipe = make_recipe(
                source, settings, self._counter, order=order, like=None if like is None else like._recipe
            )
        elif settings.cache in ("auto", False):
            recipe = None
            self._dataset = assemble_stream(source, settings, self._counter)
        elif like is None:
            recipe = assemble_stored(source, settings, self._counter)
        else:
            assert like._recipe is not None  # noqa: S101 (it was assembled so, too)
            recipe = make_recipe(like._recipe.source, settings, self._counter, order=order, like=like._recipe)
        if recipe is not None:
            self._epochs = EpochDatasets(recipe)
            self._dataset = self._epochs.batches()
        source.used_by(self)
        variant = tf.data.experimental.to_variant(self._dataset)
        super().__init__(variant, self._dataset.element_spec, [self._dataset], holds=None)

    @property
    def _recipe(self) -> Recipe | None:
        return None if self._epochs is None else self._epochs.recipe

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
        if not tf.executing_eagerly():
            return super().__iter__()
        iterator = device_iterator(self, lambda: _iterator_class()(self))
        iterator.stacks = self._stacks
        return iterator

    def _stacks(self, count: int) -> tf.data.Iterator | None:
        stacks = None if self._epochs is None else self._epochs.stacks(count)
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
        if self._epochs is None:
            return tf.convert_to_tensor(self._dataset.cardinality())
        return tf.constant(self._epochs.cardinality(), tf.int64)

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
        if self._recipe is None:
            raise ValueError(
                "Only examples that have positions can be dealt out. Apply shard() to the tf.data.Dataset before it is "
                "given to FastDataset, or use cache='memory' or 'disk'; a generator function can give a part by itself."
            )
        if not (is_integer(num_shards) and is_integer(index)):
            raise TypeError(
                f"`num_shards` and `index` must be integers. Received: num_shards={num_shards!r}, index={index!r}."
            )
        order = self._recipe.order.shard(int(num_shards), int(index), remainder)
        if order.num_examples == 0:
            raise ValueError(
                f"Shard {index} of {num_shards} would be empty: there are {self._recipe.order.num_examples} examples."
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
        recipe = self._recipe
        if recipe is None or recipe.may_skip or not isinstance(recipe.batches, WholeBatches):
            return _cut(self, parts)
        if recipe.batches.batch_size is None:
            return _cut(self, parts)
        own = dataclasses.replace(recipe, batches=PartsOfBatches(recipe.batches, parts))
        return EpochDatasets(own).batches()

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
        self._replaced = [*getattr(self, "_replaced", []), (self._dataset, self._epochs)]
        order = None if self._recipe is None else dataclasses.replace(self._recipe.order, seed=seed)
        settings = self._settings.with_seed(seed)
        self._assemble(self._source, settings, self.class_names, order, like=self, counter=self._counter)

    def take_cause_of(self, error: Exception) -> Exception:
        """What an epoch has raised, where TensorFlow's error is about that; else the error itself."""
        sessions = getattr(self._source, "sessions", None) if self._epochs is None else self._epochs.sessions
        return error if sessions is None else sessions.take_cause_of(error)

    # What it knows of its examples.

    @property
    def order_settings(self) -> dict[str, Any]:
        """What decides which examples a batch has: where these are equal, so are the batches of equal data."""
        settings = self._settings
        # Where nothing is drawn, the seed is of no account; it may have been drawn itself.
        is_random = settings.shuffle or settings.augment_fn is not None or self._source.is_random
        recipe = self._recipe
        order = None if recipe is None else recipe.order
        number = self._source.number if isinstance(self._source, Stream) else len(self._source)
        buckets = {} if settings.bucket_by_length is None else {"bucket_by_length": list(settings.bucket_by_length)}
        return buckets | {
            "num_examples": number if recipe is None else len(recipe.source),
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
        recipe = self._recipe
        if recipe is not None:
            if not recipe.may_skip or recipe.is_ready:
                return None
            return "on_error='skip' may have left examples out of them, and they must be loaded to know which"
        assert isinstance(self._source, Stream)  # noqa: S101 (nothing else is without a recipe)
        if self._settings.bucket_by_length is not None:
            return f"which elements of a {self._source.kind} are in a batch is known once the batch is made"
        if self._source.can_seek:
            return None
        return f"a {self._source.kind} without a store has no positions (a tf.data.Dataset gets them by cache)"

    @property
    def is_stream(self) -> bool:
        """Whether examples can only be read one after another: those of a `tf.data.Dataset` without a store."""
        return self._recipe is None

    @property
    def workers(self) -> int | None:
        """Processes that make examples in Python: 0 is this one. None where others make them, in threads."""
        return self._source.processes

    @property
    def stored_in(self) -> Literal["memory", "disk"] | None:
        """Where examples are kept once they are made."""
        recipe = self._recipe
        if recipe is None or recipe.store is None or recipe.store is recipe.source.as_store():
            return None
        return recipe.store.kind

    @property
    def is_ready(self) -> bool:
        """Whether no epoch will load an example any more: all are in memory or in the store.

        Of a store that another process has filled, each example is compared with its checksum when it is first read,
        and loaded again if it is damaged.
        """
        recipe = self._recipe
        return recipe is not None and (
            recipe.is_ready or (recipe.store is not None and recipe.store.num_filled == len(recipe.store))
        )

    @property
    def labels(self) -> Any:
        """The labels in the order in which examples are yielded, before `map_fn`; class numbers if there are classes.

        Shape `(examples,)` for classes. What `drop_remainder` or `on_error="skip"` leave out is left out here too.

        Raises:
            ValueError: there are no labels, the order changes from epoch to epoch, or it is not known yet what will be
                skipped.
        """
        positions = self._fixed_positions("labels")
        labels = None if self._recipe is None else self._recipe.source.labels_at(positions)
        if labels is None:
            raise ValueError("This dataset has no labels: it was built without `y` or `labels`.")
        return labels

    @property
    def file_paths(self) -> list[str]:
        """The files in the order in which they are yielded; raises as `labels` does."""
        paths = getattr(self._source, "paths", None)
        if paths is None:
            raise ValueError("This dataset is not made of files, so it has no `file_paths`.")
        return [paths[position] for position in self._fixed_positions("file_paths")]

    @property
    def skipped(self) -> list[SkippedExample]:
        """What `on_error="skip"` has left out so far, with paths and reasons, in the order of positions."""
        recipe = self._recipe
        if recipe is None:
            return []
        return [*recipe.source.left_out, *(example for _, example in sorted(recipe.failures.skipped.items()))]

    def _fixed_positions(self, what: str) -> np.ndarray:
        """The positions in the order in which examples are yielded, where all epochs have the same.

        Args:
            what: what an error calls that which was to be had in this order.

        Raises:
            ValueError: the order changes, or it is not known yet what will be skipped.
        """
        recipe = self._recipe
        if recipe is None:
            raise ValueError(f"`{what}` of a tf.data.Dataset without a store can't be known.")
        if not recipe.order.is_fixed:
            raise ValueError(
                f"`{what}` has no fixed order: shuffle=True gives each epoch another. Use shuffle=False for "
                "evaluation, or reshuffle_each_epoch=False."
            )
        if isinstance(recipe.batches, BucketBatches):
            return recipe.batches.examples(0)
        positions = recipe.order.positions(0)
        if recipe.may_skip:
            if not recipe.failures.are_known(positions):
                raise ValueError(
                    f"`{what}` can't be known before one epoch is through: on_error='skip' may leave examples out. "
                    "Iterate once."
                )
            positions = positions[~recipe.failures.have_failed(positions)]
        size = self._settings.batch_size
        if self._settings.drop_remainder and size is not None:
            positions = positions[: len(positions) // size * size]
        return positions

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
        recipe = self._recipe
        if recipe is None or recipe.source.loading_is_called is None:
            raise ValueError(
                "report() measures arrays and files; the stages of a tf.data.Dataset and of Python code can't be told "
                "apart."
            )
        report = measure(recipe, seconds)
        if verbose:
            report.print()
        return report


def _drawn_seed() -> int:
    """A seed that follows from the state of Python's `random`, and leaves that as it is: all others draw as before."""
    generator = random.Random()
    generator.setstate(random.getstate())
    return generator.randrange(2**31)


@functools.cache
def _iterator_class() -> type:
    """TensorFlow's own class of iterators, which is what train functions take, with plain errors."""
    with tf.device("CPU:0"):
        base: Any = type(iter(tf.data.Dataset.range(0)))

    class FastIterator(base):
        """An iterator over a `FastDataset`."""

        def __init__(self, dataset: FastDataset) -> None:
            super().__init__(dataset)
            self._of = dataset

        def __next__(self) -> Any:
            try:
                return super().__next__()
            except tf.errors.OpError as error:
                # TensorFlow's frames hold the error, which holds them, and so the dataset and its worker processes.
                traceback.clear_frames(error.__traceback__)
                raise self._of.take_cause_of(error) from None

    return FastIterator


def _cut(whole: tf.data.Dataset, parts: BatchParts) -> tf.data.Dataset:
    """A worker's part of batches of which only the whole can be made: all of them are made, and cut.

    Raises:
        ValueError: elements are single numbers, which can't be cut.
    """
    for leaf in tf.nest.flatten(whole.element_spec):
        if leaf.shape.rank == 0:
            raise ValueError(
                "Each batch is divided among the workers, and here elements have no batch axis (batch_size=None). Give "
                f"batch_size, that of all workers together. Received elements of {whole.element_spec}."
            )
    spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), whole.element_spec)
    leaves = tf.nest.flatten(spec)
    # What tf.distribute cuts batches with, into as many parts as it is told, the last ones without rows if need be.
    variant = tf.raw_ops.RebatchDataset(
        input_dataset=tf.data.experimental.to_variant(whole),
        num_replicas=parts.num_parts,
        output_types=[leaf.dtype for leaf in leaves],
        output_shapes=[leaf.shape for leaf in leaves],
    )
    cut = VariantDataset(variant, spec, [whole], holds=whole)
    own = cut.shard(parts.num_workers, parts.worker).prefetch(parts.replicas_per_worker)
    return VariantDataset(tf.data.experimental.to_variant(own), spec, [own], holds=whole)
