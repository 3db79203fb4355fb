"""A training run in a process of its own that is killed at a random moment."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

# Only what can be imported before the process is forked: nothing is run here, which would start TensorFlow's threads.
PRELOADED = ["tests.checkpoint.killed_run", "keras_turbo", "tests.checkpoint.training_runs"]


def forkserver() -> Any:
    """Starts processes that have imported everything already, in a hundredth of the time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def train(name: str, directory: Path, result: Path, options: dict[str, Any], seconds: float | None, seed: int) -> None:
    """Trains until it is done, which is written to a file, or until it kills itself.

    Args:
        name: of one of the training runs.
        directory: of the checkpoints.
        result: where the outcome is written.
        options: of AsyncCheckpoint.
        seconds: how long after the first step SIGKILL comes, at most; None for never. A run that has no step left to
            do ends.
        seed: of the moment.
    """
    import keras
    import numpy as np

    from keras_turbo import AsyncCheckpoint
    from tests.checkpoint.training_runs import fit, make, outcome

    moment = None if seconds is None else random.Random(seed).uniform(0, seconds)

    begun = False

    def kill() -> None:
        time.sleep(moment or 0)
        os.kill(os.getpid(), signal.SIGKILL)

    def after_step(batch: int, logs: Any) -> None:
        nonlocal begun
        if moment is not None and not begun:
            begun = True
            threading.Thread(target=kill, daemon=True).start()

    beginning: Any = keras.callbacks.LambdaCallback(on_train_batch_end=after_step)
    beginning.needs_every_batch = False
    run = make(name)
    history = fit(run, [AsyncCheckpoint(directory, **options), beginning])
    if begun:
        # This machine was done before: the kill comes after the end.
        signal.pause()
    np.savez(result, **outcome(run, history))


def run_in_process(context: Any, *arguments: Any) -> int | None:
    """Runs `train` in a process; returns its exit code."""
    process = context.Process(target=train, args=arguments)
    process.start()
    process.join(120)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode
