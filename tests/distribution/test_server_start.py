"""What TensorFlow's server does to a process, and what is done about it."""

from __future__ import annotations

import ctypes
import os
import signal
import threading

import pytest

from keras_turbo.distribution.server_start import give_sigterm_back, reach_directly

pytestmark = pytest.mark.compatibility

ADDRESSES = ["a:1", "a:2", "[::1]:3"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"http_proxy": ""}, None),
        ({"http_proxy": "p"}, "a,::1"),
        ({"https_proxy": "p", "no_proxy": "x,.y"}, "x,.y,a,::1"),
        ({"grpc_proxy": "p", "no_proxy": "x", "no_grpc_proxy": "z"}, "z,a,::1"),
        # As gRPC reads it: what is set to nothing hides the other.
        ({"grpc_proxy": "p", "no_proxy": "x", "no_grpc_proxy": ""}, "a,::1"),
    ],
)
def test_workers_are_reached_without_a_proxy(environ, expected):
    before = dict(environ)
    reach_directly(ADDRESSES, environ)
    assert environ.pop("no_grpc_proxy", None) == expected
    assert environ == {name: value for name, value in before.items() if name != "no_grpc_proxy"}


@pytest.fixture
def taken():
    """SIGTERM of Python, then taken by a library behind Python's back, as TensorFlow does: it is ignored."""
    come = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: come.append(number))
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    libc.signal(signal.SIGTERM, 1)
    yield come
    signal.signal(signal.SIGTERM, before)


def test_sigterm_is_given_back(taken):
    give_sigterm_back()
    os.kill(os.getpid(), signal.SIGTERM)
    assert taken == [signal.SIGTERM]


def test_in_a_thread_it_is_left_alone(taken):
    thread = threading.Thread(target=give_sigterm_back)
    thread.start()
    thread.join()
    os.kill(os.getpid(), signal.SIGTERM)
    assert taken == []
