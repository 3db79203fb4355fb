"""What callbacks have learned: saved and set by a table or by declaration, and by nothing else."""

from __future__ import annotations

import collections
import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import AsyncCheckpoint
from keras_turbo.checkpoint.location import checksum_of
from keras_turbo.fit.callback_state import CallbackStates

X = np.arange(48, dtype="float32").reshape(16, 3) / 48
Y = X.sum(axis=1, keepdims=True)


class Plain(keras.callbacks.Callback):
    """Holds a value of any kind."""

    def __init__(self, value):
        super().__init__()
        self.value = value


class Declaring(Plain):
    def get_state(self):
        return {"value": self.value}

    def set_state(self, state):
        self.value = state["value"]


def restored(callback, fresh):
    """Brings the state of a callback into another one."""
    values, arrays = CallbackStates([callback]).state()
    json.dumps(values)
    CallbackStates([fresh]).restore(values, arrays)
    return fresh


@pytest.mark.parametrize(
    "value",
    [3, 1.5, "text", None, True, [1, [2, {"a": "b"}]], {"losses": [1.0, 2.0]}],
)
def test_what_is_declared_comes_back(value):
    fresh = restored(Declaring(value), Declaring(0))
    assert fresh.value == value
    assert type(fresh.value) is type(value)


def test_arrays_and_variables_come_back_as_arrays():
    for value in (np.arange(3.0), tf.Variable([0.0, 1.0, 2.0]), keras.Variable([0.0, 1.0, 2.0])):
        np.testing.assert_array_equal(restored(Declaring(value), Declaring(0)).value, [0.0, 1.0, 2.0])
    several = restored(Declaring([np.ones(2), np.zeros((2, 3))]), Declaring(0)).value
    assert [one.shape for one in several] == [(2,), (2, 3)]


def test_what_is_taken_does_not_change_with_the_callback():
    callback = Declaring(np.zeros(2))
    _, arrays = CallbackStates([callback]).state()
    callback.value += 1
    np.testing.assert_array_equal(arrays["Declaring/declared/value"], [0.0, 0.0])


def test_a_declaration_of_something_else_is_an_error():
    callback = Declaring(0)
    callback.get_state = lambda: [1]
    with pytest.raises(TypeError, match=r"Declaring.get_state\(\) must return a dict. Received: \[1\]"):
        CallbackStates([callback]).state()


def test_a_subclass_of_keras_has_what_keras_learns_and_what_it_declares():
    class Patient(keras.callbacks.EarlyStopping):
        extra = 0

        def get_state(self):
            return {"extra": self.extra}

        def set_state(self, state):
            self.extra = state["extra"]

    callback = Patient("loss")
    callback.wait, callback.best, callback.best_weights, callback.extra = 2, 0.5, [np.ones(2)], 7
    fresh = restored(callback, Patient("loss"))
    assert (fresh.wait, fresh.best, fresh.extra) == (2, 0.5, 7)
    np.testing.assert_array_equal(fresh.best_weights[0], [1.0, 1.0])


def test_several_of_one_class_are_told_apart():
    callbacks, fresh = [Declaring(1), Declaring(2)], [Declaring(0), Declaring(0)]
    values, arrays = CallbackStates(callbacks).state()
    CallbackStates(fresh).restore(values, arrays)
    assert [one.value for one in fresh] == [1, 2]


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("wait", "many"), ("wait", True), ("best", [1]), ("best_weights", "text"), ("stopped_epoch", None)],
)
def test_a_value_of_another_type_is_refused(attribute, value):
    states = CallbackStates([keras.callbacks.EarlyStopping("loss")])
    with pytest.raises(ValueError, match=f"in the checkpoint can't be the '{attribute}' of EarlyStopping"):
        states.restore({"EarlyStopping": {attribute: value}}, {})


def test_what_is_in_no_table_is_not_set():
    callback, other = keras.callbacks.ModelCheckpoint("mine.keras"), Plain(1)
    forged = {"filepath": "/etc/passwd", "best": 0.5, "save_best_only": True, "_save_model": "x"}
    values = {"ModelCheckpoint": forged, "Plain": {"value": 2}}
    CallbackStates([callback, other]).restore(values, {"Plain/x": np.ones(1)})
    assert (callback.filepath, callback.save_best_only, callback.best) == ("mine.keras", False, 0.5)
    assert callable(callback._save_model)
    assert vars(other)["value"] == 1
    assert not hasattr(other, "x")


def test_what_was_learned_since_goes():
    callback = keras.callbacks.EarlyStopping("loss")
    callback.wait = callback.stopped_epoch = 0
    states = CallbackStates([callback])
    callback.wait = 3
    states.restore({"EarlyStopping": {"stopped_epoch": 2}}, {})
    assert (callback.wait, callback.stopped_epoch) == (0, 2)


def test_callbacks_that_are_gone_are_named():
    states = CallbackStates([])
    with pytest.warns(UserWarning, match="callbacks that this one has not: EarlyStopping. Their state is dropped"):
        states.restore({"EarlyStopping": {"wait": 1}, "TerminateOnNaN": {}}, {})


def grow_array(value):
    value += 1


