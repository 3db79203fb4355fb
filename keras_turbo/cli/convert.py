"""`python -m keras_turbo convert`."""

from __future__ import annotations

import argparse
import sys

from keras_turbo.cli.arguments import integer_from, size


def add_convert(commands: argparse._SubParsersAction) -> None:
    """Adds the command and its arguments."""
    convert = commands.add_parser(
        "convert",
        help="write a folder of images to TFRecord files",
        description="Writes the images under DIR to TFRecord files in OUT, for FastDataset.from_tfrecord(OUT). After "
        "an interruption the same command goes on where it was.",
    )
    convert.add_argument(
        "directory",
        metavar="DIR",
        help="a folder with one folder of images for each class, local or as s3://bucket/photos",
    )
    convert.add_argument(
        "out", metavar="OUT", help="a folder for the files, made if missing, local or as s3://bucket/records"
    )
    convert.add_argument(
        "--shards", type=integer_from(1), metavar="N", help="files to write (default: so many that each has 128 MB)"
    )
    convert.add_argument(
        "--image-size",
        type=size,
        metavar="HxW",
        help="resize images to this height and width and keep them as JPEG (default: keep each file's bytes)",
    )
    convert.add_argument(
        "--resize",
        choices=("stretch", "pad", "crop"),
        default="stretch",
        help="how to bring them to that size (default: %(default)s)",
    )
    convert.add_argument(
        "--quality", type=integer_from(1), default=95, metavar="Q", help="of these JPEGs (default: %(default)s)"
    )
    convert.add_argument(
        "--workers", type=integer_from(1), metavar="W", help="images prepared at a time (default: one for each core)"
    )
    convert.add_argument(
        "--validation-split",
        type=float,
        metavar="F",
        help="share of the images to hold out: OUT/training and OUT/validation",
    )
    convert.add_argument(
        "--seed", type=integer_from(0), default=0, metavar="N", help="decides the split (default: %(default)s)"
    )
    convert.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="whether a file that can't be converted ends the run or is left out and listed (default: %(default)s)",
    )
    convert.set_defaults(run=lambda options: _run_convert(convert, options))


def _run_convert(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from keras_turbo.data.convert import ConversionError, convert_images

    try:
        manifests = convert_images(
            options.directory,
            options.out,
            shards=options.shards,
            image_size=options.image_size,
            resize=options.resize,
            quality=options.quality,
            workers=options.workers,
            validation_split=options.validation_split,
            seed=options.seed,
            on_error=options.on_error,
        )
    except ConversionError as error:
        parser.exit(2, f"{parser.prog}: error: {error.told('--on-error skip')}\n")
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    for part, manifest in manifests.items():
        out = options.out.rstrip("/") or "/"
        folder = out if part == "all" else f"{out}/{part}"
        left_out = f", {len(manifest.skipped)} left out" if manifest.skipped else ""
        sys.stdout.write(
            f"{folder}: {manifest.num_examples} images in {len(manifest.files)} files{left_out}. "
            f"Read them by FastDataset.from_tfrecord({folder!r}).\n"
        )
    return 0
