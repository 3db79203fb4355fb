"""Where the dispatcher of a tf.data service is, and whether one answers there."""

from __future__ import annotations

import dataclasses
import re
import socket

# A machine in the same network answers in milliseconds; one that is switched off never does.
_CONNECT_SECONDS = 5.0

_FORM = re.compile(r"grpc://(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]/:\s]+):(?P<port>\d{1,5})")

# What a client of HTTP/2, which gRPC is, begins with: the preface, and settings without any. A server answers with its
# own, a frame of type 4.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_FRAME_HEADER_BYTES, _TYPE_AT, _SETTINGS = 9, 3, 4


class DataServiceError(ConnectionError):
    """The data service can't be reached, or does not make batches; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class ServiceAddress:
    """The address of a dispatcher.

    Attributes:
        host: name or number; an IPv6 number without brackets.
        port: from 1 to 65535.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ServiceAddress:
        """The address that is written as "grpc://host:port".

        Raises:
            TypeError, ValueError: it is written in another way.
        """
        if not isinstance(text, str):
            raise TypeError(
                f"`service` must be the address of a dispatcher, as 'grpc://host:port', or None. Received: {text!r}."
            )
        match = _FORM.fullmatch(text)
        if match is None or not 0 < int(match["port"]) < 1 << 16:
            raise ValueError(
                "`service` must be the address of a dispatcher, as 'grpc://host:port'; `python -m keras_turbo "
                f"data-service dispatcher` prints its own. Received: {text!r}."
            )
        return cls(match["host"].strip("[]"), int(match["port"]))

    @property
    def host_and_port(self) -> str:
        """As gRPC writes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"grpc://{self.host_and_port}"

    def check(self) -> None:
        """Sees to it that there is a server, since TensorFlow would ask again and again for an hour.

        Raises:
            DataServiceError: nothing answers, or something else than gRPC does.
        """
        try:
            with socket.create_connection((self.host, self.port), _CONNECT_SECONDS) as connection:
                connection.sendall(_GREETING)
                header = _received(connection, _FRAME_HEADER_BYTES)
        except socket.gaierror as error:
            raise DataServiceError(
                f"There is no host {self.host!r} for the data service at {self}: {error}."
            ) from error
        except OSError as error:
            raise DataServiceError(
                f"No data service answers at {self}: {error}. Start one by `python -m keras_turbo data-service "
                f"dispatcher --port {self.port}` there, and check the host, the port and the firewall."
            ) from error
        if len(header) < _FRAME_HEADER_BYTES or header[_TYPE_AT] != _SETTINGS:
            raise DataServiceError(
                f"Something answers at {self}, but it is no data service (it does not speak gRPC). Check the port."
            )


def _received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            break
        data += more
    return data
