"""One worker of `launch`: a process with a group of its own, and its output, line by line."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

# A line that is longer is shown in parts: what has no line ends (binary data) must not fill the memory.
_LONGEST_LINE = 65536

# Between two looks at a progress bar.
_OVERWRITTEN_SECONDS = 10.0

_PR_SET_PDEATHSIG = 1

# Loaded here, since the moment between fork and exec is none to load a library in.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

Show = Callable[[bytes], None]


class PrefixedLines:
    """Puts a prefix before each line of a stream that comes in pieces.

    A progress bar goes back to the line's beginning and writes it anew. Of several workers these would overwrite one
    another, and in a file they are thousands of lines; so of lines that are overwritten one is shown now and then.

    Args:
        prefix: before each line.
        show: takes whole lines, so that those of several workers don't mix.
        clock: in seconds.
    """

    def __init__(self, prefix: bytes, show: Show, clock: Callable[[], float] = time.monotonic) -> None:
        self._prefix = prefix
        self._show = show
        self._clock = clock
        self._rest = b""
        self._next_overwritten = clock() + _OVERWRITTEN_SECONDS

    def add(self, piece: bytes) -> None:
        """Takes the next piece."""
        *lines, self._rest = (self._rest + piece).replace(b"\r\n", b"\n").split(b"\n")
        lines = [line.rpartition(b"\r")[2] for line in lines]
        # What stands behind the last return may be half a line; a return at the very end, half a line end.
        overwritten, found, rest = self._rest.removesuffix(b"\r").rpartition(b"\r")
        if found:
            self._rest = self._rest[len(overwritten) + 1 :]
            shown = overwritten.rpartition(b"\r")[2]
            if shown and self._clock() >= self._next_overwritten:
                self._next_overwritten = self._clock() + _OVERWRITTEN_SECONDS
                lines.append(shown)
        elif len(rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        if lines:
            self._show(b"".join(self._prefix + line + b"\n" for line in lines))

    def end(self) -> None:
        """Shows what stands behind the last line end."""
        if self._rest:
            self.add(b"\n")


class WorkerProcess:
    """A running worker.

    It leads a group of its own, so that Ctrl-C in the terminal reaches `launch` alone, which passes it on once; and so
    that whatever the worker starts can be ended with it. On Linux the kernel ends it where `launch` is killed.

    Args:
        index: of the worker.
        command: what to run.
        environ: its environment.
        outputs: take the lines of its standard output and standard error.
    """

    def __init__(
        self, index: int, command: Sequence[str], environ: Mapping[str, str], outputs: tuple[Show, Show]
    ) -> None:
        self.index = index
        self._group_has_ended = False
        parent = os.getpid()
        self._process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            # It takes no lock of Python's that another thread may hold, and `launch` has no other thread.
            preexec_fn=lambda: _end_with_parent(parent),  # noqa: PLW1509 (see above)
        )
        prefix = f"[worker {index}] ".encode()
        self._lines = {
            stream: PrefixedLines(prefix, show)
            for stream, show in zip((self._process.stdout, self._process.stderr), outputs, strict=True)
            if stream is not None
        }
        for stream in self._lines:
            os.set_blocking(stream.fileno(), False)

    @property
    def pid(self) -> int:
        """Of its process, which is also the number of its group."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; as a shell tells it: 128 + the signal's number where a signal has ended it.

        What it has started ends with it.
        """
        code = self._process.poll()
        if code is not None:
            self._end_rest_of_group()
        return 128 - code if code is not None and code < 0 else code

    def ended_how(self) -> str:
        """In words, once it has ended."""
        code = self._process.returncode
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"

    def register(self, selector: selectors.BaseSelector) -> None:
        """Has its output watched; the data of each key is this worker."""
        for stream in self._lines:
            selector.register(stream, selectors.EVENT_READ, self)

    def read(self, stream: object) -> bool:
        """Shows what has come; False where the stream has ended."""
        lines = self._lines[stream]  # type: ignore[index]
        try:
            piece = os.read(stream.fileno(), 65536)  # type: ignore[attr-defined]
        except BlockingIOError:
            return True
        except OSError:
            piece = b""
        lines.add(piece)
        return bool(piece)

    def send(self, number: int) -> None:
        """Sends a signal to the worker itself, which tells its children what it wants to."""
        if self.exit_code() is None:
            self._process.send_signal(number)

    def end_group(self, number: int) -> None:
        """Sends a signal to the worker and to all that it has started."""
        if self.exit_code() is None:
            self._signal_group(number)

    def close(self) -> None:
        """Ends what is left of it, and shows the rest of its output."""
        self.end_group(signal.SIGKILL)
        self._process.wait()
        self._end_rest_of_group()
        for stream, lines in self._lines.items():
            while self._has_more(stream):
                pass
            lines.end()
            stream.close()

    def _end_rest_of_group(self) -> None:
        # Once, as soon as it has ended: an hour later its number may be that of another group of this machine.
        if not self._group_has_ended:
            self._group_has_ended = True
            self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _has_more(self, stream: object) -> bool:
        # A process that has left the group may hold the stream open, so that its end is not waited for.
        lines = self._lines[stream]  # type: ignore[index]
        try:
            piece = os.read(stream.fileno(), 65536)  # type: ignore[attr-defined]
        except OSError:
            return False
        lines.add(piece)
        return bool(piece)


def _end_with_parent(parent: int) -> None:
    """Has the kernel end this process where its parent ends; runs between fork and exec."""
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(128 + signal.SIGKILL)
