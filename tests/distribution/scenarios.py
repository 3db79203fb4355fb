"""Stock `fit` in many ways, each written once: it runs on one device, over two devices, and over two workers.

A scenario is given a function that opens the scope in which models are made, and gives what must be equal.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_turbo.distribution import keras_overrides, strategies

Scope = Callable[[], contextlib.AbstractContextManager[Any]]
Results = dict[str, Any]

CROSSENTROPY = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


@contextlib.contextmanager
def opened(strategy: tf.distribute.Strategy) -> Iterator[tf.distribute.Strategy]:
    """What `distribute()` opens: the scope of a strategy of ours, and the overrides."""
    with keras_overrides.install(strategy), strategy.scope():
        yield strategy


def samples(count: int = 37, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 8)).astype("float32"), rng.integers(0, classes, count)


def batches(*arrays: Any, size: int = 6) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0]).batch(size)


def number(variable: Any) -> Any:
    """The value of a variable of Keras that is on several devices, or on one."""
    return np.asarray(tf.convert_to_tensor(variable)).item()


def results_of(model: keras.Model, history: Any = None, **others: Any) -> Results:
    optimizer: Any = model.optimizer
    return {
        "weights": [np.asarray(one) for one in model.get_weights()],
        "updates": number(optimizer.iterations),
        **({} if history is None else {"history": history.history}),
        **others,
    }


def scaling_of(model: keras.Model, optimizer: keras.optimizers.LossScaleOptimizer) -> Results:
    return {
        "weights": [np.asarray(one) for one in model.get_weights()],
        "scale": number(optimizer.dynamic_scale),
        "updates": number(optimizer.inner_optimizer.iterations),
    }


def ragged_batches(scope: Scope) -> Results:
    """7 batches of 6, of which the last has 1 row; 3 steps per execution; regularizers; evaluate and predict."""
    with scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(16, activation="relu", kernel_regularizer="l2", activity_regularizer="l2"),
                layers.Dense(3),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9),
            CROSSENTROPY(),
            metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
            steps_per_execution=3,
        )
    x, y = samples()
    data = batches(x, y)
    history = model.fit(data, epochs=2, validation_data=batches(x[:9], y[:9]), verbose=0)
    evaluated = model.evaluate(data, verbose=0)
    return results_of(model, history, evaluated=evaluated, predicted=model.predict(batches(x), verbose=0))


def weights_and_clipping(scope: Scope) -> Results:
    """Sample weights, class weights, weighted metrics; the norm of all gradients together clipped; weight decay."""
    with scope():
        model = keras.Sequential([keras.Input((8,)), layers.Dense(16, activation="tanh"), layers.Dense(3)])
        model.compile(
            keras.optimizers.AdamW(0.05, weight_decay=0.1, global_clipnorm=0.5),
            CROSSENTROPY(),
            weighted_metrics=["accuracy"],
        )
    x, y = samples()
    rows = np.linspace(0.1, 3, len(x), dtype="float32")
    history = model.fit(batches(x, y, rows), verbose=0)
    by_class = model.fit(batches(x, y), class_weight={0: 1.0, 1: 5.0, 2: 0.2}, verbose=0)
    return results_of(model, history, by_class=by_class.history)


def accumulation(scope: Scope) -> Results:
    """An embedding's sparse gradients and dense ones, accumulated, clipped, and averaged weights."""
    with scope():
        model = keras.Sequential(
            [keras.Input((4,), dtype="int32"), layers.Embedding(10, 6), layers.Flatten(), layers.Dense(3)]
        )
        optimizer = keras.optimizers.Adam(
            0.05, gradient_accumulation_steps=2, clipnorm=0.2, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
        )
        model.compile(optimizer, CROSSENTROPY(), steps_per_execution=2)
    rng = np.random.default_rng(1)
    history = model.fit(batches(rng.integers(0, 10, (37, 4)), samples()[1]), epochs=2, verbose=0)
    averages = [np.asarray(tf.convert_to_tensor(one)) for one in optimizer._model_variables_moving_average]
    return results_of(model, history, averages=averages)


def sparse_gradients(scope: Scope) -> Results:
    """An embedding whose rows come several times in a batch, and in some replicas only."""
    with scope():
        model = keras.Sequential(
            [keras.Input((3,), dtype="int32"), layers.Embedding(20, 4), layers.Flatten(), layers.Dense(3)]
        )
        model.compile(keras.optimizers.SGD(0.5, clipvalue=0.1), CROSSENTROPY(), steps_per_execution=2)
    rng = np.random.default_rng(2)
    history = model.fit(batches(rng.integers(0, 12, (19, 3)), samples(19)[1]), verbose=0)
    return results_of(model, history)


