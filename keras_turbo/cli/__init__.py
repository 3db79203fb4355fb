"""The command line: `python -m keras_turbo {demo, convert, doctor, checkpoints, audit, launch}`.

A module a command; what a command needs is imported when it runs.
"""

from keras_turbo.cli.program import main

__all__ = ["main"]
