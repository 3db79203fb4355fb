"""Small training runs of every kind that a checkpoint must bring back bit for bit."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.execution.installation import apply_setting
from keras_turbo.execution.setting import ExecutionSetting
from keras_turbo.fit.training_state import METRICS, find_state

N, BATCH_SIZE, EPOCHS = 44, 4, 3
STEPS = 11  # in an epoch, which neither 2 nor 4 divides
_NUMBERS = np.random.default_rng(0)
X = _NUMBERS.normal(size=(N, 5)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) > 0).astype("float32")


@dataclasses.dataclass
class TrainingRun:
    """What a call of fit needs, made anew for each process.

    Args:
        model: compiled.
        data: x of fit.
        callbacks: all but AsyncCheckpoint.
        fit: further arguments of fit.
    """

    model: keras.Model
    data: Any
    callbacks: list[keras.callbacks.Callback] = dataclasses.field(default_factory=list)
    fit: dict[str, Any] = dataclasses.field(default_factory=dict)


def small_model(optimizer: Any = None, *, layers: tuple = (), **options: Any) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(6, activation="tanh"), *layers, keras.layers.Dense(1)]
    )
    model.compile(
        optimizer or keras.optimizers.Adam(0.01),
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=["mae"],
        **{"jit_compile": False, **options},
    )
    return model


def shuffled(**options: Any) -> FastDataset:
    return FastDataset(X, Y, **{"batch_size": BATCH_SIZE, "shuffle": True, "seed": 7, **options})


def in_order() -> FastDataset:
    return FastDataset(X, Y, batch_size=BATCH_SIZE)


def noisy(x: tf.Tensor, y: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return x + tf.random.stateless_normal([5], seed) * 0.1, y


def dropout_and_batch_normalization() -> TrainingRun:
    layers = (keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))
    return TrainingRun(small_model(layers=layers), shuffled(), fit={"validation_data": in_order()})


def adam_with_a_schedule() -> TrainingRun:
    rate = keras.optimizers.schedules.CosineDecay(0.02, decay_steps=EPOCHS * STEPS, warmup_steps=5, warmup_target=0.03)
    return TrainingRun(small_model(keras.optimizers.Adam(rate)), shuffled())


def averaged_weights() -> TrainingRun:
    return TrainingRun(small_model(keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=7)), shuffled())


def mixed_float16() -> TrainingRun:
    with policy("mixed_float16"):
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.01), initial_scale=2.0**20, dynamic_growth_steps=5
        )
        return TrainingRun(small_model(optimizer, layers=(keras.layers.Dropout(0.3),)), shuffled())


def gradient_accumulation() -> TrainingRun:
    return TrainingRun(small_model(keras.optimizers.Adam(0.01, gradient_accumulation_steps=3)), shuffled())


def four_steps_per_execution() -> TrainingRun:
    return TrainingRun(small_model(layers=(keras.layers.Dropout(0.3),), steps_per_execution=4), shuffled())


def plateau() -> TrainingRun:
    callback = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_delta=10.0)
    return TrainingRun(small_model(), shuffled(), [callback], {"validation_data": in_order()})


def early_stopping() -> TrainingRun:
    callback = keras.callbacks.EarlyStopping(
        monitor="val_loss", patience=2, min_delta=0.001, mode="max", restore_best_weights=True
    )
    return TrainingRun(small_model(), shuffled(), [callback], {"validation_data": in_order(), "epochs": 5})


def tuned_with_xla() -> TrainingRun:
    model = small_model(layers=(keras.layers.Dropout(0.3),))
    apply_setting(model, ExecutionSetting("xla", 4))
    return TrainingRun(model, shuffled())


def tuned_graph_loop() -> TrainingRun:
    model = small_model(layers=(keras.layers.Dropout(0.3),))
    apply_setting(model, ExecutionSetting("graph", 4))
    return TrainingRun(model, shuffled().repeat(), fit={"steps_per_epoch": STEPS})


def tuned_over_tf_data() -> TrainingRun:
    model = small_model()
    apply_setting(model, ExecutionSetting("xla", 4))
    return TrainingRun(model, tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH_SIZE))


def shuffled_and_augmented() -> TrainingRun:
    validation = shuffled(augment_fn=noisy, seed=9)
    return TrainingRun(
        small_model(), shuffled(augment_fn=noisy, drop_remainder=True), fit={"validation_data": validation}
    )


def learning_rate_by_epoch() -> TrainingRun:
    callback = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    return TrainingRun(small_model(), shuffled(), [callback])


def a_part_of_the_data_an_epoch() -> TrainingRun:
    # One iterator serves two epochs and a bit; then comes another one.
    return TrainingRun(small_model(), shuffled(batch_size=2), fit={"steps_per_epoch": STEPS, "epochs": 5})


def repeated() -> TrainingRun:
    return TrainingRun(small_model(steps_per_execution=2), shuffled().repeat(), fit={"steps_per_epoch": 6, "epochs": 4})


def made_of_a_fast_dataset() -> TrainingRun:
    data = shuffled(augment_fn=noisy).map(lambda x, y: (x * 2, y)).prefetch(2)
    return TrainingRun(small_model(), data)


def with_class_weight() -> TrainingRun:
    return TrainingRun(small_model(), shuffled(), fit={"class_weight": {0: 1.0, 1: 3.0}})


def plain_arrays() -> TrainingRun:
    return TrainingRun(small_model(), X, fit={"y": Y, "batch_size": BATCH_SIZE, "shuffle": False})


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(6, activation="tanh")
        self.dropout = keras.layers.Dropout(0.4)
        self.last = keras.layers.Dense(1)

    def call(self, inputs: tf.Tensor, training: bool = False) -> Any:
        return self.last(self.dropout(self.hidden(inputs), training=training))


def eager() -> TrainingRun:
    # Nothing is traced, so that it begins at once.
    optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
    model = small_model(optimizer, layers=(keras.layers.Dropout(0.2),), run_eagerly=True)
    return TrainingRun(model, shuffled(), fit={"epochs": 15})


def unbuilt() -> TrainingRun:
    model = Subclassed()
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], jit_compile=False)
    return TrainingRun(model, shuffled(), fit={"validation_data": in_order()})


def generator() -> TrainingRun:
    def batches() -> Iterator[Any]:
        while True:
            for start in range(0, N, BATCH_SIZE):
                yield X[start : start + BATCH_SIZE], Y[start : start + BATCH_SIZE]

    return TrainingRun(unbuilt().model, batches(), fit={"steps_per_epoch": STEPS})


class Gan(keras.Model):
    """As in Keras' own examples: two models and two optimizers as attributes, a step of its own, and no `call`.

    Args:
        holds: how the second model and its optimizer are held: as "attributes", in a "list" or a "dict".
    """

    def __init__(self, holds: str = "attributes") -> None:
        super().__init__()
        self.holds = holds
        discriminator = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6), keras.layers.Dropout(0.3)])
        discriminator.add(keras.layers.Dense(1))
        generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5, activation="tanh")])
        generator.add(keras.layers.BatchNormalization())
        self.discriminator = discriminator
        self._hold("generator", generator)
        self.seeds = keras.random.SeedGenerator(1337)

    def _hold(self, name: str, value: Any) -> None:
        held = {"attributes": value, "list": [value], "dict": {"one": value}}[self.holds]
        setattr(self, name, held)

    def _held(self, name: str) -> Any:
        held = getattr(self, name)
        return {"attributes": lambda: held, "list": lambda: held[0], "dict": lambda: held["one"]}[self.holds]()

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any, **options: Any) -> None:
        super().compile(**options)
        self.d_optimizer = d_optimizer
        self._hold("g_optimizer", g_optimizer)
        self.loss_fn = loss_fn
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss, self.g_loss]

    def train_step(self, data: Any) -> dict[str, Any]:
        real, _ = data
        rows = tf.shape(real)[0]
        generator, g_optimizer = self._held("generator"), self._held("g_optimizer")
        noise = keras.random.normal((rows, 3), seed=self.seeds)
        both = tf.concat([generator(noise, training=True), real], axis=0)
        labels = tf.concat([tf.ones((rows, 1)), tf.zeros((rows, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both, training=True))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        noise = keras.random.normal((rows, 3), seed=self.seeds)
        with tf.GradientTape() as tape:
            fooled = self.discriminator(generator(noise, training=True), training=True)
            g_loss = self.loss_fn(tf.zeros((rows, 1)), fooled)
        weights = generator.trainable_weights
        g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


def compiled_gan(holds: str = "attributes", **options: Any) -> Gan:
    model = Gan(holds)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    options = {"jit_compile": False, **options}
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.02), loss, **options)
    return model


def gan() -> TrainingRun:
    return TrainingRun(compiled_gan(), shuffled())


def gan_with_lists() -> TrainingRun:
    return TrainingRun(compiled_gan("list"), shuffled().repeat(), fit={"steps_per_epoch": STEPS})


def gan_with_dicts() -> TrainingRun:
    return TrainingRun(compiled_gan("dict", steps_per_execution=4), shuffled())


class Vae(keras.Model):
    """An encoder and a decoder as attributes, trained by one optimizer in a step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.layers.Dense(4)
        self.decoder = keras.layers.Dense(5)
        self.seeds = keras.random.SeedGenerator(3)
        self.total = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _ = data
        with tf.GradientTape() as tape:
            mean, deviation = tf.split(self.encoder(x), 2, axis=1)
            latent = mean + tf.exp(deviation) * keras.random.normal(tf.shape(mean), seed=self.seeds)
            loss = tf.reduce_mean(tf.square(self.decoder(latent) - x)) + 0.1 * tf.reduce_mean(tf.square(mean))
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        self.total.update_state(loss)
        return {"loss": self.total.result()}