def sparse_gradients_of_uneven_steps(scope: Scope) -> Results:
    """Steps of 6, 6, 6 and 2 rows in an execution: both replicas have 3 rows in the first and 1 in the last."""
    with scope():
        model = keras.Sequential(
            [keras.Input((3,), dtype="int32"), layers.Embedding(20, 4), layers.Flatten(), layers.Dense(3)]
        )
        model.compile(keras.optimizers.Adam(0.05, clipnorm=0.2), CROSSENTROPY(), steps_per_execution=4)
    rng = np.random.default_rng(2)
    history = model.fit(batches(rng.integers(0, 12, (20, 3)), samples(20)[1]), epochs=2, verbose=0)
    return results_of(model, history)


def synchronized_statistics(scope: Scope) -> Results:
    """BatchNormalization over all rows of the global batch, the last of which is uneven."""
    with scope():
        model = keras.Sequential(
            [keras.Input((8,)), layers.Dense(6), layers.BatchNormalization(synchronized=True), layers.Dense(3)]
        )
        model.compile(keras.optimizers.SGD(0.1), CROSSENTROPY())
    x, y = samples(27)
    history = model.fit(batches(x, y), epochs=2, verbose=0)
    return results_of(model, history)


def masked_statistics(scope: Scope) -> Results:
    """BatchNormalization over what a mask lets through in the global batch: more in some rows than in others."""
    with scope():
        model = keras.Sequential(
            [
                keras.Input((5, 3)),
                layers.Masking(),
                layers.BatchNormalization(momentum=0.5, synchronized=True),
                layers.GlobalAveragePooling1D(),
                layers.Dense(3),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), CROSSENTROPY())
    rng = np.random.default_rng(6)
    x = 0.3 + rng.normal(size=(13, 5, 3)) * np.linspace(0.1, 1, 13)[:, None, None]
    x *= (np.arange(5) <= np.arange(13)[:, None] % 5)[..., None]
    history = model.fit(batches(x.astype("float32"), samples(13)[1]), epochs=2, verbose=0)
    return results_of(model, history)


def statistics(scope: Scope) -> Results:
    """The moving mean of BatchNormalization, in which all rows count, also where a replica has none."""
    with scope():
        model = keras.Sequential([keras.Input((8,)), layers.BatchNormalization(momentum=0.5), layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.0), CROSSENTROPY())
    x, y = samples(13)
    model.fit(batches(x, y), verbose=0)
    normalization: Any = model.layers[0]
    others = [np.asarray(one) for one in model.get_weights()]
    return {"moving_mean": np.asarray(normalization.moving_mean), "finite": all(np.isfinite(w).all() for w in others)}


class GuideModel(keras.Model):
    """The train step of Keras' guide, and a loss tracker of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(16, activation="relu")
        self.out = layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="own_loss")

    def call(self, inputs: Any) -> Any:
        return self.out(self.hidden(inputs))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.tracker.update_state(loss)
        return {"own_loss": self.tracker.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]


def custom_train_step(scope: Scope) -> Results:
    with scope():
        model = GuideModel()
        model.compile(keras.optimizers.SGD(0.05, clipnorm=0.3), "mse", steps_per_execution=2)
    x, _ = samples(32)
    history = model.fit(batches(x, x.sum(-1, keepdims=True), size=8), epochs=2, verbose=0)
    return results_of(model, history)


class SignDescent(keras.optimizers.SGD):
    """An optimizer that has an `apply` of its own."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply([keras.ops.sign(one) for one in grads], trainable_variables)


