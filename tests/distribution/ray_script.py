"""Trains under Ray's TensorflowTrainer on two workers, whose losses each writes to a folder.

Argument: the folder.
"""

from __future__ import annotations

import os
import sys
import tempfile

import ray
import ray.train
import ray.train.tensorflow


def train(config):
    import json
    from pathlib import Path

    import keras
    import numpy as np

    import keras_turbo
    from keras_turbo.distribution.workers import worker_of

    with keras_turbo.distribute() as strategy:
        x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
        data = keras_turbo.FastDataset(x, x.sum(axis=1, keepdims=True), batch_size=16, shuffle=True, seed=0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile("sgd", "mse")
    index, number = worker_of(strategy)
    losses = model.fit(data, epochs=2, verbose=0).history["loss"]
    Path(config["folder"], f"{index}.json").write_text(json.dumps({"workers": number, "losses": losses}))


if __name__ == "__main__":
    names = ("PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL", "KERAS_BACKEND", "KERAS_HOME")
    variables = {name: os.environ[name] for name in names if name in os.environ}
    # Ray leaves its files behind. Not in the other folder: a socket's path has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="ray_") as folder:
        ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": variables}, _temp_dir=folder)
        trainer = ray.train.tensorflow.TensorflowTrainer(
            train,
            train_loop_config={"folder": sys.argv[1]},
            scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=ray.train.RunConfig(storage_path=os.path.join(sys.argv[1], "ray")),
        )
        trainer.fit()
        ray.shutdown()