def vae() -> TrainingRun:
    model = Vae()
    model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    return TrainingRun(model, shuffled())


RUNS: dict[str, Callable[[], TrainingRun]] = {
    run.__name__: run
    for run in (
        dropout_and_batch_normalization,
        adam_with_a_schedule,
        averaged_weights,
        mixed_float16,
        gradient_accumulation,
        four_steps_per_execution,
        plateau,
        early_stopping,
        tuned_with_xla,
        tuned_graph_loop,
        tuned_over_tf_data,
        shuffled_and_augmented,
        learning_rate_by_epoch,
        a_part_of_the_data_an_epoch,
        repeated,
        made_of_a_fast_dataset,
        with_class_weight,
        plain_arrays,
        eager,
        unbuilt,
        generator,
        gan,
        gan_with_lists,
        gan_with_dicts,
        vae,
    )
}


def make(name: str) -> TrainingRun:
    """The same run each time, from the same seeds on."""
    keras.utils.set_random_seed(4)
    return RUNS[name]()


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def fit(run: TrainingRun, callbacks: list[keras.callbacks.Callback]) -> keras.callbacks.History:
    """Runs it, with further callbacks before its own."""
    arguments = {"epochs": EPOCHS, "verbose": 0, **run.fit}
    return run.model.fit(run.data, callbacks=[*callbacks, *run.callbacks], **arguments)


def outcome(run: TrainingRun, history: keras.callbacks.History) -> dict[str, np.ndarray]:
    """All that a run has come to, as arrays: weights, optimizer, seeds, history."""
    found = {f"weight {index}": np.asarray(weight) for index, weight in enumerate(run.model.get_weights())}
    state = find_state(run.model)
    found |= {path: np.asarray(each) for path, each in {**state.weights, **state.extra}.items() if METRICS not in path}
    found |= {
        name: np.asarray(values)
        for name, values in history.history.items()
        if not name.startswith("checkpoint_")  # times
    }
    found["epochs"] = np.asarray(history.epoch)
    return found


def assert_same_outcome(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
