"""Runs a script as python does; in its first start, one worker kills itself at a step.

Arguments: index of the worker, step, the script and what it is given.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys

import keras

worker, step = int(sys.argv[1]), int(sys.argv[2])
sys.argv = sys.argv[3:]
is_to_die = os.environ["KERAS_TURBO_RESTART"] == "0" and json.loads(os.environ["TF_CONFIG"])["task"]["index"] == worker


class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if is_to_die and int(self.model.optimizer.iterations.numpy()) == step:
            os.kill(os.getpid(), signal.SIGKILL)


own_fit = keras.Model.fit


def fit(model, *args, callbacks, **kwargs):
    return own_fit(model, *args, callbacks=[*callbacks, Dies()], **kwargs)


keras.Model.fit = fit
runpy.run_path(sys.argv[0], run_name="__main__")
