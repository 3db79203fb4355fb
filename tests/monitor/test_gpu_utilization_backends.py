"""GpuUtilization under each backend of Keras that is installed, each in a process of its own."""

import importlib.util
import json

import pytest

TRAIN = """
    import os, sys
    os.environ["KERAS_BACKEND"] = sys.argv[1]
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import json, threading, time, warnings
    import keras
    import numpy as np
    warnings.simplefilter("ignore")
    from keras_turbo import GpuUtilization

    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")

    class Slow(keras.utils.PyDataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            time.sleep(0.05)
            return x, y

    def model():
        keras.utils.set_random_seed(0)
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay([15], [0.1, 0.01])
        made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        made.compile(keras.optimizers.SGD(schedule), "mse")
        return made

    class Sleeps(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            time.sleep(0.3)

    class Fails(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            raise RuntimeError("on purpose")

    plain = model().fit(Slow(), epochs=2, verbose=0).history["loss"]
    callback = GpuUtilization(interval=0.05, log_dir=sys.argv[2])
    one = model()
    history = one.fit(Slow(), epochs=2, verbose=0, validation_data=(x, y), callbacks=[callback]).history
    input_bound = callback.verdict.kind
    own_function = type(one.train_function).__name__
    one.fit(x, y, batch_size=2, epochs=2, verbose=0, callbacks=[callback, Sleeps()])
    callback_bound = str(callback.verdict)
    try:
        one.fit(x, y, epochs=2, verbose=0, callbacks=[callback, Fails()])
    except RuntimeError as error:
        failed = str(error)
    for _ in range(500):
        # It is told to end, and need not have done so at once.
        threads = [thread.name for thread in threading.enumerate() if "sampler" in thread.name]
        if threads:
            time.sleep(0.01)
    print(json.dumps({
        "same": plain == history["loss"],
        "history": history,
        "input": input_bound,
        "callbacks": callback_bound,
        "function": own_function,
        "failed": failed,
        "threads": threads,
        "files": len(os.listdir(sys.argv[2])),
    }))
"""

BACKENDS = [
    pytest.param(
        backend,
        marks=pytest.mark.skipif(importlib.util.find_spec(backend) is None, reason=f"{backend} is not installed"),
    )
    for backend in ("jax", "torch")
]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", *BACKENDS])
def test_each_backend(backend, run_python, tmp_path):
    found = json.loads(run_python(TRAIN, backend, tmp_path / "logs").splitlines()[-1])
    assert found["same"]
    history = found["history"]
    for name in ("step_ms_median", "step_ms_p95", "examples_per_second", "input_wait_ms", "input_wait_percent"):
        assert len(history[name]) == 2
    assert history["learning_rate"] == pytest.approx([0.1, 0.01])
    # 50 ms of sleep for each of its batches.
    assert history["input_wait_ms"][1] >= 40
    # 8 examples for each.
    assert 8 / history["examples_per_second"][1] >= 0.04
    assert found["input"] == "input-bound"
    assert found["callbacks"].startswith("callback-bound")
    assert "Sleeps" in found["callbacks"]
    assert "Watched" not in found["function"]
    assert "Intercepted" not in found["function"]
    assert found["failed"] == "on purpose"
    assert found["threads"] == []
    assert found["files"] >= 1
