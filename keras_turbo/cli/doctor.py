"""`python -m keras_turbo doctor`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from keras_turbo import __version__

# What a shell reports of a program whose output nobody reads: 128 + SIGPIPE.
_NOT_READ = 141


def add_doctor(commands: argparse._SubParsersAction) -> None:
    """Adds the command and its arguments."""
    doctor = commands.add_parser(
        "doctor",
        help="does what is installed fit together, and does the machine give what it has?",
        description="Looks at versions, GPUs, network, processor, memory, a disk and the cluster's variables, and says "
        "of each whether it is ok, a warning or an error, and what to do. It takes some seconds, writes up to "
        "256 MB to the disk that it measures, and leaves nothing behind. docs/doctor.md explains every finding.",
        epilog="The exit code is 1 if there is an error.",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    doctor.add_argument(
        "--folder",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="a folder on the disk that will hold data or checkpoints (default: the working directory)",
    )
    doctor.set_defaults(run=lambda options: _run_doctor(doctor, options))


def _run_doctor(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from keras_turbo.doctor.disk import located
    from keras_turbo.doctor.examination import examine

    try:
        folder = located(options.folder)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    report = examine(__version__, folder)
    output = sys.stdout
    if output is None:  # started without one
        return report.exit_code
    try:
        if options.json:
            output.write(report.to_json() + "\n")
            output.flush()
        else:
            report.print(output)
    except OSError as error:
        # The interpreter would try once more at its end, and complain.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), output.fileno())
        if isinstance(error, BrokenPipeError):  # who read it, such as head, has seen enough
            return _NOT_READ
        parser.exit(2, f"{parser.prog}: error: The report can't be written: {error}\n")
    return report.exit_code
