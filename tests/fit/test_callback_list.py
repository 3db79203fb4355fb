"""A callback finds the list that calls it."""

from __future__ import annotations

import keras
import numpy as np
from keras_turbo.callbacks.callback_list import callback_list_of


class Finder(keras.callbacks.Callback):
    found = None

    def on_train_begin(self, logs=None):
        self.found = callback_list_of(self)


class FinderBelow(Finder):
    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)


def fit(callbacks):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0, callbacks=callbacks)


def test_the_list_of_fit_is_found_also_from_a_subclass():
    stopping = keras.callbacks.EarlyStopping(monitor="loss")
    callbacks = [Finder(), stopping, FinderBelow()]
    fit(callbacks)
    assert callbacks[0].found is callbacks[2].found
    assert callbacks[0].found.callbacks[:3] == callbacks


def test_a_list_of_ones_own_is_found():
    finder = Finder()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    own = keras.callbacks.CallbackList([finder], add_history=True, model=model)
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0, callbacks=own)
    assert finder.found is own


def test_without_a_list_there_is_none():
    finder = Finder()
    finder.on_train_begin()
    assert finder.found is None
