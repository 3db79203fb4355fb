"""Old paths of public names: modules that README or docs once named, and that are gone.

They work for this version: importing one gives a module whose names come from where they are now, with a
`DeprecationWarning` that says so.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any

MOVED: dict[str, dict[str, str]] = {
    "keras_turbo.callbacks": {
        "AsyncCheckpoint": "keras_turbo",
        "CheckpointSaveError": "keras_turbo.checkpoint",
        "GpuUtilization": "keras_turbo",
    },
    "keras_turbo.data.python_function": {"PythonFunction": "keras_turbo.data"},
}
"""Old module -> name -> the module that has it now."""


class _OldPaths(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Is asked last, for what nothing else finds."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: types.ModuleType) -> None:
        old, names = module.__name__, MOVED[module.__name__]

        def look_up(name: str) -> Any:
            if name not in names:
                raise AttributeError(f"module {old!r} has no attribute {name!r}")
            message = f"{old}.{name} is now {names[name]}.{name}. The old path goes with the next version."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(importlib.import_module(names[name]), name)

        vars(module).update(__getattr__=look_up, __all__=list(names))


def keep_old_paths() -> None:
    """Lets old paths be imported."""
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(_OldPaths())
