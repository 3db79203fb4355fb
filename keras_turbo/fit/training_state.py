"""The training state of a model: all variables that training changes, found from the model itself.

It is found once and then captured, compared, assigned, or sent to other workers: by checkpoints, `tune`, `audit` and
`distribute`. What is found: the weights, every optimizer, metric and seed generator and every inner model that the
model holds as attributes or in lists and dicts, whatever layers and TensorFlow track besides, and Keras' global seed
generator. Paths are stable: those of Keras' own `.weights.h5` where Keras saves a variable, and others beside them.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.fit.keras_internals import Owner, global_seed_generator, walk_owners

# Where in `extra` metrics are: what an epoch has summed up so far. The rest of `extra` belongs to the model.
METRICS = "metrics/"
# Where in `extra` the files of preprocessing layers are (vocabularies), as bytes.
_ASSETS = "assets/"
GLOBAL_SEED = "global_seed_generator/state"
# So many differences are listed in an error; the rest is counted.
_LISTED = 20


class NotBuiltError(ValueError):
    """The variables of a model don't exist yet."""


@dataclass(frozen=True)
class ModelState:
    """The parts of a model that training changes, by path.

    Args:
        weights: what `model.save_weights` keeps, under the same paths ("layers/dense/vars/0", "optimizer/vars/3"):
            a Keras variable each, or an array where a layer computes what it saves (a merged LoRA kernel). One
            variable may be there twice: Keras saves an optimizer inside a loss-scale optimizer again under a path of
            its own.
        extra: what `model.save_weights` leaves out: the seeds of Dropout and other random layers, metrics
            ("metrics/..."), `tf.Variable`s that a subclassed model holds, Keras' global seed generator, and the files
            of preprocessing layers ("assets/...", arrays of bytes).
        names: path of a layer or optimizer to its name, which Keras keeps beside its variables.
    """

    weights: dict[str, Any]
    extra: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)
    # Owners whose `save_own_variables` gives values: they have to be asked again each time.
    _computing: tuple[Owner, ...] = field(default=(), repr=False, compare=False)

    @property
    def variables(self) -> list[tf.Variable]:
        """TensorFlow's variables, each once."""
        values = [*self.weights.values(), *self.extra.values()]
        return list({id(raw(value)): raw(value) for value in values if is_variable(value)}.values())

    def refresh(self) -> ModelState:
        """The same state, with arrays that layers compute from their variables computed anew."""
        if not self._computing:
            return self
        weights = dict(self.weights)
        for owner in self._computing:
            weights.update(_own_values(owner))
        return ModelState(weights, self.extra, self.names, self._computing)


def find_state(model: keras.Model) -> ModelState:
    """Finds everything that training changes in a model, without copying it.

    `model.save_weights` leaves out the seeds of random layers and the metrics: a run that goes on from it draws other
    masks, and its epoch has other means. What exists is found: much of it is created at the first step of `fit` where
    nobody built it before; see `first_step.py`.
    """
    owners = walk_owners(model)
    if not model.built and not any(_is_built_part(owner) for owner in owners[1:]):
        raise NotBuiltError(
            f"The model {model.name!r} isn't built: its variables don't exist yet, so there is no state to take or to "
            "restore. Call it once on a batch, call `model.build(input_shape)`, or begin it with `keras.Input(shape)`."
        )
    weights: dict[str, Any] = {}
    computing = []
    for owner in owners:
        values = _own_values(owner)
        if not all(is_variable(value) for value in values.values()):
            computing.append(owner)
        weights.update(values)
    known = {id(raw(value)) for value in weights.values() if is_variable(value)}
    extra: dict[str, Any] = {}

    def add(path: str, variable: Any) -> None:
        if id(raw(variable)) not in known:
            known.add(id(raw(variable)))
            extra[path] = variable

    # Metrics first: those that a layer holds are among the variables of TensorFlow's walk, too.
    for path, variable in _metric_variables(model):
        add(path, variable)
    # The deepest first, so that a layer's state is under the layer's own path and not under the model's.
    for owner in sorted(owners, key=lambda owner: -owner.path.count("/") - bool(owner.path)):
        if isinstance(owner.object, keras.layers.Layer):
            for index, variable in enumerate(v for v in owner.object.variables if id(raw(v)) not in known):
                add(f"{owner.prefix}state/{index}", variable)
    generator = global_seed_generator(create=False)
    if generator is not None:
        add(GLOBAL_SEED, generator.state)
    for path, variable in _held_variables(model):
        add(f"variables/{path}", variable)
    for owner in owners:
        extra.update(_assets(owner))
    saving = [owner for owner in owners if hasattr(owner.object, "save_own_variables")]
    names = {owner.path: getattr(owner.object, "name", None) for owner in saving}
    named = {path: name for path, name in names.items() if isinstance(name, str) and name}
    return ModelState(weights, extra, named, tuple(computing))


