"""Many real processes for the price of one start of TensorFlow: a fresh process imports the package, then forks."""

from __future__ import annotations

PRELUDE = """
import json, os, random, signal, sys, time, warnings
from pathlib import Path
from keras_turbo.checkpoint import latest, verify
from keras_turbo.checkpoint.directory import claim, delete_checkpoint, sweep
from keras_turbo.checkpoint.directory import DirectoryInUseError, DirectoryLock
from keras_turbo.checkpoint.reading import read_checkpoint
from tests.checkpoint.saved import EXTRA, Watch, assert_equal_arrays, make_arrays, make_state, save

warnings.simplefilter("error")


def fork(work, *arguments):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work(*arguments)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def forking(source):
    """Source code that may call `fork(work, *arguments)` and `exit_code(pid)`, for `run_python`."""
    import textwrap

    return PRELUDE + textwrap.dedent(source)
