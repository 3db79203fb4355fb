"""`python -m keras_turbo data-service`."""

from __future__ import annotations

import argparse
import sys

from keras_turbo.cli.arguments import integer_from, port


def add_data_service(commands: argparse._SubParsersAction) -> None:
    """Adds the command and its arguments."""
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
            "--port", type=port, default=0, metavar="N", help="port to listen on (default: any free one, printed)"
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
        type=integer_from(1),
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
