"""The command line, `python -m keras_turbo`: a function for each command, which imports what it needs when it runs."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keras_turbo import __version__

PROGRAM = "python -m keras_turbo"

# What a shell reports of a program that Ctrl-C ended (128 + SIGINT), and of one whose output nobody reads (+ SIGPIPE).
_INTERRUPTED = 130
_NOT_READ = 141


class _CommandError(Exception):
    """What a command can't do, told in one line.

    Args:
        message: a sentence.
        exit_code: of the program.
    """

    def __init__(self, message: object, exit_code: int = 2) -> None:
        super().__init__(str(message))
        self.exit_code = exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: what stands behind `python -m keras_turbo`; that of this process by default.

    Returns:
        The exit code: 0; 1 where the doctor found an error or `checkpoints` none that is good; 130 after Ctrl-C; 141
        where nobody reads the output; of `launch` that of the first worker that failed.

    Raises:
        SystemExit: with code 2 after an argument that can't be, with 1 where a script can't be audited, with 0 after
            `--help` and `--version`.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        with _plain_warnings():
            return options.run(options)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except _CommandError as error:
        return options.parser.exit(error.exit_code, f"{options.parser.prog}: error: {error}\n")


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Shows warnings as sentences: the line of code that warns says nothing to who typed a command."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: sys.stderr.write(f"warning: {message}\n")
        yield


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Keras-native objects that make model.fit() fast.")
    parser.add_argument("--version", action="version", version=f"keras_turbo {__version__}")
    parser.set_defaults(run=lambda options: parser.print_help(sys.stderr) or 2)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in (_add_demo, _add_convert, _add_doctor, _add_checkpoints, _add_audit, _add_launch):
        add(commands)
    return parser


def _command(commands: Any, name: str, run: Callable[[Any], int], **texts: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, **texts)
    parser.set_defaults(run=run, parser=parser)
    return parser


def _option(parser: Any, name: str, text: str, default: Any = None, **more: Any) -> None:
    """Adds an option whose help says its default."""
    parser.add_argument(
        name, default=default, help=text if default is None else f"{text} (default: %(default)s)", **more
    )


def _integer_from(smallest: int) -> Callable[[str], int]:
    """A type of arguments: integers from `smallest` on."""

    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < smallest:
            raise argparse.ArgumentTypeError(f"must be an integer from {smallest}. Received: {text!r}.")
        return value

    return integer


def _size(text: str) -> tuple[int, int]:
    """Height and width in pixels, of "224x224"."""
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise argparse.ArgumentTypeError(f"must be height and width in pixels, as 224x224. Received: {text!r}.")
    return int(height), int(width)


def _add_demo(commands: Any) -> None:
    demo = _command(
        commands,
        "demo",
        _run_demo,
        help="train on real images, the stock way and with keras_turbo, and compare",
        description="Trains one small convolutional network twice from the same weights, first as people do it by hand "
        "(keras.utils.image_dataset_from_directory), then with keras_turbo, and prints seconds an epoch, images a "
        "second and validation accuracy of both.",
    )
    text = "a folder with one folder of images for each class (default: 1,797 handwritten digits of scikit-learn)"
    _option(demo, "--data", text, type=Path, metavar="DIR")
    _option(demo, "--epochs", "epochs of each run", 12, type=_integer_from(1), metavar="N")
    _option(demo, "--batch-size", "images a step", 32, type=_integer_from(1), metavar="N")
    text = (
        "height and width to which images are resized (default: 8 for the digits, which have that size; 64 with "
        "--data, which a small network trains on in seconds without a GPU)"
    )
    _option(demo, "--image-size", text, type=_integer_from(1), metavar="PIXELS")
    _option(demo, "--seed", "decides the split, the weights and the order", 0, type=_integer_from(0), metavar="N")


def _run_demo(options: argparse.Namespace) -> int:
    from keras_turbo.demo import DemoError, run_demo

    try:
        result = run_demo(
            options.data,
            epochs=options.epochs,
            batch_size=options.batch_size,
            image_size=options.image_size,
            seed=options.seed,
        )
    except DemoError as error:
        raise _CommandError(error) from error
    result.print()
    return 0


def _add_convert(commands: Any) -> None:
    convert = _command(
        commands,
        "convert",
        _run_convert,
        help="write a folder of images to TFRecord files",
        description="Writes the images under DIR to TFRecord files in OUT, for FastDataset.from_tfrecord(OUT). After "
        "an interruption the same command goes on where it was.",
    )
    text = "a folder with one folder of images for each class, local or as s3://bucket/photos"
    convert.add_argument("directory", metavar="DIR", help=text)
    text = "a folder for the files, made if missing, local or as s3://bucket/records"
    convert.add_argument("out", metavar="OUT", help=text)
    text = "files to write (default: so many that each has 128 MB)"
    _option(convert, "--shards", text, type=_integer_from(1), metavar="N")
    text = "resize images to this height and width and keep them as JPEG (default: keep each file's bytes)"
    _option(convert, "--image-size", text, type=_size, metavar="HxW")
    _option(convert, "--resize", "how to bring them to that size", "stretch", choices=("stretch", "pad", "crop"))
    _option(convert, "--quality", "of these JPEGs", 95, type=_integer_from(1), metavar="Q")
    text = "images prepared at a time (default: one for each core)"
    _option(convert, "--workers", text, type=_integer_from(1), metavar="W")
    text = "share of the images to hold out: OUT/training and OUT/validation"
    _option(convert, "--validation-split", text, type=float, metavar="F")
    _option(convert, "--seed", "decides the split", 0, type=_integer_from(0), metavar="N")
    text = "whether a file that can't be converted ends the run or is left out and listed"
    _option(convert, "--on-error", text, "raise", choices=("raise", "skip"))


def _run_convert(options: argparse.Namespace) -> int:
    from keras_turbo.data.convert import ConversionError, convert_images

    asked = ("shards", "image_size", "resize", "quality", "workers", "validation_split", "seed", "on_error")
    try:
        manifests = convert_images(options.directory, options.out, **{name: getattr(options, name) for name in asked})
    except ConversionError as error:
        raise _CommandError(error.told("--on-error skip")) from error
    except (ValueError, OSError) as error:
        raise _CommandError(error) from error
    for part, manifest in manifests.items():
        out = options.out.rstrip("/") or "/"
        folder = out if part == "all" else f"{out}/{part}"
        left_out = f", {len(manifest.skipped)} left out" if manifest.skipped else ""
        sys.stdout.write(
            f"{folder}: {manifest.num_examples} images in {len(manifest.files)} files{left_out}. "
            f"Read them by FastDataset.from_tfrecord({folder!r}).\n"
        )
    return 0


def _add_doctor(commands: Any) -> None:
    doctor = _command(
        commands,
        "doctor",
        _run_doctor,
        help="does what is installed fit together, and does the machine give what it has?",
        description="Looks at versions, GPUs, network, processor, memory, a disk and the cluster's variables, and says "
        "of each whether it is ok, a warning or an error, and what to do. It takes some seconds, writes up to 256 MB "
        "to the disk that it measures, and leaves nothing behind. docs/doctor.md explains every finding.",
        epilog="The exit code is 1 if there is an error.",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    text = "a folder on the disk that will hold data or checkpoints (default: the working directory)"
    doctor.add_argument("--folder", type=Path, default=Path(), metavar="DIR", help=text)


def _run_doctor(options: argparse.Namespace) -> int:
    from keras_turbo.doctor.disk import located
    from keras_turbo.doctor.examination import examine

    try:
        folder = located(options.folder)
    except ValueError as error:
        raise _CommandError(error) from error
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
        raise _CommandError(f"The report can't be written: {error}") from error
    return report.exit_code


def _add_checkpoints(commands: Any) -> None:
    checkpoints = _command(
        commands,
        "checkpoints",
        _run_checkpoints,
        help="list the checkpoints in a directory and whether they are whole",
        description="Lists checkpoints, the newest last, with step, metric, size, age and health. Exits with 1 if none "
        "of them can be restored.",
    )
    text = "a directory of checkpoints, or one checkpoint; local or as s3://bucket/run"
    checkpoints.add_argument("directory", metavar="DIR", help=text)
    checkpoints.add_argument("--json", action="store_true", help="print JSON for programs")
    text = "read every byte and compare checksums, where else sizes are compared"
    checkpoints.add_argument("--verify", action="store_true", help=text)


def _run_checkpoints(options: argparse.Namespace) -> int:
    from keras_turbo.checkpoint.listing import as_json, as_table, list_checkpoints

    try:
        found = list_checkpoints(options.directory, checksums=options.verify)
    except (ValueError, OSError) as error:
        raise _CommandError(error) from error
    sys.stdout.write(as_json(found) if options.json else as_table(found, options.directory))
    return 0 if any(health.ok for health in found) else 1


def _add_audit(commands: Any) -> None:
    audit = _command(
        commands,
        "audit",
        _run_audit,
        help="run a training script until its first fit has done some steps, and say why it is slow",
        description="Runs an unmodified script as python does, until its first fit has done some steps; then measures "
        "where a step's time goes and what each remedy gains on that model and data, and ends the script there. What "
        "the script writes before that stays written.",
        usage=f"{PROGRAM} audit [-h] [--steps N] [--budget SECONDS] [--html FILE] [--json] SCRIPT [ARGS ...]",
    )
    _option(audit, "--steps", "steps of each measurement", 50, type=_integer_from(1), metavar="N")
    text = "how long to measure, beside the script itself"
    _option(audit, "--budget", text, 60, type=_integer_from(1), metavar="SECONDS")
    audit.add_argument("--html", type=Path, metavar="FILE", help="also write the report as a page (default: none)")
    text = "print the report as JSON; what the script prints goes to standard error (default: tables)"
    audit.add_argument("--json", action="store_true", help=text)
    audit.add_argument("script", type=Path, metavar="SCRIPT", help="the training script; options stand before it")
    audit.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="what the script is given")


def _run_audit(options: argparse.Namespace) -> int:
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
        raise _CommandError(error, error.exit_code) from error
    return 0


def _add_launch(commands: Any) -> None:
    launch = _command(
        commands,
        "launch",
        _run_launch,
        help="start a training script on several workers of this machine",
        description="Starts a script several times, with the TF_CONFIG by which keras_turbo.distribute() joins the "
        "workers, and shows what they print with [worker 0] and so on before each line. SIGINT, SIGTERM, SIGHUP, "
        "SIGUSR1 and SIGUSR2 are passed on. When one worker fails, all are ended, and started again as often as "
        "--max-restarts allows; with AsyncCheckpoint they go on where they were. No process is left behind. "
        "TensorFlow opens the workers' ports on all network interfaces and takes commands there: on a machine that "
        "strangers reach, keep them out by a firewall. For clusters there are docs/slurm.sh and docs/kubernetes.yaml.",
        epilog="The exit code is 0 if all workers ended well; otherwise that of the first that failed, which is 128 + "
        "the signal's number where a signal ended it (137 after SIGKILL); 130 after Ctrl-C; 143 where the run was "
        "preempted (SIGTERM came, or a worker saved and left with that code): it is not started again here, but may be "
        "by who requeues the job.",
        usage=f"{PROGRAM} launch [-h] --workers N [--gpus-per-worker G] [--max-restarts R] [--grace SECONDS] SCRIPT "
        "[ARGS ...]",
    )
    _option(launch, "--workers", "how many to start", type=_integer_from(1), required=True, metavar="N")
    text = "GPUs of each; 0: none (default: those of this machine, dealt out evenly)"
    _option(launch, "--gpus-per-worker", text, type=_integer_from(0), metavar="G")
    text = "how often all are started again after one has failed"
    _option(launch, "--max-restarts", text, 0, type=_integer_from(0), metavar="R")
    text = "how long workers may take to end when another has failed"
    _option(launch, "--grace", text, 10, type=_integer_from(0), metavar="SECONDS")
    launch.add_argument("script", metavar="SCRIPT", help="the training script; options stand before it")
    launch.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="what the script is given")


def _run_launch(options: argparse.Namespace) -> int:
    from keras_turbo.distribution.launch import LaunchError, LaunchOptions, launch

    if not Path(options.script).is_file():
        raise _CommandError(f"There is no script {options.script!r}.")
    asked = LaunchOptions(
        workers=options.workers,
        gpus_per_worker=options.gpus_per_worker,
        max_restarts=options.max_restarts,
        grace_seconds=float(options.grace),
    )
    try:
        return launch([sys.executable, options.script, *options.arguments], asked)
    except LaunchError as error:
        raise _CommandError(error) from error
