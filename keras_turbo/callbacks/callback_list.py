"""How a callback finds the others of the same `fit`."""

from __future__ import annotations

import sys

import keras


def callback_list_of(callback: keras.callbacks.Callback) -> keras.callbacks.CallbackList | None:
    """The list that is calling this callback just now.

    Keras tells a callback its model and its parameters and nothing of its siblings, so the callers are searched for the
    `CallbackList` that holds it. To be called in a hook (`on_train_begin`, ...), on the thread of `fit`.

    Returns:
        The list, or None where the hook was called by something else (a test, another callback).
    """
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList) and any(one is callback for one in caller.callbacks):
            return caller
        frame = frame.f_back
    return None
