"""The callback that finds, inside `fit`, how the steps of a model run fastest."""

from __future__ import annotations

from typing import Any, Literal, get_args

import keras

from keras_turbo.execution.batch_callbacks import callbacks_of_every_batch, save_frequencies
from keras_turbo.execution.fit_trial import FitTrial
from keras_turbo.execution.installation import why_not_settable
from keras_turbo.execution.setting import ExecutionSetting
from keras_turbo.fit.session import FitSession
from keras_turbo.fit.train_function import own_train_function

Trial = Literal["multi_step", "xla_loop"]


class TuneExecution(keras.callbacks.Callback):
    """Runs several steps in one call where that makes this `fit` faster.

    Stock `fit` calls TensorFlow from Python for each step, which takes longer than the step of a small model. This
    callback times the first steps, and if a loop in a graph can gain more in the steps to come than tracing it costs,
    runs some steps in one; what was faster, it goes on with. All of them are steps of the training: nothing is run
    twice, and losses, weights and random numbers are equal, to the bit, to those without it. At the end it prints in
    one line what it chose and gained.

    Callbacks are called for each batch in the epoch in which it tries, and once for an execution afterwards, as with
    `steps_per_execution` of `compile`. Where a callback must see each batch, steps run one at a time, and the line says
    what that costs: a callback with a hook for batches is taken for one, unless it is Keras' own or has an attribute
    `needs_every_batch = False`.

    Models that run eagerly, under a distribution strategy, with `steps_per_execution` in `compile` or with a train
    function of their own are left as they are, and the line says why. One callback may serve several calls of `fit`.

    Example:

    ```python
    model.fit(train, epochs=10, callbacks=[keras_turbo.TuneExecution()])
    ```

    Args:
        allow: what may be tried. "multi_step" (default): several steps in a graph loop. "xla_loop": from the second
            epoch on also several steps in one XLA program, which takes seconds to compile, adds in another order
            (losses agree to about 1e-6 a step) and draws other random numbers from the same seeds.

    Attributes:
        setting: how the last `fit` ran its steps in the end.
        summary: the line that was printed; it is not where `fit` has `verbose=0`.

    Raises:
        ValueError: another value of `allow`.
    """

    needs_every_batch = False

    def __init__(self, allow: tuple[Trial, ...] = ("multi_step",)) -> None:
        super().__init__()
        unknown = [kind for kind in ([allow] if isinstance(allow, str) else allow) if kind not in get_args(Trial)]
        if isinstance(allow, str) or unknown:
            raise ValueError(f"`allow` must be a tuple with some of {get_args(Trial)}. Received: {allow!r}.")
        self._allow = allow
        self.setting = ExecutionSetting()
        self.summary = ""
        self._trial: FitTrial | None = None
        self._session: FitSession | None = None
        self._held_by: list[str] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        session = self._session = FitSession.join(self)
        self.setting, self.summary = ExecutionSetting(), ""
        reason = self._why_not(session)
        if reason is not None or session is None:
            self._session = None
            self._tell(f"left as it is: {reason}", is_silent=session is None or session.call.is_silent)
            return
        model: Any = self.model
        stock = own_train_function(model)
        if self._trial is None or self._trial.stock is not stock:
            allowed = {"with_loop": "multi_step" in self._allow, "with_xla": "xla_loop" in self._allow}
            self._trial = FitTrial(model, stock, **allowed)
        self._held_by = callbacks_of_every_batch(session.callbacks)
        self._trial.fit_begins(
            session.call, held_to_one=bool(self._held_by), saves_after=save_frequencies(session.callbacks)
        )
        model.train_function.own = self._trial
        session.at_end(self._put_back)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._session is not None and self._trial is not None:
            self._trial.epoch_begins(self._session.call.epochs - epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._session is not None and self._trial is not None:
            self.setting = self._trial.chosen or ExecutionSetting()
            self._tell(_summary(self._trial, self._held_by), is_silent=self._session.call.is_silent)

    def _why_not(self, session: FitSession | None) -> str | None:
        if session is None:
            return "something else than the fit() of Keras calls it"
        if keras.config.backend() != "tensorflow":
            return f"Keras runs on {keras.config.backend()}; it tunes what runs on TensorFlow"
        model: Any = self.model
        if model.steps_per_execution != 1:
            return f"it runs {model.steps_per_execution} steps an execution already"
        return why_not_settable(model)

    def _put_back(self) -> None:
        trial, self._session = self._trial, None
        model: Any = self.model
        if trial is not None:
            if model.train_function is trial:
                model.train_function = trial.stock
            trial.fit_ends()

    def _tell(self, text: str, *, is_silent: bool) -> None:
        self.summary = f"TuneExecution: {text}"
        if not is_silent:
            print(self.summary)  # noqa: T201 (one line at the end, as fit's own)


def _summary(trial: FitTrial, held_by: list[str]) -> str:
    if trial.chosen is None or trial.chosen.loop == "keras" or trial.chosen_seconds is None:
        if held_by and trial.dispatch_seconds:
            return (
                f"one step at a time, for {', '.join(held_by)} to be called for each batch, which costs about "
                f"{trial.dispatch_seconds * 1e3:.2g} ms a step; an attribute needs_every_batch = False allows more"
            )
        return f"left as it is: {trial.why}"
    stock = trial.stock_seconds
    if stock is None:  # chosen in an earlier fit
        return trial.chosen.name
    gained = trial.steps_by_chosen * (stock - trial.chosen_seconds) - trial.cost_seconds
    return (
        f"{trial.chosen.name}, {trial.chosen_seconds * 1e3:.3g} ms a step in place of {stock * 1e3:.3g}; this gained "
        f"about {gained:.1f} s, what finding it cost ({trial.cost_seconds:.1f} s) taken off"
    )