CHANGES = {
    "a number": (lambda: 1, None),
    "an array in place": (lambda: np.zeros(3), grow_array),
    "a large array in place": (lambda: np.zeros(1 << 20), grow_array),
    "a list": (lambda: [1], lambda value: value.append(2)),
    "an array in a list": (lambda: [np.zeros(3)], lambda value: grow_array(value[0])),
    "a dict": (dict, lambda value: value.update(a=1)),
    "a set": (lambda: {1}, lambda value: value.add(2)),
    "a deque": (lambda: collections.deque([1]), lambda value: value.append(2)),
    "a Counter": (collections.Counter, lambda value: value.update("ab")),
    "a variable of TensorFlow": (lambda: tf.Variable(0.0), lambda value: value.assign(1.0)),
    "a variable of Keras": (lambda: keras.Variable(0.0), lambda value: value.assign(1.0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_and_is_not_declared_is_warned_of_once(change):
    make, grow = CHANGES[change]
    callback, still = Plain(make()), Plain(make())
    declaring = Declaring(make())
    states = CallbackStates([callback, still, declaring])
    states.warn_of_undeclared()
    for one in (callback, declaring):
        if grow is None:
            one.value = 2
        else:
            grow(one.value)
    with pytest.warns(UserWarning, match="The callback Plain changes 'value' while it trains.*get_state") as told:
        states.warn_of_undeclared()
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        states.warn_of_undeclared()


def test_what_nobody_could_save_is_not_warned_of(tmp_path):
    callback = Plain(None)
    states = CallbackStates([callback, keras.callbacks.CSVLogger(tmp_path / "log.csv")])
    with open(tmp_path / "log", "w") as callback.value:
        callback.set_model(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]))
        states.warn_of_undeclared()


# In a fit.


class WeightAverage(keras.callbacks.Callback):
    """Sums up weights in place."""

    def __init__(self):
        super().__init__()
        self.sum, self.count = np.zeros((3, 1), "float32"), 0

    def on_train_batch_end(self, batch, logs=None):
        self.sum += self.model.get_weights()[0]
        self.count += 1


class DeclaredAverage(WeightAverage):
    def get_state(self):
        return {"sum": self.sum, "count": self.count}

    def set_state(self, state):
        self.sum, self.count = state["sum"], state["count"]


def train(directory, average, epochs, stop_at=None):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)

    def stop(batch, logs):
        if batch == stop_at:
            raise KeyboardInterrupt

    callbacks = [average, AsyncCheckpoint(directory, save_freq=1)]
    if stop_at is not None:
        callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_begin=stop))
    model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return average.sum / average.count


@pytest.mark.filterwarnings("ignore:Resuming in the middle of an epoch reads")
def test_a_declared_average_goes_on_as_the_one_never_broken_off(tmp_path):
    expected = train(tmp_path / "whole", DeclaredAverage(), 2)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "broken", DeclaredAverage(), 2, stop_at=3)
    np.testing.assert_array_equal(train(tmp_path / "broken", DeclaredAverage(), 2), expected)


def test_an_average_that_is_not_declared_is_told_once(tmp_path):
    with pytest.warns(UserWarning, match="The callback WeightAverage changes 'count', 'sum' while it trains") as told:
        train(tmp_path, WeightAverage(), 2)
    assert len(told) == 1


def test_a_forged_checkpoint_sets_nothing(tmp_path):
    def run(epochs, path):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        saving = keras.callbacks.ModelCheckpoint(tmp_path / path)
        callbacks = [saving, AsyncCheckpoint(tmp_path / "run", resume=True)]
        model.fit(X, Y, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
        return saving

    run(1, "mine.keras")
    folder = next((tmp_path / "run").glob("step-*"))
    state = json.loads((folder / "training_state.json").read_text())
    state["callbacks"]["ModelCheckpoint"]["filepath"] = str(tmp_path / "stolen.keras")
    content = json.dumps(state).encode()
    (folder / "training_state.json").write_bytes(content)
    marker = json.loads((folder / "COMMITTED").read_text())
    marker["training_state.json"] = {"bytes": len(content), "checksum": checksum_of([content])}
    (folder / "COMMITTED").write_text(json.dumps(marker))
    assert run(2, "mine.keras").filepath == str(tmp_path / "mine.keras")
    assert not (tmp_path / "stolen.keras").exists()


@pytest.mark.compatibility
def test_the_table_names_what_keras_has():
    import keras_turbo.fit.callback_state as module

    made = {
        "EarlyStopping": keras.callbacks.EarlyStopping("loss"),
        "ReduceLROnPlateau": keras.callbacks.ReduceLROnPlateau("loss"),
        "ModelCheckpoint": keras.callbacks.ModelCheckpoint("a.keras"),
        "CSVLogger": keras.callbacks.CSVLogger("a.csv"),
        "TensorBoard": keras.callbacks.TensorBoard("a"),
        "SwapEMAWeights": keras.callbacks.SwapEMAWeights(),
        "History": keras.callbacks.History(),
    }
    # Some come into being in the first epoch, and their names are in the code of the class.
    for name, callback in made.items():
        code = "".join(
            repr(member.__code__.co_names)
            for kind in type(callback).__mro__
            for member in vars(kind).values()
            if hasattr(member, "__code__")
        )
        assert all(hasattr(callback, one) or repr(one) in code for one in module._LEARNED[name]), name
