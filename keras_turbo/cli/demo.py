"""`python -m keras_turbo demo`."""

from __future__ import annotations

import argparse
from pathlib import Path

from keras_turbo.cli.arguments import integer_from


def add_demo(commands: argparse._SubParsersAction) -> None:
    """Adds the command and its arguments."""
    demo = commands.add_parser(
        "demo",
        help="train on real images, the stock way and with keras_turbo, and compare",
        description="Trains one small convolutional network twice from the same weights, first as people do it by hand "
        "(keras.utils.image_dataset_from_directory), then with keras_turbo, and prints seconds an epoch, images a "
        "second and validation accuracy of both.",
    )
    demo.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="a folder with one folder of images for each class (default: 1,797 handwritten digits of scikit-learn)",
    )
    demo.add_argument(
        "--epochs", type=integer_from(1), default=12, metavar="N", help="epochs of each run (default: %(default)s)"
    )
    demo.add_argument(
        "--batch-size", type=integer_from(1), default=32, metavar="N", help="images a step (default: %(default)s)"
    )
    demo.add_argument(
        "--image-size",
        type=integer_from(1),
        metavar="PIXELS",
        help="height and width to which images are resized (default: 8 for the digits, which have that size; 64 with "
        "--data, which a small network trains on in seconds without a GPU)",
    )
    demo.add_argument(
        "--seed",
        type=integer_from(0),
        default=0,
        metavar="N",
        help="decides the split, the weights and the order (default: %(default)s)",
    )
    demo.set_defaults(run=lambda options: _run_demo(demo, options))


def _run_demo(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from keras_turbo.demo import DemoError, run_demo

    try:
        result = run_demo(
            options.data,
            epochs=options.epochs,
            batch_size=options.batch_size,
            image_size=options.image_size,
            seed=options.seed,
        )
    except DemoError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    result.print()
    return 0