class KeptValues:
    """The values of variables at one moment, on the host, each once."""

    def __init__(self, variables: Iterable[Any]) -> None:
        unique = {id(variable): variable for variable in variables}.values()
        self._values = [(variable, variable.numpy()) for variable in unique]

    def restore(self) -> None:
        """Puts them back, as often as one likes."""
        for variable, value in self._values:
            variable.assign(value)


class KeptState:
    """The training state of a model at one moment, on the host, with what `fit` leaves on a model beside it.

    That is `history` and `stop_training`, and the states of Python's and NumPy's random numbers.
    """

    def __init__(self, model: Any, others: Iterable[tf.Variable] = ()) -> None:
        self._model = model
        self._values = KeptValues([*find_state(model).variables, *others])
        self._attributes = {name: vars(model)[name] for name in ("history", "stop_training") if name in vars(model)}
        self._random = (random.getstate(), np.random.get_state())  # noqa: NPY002 (the global state is the legacy one)

    def restore(self) -> None:
        """Puts it back, as often as one likes."""
        self._values.restore()
        for name in ("history", "stop_training"):
            vars(self._model).pop(name, None)
        vars(self._model).update(self._attributes)
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])  # noqa: NPY002 (see above)


def assign_state(
    model: keras.Model,
    weights: Mapping[str, np.ndarray],
    extra: Mapping[str, np.ndarray] | None = None,
    *,
    partial: bool = False,
) -> tuple[str, ...]:
    """Puts a state into a model, in place: a train function that is traced sees it.

    All is checked first, so that a model gets all of a state or nothing.

    Metrics are another matter: they don't change what a model is, but a model may be compiled with others, and it
    creates those given to `compile` at the first step. So metrics that don't fit are left as they are and named in what
    is returned.

    Args:
        model: compiled as it was when the state was found, with all of its variables.
        weights: as in `ModelState.weights`, as arrays.
        extra: as in `ModelState.extra`, as arrays. None, the default: it is let be.
        partial: what is not in both of the model and the state is let be and named in what is returned. For a
            model that isn't compiled, say, or one without random layers. Shapes and dtypes must agree all the same.

    Returns:
        The paths that were not assigned.

    Raises:
        ValueError: the model isn't built, or differs from the one that the state is of: the message lists the paths,
            shapes and dtypes that differ. Or a vocabulary differs.
    """
    if extra is not None and GLOBAL_SEED in extra:
        global_seed_generator(create=True)
    state = find_state(model)
    if any(path.startswith("optimizer/") and path not in state.weights for path in weights):
        # It is built by the first step otherwise.
        build_optimizer(model)
        state = find_state(model)
    own_extra = {path: value for path, value in state.extra.items() if not path.startswith(METRICS)}
    given_extra = {path: value for path, value in (extra or {}).items() if not path.startswith(METRICS)}
    if extra is None:
        own_extra = {}
    elif GLOBAL_SEED not in extra:
        # It came into being later, or by somebody else: nothing of this model.
        own_extra.pop(GLOBAL_SEED, None)

    problems, unassigned = _differences(state.weights, weights, partial)
    more_problems, more_unassigned = _differences(own_extra, given_extra, partial)
    if problems + more_problems:
        raise ValueError(_refusal(model, problems + more_problems))

    _load_weights(walk_owners(model), {path: weights[path] for path in weights if path in state.weights}, partial)
    for path, value in given_extra.items():
        if path in own_extra and not path.startswith(_ASSETS):
            own_extra[path].assign(np.asarray(value))
    lost = [path for path in extra or {} if path.startswith(METRICS) and not _assign_metric(state, path, extra or {})]
    return (*unassigned, *more_unassigned, *lost)


