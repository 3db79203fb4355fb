"""Brings a model, its callbacks and its data to where an earlier run was, also in the middle of an epoch."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.checkpoint.directory import identity_of
from keras_turbo.checkpoint.layout import CALLBACKS, TrainingState
from keras_turbo.checkpoint.location import Directory, Location, locate
from keras_turbo.checkpoint.reading import Arrays, newest_good, read
from keras_turbo.fit.call import FitCall
from keras_turbo.fit.callback_state import CallbackStates
from keras_turbo.fit.first_step import build_for, build_metrics
from keras_turbo.fit.keras_internals import begin_at_epoch, count_batches
from keras_turbo.fit.session import FitSession
from keras_turbo.fit.steps import optimizers_of, training_steps
from keras_turbo.fit.train_function import own_train_function
from keras_turbo.fit.training_state import METRICS, assign_state

# Under which name a checkpoint has what AsyncCheckpoint itself must know.
OWN_STATE = "AsyncCheckpoint"

# Which model has finished a fit in which directory, in this process.
_finished: dict[Any, tuple[weakref.ref[Any], frozenset[int]]] = {}


def note_finished(location: Location, model: keras.Model) -> None:
    """Takes note that a fit has come to its end, so that no other model takes its checkpoints for its own."""
    _finished[identity_of(location)] = weakref.ref(model), _ids_of_optimizers(model)


def _ids_of_optimizers(model: keras.Model) -> frozenset[int]:
    return frozenset(id(optimizer) for optimizer in optimizers_of(model))


class Resumption:
    """A checkpoint on its way into a `fit`.

    `fit` knows nothing of epochs that begin in their middle. So the epoch is begun as any other, and its first
    executions are answered without training, with the logs of then. Whatever callbacks do meanwhile (they reset
    themselves, a schedule sets the learning rate of the epoch once more) is undone after the last of these: model,
    metrics and callbacks get the state of the checkpoint once more.
    """

    def __init__(self, name: str, state: TrainingState, weights: Arrays, extra: Arrays, session: FitSession) -> None:
        self.name = name
        self.state = state
        self._session = session
        self._model: Any = session.model
        self._call = session.call
        self._weights = weights
        self._extra = {path: array for path, array in extra.items() if not path.startswith(CALLBACKS)}
        self._of_callbacks = {
            path.removeprefix(CALLBACKS): array for path, array in extra.items() if path.startswith(CALLBACKS)
        }
        self._own = state.callbacks.get(OWN_STATE, {})
        self._is_restored = False
        self._has_entered = False
        self._epoch_before: int | None = None
        # How many executions need not be run.
        self.answers_left = 0

    @property
    def was_stopped(self) -> bool:
        """Whether a callback had ended training for good, and no more epochs are asked for than were then."""
        epochs = self._own.get("epochs")
        return bool(self._own.get("stopped", False)) and not (epochs is not None and self._call.epochs > epochs)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to train."""
        return self.was_stopped or self.state.epoch >= self._call.epochs

    @property
    def is_in_epoch(self) -> bool:
        """Whether an epoch is to begin in its middle."""
        return self.state.batch > 0

    @property
    def logs(self) -> dict[str, float]:
        """What the train function gave last."""
        return dict(self._own.get("logs", {}))

    def begin(self, position: DataPosition) -> None:
        """Assigns the state for a first time, and sets where `fit` and the data begin. Called in on_train_begin."""
        model, state, steps = self._model, self.state, self._call.steps
        build_for(model, self._call.batch_spec, self._weights)
        if self.is_in_epoch:
            build_metrics(model, self._call.batch_spec)
        unassigned = assign_state(model, self._weights, self._extra)
        lost = [path for path in unassigned if path.startswith(METRICS)]
        if lost and self.is_in_epoch:
            warnings.warn(
                "The model has other metrics than that of the checkpoint, so that their means over the epoch that is "
                f"resumed begin anew: {', '.join(sorted(lost))}.",
                stacklevel=2,
            )
        if state.data is not None:
            position.restore(state.data)
            if not self.is_done:
                position.warn_of_drawn_order()
        epoch = max(state.epoch, self._call.epochs) if self.was_stopped else state.epoch
        self._epoch_before = begin_at_epoch(model, epoch)
        at_once = model.steps_per_execution
        self.answers_left = state.batch // at_once
        if steps is not None and state.batch >= steps:
            # The last execution of an epoch may have had fewer.
            self.answers_left = -(-steps // at_once)
        before = self._own.get("steps_in_epoch")
        if self.is_in_epoch and steps is not None and before is not None and steps != before:
            warnings.warn(
                f"An epoch has {steps} batches here, and had {before} in the run that is resumed, after batch "
                f"{state.batch} of one: {max(0, steps - state.batch)} are trained of it.",
                stacklevel=2,
            )

    def forget_first_epoch(self) -> None:
        """Puts back what tells Keras where `fit` begins, once it has been read."""
        if self.state.epoch != 0 or self.was_stopped:
            begin_at_epoch(self._model, self._epoch_before)

    def answer(self) -> dict[str, float] | None:
        """The logs of one more execution that need not be run; None when there are no more."""
        if self.answers_left == 0:
            return None
        self.answers_left -= 1
        return self.logs

    def restore(self, callbacks: CallbackStates) -> None:
        """Puts everything back, over what callbacks have done since `begin`. Doing it twice does nothing."""
        if self._is_restored:
            return
        self._is_restored = True
        if self.is_in_epoch:
            assign_state(self._model, self._weights, self._extra)
        values = {key: value for key, value in self.state.callbacks.items() if key != OWN_STATE}
        if self.state.history:
            values["History"] = {**values.get("History", {}), "history": self.state.history}
        callbacks.restore(values, self._of_callbacks)
        self._weights, self._extra, self._of_callbacks = {}, {}, {}

    def enter(self, iterator: Any, position: DataPosition) -> None:
        """Leaves out what is done of the data, before the first execution that is run. Doing it twice does nothing."""
        if self._has_entered:
            return
        self._has_entered = True
        if self.state.data is not None:
            position.skip_in(iterator)
            count_batches(self._call.epoch_iterator, max(0, self._session.given - self.state.batch))
        resume = getattr(own_train_function(self._model), "resume", None)
        if resume is not None and self.is_in_epoch:
            resume(iterator, self.state.batch)

    def __str__(self) -> str:
        state = self.state
        batch = f", batch {state.batch}" if state.batch else ""
        return f"resumed at step {state.optimizer_step} (epoch {state.epoch + 1}{batch}) from {self.name}"


def find_resumption(session: FitSession, directory: Directory, *, resume: Any) -> Resumption | None:
    """Reads the newest good checkpoint of a directory, as `resume` of AsyncCheckpoint asks; None if there is none."""
    location = locate(directory)
    model: Any = session.model
    good, passed = newest_good(location)
    if good is None or good.state is None:
        # What has no marker was never finished: where nothing is renamed, that is no damage.
        finished = [one for one in passed if location.files.renames or not _is_unfinished(one)]
        if finished and resume is not False:
            listed = "; ".join(map(str, finished))
            raise ValueError(
                f"There is no good checkpoint in {location.path} to go on from: {listed}. Nothing is trained. Give "
                "another directory, or resume=False to begin anew beside them."
            )
        return None
    if resume is False:
        step = training_steps(model, batches=0)
        if good.state.optimizer_step > step:
            raise ValueError(
                f"{location.path} has checkpoints up to step {good.state.optimizer_step}, and this run begins at step "
                f"{step} with resume=False, so that its checkpoints would pass for older ones. Give it a directory of "
                "its own, or resume=True to go on."
            )
        return None
    finished_by = _finished.get(identity_of(location))
    if resume == "auto" and finished_by is not None:
        other, optimizers = finished_by
        if other() is not model or optimizers != _ids_of_optimizers(model):
            raise ValueError(
                f"Another model of this process has been trained with {location.path} (or this one, before it was "
                "compiled anew): with its checkpoints this one would begin where that one has ended. Give each fold, "
                "trial or phase a directory of its own, or resume=True to go on from there."
            )
    weights, extra, state = read(location, good)
    return Resumption(os.fspath(good.path), state, weights, extra, session)


def _is_unfinished(health: Any) -> bool:
    return any("no commit marker" in problem for problem in health.problems)


class DataPosition:
    """Where a training run is in its data, and how it gets there again.

    A `FastDataset` is a function of the number of its epoch, so its position is that number and a batch. What was made
    of one by methods of tf.data has the position of the `FastDataset` and as many batches to read.
    """

    def __init__(self, session: FitSession) -> None:
        self._session = session
        self._call: FitCall = session.call
        self._data = session.call.x
        self._datasets = list(_resumable_in(self._data))
        self._validation = list(_resumable_in(session.call.validation_data))
        self._seen: Any = None
        self._begun = self.epochs()
        self._resumed: tuple[list[int], int] = ([], 0)
        self._batches_to_skip = 0

    def epochs(self) -> list[int]:
        """How many epochs of the data have begun."""
        return [dataset.epochs_begun for dataset in self._datasets]

    def validation_epochs(self) -> list[int]:
        """How many epochs of the validation data have begun."""
        return [dataset.epochs_begun for dataset in self._validation]

    def meets(self, iterator: Any) -> None:
        """Takes note of the iterator that `fit` gives, which is unread if it is a new one."""
        if iterator is not self._seen:
            self._seen, self._begun = iterator, self.epochs()

    def state(self, *, in_epoch: bool) -> dict[str, Any]:
        """The position, made of JSON's types."""
        session = self._session
        goes_on = session.iterator is not None and session.batches_left != 0
        if not in_epoch:
            # With steps_per_epoch, Keras goes on with the same iterator in the next epoch.
            goes_on = goes_on and self._call.steps_per_epoch is not None
        return {
            "epochs": self._begun if goes_on else self.epochs(),
            "batches": session.given if goes_on else 0,
            "order": [dataset.order_settings for dataset in self._datasets],
            "validation_epochs": self.validation_epochs(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position that `state()` gave in the run that is resumed, before `fit` has read anything."""
        batches, begun = state["batches"], state["epochs"]
        self._warn_of_other_data(state["order"])
        number = self._call.batches_of_iterator
        if number is not None and batches >= number > 0:
            # Other data, or larger batches: there are not so many, so that the epoch is over.
            batches, begun = 0, [epoch + 1 for epoch in begun]
        self._resumed = begun, batches
        for datasets, epochs in ((self._datasets, begun), (self._validation, state["validation_epochs"])):
            for dataset, epoch in zip(datasets, epochs, strict=False):
                dataset.epochs_begun = epoch
        if hasattr(self._data, "resume_at") and begun:
            self._data.resume_at(begun[0], batches)
            return
        self._batches_to_skip = batches
        if batches:
            self._warn_of_reading(batches)

    def skip_in(self, iterator: Any) -> None:
        """Leaves out what was trained on before, in the first iterator of the run that resumes."""
        count, self._batches_to_skip = self._batches_to_skip, 0
        if hasattr(iterator, "skip"):
            iterator.skip(count)
        else:
            with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                for _ in range(count):
                    next(iterator)
        if count and hasattr(iterator, "host_iterator"):
            # No other iterator can take its place any more.
            iterator.host_iterator = None
        # From here on it counts as if this iterator were the one of the run before.
        self._begun, self._session.given = self._resumed

    def warn_of_drawn_order(self) -> None:
        """Says so where the epochs to come have other orders than those of a run that was never ended."""
        if self._call.draws_order and not self._datasets and not self._batches_to_skip:
            warnings.warn(
                f"The epochs that follow don't have the order that they would have had: {type(self._data).__name__} is "
                "shuffled by Keras or tf.data, which begin anew. All else goes on exactly; so does the order with a "
                "FastDataset, with shuffle=False, or with reshuffle_each_iteration=False.",
                stacklevel=2,
            )

    def _warn_of_reading(self, batches: int) -> None:
        if self._datasets:
            remedy, order = "a FastDataset itself, and not what was made of it, begins there at once", ""
        else:
            remedy = "a FastDataset begins there at once"
            order = (
                " They are the right ones only if the data come in the same order again: not with a shuffle that is "
                "drawn anew (tf.data's shuffle() without reshuffle_each_iteration=False, fit(x, y, shuffle=True))."
            )
        warnings.warn(
            f"Resuming in the middle of an epoch reads {batches} batches of {type(self._data).__name__} and drops "
            f"them; {remedy}.{order}",
            stacklevel=2,
        )

    def _warn_of_other_data(self, order: list[dict[str, Any]]) -> None:
        here = [dataset.order_settings for dataset in self._datasets]
        if here == order:
            return
        differing = [
            f"{name}={now.get(name)!r}, was {before.get(name)!r}"
            for now, before in zip(here, order, strict=False)
            for name in now
            if now.get(name) != before.get(name)
        ]
        what = "; ".join(differing) or f"{len(here)} FastDatasets, where there were {len(order)}"
        hint = " Give it a seed." if any(text.startswith("seed=") for text in differing) else ""
        warnings.warn(
            f"The data are not those of the run that is resumed ({what}): it does not go on with the batches that "
            f"would have come.{hint}",
            stacklevel=2,
        )


def _resumable_in(data: Any) -> Iterator[Any]:
    """The datasets with numbered epochs of which a dataset is made, or which it is."""
    if hasattr(data, "epochs_begun"):
        yield data
    elif isinstance(data, tf.data.Dataset):
        for part in data._inputs():  # what each class of tf.data implements to tell its inputs
            yield from _resumable_in(part)
