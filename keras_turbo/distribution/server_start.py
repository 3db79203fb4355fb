"""What TensorFlow's server for several workers does to its process, put right."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, MutableMapping

from keras_turbo.distribution.cluster import split_address

# As gRPC asks for them. Hosts in the other two are reached without a proxy, the first of them that is set.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_DIRECT, _DIRECT_OF_ALL = "no_grpc_proxy", "no_proxy"


def reach_directly(addresses: Iterable[str], environ: MutableMapping[str, str]) -> None:
    """Has the workers connect to one another without a proxy, as they have met; to be called before the server starts.

    The proxy of an institute's network, which `http_proxy` names, does not know the workers, and TensorFlow would wait
    for it without end.

    Args:
        addresses: `host:port` of all workers.
        environ: the environment of the process. A variable is set there that gRPC alone reads.
    """
    if not any(environ.get(name) for name in _PROXIES):
        return
    hosts = dict.fromkeys(parts[0] for one in addresses if (parts := split_address(one)) is not None)
    given = environ.get(_DIRECT, environ.get(_DIRECT_OF_ALL, ""))
    environ[_DIRECT] = ",".join([*filter(None, [given]), *hosts])


def give_sigterm_back() -> None:
    """Lets SIGTERM do again what it did before the server was started; to be called behind that.

    TensorFlow takes the signal, and nobody asks it for that here: whoever was told to end would train on.
    """
    # Python allows it nowhere else; where a thread trains, as in Ray, its program ends the process in another way.
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None:  # None: of some library, not of Python
        signal.signal(signal.SIGTERM, handler)
