"""What `gradient_compression` costs: the error of the sum of real gradients, and what it does to a training.

    pip install scikit-learn
    python docs/compression_error.py

A small convolutional net learns the handwritten digits of scikit-learn, on the processor's virtual devices: as many
replicas as asked for, each with its own rows of a batch, which exchange gradients by the code that real devices use.
The error of a sum is its distance from the sum in float64, by the length of that. docs/scaling.md has the figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_turbo
from keras_turbo.distribution import strategies
from keras_turbo.distribution.communication import Communication, set_communication, sum_over_replicas

COMPRESSIONS = ("float16", "bfloat16")
ROWS_OF_A_REPLICA = 16
HELD_OUT = 360

Gradients = list[list[np.ndarray]]


def digits() -> tuple[np.ndarray, np.ndarray]:
    """The images, in values from 0 to 1, and what they show; in an order drawn once."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order].reshape(-1, 8, 8, 1) / 16).astype("float32"), labels[order].astype("int64")


def model_of(seed: int) -> keras.Model:
    """A compiled model, from weights drawn by a seed."""
    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"], jit_compile=False)
    return model


def gradients_of(model: keras.Model, replicas: int) -> Gradients:
    """For each replica the gradients of its own rows."""
    images, labels = digits()

    @tf.function
    def gradients(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    rows = np.arange(replicas * ROWS_OF_A_REPLICA).reshape(replicas, -1) % len(labels)
    return [[one.numpy() for one in gradients(images[own], labels[own])] for own in rows]


def normal_like(gradients: Gradients) -> Gradients:
    """Independent numbers of the same shapes: the worst case, since their sum is small beside them."""
    rng = np.random.default_rng(0)
    return [[rng.standard_normal(one.shape).astype("float32") for one in own] for own in gradients]


def error_percent(strategy: tf.distribute.Strategy, gradients: Gradients, compression: Any) -> float:
    """The distance of the sum over replicas from the exact one, by the length of that."""
    set_communication(strategy, Communication(gradient_compression=compression))
    values = [
        strategy.experimental_distribute_values_from_function(
            lambda context, place=place: tf.constant(gradients[context.replica_id_in_sync_group][place])
        )
        for place in range(len(gradients[0]))
    ]
    summed = tf.function(lambda given: strategy.run(sum_over_replicas, args=(given,)))(values)
    set_communication(strategy, Communication())
    found = np.concatenate(
        [np.asarray(strategy.experimental_local_results(one)[0], "float64").ravel() for one in summed]
    )
    exact = np.concatenate(
        [np.sum([own[place] for own in gradients], 0, "float64").ravel() for place in range(len(values))]
    )
    return float(100 * np.linalg.norm(found - exact) / np.linalg.norm(exact))


def trained(replicas: int, compression: Any, seed: int, epochs: int) -> tuple[float, float]:
    """Loss of the last epoch, and accuracy on what was held out."""
    images, labels = digits()
    devices = [f"CPU:{index}" for index in range(replicas)]
    with keras_turbo.distribute(tf.distribute.MirroredStrategy(devices), gradient_compression=compression):
        model = model_of(seed)
        train = keras_turbo.FastDataset(
            images[HELD_OUT:], labels[HELD_OUT:], batch_size=ROWS_OF_A_REPLICA * replicas, shuffle=True, seed=seed
        )
    history = model.fit(train, epochs=epochs, shuffle=False, verbose=0).history
    _, accuracy = model.evaluate(images[:HELD_OUT], labels[:HELD_OUT], batch_size=HELD_OUT, verbose=0)
    return history["loss"][-1], accuracy


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [headings, ["---:"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def errors(counts: Sequence[int], epochs: int) -> str:
    """The table of errors."""
    images, labels = digits()
    fresh, late = model_of(0), model_of(0)
    late.fit(images, labels, batch_size=128, epochs=epochs, verbose=0)
    rows = []
    for replicas in counts:
        strategy = strategies.mirrored([f"CPU:{index}" for index in range(replicas)])
        of_training = [gradients_of(model, replicas) for model in (fresh, late)]
        cases = [*of_training, normal_like(of_training[0])]
        found = [[error_percent(strategy, case, compression) for case in cases] for compression in COMPRESSIONS]
        rows.append([str(replicas), *(f"{one:.2g} %" for case in zip(*found, strict=True) for one in case)])
    kinds = ("first step", f"after {epochs} epochs", "independent")
    return table(["replicas", *(f"{kind}, {name}" for kind in kinds for name in COMPRESSIONS)], rows)


def trainings(replicas: int, epochs: int, seeds: int) -> str:
    """The table of trainings."""
    runs = {
        compression: np.array([trained(replicas, compression, seed, epochs) for seed in range(seeds)])
        for compression in (None, *COMPRESSIONS)
    }
    rows = []
    for compression, of_seeds in runs.items():
        loss, accuracy = of_seeds.mean(0)
        rows.append(
            [
                compression or "as they are",
                f"{loss:.5f}",
                f"{np.abs(of_seeds - runs[None])[:, 0].max():.5f}",
                f"{np.ptp(of_seeds[:, 0]):.5f}",
                f"{100 * accuracy:.2f} %",
            ]
        )
    kinds = ["loss of the last epoch", "largest difference, same seed", "range over seeds", "accuracy, held out"]
    return table(["gradients", *kinds], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 8, 32], help="of the sums (default: 2 8 32)")
    parser.add_argument("--trained-replicas", type=int, default=4, help="of the trainings (default: 4)")
    parser.add_argument("--epochs", type=int, default=6, help="of each training (default: 6)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind (default: 3)")
    options = parser.parse_args(arguments)
    if min(*options.replicas, options.trained_replicas, options.epochs, options.seeds) < 1:
        parser.error("all numbers must be at least 1")
    tf.config.set_visible_devices([], "GPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * max(*options.replicas, options.trained_replicas)
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    sys.stdout.write(errors(options.replicas, options.epochs) + "\n")
    sys.stdout.write(trainings(options.trained_replicas, options.epochs, options.seeds))


if __name__ == "__main__":
    main()
