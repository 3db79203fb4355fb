"""`python -m keras_turbo launch`: several workers on this machine, as one program.

A synchronous training goes on with all of its workers or not at all, so they are started together, and together ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import IO, Any, TextIO

from keras_turbo.distribution.cluster import Cluster
from keras_turbo.distribution.worker_process import WorkerProcess
from keras_turbo.monitor.nvml import visible_gpus

# As of a process that SIGTERM ends: the code with which AsyncCheckpoint ends a process that was told to go.
PREEMPTED_EXIT_CODE = 128 + signal.SIGTERM

# How often this run was started anew, for the workers.
RESTART_VARIABLE = "KERAS_TURBO_RESTART"

# Told the workers as they come. SIGHUP comes when a terminal is closed.
_PASSED_ON = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
# After these the run is over, also where the workers end as if nothing had been.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Between two looks at whether a worker has ended.
_LOOK_SECONDS = 0.1

# Of what nobody has read yet, so much is kept; then the workers wait, as they would without `launch`.
_MOST_UNREAD_BYTES = 1 << 20

# After a signal that ends the run, nobody who has read nothing for so long is waited for.
_READER_SECONDS = 1.0


class LaunchError(Exception):
    """What can't be launched."""


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """What `launch` documents under these names.

    Args:
        workers: how many to start.
        gpus_per_worker: GPUs of each; None: what there are, dealt out evenly; 0: none.
        max_restarts: how often all are started again after one has failed.
        grace_seconds: how long workers may take to end when another has failed.
    """

    workers: int
    gpus_per_worker: int | None = None
    max_restarts: int = 0
    grace_seconds: float = 10.0


def launch(
    command: Sequence[str],
    options: LaunchOptions,
    environ: Mapping[str, str] | None = None,
    outputs: tuple[IO[bytes], IO[bytes]] | None = None,
) -> int:
    """Runs workers until all have ended well, or one has failed too often.

    To be called in the main thread. What the workers print is shown with `[worker 0]` and so on before each line.

    Args:
        command: what each worker runs.
        options: how many, and so on.
        environ: of the workers, besides what tells them their place; that of this process by default.
        outputs: for the workers' standard output and standard error; those of this process by default.

    Returns:
        0; or the exit code of the first worker that failed, which is 128 + the signal's number where a signal ended it;
        130 after Ctrl-C; 143 where SIGTERM came, or a worker had left with that code: it was preempted, and its
        checkpoint is for the next run.

    Raises:
        LaunchError: there are not enough GPUs; the command can't be started.
    """
    environ = dict(os.environ if environ is None else environ)
    gpus = _gpus_of_workers(options, environ)
    with _Signals() as signals:
        given = (_binary(sys.stdout), _binary(sys.stderr)) if outputs is None else outputs
        shown = _Output(given[0], signals), _Output(given[1], signals)
        for restart in range(options.max_restarts + 1):
            environments = _environments(options.workers, gpus, {**environ, RESTART_VARIABLE: str(restart)})
            run = _Run(command, environments, shown, signals, options.grace_seconds)
            code, failed = run.until_end()
            left = options.max_restarts - restart
            if failed:
                shown[1].tell(f"{run.what_happened()}; all workers have ended.")
            if not failed or signals.ending is not None or code == PREEMPTED_EXIT_CODE or not left:
                for output in shown:
                    output.finish()
                return _final_code(code, signals)
            shown[1].tell(f"all {options.workers} workers start again ({restart + 1} of {options.max_restarts}).")
    raise AssertionError("unreachable")


def _final_code(code: int, signals: _Signals) -> int:
    return 128 + signal.SIGINT if signals.ending == signal.SIGINT else code


