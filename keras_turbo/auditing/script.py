"""An unmodified training script, run until its first `fit` has done some steps, and audited there."""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import keras

from keras_turbo import files
from keras_turbo.auditing.audit import require_auditable
from keras_turbo.auditing.callback_times import each_callback
from keras_turbo.auditing.fit_input import FitInput
from keras_turbo.auditing.measuring import audit_fit
from keras_turbo.auditing.report import AuditReport
from keras_turbo.execution.patching import replaced_method

# What belongs to a script's data, of the arguments of fit.
_OF_DATA = ("x", "y", "sample_weight", "batch_size", "class_weight", "shuffle", "steps_per_epoch")
_OPTIONS = ("--steps", "--budget", "--html", "--json")


class ScriptError(Exception):
    """A script that can't be audited.

    Args:
        message: what is told.
        exit_code: of the command.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class _EnoughStepsError(Exception):
    """Ends the script's own fit."""


def audit_script(
    script: Path,
    arguments: Sequence[str],
    *,
    steps: int,
    budget_seconds: float,
    html: Path | None = None,
    as_json: bool = False,
) -> AuditReport:
    """Runs a script as `python SCRIPT ARGS` does, and audits its first `fit` after some steps.

    What stands behind that `fit` is not run; `finally` blocks and exit handlers are.

    Args:
        script: path of the script.
        arguments: what it finds in `sys.argv[1:]`.
        steps: of the script's own `fit` before it is audited, and of each measurement.
        budget_seconds: how long to measure.
        html: where to save the page; default None: nowhere.
        as_json: whether to print the report as JSON in place of tables. All else that this process and its children
            print, then and until they end, goes to standard error.

    Returns:
        The report, which is printed and saved already.

    Raises:
        ScriptError: no such file; it never calls `fit`; it raises; what it fits can't be audited; the page can't be
            saved.
    """
    if not script.is_file():
        raise ScriptError(f"There is no script {str(script)!r}.", 2)
    # Better to be told now than after a minute of measuring.
    if html is not None:
        _require_writable(html)
    taken = [option for option in _OPTIONS if any(each.split("=")[0] == option for each in arguments)]
    if taken:
        sys.stderr.write(f"note: {', '.join(taken)} stands behind {script.name}, and so is the script's.\n")
    found: list[AuditReport | ScriptError] = []
    process, turn, in_audit = os.getpid(), threading.Lock(), threading.local()

    def fit(original: Callable, model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        # The audit's own, and those of a process that the script has forked, are let through.
        if getattr(in_audit, "now", False) or os.getpid() != process:
            return original(model, *args, **kwargs)
        with turn:  # in another thread it would train beside what is measured
            # A script may go on all the same, after `except:` or in another thread.
            if not found:
                in_audit.now = True
                try:
                    # What the script's own fit raises is the script's, which may try again.
                    found.append(_audited(original, model, args, kwargs, steps, budget_seconds))
                finally:
                    in_audit.now = False
        # Past `except Exception`. In a thread, Python takes nothing but this very class for a quiet end.
        raise SystemExit(0)

    with _output_of_its_own() if as_json else contextlib.nullcontext(sys.stdout) as output:
        ended_by = _run(script, arguments, fit)
        # Iterators over Python generators complain where the interpreter ends before them.
        gc.collect()
        if not found:
            raise ScriptError(
                f"{script.name} {ended_by} without a call of model.fit(), so that there is nothing to audit. Give the "
                "script that trains, with the arguments that make it train. (Training in other processes is not seen.)"
            )
        report = found[0]
        if isinstance(report, ScriptError):
            raise report
        if as_json:
            output.write(json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n")
        else:
            # A progress bar of the script's may stand there, without an end.
            output.write("\n\n")
            report.print(output)
    if html is not None:
        try:
            report.save(html)
        except OSError as error:
            raise ScriptError(f"The page can't be saved: {error}") from error
        sys.stderr.write(f"The page is {html}.\n")
    return report


def _require_writable(html: Path) -> None:
    folder = html.absolute().parent
    if html.is_dir():
        raise ScriptError(f"{str(html)!r} is a folder. Give the name of the page's file, such as audit.html.", 2)
    if not folder.is_dir():
        raise ScriptError(f"There is no folder {str(folder)!r} to write {html.name!r} into.", 2)
    try:
        files.require_writable(str(folder))
    except OSError as error:
        raise ScriptError(f"Nothing can be written into {str(folder)!r}: {error.strerror}.", 2) from error


def _output_of_its_own() -> IO[str]:
    """The standard output, which from now on nothing else of this process reaches: it goes to standard error.

    By the file's number, since exit handlers, child processes and libraries print too, and some of them last.
    """
    sys.stdout.flush()
    alone = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return alone


def _run(script: Path, arguments: Sequence[str], fit: Callable) -> str:
    """Runs the script with another `fit`; returns in words how it ended."""
    with _as_python_runs(script, arguments), replaced_method(keras.Model, "fit", fit):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as exit_:
            return f"ended with exit code {exit_.code if exit_.code is not None else 0}"
        except Exception as error:
            lines = traceback.format_exception(type(error), error, _from_script(error, script))
            sys.stderr.write("".join(lines))
            raise ScriptError(f"{script.name} raised {type(error).__name__} before it could be audited.") from error
    return "ended"


@contextlib.contextmanager
def _as_python_runs(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    # Python puts the script's own folder first, in place of the current one.
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def _audited(
    original: Callable, model: keras.Model, args: tuple, kwargs: dict[str, Any], steps: int, budget_seconds: float
) -> AuditReport | ScriptError:
    """Lets the script's own fit do its steps, then audits it; an error of ours is returned."""
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    given = bound.arguments
    try:
        require_auditable(model)
    except ValueError as error:
        return ScriptError(str(error))
    users = each_callback(given.get("callbacks"))
    ending = _EndAfter(steps)
    if isinstance(given.get("callbacks"), keras.callbacks.CallbackList):
        given["callbacks"].append(ending)
    else:
        given["callbacks"] = [*users, ending]
    with contextlib.suppress(_EnoughStepsError):
        original(*bound.args, **bound.kwargs)
    data = {name: given[name] for name in _OF_DATA if given.get(name) is not None}
    if given.get("validation_split") and FitInput(**data).kind == "arrays":
        data = _training_part(data, given["validation_split"])
    try:
        return audit_fit(model, FitInput(**data), users, steps=steps, budget_seconds=budget_seconds)
    except (TypeError, ValueError, RuntimeError) as error:
        return ScriptError(str(error))


class _EndAfter(keras.callbacks.Callback):
    """Ends a fit after some steps, without the hooks at the end of an epoch, which save and validate."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self._done = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        model: Any = self.model
        self._done += model.steps_per_execution
        if self._done >= self._steps:
            raise _EnoughStepsError


def _training_part(data: dict[str, Any], validation_split: float) -> dict[str, Any]:
    """The arrays that `fit` trains on, as it splits them: the last examples are held out."""
    rows = len(keras.tree.flatten(data["x"])[0])
    kept = int(rows * (1 - validation_split))
    return {
        name: keras.tree.map_structure(lambda array: array[:kept], value)
        if name in ("x", "y", "sample_weight")
        else value
        for name, value in data.items()
    }


def _from_script(error: BaseException, script: Path) -> Any:
    """The traceback of an error from the script's own first line on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
        trace = trace.tb_next
    # A script that can't be compiled has no line that ran.
    return trace if trace is not None or isinstance(error, SyntaxError) else error.__traceback__
