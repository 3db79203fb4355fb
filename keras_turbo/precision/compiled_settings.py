"""What a model was compiled with: reading it, and turning a loss on probabilities into one on logits."""

from __future__ import annotations

from typing import Any

import keras

# By the names that `compile` takes; the functions of the same name do as well.
_LOSSES_ON_LOGITS = {
    "binary_crossentropy": keras.losses.BinaryCrossentropy,
    "binary_focal_crossentropy": keras.losses.BinaryFocalCrossentropy,
    "categorical_crossentropy": keras.losses.CategoricalCrossentropy,
    "categorical_focal_crossentropy": keras.losses.CategoricalFocalCrossentropy,
    "sparse_categorical_crossentropy": keras.losses.SparseCategoricalCrossentropy,
}


def compiled_settings(model: keras.Model) -> dict[str, Any]:
    """The arguments of a model's last `compile`, which Keras keeps to save them; the dict is its own.

    Args:
        model: any model.

    Returns:
        By argument; empty where the model is not compiled.

    Raises:
        RuntimeError: this version of Keras keeps them elsewhere.
    """
    if not model.compiled:
        return {}
    try:
        return model._compile_config.config
    except AttributeError as error:
        raise RuntimeError(
            f"keras_turbo does not know where Keras {keras.__version__} keeps the arguments of compile. It was tested "
            "with Keras 3.12 and 3.15."
        ) from error


def takes_logits(loss: Any) -> bool | None:
    """Whether a loss takes logits, by its `from_logits`.

    Args:
        loss: as `compile` takes it: a name, a function or a loss object.

    Returns:
        None where it has no such setting.
    """
    if isinstance(loss, keras.losses.Loss):
        return _from_logits(loss)
    return False if _name(loss) in _LOSSES_ON_LOGITS else None


def on_logits(loss: Any) -> keras.losses.Loss:
    """The same loss, taking logits.

    Args:
        loss: one of which `takes_logits` is not None.

    Returns:
        A new loss object.
    """
    if isinstance(loss, keras.losses.Loss):
        return type(loss).from_config({**loss.get_config(), "from_logits": True})
    return _LOSSES_ON_LOGITS[_name(loss)](from_logits=True)


def only_loss(loss: Any) -> Any:
    """The loss of a model with one output, of whatever structure `compile` was given it in.

    Args:
        loss: one loss, or a list or dict of one.
    """
    flat = keras.tree.flatten(loss)
    return flat[0] if len(flat) == 1 else None


def _from_logits(loss: keras.losses.Loss) -> bool | None:
    try:
        return loss.get_config().get("from_logits")
    except NotImplementedError:
        return None


def _name(loss: Any) -> str:
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", "")
    # "SparseCategoricalCrossentropy" is taken by compile as well.
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).removeprefix("_")