def build_optimizer(model: keras.Model) -> None:
    """Creates the variables of `model.optimizer`, for a model that is built. Does nothing if they exist."""
    # A model that was never compiled has no such attribute.
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)


def metric_values(model: keras.Model) -> dict[str, np.ndarray]:
    """What the metrics have summed up so far, by the paths that they have in `ModelState.extra`, copied."""
    return {path: np.array(raw(variable).numpy()) for path, variable in _metric_variables(model)}


def is_variable(value: Any) -> bool:
    """Whether this is a variable and not an array."""
    return isinstance(value, (keras.Variable, tf.Variable))


def raw(variable: Any) -> tf.Variable:
    """TensorFlow's variable behind that of Keras."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def _is_built_part(owner: Owner) -> bool:
    return isinstance(owner.object, keras.layers.Layer) and owner.object.built and bool(owner.object.variables)


def _own_values(owner: Owner) -> dict[str, Any]:
    """What one object saves of itself: variables, or arrays that it computed."""
    save: Callable[[dict[str, Any]], None] | None = getattr(owner.object, "save_own_variables", None)
    if save is None:
        return {}
    store: dict[str, Any] = {}
    if isinstance(owner.object, keras.optimizers.Optimizer) and _is_keras_own(owner.object, "save_own_variables"):
        # Keras copies an optimizer's variables to the host here; the variables themselves are wanted.
        store.update({str(index): variable for index, variable in enumerate(owner.object.variables)})
    else:
        save(store)
    return {
        f"{owner.prefix}vars/{key}": value if is_variable(value) else np.asarray(keras.ops.convert_to_numpy(value))
        for key, value in store.items()
    }


def _is_keras_own(saveable: Any, method: str) -> bool:
    return getattr(type(saveable), method).__module__.partition(".")[0] == "keras"


def _metric_variables(model: keras.Model) -> Iterator[tuple[str, Any]]:
    used: dict[str, int] = {}
    for metric in model.metrics:
        # Not its name: unnamed metrics are counted through a whole process ("mean_3").
        kind = type(metric).__name__
        used[kind] = used.get(kind, 0) + 1
        unique = kind if used[kind] == 1 else f"{kind}_{used[kind] - 1}"
        yield from ((f"{METRICS}{unique}/{index}", variable) for index, variable in enumerate(metric.variables))


def _held_variables(model: keras.Model) -> Iterator[tuple[str, tf.Variable]]:
    """Variables that TensorFlow tracks, those that Keras does not know of among them, with the shortest way to each."""
    view = tf.train.TrackableView(model)
    queue: list[tuple[str, Any]] = [("", model)]
    seen = {id(model)}
    for path, trackable in queue:
        if isinstance(trackable, tf.Variable):
            yield path, trackable
            continue
        for name, child in view.children(trackable).items():
            if id(child) not in seen:
                seen.add(id(child))
                queue.append((f"{path}/{name}" if path else name, child))


def _assets(owner: Owner) -> dict[str, np.ndarray]:
    """Files that a preprocessing layer saves. Training does not change them; the weights make no sense without them."""
    save = getattr(owner.object, "save_assets", None)
    if save is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        return {
            f"{_ASSETS}{owner.prefix}{path.relative_to(folder).as_posix()}": np.frombuffer(path.read_bytes(), np.uint8)
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }


def _signature(value: Any) -> tuple[tuple[int, ...], str]:
    return tuple(int(size) for size in value.shape), keras.backend.standardize_dtype(value.dtype)


def _differences(own: Mapping[str, Any], given: Mapping[str, Any], partial: bool) -> tuple[list[str], list[str]]:
    """What forbids the assignment, and what partial assignment leaves out."""
    missing = [path for path in own if path not in given]
    unexpected = [path for path in given if path not in own]
    problems = []
    if not partial:
        problems += [f"{path}: {_described(own[path])} in the model, not in the state" for path in missing]
        problems += [f"{path}: {_described(given[path])} in the state, not in the model" for path in unexpected]
    for path in [path for path in given if path in own]:
        if path.startswith(_ASSETS):
            if not np.array_equal(own[path], given[path]):
                problems.append(f"{path}: the file differs; give the layer the vocabulary that it was trained with")
        elif _signature(own[path]) != _signature(given[path]):
            problems.append(f"{path}: {_described(own[path])} in the model, {_described(given[path])} in the state")
    return problems, missing + unexpected


def _described(value: Any) -> str:
    shape, dtype = _signature(value)
    return f"{dtype} {shape}"


def _refusal(model: keras.Model, problems: list[str]) -> str:
    listed = "".join(f"\n  {problem}" for problem in problems[:_LISTED])
    more = f"\n  and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
    owners = [owner for owner in walk_owners(model) if owner.path and not getattr(owner.object, "built", True)]
    unbuilt = [owner.path for owner in owners if isinstance(owner.object, keras.layers.Layer)]
    hint = f"\nNot built yet: {', '.join(unbuilt[:_LISTED])}. Call the model once on a batch first." if unbuilt else ""
    unbuilt = [owner.path for owner in owners if isinstance(owner.object, keras.optimizers.Optimizer)]
    hint += f"\nNot built yet: {', '.join(unbuilt)}. Call `build(variables)` of each first." if unbuilt else ""
    return (
        f"The model {model.name!r} differs from the one that the state is of. Nothing was assigned. Build and compile "
        f"it as it was, or restore into another one.{listed}{more}{hint}"
    )


def _assign_metric(state: ModelState, path: str, extra: Mapping[str, np.ndarray]) -> bool:
    variable = state.extra.get(path)
    fits = variable is not None and _signature(variable) == _signature(extra[path])
    if variable is not None and fits:
        variable.assign(np.asarray(extra[path]))
    return fits


def _load_weights(owners: Iterable[Owner], weights: Mapping[str, np.ndarray], partial: bool) -> None:
    by_owner: dict[str, dict[str, np.ndarray]] = {}
    for path, value in weights.items():
        prefix, _, key = path.rpartition("vars/")
        by_owner.setdefault(prefix, {})[key] = np.asarray(value)
    loading = [owner for owner in owners if hasattr(owner.object, "load_own_variables")]
    # Somebody's own code may fail, so it comes first and can be undone. Keras' can't: shapes and dtypes are checked.
    foreign = [owner for owner in loading if not _is_keras_own(owner.object, "load_own_variables")]
    before = [
        (variable, raw(variable).numpy())
        for owner in foreign
        for variable in _own_values(owner).values()
        if is_variable(variable)
    ]
    try:
        for owner in foreign:
            _load_own(owner, by_owner.get(owner.prefix, {}), partial)
    except BaseException:
        for variable, value in before:
            variable.assign(value)
        raise
    for owner in loading:
        if owner not in foreign:
            _load_own(owner, by_owner.get(owner.prefix, {}), partial)


def _load_own(owner: Owner, store: dict[str, np.ndarray], partial: bool) -> None:
    own = _own_values(owner) if partial else {}
    if len(store) >= len(own):
        owner.object.load_own_variables(store)
        return
    for key, value in store.items():
        variable = own[f"{owner.prefix}vars/{key}"]
        if is_variable(variable):
            variable.assign(value)
