"""`python -m keras_turbo launch`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from keras_turbo.cli.arguments import PROGRAM, integer_from

# Stands in a manifest until somebody puts the image's name there.
_NO_IMAGE = "registry.example.com/train:latest"


def add_launch(commands: argparse._SubParsersAction) -> None:
    """Adds the command and its arguments."""
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
    launch.add_argument("--workers", type=integer_from(1), required=True, metavar="N", help="how many to start")
    launch.add_argument(
        "--gpus-per-worker",
        type=integer_from(0),
        metavar="G",
        help="GPUs of each; 0: none (default: those of this machine, dealt out evenly; in a script: as the cluster "
        "gives them)",
    )
    launch.add_argument(
        "--max-restarts",
        type=integer_from(0),
        default=0,
        metavar="R",
        help="how often all are started again after one has failed (default: %(default)s)",
    )
    launch.add_argument(
        "--grace",
        type=integer_from(0),
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
