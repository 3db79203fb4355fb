"""The parts of a tf.data service as programs: run in the foreground, until they are told to end."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from keras_turbo.data.service.address import DataServiceError, ServiceAddress
from keras_turbo.files.remote import load_tensorflow_io

LOOPBACK = "localhost"

# A worker that is gone for so long is taken off the list; TensorFlow waits a minute.
_WORKER_GONE_MS = 10_000
# Between two looks at whether the dispatcher answers.
_RETRY_SECONDS = 0.5

_OPEN_TO_ALL = (
    "TensorFlow opens this port on all network interfaces, and whoever reaches it may use it: keep it behind a "
    "firewall."
)


def run_dispatcher(*, host: str, port: int, work_dir: str | os.PathLike | None) -> None:
    """Runs a dispatcher until SIGTERM or Ctrl-C.

    Args:
        host: under which others reach this machine; for what is printed.
        port: 0 for any that is free.
        work_dir: a folder for its state, so that a dispatcher that is started again with it goes on. None: it is lost.

    Raises:
        DataServiceError: it can't be started, such as on a port that is taken.
        OSError: the folder can't be made.
    """
    import tensorflow as tf

    _require_free(port)
    if work_dir is not None:
        pathlib.Path(work_dir).mkdir(parents=True, exist_ok=True)
    config = tf.data.experimental.service.DispatcherConfig(
        port=port,
        protocol="grpc",
        work_dir=None if work_dir is None else os.path.abspath(os.fspath(work_dir)),
        fault_tolerant_mode=work_dir is not None,
        worker_timeout_ms=_WORKER_GONE_MS,
    )
    with _ended_by_signals() as wait:
        server = _started(lambda: tf.data.experimental.service.DispatchServer(config), "dispatcher")
        bound = server.target.rpartition(":")[2]
        _say(f"dispatcher grpc://{host}:{bound}", _OPEN_TO_ALL)
        try:
            wait()
        finally:
            server.stop()


def run_worker(dispatcher: ServiceAddress, *, host: str, port: int, timeout_seconds: float) -> None:
    """Runs a worker until SIGTERM or Ctrl-C. It reads `s3://` and its like where tensorflow-io is installed.

    Args:
        dispatcher: of which it gets its work. It may come and go.
        host: under which trainers reach this machine; the dispatcher tells them.
        port: 0 for any that is free.
        timeout_seconds: how long to wait for the dispatcher in the beginning.

    Raises:
        DataServiceError: the dispatcher does not answer in that time; it can't be started.
    """
    import tensorflow as tf

    _require_free(port)
    with _ended_by_signals() as wait:
        if not _wait_for(dispatcher, timeout_seconds, wait):
            return
        load_tensorflow_io()
        config = tf.data.experimental.service.WorkerConfig(
            dispatcher_address=dispatcher.host_and_port,
            worker_address=f"{host}:%port%",
            port=port,
            protocol="grpc",
            dispatcher_timeout_ms=int(max(1.0, timeout_seconds) * 1000),
        )
        server = _started(lambda: tf.data.experimental.service.WorkerServer(config), "worker")
        # The one way to know a port that the system picked.
        bound = server._address.rpartition(":")[2]
        _say(f"worker {host}:{bound} of {dispatcher}", _OPEN_TO_ALL)
        try:
            wait()
        finally:
            server.stop()


def _wait_for(dispatcher: ServiceAddress, timeout_seconds: float, wait: Any) -> bool:
    """Waits until the dispatcher answers; False if this process is to end before that."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            dispatcher.check()
        except DataServiceError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                raise DataServiceError(f"{error} Waited {timeout_seconds:g} s for it.") from error
            if wait(min(_RETRY_SECONDS, left)):
                return False
        else:
            return True


def _require_free(port: int) -> None:
    """Checks that a port can be had, since TensorFlow's own error does not say which one can't."""
    if not port:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise DataServiceError(f"Port {port} can't be used: {error}. Give another --port, or 0 for any.") from error


def _started(start: Any, what: str) -> Any:
    import tensorflow as tf

    try:
        return start()
    except tf.errors.OpError as error:
        raise DataServiceError(f"The {what} can't be started: {error.message}") from error


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    # Whoever starts it in a script waits for the port.
    sys.stdout.flush()


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[Any]:
    """Gives a function that waits for SIGTERM, up to some seconds if given, and says whether it came.

    Ctrl-C raises KeyboardInterrupt, as ever.
    """
    told_to_end = threading.Event()

    def wait(seconds: float | None = None) -> bool:
        if seconds is not None:
            return told_to_end.wait(seconds)
        while not told_to_end.wait(1.0):  # Python runs handlers of signals between two waits
            pass
        return True

    before = signal.signal(signal.SIGTERM, lambda number, frame: told_to_end.set())
    try:
        yield wait
    finally:
        signal.signal(signal.SIGTERM, before)
