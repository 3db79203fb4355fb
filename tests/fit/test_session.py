"""What a session sees of a `fit`, what it puts in between, and that nothing of it stays, however the fit ends."""

from __future__ import annotations

import copy
import gc
import threading
import time
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import tune
from keras_turbo.fit import session as session_module
from keras_turbo.fit.session import FitSession
from keras_turbo.fit.train_function import Place, WrappedTrainFunction

pytestmark = pytest.mark.compatibility

X, Y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")


def small_model(**options) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", **options)
    return model


def fit(model, *callbacks, epochs=1, **options):
    arguments = {"batch_size": 2, "shuffle": False, "verbose": 0, **options}
    return model.fit(X, Y, epochs=epochs, callbacks=list(callbacks), **arguments)


class Joining(keras.callbacks.Callback):
    """Joins the session, with wrappers; notes what is asked for in `looks`."""

    needs_every_batch = False

    def __init__(self, wrappers=(), first=False, looks=lambda session: None):
        super().__init__()
        self.wrappers, self.first, self.looks = wrappers, first, looks
        self.session, self.seen = None, []

    def on_train_begin(self, logs=None):
        self.session = FitSession.join(self, first=self if self.first else None)
        self.list = next(iter(session_module._sessions.keys()))
        for place, wrapper in self.wrappers:
            self.session.wrap(place, wrapper)

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.looks(self.session))


class Noting(keras.callbacks.Callback):
    def __init__(self, notes, name):
        super().__init__()
        self.notes, self.name = notes, name

    def on_epoch_end(self, epoch, logs=None):
        self.notes.append((self.name, dict(logs)))


def recording(calls, name):
    def wrapper(run, iterator):
        calls.append(name)
        return run(iterator)

    return wrapper


def nothing_is_left(model, callbacks):
    assert not isinstance(model.train_function, WrappedTrainFunction)
    assert all(session.has_ended.is_set() for session in session_module._sessions.values())
    assert not [thread for thread in threading.enumerate() if thread.name == "keras_turbo fit watch"]
    for callback in callbacks:
        assert callback.session.has_ended.is_set()
        assert type(callback.list.callbacks) is list


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_wrappers_run_in_their_places_and_change_nothing(steps_per_execution):
    histories, calls = [], []
    inner, outer = (Place.TIMING, recording(calls, "b")), (Place.RESUME, recording(calls, "a"))
    for callbacks in ([], [Joining([inner]), Joining([outer])]):
        keras.utils.set_random_seed(0)
        model = small_model(steps_per_execution=steps_per_execution)
        histories.append(fit(model, *callbacks, epochs=2).history)
    assert histories[0] == histories[1]
    assert calls == ["a", "b"] * (8 // steps_per_execution)
    nothing_is_left(model, callbacks)


def test_the_model_has_its_own_function_again():
    model = small_model()
    fit(model)
    function, calls = model.train_function, []
    fit(model, Joining([(Place.LIMIT, recording(calls, "a"))]))
    assert model.train_function is function
    model.train_on_batch(X, Y)
    assert len(calls) == 4


def test_a_wrapper_may_skip_executions_which_are_not_counted():
    skipped = []

    def skip_two(run, iterator):
        if len(skipped) < 2:
            skipped.append(next(iterator))
            return {"loss": 0.0}
        return run(iterator)

    model = small_model()
    joining = Joining([(Place.RESUME, skip_two)], looks=lambda session: session.executions)
    fit(model, joining)
    assert int(model.optimizer.iterations.numpy()) == 2
    assert joining.seen == [0, 0, 1, 2]


def test_it_counts_batches_also_of_the_last_execution():
    def looks(session):
        return session.batch, session.batches, session.batches_left

    joining = Joining(looks=looks)
    fit(small_model(steps_per_execution=3), joining, epochs=2)
    assert joining.seen == [(3, 3, 1), (4, 4, 0), (3, 7, 1), (4, 8, 0)]


def test_one_iterator_for_several_epochs():
    joining = Joining(looks=lambda session: (session.batch, session.given, session.batches_left))
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).repeat()
    small_model().fit(data, steps_per_epoch=3, epochs=2, verbose=0, callbacks=[joining])
    assert joining.seen == [(batch % 3 + 1, batch + 1, None) for batch in range(6)]


