"""The constructors of `FastDataset` that read files: one for each kind, named after it."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import tensorflow as tf

from keras_turbo.data.images import IMAGE_OPTIONS, MOST_PIXELS, ImageOptions, RandomResizedCrop, require_batchable
from keras_turbo.data.keras_names import audio_options, check_switches, image_options, settle_shuffle, tell_found
from keras_turbo.data.resuming import ResumableDataset
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.audio import MOST_SAMPLES, AudioOptions, audio_folder_sources
from keras_turbo.data.sources.class_folders import Subset
from keras_turbo.data.sources.csv_table import csv_source
from keras_turbo.data.sources.files import files_source
from keras_turbo.data.sources.image_folder import image_folder_sources
from keras_turbo.data.sources.source import Source
from keras_turbo.data.sources.streams import Stream
from keras_turbo.data.sources.tables import parquet_source
from keras_turbo.data.sources.tfrecord import tfrecord_source
from keras_turbo.data.tables.csv_files import CsvFormat
from keras_turbo.data.tables.table import Request

if TYPE_CHECKING:
    from typing import Self  # from Python 3.11 on


class Constructors(ResumableDataset):
    """What `FastDataset` inherits its `from_...` constructors from."""

    @classmethod
    @abc.abstractmethod
    def _of_source(cls, source: Source | Stream, settings: Settings, class_names: list[str] | None) -> Self:
        """The dataset of a source."""

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
        dtype: Literal["uint8", "uint16", "float32"] = "uint8",
        max_pixels: int = MOST_PIXELS,
        validation_split: float | None = None,
        subset: Subset | None = None,
        follow_links: bool = True,
        verbose: bool = False,
        **options: Any,
    ) -> Any:
        """Images under a folder, with labels from the folders they are in.

        Images are recognised by content: JPEG, PNG, GIF (first frame), BMP, WebP, TIFF. They are uint8 up to the batch;
        normalize in the model (`keras.layers.Rescaling`), where it costs least.

        Example:

        ```python
        train, val = FastDataset.from_image_folder(
            "photos", image_size=(224, 224), validation_split=0.2, subset="both", shuffle=True, seed=0
        )
        ```

        Args:
            directory: the folder, on this machine or `s3://bucket/folder` and its like. With inferred labels, each
                folder in it is a class.
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
            random_resized_crop: crop each image at random in each epoch. Nothing is cached.
            dtype: of the pixels: "uint8" (default), or "uint16" or "float32" for the values of 16-bit PNG and TIFF
                files; 8 bits are spread over 16.
            max_pixels: a file that declares more is refused by name. Default 178,956,970.
            validation_split: share of the images held out, between 0 and 1. The same seed gives disjoint sets.
            subset: "training", "validation", or "both" for the pair (training, validation), of which the second is
                never shuffled or augmented.
            follow_links: whether folders that are links are read. Default True.
            verbose: whether the numbers of files and classes are printed. Default False.
            **options: as those of `FastDataset`: `batch_size`, `shuffle` (here True by default, as in Keras), `seed`,
                `map_fn`, `augment_fn`, `cache`, `cache_dir`, `drop_remainder`, `workers`, `on_error`,
                `reshuffle_each_epoch`. Keras' `color_mode`, `crop_to_aspect_ratio` and `pad_to_aspect_ratio` are
                taken, too.

        Returns:
            A dataset of `(images, labels)`, images uint8 of shape `(batch, height, width, channels)`; a pair of
            datasets with `subset="both"`.

        Raises:
            FileNotFoundError, NotADirectoryError: no such folder.
            TypeError, ValueError: an argument that can't be; a folder without images.
        """
        check_switches(follow_links=follow_links, verbose=verbose)
        settle_shuffle(options, "from_image_folder")
        given = {
            "image_size": image_size,
            "channels": channels,
            "resize": resize,
            "interpolation": interpolation,
            "antialias": antialias,
            "exif_orientation": exif_orientation,
            "scaled_decode": scaled_decode,
            "random_resized_crop": random_resized_crop,
            "dtype": dtype,
            "max_pixels": max_pixels,
        }
        images = ImageOptions(**image_options(options, given))
        settings = Settings.of(options, cls.from_image_folder)
        require_batchable(images.image_size, settings.batch_size)
        sources, names = image_folder_sources(
            directory,
            images,
            labels=labels,
            label_mode=label_mode,
            class_names=class_names,
            validation_split=validation_split,
            subset=subset,
            seed=settings.seed,
            follow_links=follow_links,
        )
        return cls._of_parts(sources, settings, names, subset, verbose)

    @classmethod
    def from_audio_folder(
        cls,
        directory: str | os.PathLike,
        *,
        sample_rate: int | None = None,
        length_seconds: float | None = None,
        length_samples: int | None = None,
        align: Literal["start", "center", "end"] = "start",
        channels: int = 1,
        max_samples: int = MOST_SAMPLES,
        labels: Literal["inferred"] | Sequence[Any] | Callable[[str], Any] | None = "inferred",
        label_mode: Literal["int", "categorical", "binary", "raw"] | None = "int",
        class_names: Sequence[str] | None = None,
        validation_split: float | None = None,
        subset: Subset | None = None,
        follow_links: bool = True,
        verbose: bool = False,
        **options: Any,
    ) -> Any:
        """Audio files under a folder, with labels from the folders they are in.

        Files are recognised by content: WAV, FLAC, Ogg, MP3 and AIFF. Whatever a file's own rate, the model gets
        `sample_rate`. Needs `soundfile` and `soxr` but for WAV of 16 bits or floats at that rate.

        Example:

        ```python
        train, val = FastDataset.from_audio_folder(
            "commands", sample_rate=16_000, length_seconds=1.0, validation_split=0.2, subset="both", seed=0
        )
        ```

        Args:
            directory: the folder, on this machine or `s3://bucket/folder` and its like. With inferred labels, each
                folder in it is a class.
            sample_rate: in Hz, must be given. Files of another rate are resampled, by soxr.
            length_seconds: length of each example. A longer file is cropped, a shorter one padded with silence. Default
                None: each file's own, with `batch_size=None`.
            length_samples: the same in samples, in its place.
            align: which part of a longer file is kept, and where a shorter one stands: "start" (default), "center" or
                "end". To crop at random, give a longer length here and crop in `augment_fn`.
            channels: 1 (default): the mean of a file's channels. Another number: each file must have it.
            max_samples: a file that declares more, over all channels, is refused by name. Default 67,108,864.
            labels: as in `from_image_folder`; this one and those below.
            label_mode: "int" (default), "categorical", "binary", "raw", or None.
            class_names: classes in the order of their numbers.
            validation_split: share of the files held out, between 0 and 1.
            subset: "training", "validation", or "both" for the pair of them.
            follow_links: whether folders that are links are read. Default True.
            verbose: whether the numbers of files and classes are printed. Default False.
            **options: as those of `FastDataset`; `shuffle` is True by default, as in Keras. Keras' `sampling_rate` and
                `output_sequence_length` are other words for `sample_rate` and `length_samples`.

        Returns:
            A dataset of `(audio, labels)`, audio float32 between -1 and 1, of shape `(batch, samples, channels)`, as
            `keras.utils.audio_dataset_from_directory` has it; a pair of datasets with `subset="both"`.

        Raises:
            FileNotFoundError, NotADirectoryError: no such folder.
            TypeError, ValueError: an argument that can't be; a folder without audio files.
        """
        check_switches(follow_links=follow_links, verbose=verbose)
        settle_shuffle(options, "from_audio_folder")
        given = {"sample_rate": sample_rate, "length_samples": length_samples, "length_seconds": length_seconds}
        given = audio_options(options, given)
        settings = Settings.of(options, cls.from_audio_folder)
        audio = AudioOptions(**given, align=align, channels=channels, max_samples=max_samples)
        audio.require_batchable(settings.batch_size)
        sources, names = audio_folder_sources(
            directory,
            audio,
            labels=labels,
            label_mode=label_mode,
            class_names=class_names,
            validation_split=validation_split,
            subset=subset,
            seed=settings.seed,
            may_skip=settings.on_error == "skip",
            follow_links=follow_links,
        )
        return cls._of_parts(sources, settings, names, subset, verbose)

    @classmethod
    def _of_parts(
        cls,
        sources: Mapping[str, Source],
        settings: Settings,
        names: list[str] | None,
        subset: Subset | None,
        verbose: bool,
    ) -> Any:
        """A dataset of each part; the held-out one of both is neither shuffled nor augmented."""
        if verbose:
            tell_found(sources, names, subset)
        if subset != "both":
            (source,) = sources.values()
            return cls._of_source(source, settings, names)
        return (
            cls._of_source(sources["training"], settings, names),
            cls._of_source(sources["validation"], settings.for_validation(), names),
        )

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
            pattern: glob pattern (`**` crosses folders), or a list of patterns and paths, on this machine or
                `s3://bucket/*.bin` and its like. Files are sorted by path.
            load_fn: takes the absolute path (string tensor) and returns `x` or the whole element. Traced by TensorFlow
                and deterministic, as `map_fn`; its results may be cached. A `PythonFunction` takes the path as `str`.
            labels: one label for each file in sorted order, or a function of the path (a `str`), given as `y` beside
                what `load_fn` returns. None: the element is what `load_fn` returns.
            label_mode: as in `from_image_folder`; default "raw".
            class_names: as in `from_image_folder`.
            **options: as those of `FastDataset`.

        Raises:
            ValueError: no file matches, and what `FastDataset` and `from_image_folder` raise.
        """
        settings = Settings.of(options, cls.from_files)
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
        max_unpacked_bytes: int | None = None,
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
            pattern: glob pattern, a list of patterns and paths, or a folder, on this machine or `s3://bucket/records`
                and its like, of which copies are kept in the cache folder. Files are sorted by path.
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
            max_unpacked_bytes: a compressed file that unpacks to more is refused by name. Default: 100 times its size,
                or 256 MB if that is more.
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
        settings = Settings.of(options, cls.from_tfrecord)
        source, names = tfrecord_source(
            pattern,
            features,
            x=x,
            label=label,
            sample_weight=sample_weight,
            compression=compression,
            interleave=interleave,
            max_unpacked_bytes=max_unpacked_bytes,
            image_options=image_options,
            settings=settings,
        )
        return cls._of_source(source, settings, names)

    @classmethod
    def from_parquet(
        cls,
        pattern: str | os.PathLike | Sequence[str | os.PathLike],
        columns: str | Sequence[str] | None = None,
        *,
        label: str | None = None,
        sample_weight: str | None = None,
        dtypes: Mapping[str, Any] | None = None,
        missing: Literal["raise", "nan"] | float | Mapping[str, Any] = "raise",
        shuffle_row_groups: int | None = None,
        **options: Any,
    ) -> Self:
        """Rows of Parquet files, each an example: a dict of columns, as Keras' functional models take it.

        Only the columns that are wanted are read. A table that fits in memory is kept there, column by column, and is
        as fast as arrays are. A larger one is read by row groups, each once in an epoch.

        Example:

        ```python
        train = FastDataset.from_parquet("census/*.parquet", label="income", batch_size=256, shuffle=True, seed=0)
        model = keras.Model(inputs={"age": age, "hours": hours}, outputs=outputs)  # Input(shape=(1,), name="age"), ...
        model.fit(train)
        ```

        Args:
            pattern: glob pattern (`**` crosses folders), a list of patterns and paths, or a folder. Files are sorted by
                path; all must have the same columns. They may be behind a scheme, such as `s3://`.
            columns: names of the columns that are `x`, for a dict of them; one name, for that column itself; None
                (default) for a dict of all that are nothing else.
            label: name of the column that is `y`. None: no targets.
            sample_weight: name of the column that is the weight.
            dtypes: dict of columns and types (bool, integers, floats, "string") for those that shall have another than
                in the file. What can't be held exactly is an error; floats round. By default floats and decimals
                become Keras' `floatx`, and a dictionary column what is in its dictionary. Dates and times have no
                default: "int64" gives their days, or the number of their own units, since 1970-01-01, "string" text.
            missing: what becomes of nulls and NaN. "raise" (default): an error with column, file, row and how many.
                "nan": they are NaN in columns of floats, and an error in others. A number, for all columns that can
                hold it; or a dict of columns and values ("nan" for columns of floats, too).
            shuffle_row_groups: with `shuffle`, how many row groups have their rows shuffled together, wherever the
                table is read: the same order on every machine. None (default): a full shuffle over all rows where the
                table is kept in memory. Where it is read by row groups, as many as are 256 MB together; a warning says
                how many these are.
            **options: as those of `FastDataset`. `cache`: "auto" (default): rows are kept in memory if loading
                them takes at most half of what is free there. "memory": there. "disk" and False: they are read by row
                groups.

        Returns:
            A dataset of `x`, `(x, y)` or `(x, y, sample_weight)`. Columns have shape `(batch,)`, lists of one length
            `(batch, length)`; lists of unequal lengths are a `tf.RaggedTensor` in a batch, and a vector where `map_fn`
            or `augment_fn` get them, or with `batch_size=None`.

        Raises:
            ImportError: there is no pyarrow; the message says what brings it.
            TypeError, ValueError: an argument that can't be; no file, no row; files that do not agree, and a file that
                is damaged or values that are missing, unless `on_error="skip"`.
        """
        settings = Settings.of(options, cls.from_parquet)
        request = Request(columns, label, sample_weight, dtypes, missing)
        source, settings = parquet_source(pattern, request, shuffle_row_groups, settings)
        return cls._of_source(source, settings, None)

    @classmethod
    def from_csv(
        cls,
        pattern: str | os.PathLike | Sequence[str | os.PathLike],
        columns: str | Sequence[str] | None = None,
        *,
        label: str | None = None,
        sample_weight: str | None = None,
        delimiter: str = ",",
        column_names: Sequence[str] | None = None,
        encoding: str = "utf-8",
        max_unpacked_bytes: int | None = None,
        dtypes: Mapping[str, Any] | None = None,
        missing: Literal["raise", "nan"] | float | Mapping[str, Any] = "raise",
        **options: Any,
    ) -> Self:
        """Rows of CSV files, each an example: a dict of columns, as Keras' functional models take it.

        The files are parsed once, when the dataset is built, and their columns kept in memory. Where they do not fit
        there, they are converted to Parquet in the cache folder, once, and read by row groups from then on.

        Example:

        ```python
        train = FastDataset.from_csv("census-*.csv", label="income", missing={"age": 40}, shuffle=True, seed=0)
        ```

        Args:
            pattern: glob pattern (`**` crosses folders), a list of patterns and paths, or a folder. Files are sorted by
                path; all must have the same columns. They may be behind a scheme, such as `s3://`. Files packed by
                gzip, bzip2 or Zstandard are unpacked.
            columns: as in `from_parquet`.
            label: as in `from_parquet`.
            sample_weight: as in `from_parquet`.
            delimiter: what stands between fields, default ",". Fields may be in double quotes, and then have line ends.
            column_names: names of all columns, for files without a header. None (default): the first row has them.
            encoding: of the text, default "utf-8".
            max_unpacked_bytes: a packed file that unpacks to more is refused by name. Default: 64 MB and 100 times its
                size.
            dtypes: dict of columns and types (bool, integers, floats, "string"). Those of other columns are those that
                `pyarrow.csv` infers over the whole file: integers, numbers, booleans (true, false), else strings. So
                one word among numbers makes strings of all; where the type is given, it is an error that names its row.
                Dates and times are strings.
            missing: as in `from_parquet`, for cells that are empty, "NA", "null" and their like in columns of numbers
                and booleans. In columns of strings an empty cell is an empty string, unless `missing` names the column.
            **options: as those of `FastDataset`. Rows are in memory where loading them takes at most half of what is
                free there, whatever `cache` says, and with `cache="memory"`; `cache_dir` is where they are else.

        Returns:
            A dataset of `x`, `(x, y)` or `(x, y, sample_weight)`, columns of shape `(batch,)`.

        Raises:
            ImportError: there is no pyarrow; the message says what brings it.
            TypeError, ValueError: an argument that can't be; no file, no row; files that do not agree, and a row with
                another number of fields, a cell of another type or a missing value, unless `on_error="skip"`. Rows are
                counted from 0, the first one after the header.
        """
        settings = Settings.of(options, cls.from_csv)
        request = Request(columns, label, sample_weight, dtypes, missing)
        form = CsvFormat(delimiter, column_names, encoding, max_unpacked_bytes)
        source, settings = csv_source(pattern, request, form, settings)
        return cls._of_source(source, settings, None)
