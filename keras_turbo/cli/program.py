"""What `python -m keras_turbo` does with its arguments."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from keras_turbo import __version__
from keras_turbo.cli.arguments import PROGRAM
from keras_turbo.cli.audit import add_audit
from keras_turbo.cli.checkpoints import add_checkpoints
from keras_turbo.cli.convert import add_convert
from keras_turbo.cli.demo import add_demo
from keras_turbo.cli.doctor import add_doctor
from keras_turbo.cli.launch import add_launch

# What a shell reports of a program that Ctrl-C ended: 128 + SIGINT.
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: what stands behind `python -m keras_turbo`; that of this process by default.

    Returns:
        The exit code: 0; 1 where the doctor found something wrong or `checkpoints` none that is good; 130 after Ctrl-C;
        141 where nobody reads the output; of `launch` that of the first worker that failed.

    Raises:
        SystemExit: with code 2 after an argument that can't be, with 0 after `--help` and `--version`.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.run is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        with _plain_warnings():
            return options.run(options)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Keras-native objects that make model.fit() fast.")
    parser.add_argument("--version", action="version", version=f"keras_turbo {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    add_demo(commands)
    add_convert(commands)
    add_doctor(commands)
    add_checkpoints(commands)
    add_audit(commands)
    add_launch(commands)
    return parser


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Shows warnings as sentences: the line of code that warns says nothing to who typed a command."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: sys.stderr.write(f"warning: {message}\n")
        yield