class TwoOptimizers(keras.Model):
    """Two optimizers, losses by hand, and logs that are no metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(4)
        self.second = layers.Dense(1)

    def compile(self, optimizers: list[Any]) -> None:
        super().compile(optimizer=optimizers[0])
        self.optimizers = optimizers

    def call(self, inputs: Any) -> Any:
        return self.second(self.first(inputs))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            difference = keras.ops.mean((self(x) - y) ** 2)
            size = keras.ops.mean(self.first(x) ** 2)
        for loss, layer, optimizer in ((difference, self.second, 0), (size, self.first, 1)):
            variables = layer.trainable_variables
            self.optimizers[optimizer].apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"difference": difference, "size": size}


def handwritten_losses(scope: Scope) -> Results:
    with scope():
        model = TwoOptimizers()
        model.compile([keras.optimizers.Adam(0.01, clipnorm=1.0), SignDescent(0.1)])
    x, _ = samples(15)
    history = model.fit(batches(x, x.sum(-1, keepdims=True)), epochs=2, verbose=0)
    return results_of(model, history)


def masked_sequences(scope: Scope) -> Results:
    """Two outputs with loss weights; a mask that lets other numbers of values through in each row."""
    with scope():
        tokens = keras.Input((5,), dtype="int32")
        embedded = layers.Embedding(10, 4, mask_zero=True)(tokens)
        tagged = layers.Dense(3, name="tag")(embedded)
        score = layers.Dense(1, name="score")(layers.GlobalAveragePooling1D()(embedded))
        model = keras.Model(tokens, {"tag": tagged, "score": score})
        model.compile(
            keras.optimizers.SGD(0.1),
            {"tag": CROSSENTROPY(), "score": keras.losses.MeanSquaredError(reduction="sum")},
            loss_weights={"tag": 1.0, "score": 0.1},
        )
    rng = np.random.default_rng(3)
    x = rng.integers(0, 10, (15, 5)) * (rng.random((15, 5)) < np.linspace(0.2, 1, 15)[:, None])
    x[:, 0] = 1
    data = tf.data.Dataset.from_tensor_slices(
        (x, {"tag": rng.integers(0, 3, (15, 5)), "score": rng.normal(size=(15, 1)).astype("float32")})
    )
    history = model.fit(data.batch(6), epochs=2, verbose=0)
    return results_of(model, history)


class MeanOfSquares(keras.metrics.Metric):
    """A metric that would be NaN for good if it saw a batch without rows, and whose count padding would change."""

    def __init__(self) -> None:
        super().__init__(name="mean_of_squares")
        self.sum = self.add_weight(name="sum", initializer="zeros")
        self.rows = self.add_weight(name="rows", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        rows = keras.ops.cast(keras.ops.shape(y_pred)[0], "float32")
        self.sum.assign_add(keras.ops.mean(keras.ops.square(y_pred)) * rows)
        self.rows.assign_add(rows)

    def result(self) -> Any:
        return self.sum / self.rows


def mean_target(y_true: Any, y_pred: Any) -> Any:
    """A metric that gives a mean over rows."""
    return keras.ops.mean(keras.ops.cast(y_true, "float32"))


def images_of_unknown_size(scope: Scope) -> Results:
    """Convolutions of 3 x 3 without a border, and in the last batch a replica without rows. Then a row is 5 x 7."""
    with scope():
        model = keras.Sequential(
            [
                keras.Input((None, None, 3)),
                layers.Conv2D(4, 3, activation="relu"),
                layers.BatchNormalization(synchronized=True),
                layers.Conv2D(4, 3, activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(3),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), CROSSENTROPY(), metrics=["accuracy", MeanOfSquares(), mean_target])
    rng = np.random.default_rng(4)
    images, labels = rng.normal(size=(9, 5, 7, 3)).astype("float32"), samples(9)[1]
    parts = [(images[at : at + 4], labels[at : at + 4]) for at in range(0, 9, 4)]
    signature = (tf.TensorSpec((None, None, None, 3)), tf.TensorSpec((None,), tf.int64))
    data = tf.data.Dataset.from_generator(lambda: iter(parts), output_signature=signature)
    data = data.apply(tf.data.experimental.assert_cardinality(len(parts)))
    with warnings.catch_warnings():
        # Several workers say that each has to make the same data.
        warnings.simplefilter("ignore")
        history = model.fit(data, epochs=2, verbose=0)
        evaluated = model.evaluate(data, verbose=0)
        predicted = model.predict(data.map(lambda image, _: image), verbose=0)
    return results_of(model, history, evaluated=evaluated, predicted=predicted)


class PenaltyByHand(keras.Model):
    """`compute_loss` and a mean of its own in one loss, with uneven parts of a batch; logs and a tracker of it."""

    def __init__(self) -> None:
        super().__init__()
        self.out = layers.Dense(3)
        self.tracker = keras.metrics.Mean(name="tracked")

    def call(self, inputs: Any) -> Any:
        return self.out(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            total = self.compute_loss(y=y, y_pred=outputs) + 0.1 * keras.ops.mean(outputs**2)
        self.optimizer.apply(tape.gradient(total, self.trainable_variables), self.trainable_variables)
        self.tracker.update_state(total)
        return {"total": total, "tracked": self.tracker.result()}


def penalty_by_hand(scope: Scope) -> Results:
    with scope():
        model = PenaltyByHand()
        model.compile(keras.optimizers.SGD(0.1), CROSSENTROPY())
    totals: list[float] = []
    read = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: totals.append(float(logs["total"])))
    x, y = samples(8)
    model.fit(batches(x, y, size=5), epochs=2, verbose=0, callbacks=[read])
    ones = model.fit(batches(x[:7], y[:7]), verbose=0, callbacks=[read])
    return results_of(model, ones, totals=totals, tracked=number(model.tracker.result()))


class MoreThanMetrics(keras.Sequential):
    """What Keras' own step gives, and a number of its own."""

    def train_step(self, data: Any) -> dict[str, Any]:
        return {**super().train_step(data), "learning_rate": tf.convert_to_tensor(self.optimizer.learning_rate)}


