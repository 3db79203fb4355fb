"""`service` on images behind `s3://`: workers load tensorflow-io, and where they can't, the error says what to do."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.noise_images import write_images
from tests.data.service_parts import first_line, start_part

RUN = Path(__file__).with_name("s3_service_run.py")


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_io") is None,
    reason="tensorflow-io, which brings s3://, loads on TensorFlow 2.17 only",
)
def test_workers_read_what_is_behind_a_scheme(s3_environment, tmp_path):
    write_images(tmp_path / "photos", ["a/1.png", "a/2.png", "b/3.png"])
    # A tensorflow-io that is for another TensorFlow.
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tensorflow_io.py").write_text("raise NotImplementedError('undefined symbol')\n")
    environment = os.environ | s3_environment
    project = str(Path(__file__).parents[2])
    with contextlib.ExitStack() as stack:
        dispatchers = [stack.enter_context(start_part("dispatcher", environment=environment)) for _ in range(2)]
        good, bad = (first_line(part).split()[1] for part in dispatchers)
        worker = stack.enter_context(start_part("worker", "--dispatcher", good, environment=environment))
        broken = stack.enter_context(
            start_part(
                "worker", "--dispatcher", bad, environment=environment | {"PYTHONPATH": str(tmp_path / "broken")}
            )
        )
        for part in (worker, broken):
            assert first_line(part).startswith("worker localhost:")
        done = subprocess.run(
            [sys.executable, str(RUN), str(tmp_path / "photos"), good, bad],
            env=environment | {"PYTHONPATH": project},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert "A worker of the data service at " in done.stdout
        assert "can't read s3:// files, as this process can." in done.stdout
        assert 'pip install "keras_turbo[io]"' in done.stdout
        # Its end is an orderly one, though tensorflow-io has read from S3.
        worker.terminate()
        assert worker.wait(60) == 0
