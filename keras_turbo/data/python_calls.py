"""Calls from graphs into Python that let go of what they are called on."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def call_on(owner: Any, function: Callable, inputs: list[tf.Tensor], output_types: Any) -> Any:
    """Graph code: `tf.numpy_function` of `function(owner, *inputs)` that does not keep the owner alive.

    TensorFlow keeps what numpy_function is given until the process ends. A store would stay in memory as long, whose
    dataset is gone.

    Args:
        owner: what the function works on. Whoever iterates holds its dataset, and that holds the owner.
        function: takes the owner and numpy arrays; must not hold the owner itself.
        inputs: tensors.
        output_types: as `Tout` of `tf.numpy_function`.

    Raises:
        ReferenceError: when it runs: nobody holds the owner any more.
    """
    reference = weakref.ref(owner)

    def call(*arguments: Any) -> Any:
        alive = reference()
        if alive is None:
            raise ReferenceError(
                "The FastDataset is gone that is being iterated. Keep a reference to it until the end."
            )
        return function(alive, *arguments)

    return tf.numpy_function(call, inputs, output_types)
