"""The command line: `python -m keras_turbo {demo, convert, data-service, doctor, checkpoints, audit, launch}`."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from keras_turbo import __version__

PROGRAM = "python -m keras_turbo"

# What a shell reports of a program that Ctrl-C ended: 128 + SIGINT.
_INTERRUPTED = 130
# The same of a program whose output nobody reads: 128 + SIGPIPE.
_NOT_READ = 141
# Stands in a manifest until somebody puts the image's name there.
_NO_IMAGE = "registry.example.com/train:latest"


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
    _add_demo(commands)
    _add_convert(commands)
    _add_data_service(commands)
    _add_doctor(commands)
    _add_checkpoints(commands)
    _add_audit(commands)
    _add_launch(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction) -> None:
    demo = commands.add_parser(
        "demo",
        help="train on real images, the stock way and with keras_turbo, and compare",
        description="Trains one small convolutional network twice from the same weights, first as people do it by hand "
        "(keras.utils.image_dataset_from_directory), then with keras_turbo, and prints seconds an epoch, images a "
        "second and validation accuracy of both.",
    )
    demo.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="a folder with one folder of images for each class (default: 1,797 handwritten digits of scikit-learn)",
    )
    demo.add_argument(
        "--epochs", type=_integer_from(1), default=12, metavar="N", help="epochs of each run (default: %(default)s)"
    )
    demo.add_argument(
        "--batch-size", type=_integer_from(1), default=32, metavar="N", help="images a step (default: %(default)s)"
    )
    demo.add_argument(
        "--image-size",
        type=_integer_from(1),
        metavar="PIXELS",
        help="height and width to which images are resized (default: 8 for the digits, which have that size; 64 with "
        "--data, which a small network trains on in seconds without a GPU)",
    )
    demo.add_argument(
        "--seed",
        type=_integer_from(0),
        default=0,
        metavar="N",
        help="decides the split, the weights and the order (default: %(default)s)",
    )
    demo.set_defaults(run=lambda options: _run_demo(demo, options))


def _run_demo(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
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
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    result.print()
    return 0


def _add_doctor(commands: argparse._SubParsersAction) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="does what is installed fit together, and does the machine give what it has?",
        description="Looks at versions, GPUs, network, processor, memory, a disk and the cluster's variables, and says "
        "of each whether it is fine, could be better or is wrong, and what to do. It takes some seconds, writes up to "
        "256 MB to the disk that it measures, and leaves nothing behind. docs/doctor.md explains every finding.",
        epilog="The exit code is 1 if something is wrong.",
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


def _add_checkpoints(commands: argparse._SubParsersAction) -> None:
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


def _add_audit(commands: argparse._SubParsersAction) -> None:
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
        type=_integer_from(1),
        default=50,
        metavar="N",
        help="steps of each measurement (default: %(default)s)",
    )
    audit.add_argument(
        "--budget",
        type=_integer_from(1),
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


def _add_launch(commands: argparse._SubParsersAction) -> None:
    launch = commands.add_parser(
        "launch",
        help="start a training script on several workers of this machine, or write what starts it on a cluster",
        description="Starts a script several times, with the TF_CONFIG by which keras_turbo.distribute() joins the "
        "workers, and shows what they print with [worker 0] and so on before each line. SIGINT, SIGTERM, SIGHUP, "
        "SIGUSR1 and SIGUSR2 are passed on. When one worker fails, all are ended, and started again as often as "
        "--max-restarts allows; with AsyncCheckpoint they go on where they were. No process is left behind.",
        epilog="The exit code is 0 if all workers ended well; otherwise that of the first that failed, which is 128 + "
        "the signal's number where a signal ended it (137 after SIGKILL); 130 after Ctrl-C; 143 where the run was "
        "preempted (SIGTERM came, or a worker saved and left with that code): it is not started again here, but may be "
        "by who requeues the job.",
        usage=f"{PROGRAM} launch [-h] --workers N [--gpus-per-worker G] [--max-restarts R] [--grace SECONDS] "
        "[--print-slurm | --print-kubernetes] [--image IMAGE] SCRIPT [ARGS ...]",
    )
    launch.add_argument("--workers", type=_integer_from(1), required=True, metavar="N", help="how many to start")
    launch.add_argument(
        "--gpus-per-worker",
        type=_integer_from(0),
        metavar="G",
        help="GPUs of each; 0: none (default: those of this machine, dealt out evenly; in a script: as the cluster "
        "gives them)",
    )
    launch.add_argument(
        "--max-restarts",
        type=_integer_from(0),
        default=0,
        metavar="R",
        help="how often all are started again after one has failed (default: %(default)s)",
    )
    launch.add_argument(
        "--grace",
        type=_integer_from(0),
        default=10,
        metavar="SECONDS",
        help="how long workers may take to end when another has failed (default: %(default)s)",
    )
    instead = launch.add_mutually_exclusive_group()
    instead.add_argument(
        "--print-slurm", action="store_true", help="print a script for sbatch with N machines, and start nothing"
    )
    instead.add_argument(
        "--print-kubernetes", action="store_true", help="print a manifest for kubectl with N pods, and start nothing"
    )
    launch.add_argument(
        "--image", default=_NO_IMAGE, metavar="IMAGE", help="of the manifest's container (default: %(default)s)"
    )
    launch.add_argument("script", metavar="SCRIPT", help="the training script; options stand before it")
    launch.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="what the script is given")
    launch.set_defaults(run=lambda options: _run_launch(launch, options))


def _run_launch(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from keras_turbo.distribution.job_files import kubernetes_manifest, slurm_script
    from keras_turbo.distribution.launch import LaunchError, LaunchOptions, launch

    asked = {
        "workers": options.workers,
        "gpus_per_worker": options.gpus_per_worker,
        "max_restarts": options.max_restarts,
    }
    if options.print_slurm:
        sys.stdout.write(slurm_script(options.script, options.arguments, **asked))
        return 0
    if options.print_kubernetes:
        sys.stdout.write(kubernetes_manifest(options.script, options.arguments, **asked, image=options.image))
        return 0
    if not Path(options.script).is_file():
        parser.exit(2, f"{parser.prog}: error: There is no script {options.script!r}.\n")
    command = [sys.executable, options.script, *options.arguments]
    try:
        return launch(command, LaunchOptions(**asked, grace_seconds=float(options.grace)))
    except LaunchError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


def _add_convert(commands: argparse._SubParsersAction) -> None:
    convert = commands.add_parser(
        "convert",
        help="write a folder of images to TFRecord files",
        description="Writes the images under DIR to TFRecord files in OUT, for FastDataset.from_tfrecord(OUT). After "
        "an interruption the same command goes on where it was.",
    )
    convert.add_argument(
        "directory",
        metavar="DIR",
        help="a folder with one folder of images for each class, local or as s3://bucket/photos",
    )
    convert.add_argument(
        "out", metavar="OUT", help="a folder for the files, made if missing, local or as s3://bucket/records"
    )
    convert.add_argument(
        "--shards", type=_integer_from(1), metavar="N", help="files to write (default: so many that each has 128 MB)"
    )
    convert.add_argument(
        "--image-size",
        type=_size,
        metavar="HxW",
        help="resize images to this height and width and keep them as JPEG (default: keep each file's bytes)",
    )
    convert.add_argument(
        "--resize",
        choices=("stretch", "pad", "crop"),
        default="stretch",
        help="how to bring them to that size (default: %(default)s)",
    )
    convert.add_argument(
        "--quality", type=_integer_from(1), default=95, metavar="Q", help="of these JPEGs (default: %(default)s)"
    )
    convert.add_argument(
        "--workers", type=_integer_from(1), metavar="W", help="images prepared at a time (default: one for each core)"
    )
    convert.add_argument(
        "--validation-split",
        type=float,
        metavar="F",
        help="share of the images to hold out: OUT/training and OUT/validation",
    )
    convert.add_argument(
        "--seed", type=_integer_from(0), default=0, metavar="N", help="decides the split (default: %(default)s)"
    )
    convert.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="whether a file that can't be converted ends the run or is left out and listed (default: %(default)s)",
    )
    convert.set_defaults(run=lambda options: _run_convert(convert, options))


def _run_convert(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from keras_turbo.data.convert import convert_images

    try:
        manifests = convert_images(
            options.directory,
            options.out,
            shards=options.shards,
            image_size=options.image_size,
            resize=options.resize,
            quality=options.quality,
            workers=options.workers,
            validation_split=options.validation_split,
            seed=options.seed,
            on_error=options.on_error,
        )
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    for part, manifest in manifests.items():
        out = options.out.rstrip("/") or "/"
        folder = out if part == "all" else f"{out}/{part}"
        left_out = f", {len(manifest.skipped)} left out" if manifest.skipped else ""
        sys.stdout.write(
            f"{folder}: {manifest.num_examples} images in {len(manifest.files)} files{left_out}. "
            f"Read them by FastDataset.from_tfrecord({folder!r}).\n"
        )
    return 0


def _add_data_service(commands: argparse._SubParsersAction) -> None:
    service = commands.add_parser(
        "data-service",
        help="run a part of a tf.data service: batches made on other machines",
        description="Runs one part of a tf.data service in the foreground, until SIGTERM or Ctrl-C. One dispatcher and "
        "any number of workers make batches for FastDataset(..., service='grpc://host:port'). docs/data_service.md "
        "says how to set one up.",
    )
    service.set_defaults(run=lambda options: service.print_help(sys.stderr) or 2)
    parts = service.add_subparsers(title="parts", metavar="PART")
    dispatcher = parts.add_parser("dispatcher", help="hands out the work, and tells trainers where workers are")
    worker = parts.add_parser("worker", help="makes batches")
    for part in (dispatcher, worker):
        part.add_argument(
            "--port", type=_port, default=0, metavar="N", help="port to listen on (default: any free one, printed)"
        )
        part.add_argument(
            "--host",
            default="localhost",
            metavar="NAME",
            help="the name under which other machines reach this one (default: %(default)s, for this machine alone)",
        )
    dispatcher.add_argument(
        "--work-dir",
        metavar="DIR",
        help="a folder that keeps the state, so that a dispatcher started again with it and the same port goes on "
        "(default: none, the state is lost with the process)",
    )
    worker.add_argument(
        "--dispatcher", required=True, metavar="grpc://HOST:PORT", help="the dispatcher's address, as it prints it"
    )
    worker.add_argument(
        "--timeout",
        type=_integer_from(1),
        default=60,
        metavar="SECONDS",
        help="how long to wait for the dispatcher (default: %(default)s)",
    )
    dispatcher.set_defaults(run=lambda options: _run_data_service(dispatcher, options))
    worker.set_defaults(run=lambda options: _run_data_service(worker, options))


def _run_data_service(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from keras_turbo.data.service.address import ServiceAddress
    from keras_turbo.data.service.servers import run_dispatcher, run_worker

    try:
        if hasattr(options, "dispatcher"):
            address = ServiceAddress.parse(options.dispatcher)
            run_worker(address, host=options.host, port=options.port, timeout_seconds=options.timeout)
        else:
            run_dispatcher(host=options.host, port=options.port, work_dir=options.work_dir)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535. Received: {text!r}.")
    return int(text)


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise argparse.ArgumentTypeError(f"must be height and width in pixels, as 224x224. Received: {text!r}.")
    return int(height), int(width)


def _integer_from(smallest: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < smallest:
            raise argparse.ArgumentTypeError(f"must be an integer from {smallest}. Received: {text!r}.")
        return value

    return integer


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Shows warnings as sentences: the line of code that warns says nothing to who typed a command."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: sys.stderr.write(f"warning: {message}\n")
        yield
