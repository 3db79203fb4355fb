"""The constructors of `FastDataset` that read files: one for each kind, named after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import tensorflow as tf

from keras_turbo.data.image_options import IMAGE_OPTIONS, require_batchable
from keras_turbo.data.images import RandomResizedCrop
from keras_turbo.data.resuming import ResumableDataset
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.files import files_source
from keras_turbo.data.sources.image_folder import Subset, image_folder_sources
from keras_turbo.data.sources.source import Source
from keras_turbo.data.sources.tfrecord import tfrecord_source

if TYPE_CHECKING:
    from typing import Self  # from Python 3.11 on


class FileDatasets(ResumableDataset):
    """What `FastDataset` inherits its `from_...` constructors from."""

    @classmethod
    def _of_source(cls, source: Source, settings: Settings, class_names: list[str] | None) -> Self:
        raise NotImplementedError

    @classmethod
    def from_image_folder(
        cls,
        directory: str | os.PathLike,
        *,
        labels: Literal["inferred"] | Sequence[Any] | Callable[[str], Any] | None = "inferred",
        label_mode: Literal["int", "categorical", "binary", "raw"] | None = "int",
        class_names: Sequence[str] | None = None,
        image_size: tuple[int, int] | None = (256, 256),
        channels: Literal[1, 3, 4] = 3,
        resize: Literal["stretch", "pad", "crop"] = "stretch",
        interpolation: str = "bilinear",
        antialias: bool = False,
        exif_orientation: bool = True,
        scaled_decode: bool = False,
        random_resized_crop: RandomResizedCrop | None = None,
        validation_split: float | None = None,
        subset: Subset | None = None,
        **options: Any,
    ) -> Any:
        """Images under a folder, with labels from the folders they are in.

        Images are recognised by content: JPEG, PNG, GIF (first frame), BMP, WebP. They are uint8 up to the batch;
        normalize in the model (`keras.layers.Rescaling`), where it costs least.

        Example:

        ```python
        train, val = FastDataset.from_image_folder(
            "photos", image_size=(224, 224), validation_split=0.2, subset="both", shuffle=True, seed=0
        )
        ```

        Args:
            directory: the folder. With inferred labels, each folder in it is a class.
            labels: "inferred": the class folders. Or one label for each file in the order of sorted paths, or a
                function of the path (a `str`). None: images alone.
            label_mode: "int" (default): int32, shape `(batch,)`, for sparse categorical losses. "categorical": float32
                one-hot, `(batch, classes)`. "binary": float32 zeros and ones, `(batch, 1)`. "raw": as they are, for
                regression. None: images alone.
            class_names: classes in the order of their numbers, and only those; default: all folders, sorted.
            image_size: (height, width) in pixels, default (256, 256). None: each file's own, with `batch_size=None`.
            channels: 1, 3 (default) or 4.
            resize: "stretch" (default), "pad" (keeps the aspect ratio, black borders) or "crop" (keeps it, cuts).
            interpolation: as `tf.image.resize`, default "bilinear".
            antialias: whether shrinking averages over all pixels. Default False, as Keras.
            exif_orientation: whether photos are turned as their camera was. Default True.
            scaled_decode: whether JPEGs are decoded at 1/2, 1/4 or 1/8 of their size where `image_size` is that much
                smaller. Faster, and changes pixels slightly. Default False.
            random_resized_crop: crop each image at random in each epoch, decoding only the crop. Nothing is cached.
            validation_split: share of the images held out, between 0 and 1. The same seed gives disjoint sets.
            subset: "training", "validation", or "both" for the pair (training, validation), of which the second is
                never shuffled or augmented.
            **options: as those of `FastDataset`: `batch_size`, `shuffle`, `seed`, `map_fn`, `augment_fn`, `cache`,
                `cache_dir`, `drop_remainder`, `workers`, `on_error`, `reshuffle_each_epoch`, `service`.

        Returns:
            A dataset of `(images, labels)`, images uint8 of shape `(batch, height, width, channels)`; a pair of
            datasets with `subset="both"`.

        Raises:
            FileNotFoundError, NotADirectoryError: no such folder.
            TypeError, ValueError: an argument that can't be; a folder without images.
        """
        settings = Settings.of(options, "from_image_folder")
        require_batchable(image_size, settings.batch_size)
        sources, names = image_folder_sources(
            directory,
            labels=labels,
            label_mode=label_mode,
            class_names=class_names,
            image_options={
                "image_size": image_size,
                "channels": channels,
                "resize": resize,
                "interpolation": interpolation,
                "antialias": antialias,
                "exif_orientation": exif_orientation,
                "scaled_decode": scaled_decode,
                "random_resized_crop": random_resized_crop,
            },
            validation_split=validation_split,
            subset=subset,
            seed=settings.seed,
        )
        datasets = []
        for part, source in sources.items():
            held_out = part == "validation"
            datasets.append(
                cls._of_source(source, settings.for_validation() if held_out and subset == "both" else settings, names)
            )
        return tuple(datasets) if subset == "both" else datasets[0]

    @classmethod
    def from_files(
        cls,
        pattern: str | os.PathLike | Sequence[str | os.PathLike],
        load_fn: Callable[[tf.Tensor], Any],
        *,
        labels: Sequence[Any] | Callable[[str], Any] | None = None,
        label_mode: Literal["int", "categorical", "binary", "raw"] = "raw",
        class_names: Sequence[str] | None = None,
        **options: Any,
    ) -> Self:
        """Files of any kind, each read by a function of its path.

        Example:

        ```python
        def load(path):
            return tf.io.decode_raw(tf.io.read_file(path), tf.float32)

        data = FastDataset.from_files("signals/*.bin", load, labels=lambda path: path.endswith("_1.bin"))
        ```

        Args:
            pattern: glob pattern (`**` crosses folders), or a list of patterns and paths. Files are sorted by path.
            load_fn: takes the path (string tensor) and returns `x` or the whole element. Traced by TensorFlow and
                deterministic, as `map_fn`; its results may be cached. A `PythonFunction` takes the path as `str`.
            labels: one label for each file in sorted order, or a function of the path (a `str`), given as `y` beside
                what `load_fn` returns. None: the element is what `load_fn` returns.
            label_mode: as in `from_image_folder`; default "raw".
            class_names: as in `from_image_folder`.
            **options: as those of `FastDataset`.

        Raises:
            ValueError: no file matches, and what `FastDataset` and `from_image_folder` raise.
        """
        settings = Settings.of(options, "from_files")
        source, names = files_source(pattern, load_fn, labels, label_mode, class_names, settings)
        return cls._of_source(source, settings, names)

    @classmethod
    def from_tfrecord(
        cls,
        pattern: str | os.PathLike | Sequence[str | os.PathLike],
        features: dict[str, Any] | None = None,
        *,
        x: str | Sequence[str] | None = None,
        label: str | None = None,
        sample_weight: str | None = None,
        compression: Literal["GZIP", "ZLIB", ""] | None = None,
        interleave: int | None = None,
        **options: Any,
    ) -> Self:
        """Records of `tf.train.Example`, in any order, checked by their checksums.

        Where each record begins is found once and kept beside the data (in the cache folder where that can't be
        written). So the length is known, a shuffle is a full one over all files, and any record can be read by itself.

        Example:

        ```python
        train = FastDataset.from_tfrecord("records/train")  # of `python -m keras_turbo convert photos records/train`
        train = FastDataset.from_tfrecord("train-*.tfrecord", features, x="pixels", label="class", shuffle=True)
        ```

        Args:
            pattern: glob pattern, a list of patterns and paths, or a folder. Files are sorted by path.
            features: dict of `tf.io.FixedLenFeature` and its like, as for `tf.io.parse_example`. None: what the
                `manifest.json` beside the files says; where there is none, features are inferred from the first
                records, and printed in a form that can be pasted.
            x: name of the feature that is `x`, or names, for a dict. None: a dict of all that are nothing else.
            label: name of the feature that is `y`. None: no targets.
            sample_weight: name of the feature that is the weight.
            compression: None (default): told by each file's first bytes. "GZIP", "ZLIB", or "" for none. Compressed
                files are unpacked once, into the cache folder, since nothing can be read from the middle of one.
            interleave: without `shuffle`, how many files are read in turn, one record of each, as by
                `tf.data.Dataset.interleave`. Default: the order in which the records were written, if there is a
                manifest; else 1, one file after the other.
            **options: as those of `FastDataset`; for images of `python -m keras_turbo convert` also those of
                `from_image_folder` from `image_size` to `random_resized_crop`.

        Returns:
            A dataset of what the manifest says; else of `x`, `(x, y)` or `(x, y, sample_weight)`. What has no fixed
            length is a `tf.RaggedTensor` in a batch (of a `VarLenFeature` a `tf.SparseTensor`), and a vector where
            `map_fn` or `augment_fn` get it, or with `batch_size=None`.

        Raises:
            TypeError, ValueError: an argument that can't be; no file, no record; a file that is truncated, unless
                `on_error="skip"`; records whose features can't be inferred.
        """
        image_options = {name: options.pop(name) for name in IMAGE_OPTIONS if name in options}
        settings = Settings.of(options, "from_tfrecord")
        source, names = tfrecord_source(
            pattern,
            features,
            x=x,
            label=label,
            sample_weight=sample_weight,
            compression=compression,
            interleave=interleave,
            image_options=image_options,
            settings=settings,
        )
        return cls._of_source(source, settings, names)
