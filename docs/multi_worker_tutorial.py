"""TensorFlow's tutorial "Multi-worker training with Keras", anew: handwritten digits, on one machine or on many.

The tutorial needs a TF_CONFIG in each process, a strategy made before everything else, a dataset with the right
autoshard policy, folders for the workers that are not the chief, and BackupAndRestore. It fails with Keras 3. Here it
is a script for one device, with one line more:

    python docs/multi_worker_tutorial.py                                      # one process
    python -m keras_turbo launch --workers 2 docs/multi_worker_tutorial.py    # two of them, with the same losses
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import keras
import sklearn.datasets

import keras_turbo

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--global-batch-size", type=int, default=64)
parser.add_argument("--checkpoints", type=Path, help="goes on from the newest one there")
parser.add_argument("--result", type=Path, help="where the chief writes the history")
options = parser.parse_args()

keras.utils.set_random_seed(1)
with keras_turbo.distribute() as strategy:
    images, digits = sklearn.datasets.load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    train = keras_turbo.FastDataset(
        images[:1472], digits[:1472], batch_size=options.global_batch_size, shuffle=True, seed=1
    )
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

callbacks = []
if options.checkpoints is not None:
    callbacks.append(keras_turbo.AsyncCheckpoint(options.checkpoints, save_freq=5))
if options.result is not None:
    callbacks.append(keras.callbacks.ModelCheckpoint(options.result.with_suffix(".weights.h5"), save_weights_only=True))
history = model.fit(
    train,
    epochs=options.epochs,
    validation_data=(images[1472:1792], digits[1472:1792]),
    validation_batch_size=options.global_batch_size,
    callbacks=callbacks,
)
if options.result is not None and keras_turbo.distribution.is_chief(strategy):
    options.result.write_text(json.dumps(history.history))
