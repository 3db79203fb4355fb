"""How a callback finds the others of the same `fit`."""

from __future__ import annotations

import sys
from typing import Any

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


def is_in_use(callback_list: keras.callbacks.CallbackList) -> bool:
    """Whether a `fit` that runs now, on any thread, calls this list.

    When an error has ended `fit`, whoever keeps its traceback (a notebook does) keeps its list of callbacks alive.
    """
    frames: list[Any] = list(sys._current_frames().values())
    while frames:
        frame = frames.pop()
        if frame.f_code.co_name == "fit" and frame.f_locals.get("callbacks") is callback_list:
            return True
        if frame.f_back is not None:
            frames.append(frame.f_back)
    return False