class _Run:
    """All workers, from their start to their end.

    Args:
        command: what each runs.
        environments: of each.
        outputs: take the lines of all.
        signals: what comes to this process.
        grace_seconds: between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        outputs: tuple[_Output, _Output],
        signals: _Signals,
        grace_seconds: float,
    ) -> None:
        self._command = command
        self._environments = environments
        self._outputs = outputs
        self._signals = signals
        self._grace_seconds = grace_seconds
        self._workers: list[WorkerProcess] = []
        self._failed: list[WorkerProcess] = []
        self._kill_at: float | None = None

    def until_end(self) -> tuple[int, bool]:
        """The exit code, that of a worker that failed first; and whether one failed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals.wake, selectors.EVENT_READ)
            try:
                for index, environ in enumerate(self._environments):
                    self._workers.append(self._start(index, environ))
                    self._workers[-1].register(selector)
                while any(worker.exit_code() is None for worker in self._workers):
                    self._look(selector)
                # All may have ended at the same time.
                self._note_failures()
            finally:
                for worker in self._workers:
                    worker.close()
        return next((code for worker in self._failed if (code := worker.exit_code())), 0), bool(self._failed)

    def what_happened(self) -> str:
        """Which workers failed, and how: those that did so before the others were told to end."""
        return " and ".join(f"worker {worker.index} {worker.ended_how()}" for worker in self._failed)

    def _start(self, index: int, environ: Mapping[str, str]) -> WorkerProcess:
        try:
            return WorkerProcess(index, self._command, environ, (self._outputs[0].add, self._outputs[1].add))
        except OSError as error:
            raise LaunchError(f"{self._command[0]!r} can't be started: {error.strerror}.") from error

    def _look(self, selector: selectors.DefaultSelector) -> None:
        """Shows what was printed, passes signals on, and sees to it that all end where one has failed."""
        waiting = [output for output in self._outputs if output.is_waiting]
        # Who is to end may have something to say first, and must not be held up by a reader that is gone.
        is_paused = any(output.is_full for output in waiting) and self._signals.ending is None
        select.select([self._signals.wake if is_paused else selector], waiting, [], _LOOK_SECONDS)
        for output in waiting:
            output.write()
        for key, _ in () if is_paused else selector.select(0):
            if key.data is not None and not key.data.read(key.fileobj):
                selector.unregister(key.fileobj)
        for number in self._signals.take():
            # Who asks a second time does not want to wait.
            hard = self._signals.endings > 1 and number in _ENDING
            for worker in self._workers:
                worker.end_group(signal.SIGKILL) if hard else worker.send(number)
        self._note_failures()
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            for worker in self._workers:
                worker.end_group(signal.SIGKILL)

    def _note_failures(self) -> None:
        """Tells the others to end where one has failed."""
        if self._failed:
            return
        # Of those that failed at about the same time, one that a signal has ended has most likely taken the others with
        # it: it comes first.
        failed = [worker for worker in self._workers if worker.exit_code()]
        self._failed = sorted(failed, key=lambda worker: worker.exit_code() or 0, reverse=True)
        if self._failed and not self._is_leaving(self._failed[0]):
            self._kill_at = time.monotonic() + self._grace_seconds
            for worker in self._workers:
                worker.send(signal.SIGTERM)

    def _is_leaving(self, worker: WorkerProcess) -> bool:
        """Whether it has saved and left as it was told: then the others are saving, too, which may take its time."""
        return self._signals.any_came and worker.exit_code() == PREEMPTED_EXIT_CODE


class _Output:
    """Shows lines as fast as somebody reads them, without waiting for who does not.

    Args:
        output: what is written to; None: nothing is.
        signals: after one that ends the run, what nobody reads is dropped once it is much.
    """

    def __init__(self, output: IO[bytes] | None, signals: _Signals) -> None:
        self._output = output
        self._signals = signals
        self._unread = bytearray()
        self._number: int | None = None
        if output is not None:
            # What is no file of the system never makes anybody wait.
            with contextlib.suppress(io.UnsupportedOperation):
                self._number = output.fileno()

    def fileno(self) -> int:
        """For `select`, while it is waiting."""
        return -1 if self._number is None else self._number

    @property
    def is_waiting(self) -> bool:
        """Whether there is something that nobody has read yet."""
        return bool(self._unread)

    @property
    def is_full(self) -> bool:
        """Whether there is so much of it that workers should wait."""
        return len(self._unread) >= _MOST_UNREAD_BYTES

    def tell(self, text: str) -> None:
        """Shows a line of `launch` itself."""
        self.add(f"[launch] {text}\n".encode())

    def add(self, lines: bytes) -> None:
        """Shows whole lines, now or later."""
        if not (self.is_full and self._signals.ending is not None):
            self._unread += lines
        self.write()

    def write(self) -> None:
        """Writes what can be written without waiting."""
        # Nobody may read it any longer; the training goes on all the same.
        try:
            if self._number is None:
                if self._output is not None:
                    self._output.write(self._unread)
                self._unread.clear()
            while self._unread and select.select([], [self], [], 0)[1]:
                # A pipe that can be written to takes so much at once.
                del self._unread[: os.write(self.fileno(), self._unread[: select.PIPE_BUF])]
        except OSError:
            self._unread.clear()

    def finish(self) -> None:
        """Waits until all is read; after a signal that ends the run, for a moment."""
        last_read = time.monotonic()
        while self._unread:
            _, can_write, _ = select.select([self._signals.wake], [self], [], _LOOK_SECONDS)
            self._signals.take()
            if can_write:
                self.write()
                last_read = time.monotonic()
            elif self._signals.ending is not None and time.monotonic() - last_read > _READER_SECONDS:
                return


