"""Interceptors of the train function: their order, what they may do, and that nothing of them stays."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_turbo.callbacks.train_function import intercept_train_function, restore_train_function

from keras_turbo import tune


def small_model() -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


class Intercepting(keras.callbacks.Callback):
    def __init__(self, interceptor, first=False):
        super().__init__()
        self.interceptor, self.first = interceptor, first

    def on_train_begin(self, logs=None):
        intercept_train_function(self.model, self.interceptor, first=self.first)

    def on_train_end(self, logs=None):
        restore_train_function(self.model, self.interceptor)


X, Y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")


def recording(calls, name):
    def interceptor(run, iterator):
        calls.append(name)
        return run(iterator)

    return interceptor


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_interceptors_run_in_order_and_change_nothing(steps_per_execution):
    histories, calls = [], []
    for callbacks in ([], [Intercepting(recording(calls, "b")), Intercepting(recording(calls, "a"), first=True)]):
        keras.utils.set_random_seed(0)
        model = small_model()
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
        histories.append(model.fit(X, Y, batch_size=2, epochs=2, shuffle=False, verbose=0, callbacks=callbacks).history)
    assert histories[0] == histories[1]
    assert calls == ["a", "b"] * (8 // steps_per_execution)


def test_the_model_has_its_own_function_again():
    model = small_model()
    model.fit(X, Y, verbose=0)
    function = model.train_function
    calls = []
    callbacks = [Intercepting(recording(calls, "a")), Intercepting(recording(calls, "b"))]
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=callbacks)
    assert calls == ["a", "b"] * 2
    assert model.train_function is function
    model.train_on_batch(X, Y)
    assert len(calls) == 4


def test_an_interceptor_may_skip_executions():
    model = small_model()
    skipped = []

    def skip_two(run, iterator):
        if len(skipped) < 2:
            skipped.append(next(iterator))
            return {"loss": 0.0}
        return run(iterator)

    model.fit(X, Y, batch_size=2, verbose=0, callbacks=[Intercepting(skip_two)])
    assert int(model.optimizer.iterations.numpy()) == 2


def test_it_works_on_a_tuned_model():
    model = small_model()
    tune(model, (X, Y), batch_size=2, budget_seconds=1)
    calls = []
    callback = Intercepting(recording(calls, "a"))
    model.fit(X, Y, batch_size=2, verbose=0, callbacks=[callback])
    model.fit(X, Y, batch_size=2, verbose=0, callbacks=[callback])
    assert int(model.optimizer.iterations.numpy()) == 8
    assert calls


def test_a_model_that_was_never_fitted_has_nothing_to_intercept():
    with pytest.raises(ValueError, match="no train function yet"):
        intercept_train_function(small_model(), recording([], "a"))


def test_a_model_compiled_anew_has_nothing_to_restore():
    model = small_model()
    model.fit(X, Y, verbose=0)
    interceptor = recording([], "a")
    intercept_train_function(model, interceptor)
    model.compile("sgd", "mse")
    restore_train_function(model, interceptor)
    assert model.train_function is None