def test_what_another_callback_trains_on_is_not_seen():
    class Beside(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.train_on_batch(X, Y)

        def on_train_batch_end(self, batch, logs=None):
            self.model.train_on_batch(X, Y)

    calls = []
    joining = Joining([(Place.TIMING, recording(calls, "a"))], looks=lambda session: session.batches)
    model = small_model()
    fit(model, Beside(), joining)
    assert int(model.optimizer.iterations.numpy()) == 12
    assert (calls, joining.seen) == (["a"] * 4, [1, 2, 3, 4])


def test_callbacks_stand_where_they_want_to():
    notes = []
    first, last = Joining(first=True), Joining()
    first.on_epoch_end = lambda epoch, logs=None: first.session.add_figures(logs, {"figure": 1.0})
    last.on_epoch_end = lambda epoch, logs=None: notes.append(("last", dict(logs)))
    history = fit(small_model(), last, Noting(notes, "between"), first)
    # The first one's figures are seen by all, and Keras' own callbacks have run before the last one.
    assert [name for name, _ in notes] == ["between", "last"]
    assert all(logs["figure"] == 1.0 for _, logs in notes)
    assert history.history["figure"] == [1.0]


def test_the_progress_bar_shows_some_figures_and_all_others_get_all(capsys):
    notes, joining = [], Joining(first=True)
    figures = {"shown": 1.5, "hidden": 2.5, "loss": 3.5}
    joining.on_epoch_end = lambda epoch, logs=None: joining.session.add_figures(logs, figures, shown=["shown", "loss"])
    history = fit(small_model(), joining, Noting(notes, "after"), verbose=2)
    printed = capsys.readouterr().out
    assert "shown: 1.5" in printed
    assert "hidden" not in printed
    assert notes[0][1] == figures
    assert history.history["hidden"] == [2.5]


def test_it_sees_callbacks_that_fit_was_given_as_a_list_of_its_own():
    model, joining, other = small_model(), Joining(), keras.callbacks.Callback()
    own = keras.callbacks.CallbackList([other, joining], add_history=True, model=model)
    before = own.callbacks
    fit(model, epochs=1)
    model.fit(X, Y, batch_size=2, verbose=0, callbacks=own)
    assert joining.session.others == [other, own._history]
    assert own.callbacks is before


def test_the_list_is_a_list_to_all_others():
    looks = []

    def look(session):
        callbacks = session._list().callbacks
        looks.append((isinstance(callbacks, list), len(list(callbacks)), len(copy.copy(callbacks)), callbacks[0]))
        next(iter(callbacks))  # someone who stops in the middle of it

    first = Joining(first=True, looks=look)
    fit(small_model(), first)
    assert looks == [(True, 2, 2, first)] * 4


def test_a_callback_that_is_added_meanwhile_stays():
    added = keras.callbacks.Callback()
    joining = Joining()
    joining.on_epoch_begin = lambda epoch, logs=None: joining.session._list().callbacks.append(added)
    model = small_model()
    fit(model, joining)
    assert added in joining.list.callbacks


def test_a_model_that_is_compiled_meanwhile_is_followed():
    class Compiling(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.compile("sgd", "mse")
                self.model.make_train_function()

    calls = []
    fit(small_model(), Compiling(), Joining([(Place.TIMING, recording(calls, "a"))]), epochs=2)
    assert len(calls) == 8


def test_it_works_on_a_tuned_model():
    model = small_model()
    tune(model, (X, Y), batch_size=2, budget_seconds=1)
    joining = Joining(looks=lambda session: session.batches)
    for _ in range(2):
        joining.seen.clear()
        fit(model, joining)
        assert joining.seen[-1] == 4


def test_times_are_those_of_callbacks_but_its_own():
    class Sleeping(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.02)

    first = Joining(first=True)
    first.on_epoch_begin = lambda epoch, logs=None: first.session.measure_times()
    first.on_train_end = lambda logs=None: first.seen.append(first.session.times.last_epoch)
    fit(small_model(), Sleeping(), first, epochs=2)
    seconds = first.seen[-1].seconds_by_name(saving=False)
    assert set(seconds) == {"Sleeping"}
    assert seconds["Sleeping"] >= 0.08
    assert first.seen[-1].executions == 4


# Its ends.


class WrongError(Exception):
    pass


def raising(*arguments, **options):
    raise WrongError


def in_a_callback(hook):
    callback = keras.callbacks.Callback()
    setattr(callback, hook, raising)
    return {"callbacks": [callback]}


ENDS = {
    "at its end": dict,
    "an error at the beginning": lambda: in_a_callback("on_train_begin"),
    "an error in an epoch's beginning": lambda: in_a_callback("on_epoch_begin"),
    "an error in a batch": lambda: in_a_callback("on_train_batch_end"),
    "an error in an epoch's end": lambda: in_a_callback("on_epoch_end"),
    "an error in the step": lambda: {"wrapper": raising},
    "an error in validation": lambda: {"validation_data": (X, np.ones((8, 5)))},
}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_nothing_stays_however_it_ends(end, kept, monkeypatch):
    monkeypatch.setattr(session_module, "_WATCH_SECONDS", 0.02)
    options, model, ended = ENDS[end](), small_model(), []
    wrapper = options.pop("wrapper", None)
    joining = Joining([] if wrapper is None else [(Place.LIMIT, wrapper)])
    others = options.pop("callbacks", [])

    class Ending(Joining):
        def on_train_begin(self, logs=None):
            super().on_train_begin(logs)
            self.session.at_end(lambda: ended.append("b"))

    ending = Ending()
    traceback = None
    try:
        fit(model, ending, joining, *others, **options)
    except Exception as error:
        # As a notebook keeps it, and all of `fit` with it.
        traceback = error if kept else None
    assert (traceback is not None) == (kept and end != "at its end")
    gc.collect()
    deadline = time.monotonic() + 10
    while not ending.session.has_ended.is_set() and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    assert ended == ["b"]
    nothing_is_left(model, [ending])
    fit(model)


def test_a_session_that_was_left_behind_ends_when_the_next_begins(monkeypatch):
    monkeypatch.setattr(session_module, "_WATCH_SECONDS", 1000)
    model, joining, after = small_model(), Joining(), Joining()
    with pytest.raises(Exception, match=".") as kept:
        fit(model, joining, validation_data=(X, np.ones((8, 5))))
    assert not joining.session.has_ended.is_set()
    assert not joining.session.is_running
    fit(model, after)
    assert joining.session.has_ended.is_set()
    assert kept.value is not None


def test_it_holds_no_model(monkeypatch):
    monkeypatch.setattr(session_module, "_WATCH_SECONDS", 0.02)
    model, joining = small_model(), Joining()
    fit(model, joining)
    reference = weakref.ref(model)
    joining.session = joining.list = joining._model = None
    del model
    keras.backend.clear_session()
    gc.collect()
    assert reference() is None


def test_nothing_else_than_fit_has_a_session():
    joining = keras.callbacks.Callback()
    joining.set_model(small_model())
    assert FitSession.join(joining) is None
    callbacks = keras.callbacks.CallbackList([Joining()], model=small_model())
    with pytest.raises((AttributeError, StopIteration)):
        callbacks.on_train_begin()