class _Signals:
    """Takes note of the signals that come to this process while it is entered, and wakes who waits.

    Attributes:
        wake: can be read from when one has come.
        ending: the first of those after which the run is over; None before.
        endings: how many of those have come.
        any_came: whether any came.
    """

    def __init__(self) -> None:
        self.ending: int | None = None
        self.endings = 0
        self.any_came = False
        self._come: list[int] = []
        self._previous: dict[int, Any] = {}
        self.wake, self._waker = socket.socketpair()

    def __enter__(self) -> _Signals:
        for one in (self.wake, self._waker):
            one.setblocking(False)
        # What is ignored stays so, for the workers as well: nohup has them train on when the terminal is closed.
        self._previous = {
            number: signal.signal(number, self._note)
            for number in _PASSED_ON
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        self.wake.close()
        self._waker.close()

    def take(self) -> list[int]:
        """Those that have come since the last time."""
        with contextlib.suppress(BlockingIOError):
            while self.wake.recv(64):
                pass
        come, self._come = self._come, []
        return come

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._come.append(number)
        self.any_came = True
        if number in _ENDING:
            self.endings += 1
            self.ending = number if self.ending is None else self.ending
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")


def _gpus_of_workers(options: LaunchOptions, environ: Mapping[str, str]) -> list[str] | None:
    """CUDA_VISIBLE_DEVICES of each worker; None where nothing is to be dealt out."""
    each = options.gpus_per_worker
    if each == 0:
        return ["-1"] * options.workers
    gpus = [gpu.uuid for gpu in visible_gpus(environ)]
    if each is None:
        if not gpus:
            return None
        each = len(gpus) // options.workers
        if not each:
            raise LaunchError(
                f"{options.workers} workers can't share {len(gpus)} GPU{'' if len(gpus) == 1 else 's'}. Start fewer "
                "(one worker trains on several GPUs), or give --gpus-per-worker 0 to train on the processor."
            )
    if each * options.workers > len(gpus):
        raise LaunchError(
            f"{options.workers} workers with {each} GPUs each need {each * options.workers}, and this process has "
            f"{len(gpus)} (nvidia-smi -L and CUDA_VISIBLE_DEVICES tell which). Give other --workers or "
            "--gpus-per-worker."
        )
    return [",".join(gpus[worker * each : (worker + 1) * each]) for worker in range(options.workers)]


def _environments(workers: int, gpus: Sequence[str] | None, environ: Mapping[str, str]) -> list[dict[str, str]]:
    addresses = tuple(f"127.0.0.1:{port}" for port in _free_ports(workers))
    result = []
    for index in range(workers):
        cluster = Cluster("launch", "TF_CONFIG", {"worker": addresses}, "worker", index)
        mine = {**environ, "TF_CONFIG": cluster.tf_config, "PYTHONUNBUFFERED": "1"}
        if gpus is not None:
            mine["CUDA_VISIBLE_DEVICES"] = gpus[index]
        result.append(mine)
    return result


def _free_ports(number: int) -> list[int]:
    """Ports that nobody has now. New ones for each start, since what was just killed may hold its own a while."""
    with contextlib.ExitStack() as stack:
        # All at a time, so that they differ.
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


def _binary(output: TextIO | None) -> IO[bytes] | None:
    # A program that was started without an output has none.
    return None if output is None else output.buffer
