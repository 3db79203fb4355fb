"""`python -m keras_turbo audit`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from keras_turbo.cli.arguments import PROGRAM, integer_from


def add_audit(commands: argparse._SubParsersAction) -> None:
    """Adds the command and its arguments."""
    audit = commands.add_parser(
        "audit",
        help="run a training script until its first fit has done some steps, and say why it is slow",
        description="Runs an unmodified script as python does, until its first fit has done some steps; then measures "
        "where a step's time goes and what each remedy gains on that model and data, and ends the script there. What "
        "the script writes before that stays written.",
        usage=f"{PROGRAM} audit [-h] [--steps N] [--budget SECONDS] [--html FILE] [--json] SCRIPT [ARGS ...]",
    )
    audit.add_argument(
        "--steps",
        type=integer_from(1),
        default=50,
        metavar="N",
        help="steps of each measurement (default: %(default)s)",
    )
    audit.add_argument(
        "--budget",
        type=integer_from(1),
        default=60,
        metavar="SECONDS",
        help="how long to measure, beside the script itself (default: %(default)s)",
    )
    audit.add_argument("--html", type=Path, metavar="FILE", help="also write the report as a page (default: none)")
    audit.add_argument(
        "--json",
        action="store_true",
        help="print the report as JSON; what the script prints goes to standard error (default: tables)",
    )
    audit.add_argument("script", type=Path, metavar="SCRIPT", help="the training script; options stand before it")
    audit.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="what the script is given")
    audit.set_defaults(run=lambda options: _run_audit(audit, options))


def _run_audit(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from keras_turbo.auditing.script import ScriptError, audit_script

    try:
        audit_script(
            options.script,
            options.arguments,
            steps=options.steps,
            budget_seconds=float(options.budget),
            html=options.html,
            as_json=options.json,
        )
    except ScriptError as error:
        sys.stderr.write(f"{parser.prog}: error: {error}\n")
        return error.exit_code
    return 0
