"""Messages between two processes over a socket, with file descriptors beside them."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
from typing import Any

# Length of the message, and how many file descriptors come with it.
_HEADER = struct.Struct("!QB")
_MOST_DESCRIPTORS = 1
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Channel:
    """One end of a connection between two of our own processes.

    Args:
        connection: a connected Unix socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()

    def send(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a message of plain Python values.

        Raises:
            OSError: the other end is gone.
        """
        payload = pickle.dumps(message, protocol=5)
        header = _HEADER.pack(len(payload), len(descriptors))
        with self._sending:
            if descriptors:
                socket.send_fds(self._socket, [header], list(descriptors))
            else:
                self._socket.sendall(header)
            self._socket.sendall(payload)

    def receive(self) -> tuple[Any, list[int]]:
        """Waits for a message, and gives it with the file descriptors that came with it.

        Raises:
            EOFError, OSError: the other end is gone.
        """
        header, descriptors, *_ = socket.recv_fds(self._socket, _HEADER.size, _MOST_DESCRIPTORS, _CLOSE_ON_EXEC)
        header += self._exactly(_HEADER.size - len(header))
        length, _ = _HEADER.unpack(header)
        return pickle.loads(self._exactly(length)), list(descriptors)

    def _exactly(self, length: int) -> bytearray:
        received = bytearray(length)
        view = memoryview(received)
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise EOFError("The other end is gone.")
            view = view[count:]
        return received

    def shut_down(self) -> None:
        """Ends the connection for both ends, also for a thread that waits in `receive`."""
        with contextlib.suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives the socket back."""
        self._socket.close()