def more_than_metrics(scope: Scope) -> Results:
    x, y = samples(9)
    with scope():
        model = MoreThanMetrics([keras.Input(x.shape[1:]), layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1), CROSSENTROPY(), metrics=["accuracy"], steps_per_execution=2)
    # Parts of 4 and 3 rows, and of 2 and none.
    return results_of(model, model.fit(batches(x, y, size=7), epochs=2, verbose=0))


def reported_cases(scope: Scope) -> Results:
    """Numbers that are known beforehand: see `EXPECTED_IN_CASES`."""
    found: Results = {}

    # Losses 1..5, batch 4.
    with scope():
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.compile("sgd", "mae")
    x = np.arange(1.0, 6.0, dtype="float32")[:, None]
    found["evaluate"] = float(model.evaluate(batches(x, 0 * x, size=4), verbose=0))
    for rows in range(4, 10):
        values = np.arange(rows, dtype="float32")[:, None]
        found[f"predict {rows}"] = model.predict(batches(values, size=4), verbose=0)[:, 0].tolist()

    # w = 1, l2(0.1), no loss of the data.
    with scope():
        model = keras.Sequential(
            [
                keras.Input((1,)),
                layers.Dense(
                    1, use_bias=False, kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.1)
                ),
            ]
        )
        model.compile(keras.optimizers.SGD(1.0), "mse")
    history = model.fit(batches(np.zeros((4, 1), "float32"), np.zeros((4, 1), "float32"), size=4), verbose=0)
    found["l2 loss"] = history.history["loss"][0]
    found["l2 weight"] = float(model.get_weights()[0][0, 0])

    # Two rows whose gradients are 12 and -4: their mean is 4, and 6 and -2 are the parts of two replicas.
    with scope():
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(1.0, clipnorm=1.0), lambda target, output: target * output)
    model.fit(batches(np.ones((2, 1), "float32"), np.array([[12.0], [-4.0]], "float32"), size=2), verbose=0)
    found["clipped update"] = -float(model.get_weights()[0][0, 0])
    return found


EXPECTED_IN_CASES = {
    "evaluate": 3.0,
    **{f"predict {rows}": [float(row) for row in range(rows)] for rows in range(4, 10)},
    "l2 loss": 0.1,
    "l2 weight": 0.8,
    "clipped update": 1.0,
}


def float16(scope: Scope) -> Results:
    """Loss scaling: the second of four batches overflows in its first row only, which is one replica's."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with scope():
            model = keras.Sequential(
                [keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(1, dtype="float32")]
            )
            inner = keras.optimizers.SGD(0.01, clipnorm=0.5)
            optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=256.0, dynamic_growth_steps=2)
            model.compile(optimizer, "mse")
    finally:
        keras.config.set_dtype_policy(before)
    x, _ = samples(16)
    y = x.sum(-1, keepdims=True)
    y[4] = np.inf
    model.fit(batches(x, y, size=4), verbose=0)
    return scaling_of(model, optimizer)


def accumulated_float16(scope: Scope) -> Results:
    """A batch that overflows is left out of the accumulated gradients on all replicas."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with scope():
            model = keras.Sequential([keras.Input((8,)), layers.Dense(4), layers.Dense(1, dtype="float32")])
            inner = keras.optimizers.SGD(0.01, gradient_accumulation_steps=2)
            optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=256.0)
            model.compile(optimizer, "mse")
    finally:
        keras.config.set_dtype_policy(before)
    x, _ = samples(20)
    y = x.sum(-1, keepdims=True)
    y[7] = np.inf
    model.fit(batches(x, y, size=4), verbose=0)
    return scaling_of(model, optimizer)


