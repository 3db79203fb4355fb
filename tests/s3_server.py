"""A real S3 server on this machine."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """A context in which the server runs, with the variables by which TensorFlow and boto3 find it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, "the S3 server has ended"
                assert time.monotonic() < deadline, "the S3 server doesn't answer"
                time.sleep(0.1)
        yield {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "S3_ENDPOINT": f"http://127.0.0.1:{port}",
            "S3_USE_HTTPS": "0",
            "S3_VERIFY_SSL": "0",
        }
    finally:
        server.terminate()
        server.wait()
