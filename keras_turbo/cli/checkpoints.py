"""`python -m keras_turbo checkpoints`."""

from __future__ import annotations

import argparse
import sys


def add_checkpoints(commands: argparse._SubParsersAction) -> None:
    """Adds the command and its arguments."""
    checkpoints = commands.add_parser(
        "checkpoints",
        help="list the checkpoints in a directory and whether they are whole",
        description="Lists checkpoints, the newest last, with step, metric, size, age and health. Exits with 1 if none "
        "of them can be restored.",
    )
    checkpoints.add_argument(
        "directory", metavar="DIR", help="a directory of checkpoints, or one checkpoint; local or as s3://bucket/run"
    )
    checkpoints.add_argument("--json", action="store_true", help="print JSON for programs")
    checkpoints.add_argument(
        "--verify", action="store_true", help="read every byte and compare checksums, where else sizes are compared"
    )
    checkpoints.set_defaults(run=lambda options: _run_checkpoints(checkpoints, options))


def _run_checkpoints(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from keras_turbo.checkpoint.listing import as_json, as_table, list_checkpoints

    try:
        found = list_checkpoints(options.directory, checksums=options.verify)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    sys.stdout.write(as_json(found) if options.json else as_table(found, options.directory))
    return 0 if any(health.ok for health in found) else 1