class CompiledBlock(layers.Layer):
    """Two dense layers whose forward and backward pass are XLA programs of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(16, activation="gelu")
        self.second = layers.Dense(8)

    def build(self, input_shape: Any) -> None:
        self.first.build(input_shape)
        self.second.build((None, 16))

    @tf.function(jit_compile=True, autograph=False)
    def compiled(self, inputs: Any) -> Any:
        return self.second(self.first(inputs))

    def call(self, inputs: Any) -> Any:
        return self.compiled(inputs)


def compiled_block(scope: Scope) -> Results:
    """XLA within a replica: what exchanges values is outside of it."""
    with scope():
        model = keras.Sequential([keras.Input((8,)), CompiledBlock(), layers.Dense(3)])
        model.compile(keras.optimizers.Adam(0.01), CROSSENTROPY(), steps_per_execution=2, jit_compile=False)
    x, y = samples()
    history = model.fit(batches(x, y), epochs=2, verbose=0)
    return results_of(model, history, predicted=model.predict(batches(x), verbose=0))


def batch_methods(scope: Scope) -> Results:
    """What trains on one batch at a time: each replica is given all of it."""
    with scope():
        model = keras.Sequential([keras.Input((8,)), layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1), CROSSENTROPY(), metrics=["accuracy"])
    x, y = samples(6)
    trained = [float(one) for one in model.train_on_batch(x, y)]
    return results_of(model, trained=trained, tested=[float(one) for one in model.test_on_batch(x, y)])


SCENARIOS: dict[str, Callable[[Scope], Results]] = {
    function.__name__: function
    for function in (
        ragged_batches,
        weights_and_clipping,
        accumulation,
        sparse_gradients,
        sparse_gradients_of_uneven_steps,
        synchronized_statistics,
        masked_statistics,
        statistics,
        custom_train_step,
        handwritten_losses,
        masked_sequences,
        images_of_unknown_size,
        penalty_by_hand,
        more_than_metrics,
        reported_cases,
        float16,
        accumulated_float16,
        compiled_block,
        batch_methods,
    )
}


def run_scenario(name: str, scope: Scope) -> Results:
    """Runs a scenario from the same seeds each time."""
    keras.utils.set_random_seed(5)
    return SCENARIOS[name](scope)


@functools.cache
def on_one_device(name: str) -> Results:
    """What a scenario gives on one device."""
    return run_scenario(name, contextlib.nullcontext)


def random_numbers(strategy: tf.distribute.Strategy) -> Results:
    """What is random, after each worker began with a seed of its own; and a fit on arrays that Keras shuffles."""
    keras.utils.set_random_seed(100 + json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    own = drawn()
    with opened(strategy):
        shared = drawn()
        model = keras.Sequential([keras.Input((8,)), layers.Dense(8), layers.Dropout(0.5), layers.Dense(1)])
        model.build()
        initial = [np.asarray(one) for one in model.get_weights()]
    # Each row moves a weight of its own, and by 1 each time.
    with opened(strategy):
        counting = keras.Sequential([keras.Input((12,)), layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        counting.compile(keras.optimizers.SGD(4.0), lambda target, output: target * output)
    x = np.eye(12, dtype="float32")
    history = counting.fit(x, -np.ones((12, 1), "float32"), batch_size=4, epochs=3, verbose=0)
    counts = np.asarray(counting.get_weights()[0])[:, 0]
    return {"own": own, "shared": shared, "initial": initial, "counts": counts, "history": history.history}


def drawn() -> list[float]:
    """A number from each generator that a script may use."""
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), float(tf.random.uniform(()))]  # noqa: NPY002


def on_this_worker(names: list[str]) -> dict[str, Any]:
    """Runs scenarios in a worker process, all with the same strategy: TensorFlow makes one in a process."""
    strategy = strategies.multi_worker()
    results = {name: run_scenario(name, lambda: opened(strategy)) for name in names}
    return {**results, "random numbers": random_numbers(strategy)}


def largest_difference(found: Any, expected: Any) -> float:
    """The largest difference of any number within two results of the same structure."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        return max(largest_difference(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        assert len(found) == len(expected)
        return max((largest_difference(*pair) for pair in zip(found, expected, strict=True)), default=0.0)
    found, expected = np.asarray(found, "float64"), np.asarray(expected, "float64")
    assert found.shape == expected.shape
    return float(np.max(np.abs(found - expected), initial=0.0))
