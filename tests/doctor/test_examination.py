"""`python -m keras_turbo doctor` on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from keras_turbo.cli import main
from keras_turbo.doctor import disk, examination
from tests.monitor.fake_nvml import FakeNvml, gpus, use

ROOT = Path(__file__).parents[2]
TOPICS = ["versions", "GPUs", "network", "CPU and memory", "disk", "cluster"]
CLUSTER_VARIABLES = ("TF_CONFIG", "SLURM_JOB_ID", "JOB_COMPLETION_INDEX")


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """The disk's measurement has tests of its own."""
    monkeypatch.setattr(disk, "_MOST_BYTES", 8 * 2**20)


def told(capsys, *arguments):
    code = main(["doctor", "--json", *map(str, arguments)])
    return code, json.loads(capsys.readouterr().out)


def of_topic(report, topic):
    return [one for one in report["findings"] if one["topic"] == topic]


def test_json_and_exit_code(capsys, tmp_path, monkeypatch):
    for name in CLUSTER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    code, report = told(capsys, "--folder", tmp_path)
    assert list(dict.fromkeys(one["topic"] for one in report["findings"])) == TOPICS
    assert code == report["exit_code"] == int(any(one["level"] == "error" for one in report["findings"]))
    assert {one["level"] for one in of_topic(report, "versions")} == {"ok"}
    assert not [one for one in report["findings"] if "Not examined" in one["fact"]]
    assert list(tmp_path.iterdir()) == []


def test_something_wrong_makes_the_exit_code_1(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    code, report = told(capsys, "--folder", tmp_path)
    assert code == report["exit_code"] == 1
    assert [one["level"] for one in of_topic(report, "cluster")] == ["error"]
    monkeypatch.delenv("TF_CONFIG")


def test_the_table(capsys, tmp_path):
    main(["doctor", "--folder", str(tmp_path)])
    printed = capsys.readouterr()
    for topic in TOPICS:
        assert topic in printed.out
    assert "TensorFlow" in printed.out
    assert printed.err == ""


def test_gpus_that_tensorflow_does_not_see_are_wrong(capsys, tmp_path, monkeypatch):
    library = FakeNvml(gpus(2))
    use(monkeypatch, library)
    code, report = told(capsys, "--folder", tmp_path)
    assert code == 1
    assert any("TensorFlow lists none" in one["fact"] for one in of_topic(report, "versions"))
    assert any("No NVLink between the 2 GPUs" in one["fact"] for one in of_topic(report, "GPUs"))
    assert library.open_sessions == 0


def test_a_topic_that_fails_leaves_the_others(capsys, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("unknown machine")

    for name in ("processor.findings", "cluster.network", "cluster.findings", "gpus.findings", "disk.findings"):
        monkeypatch.setattr(f"keras_turbo.doctor.{name}", broken)
    monkeypatch.setattr(examination.versions, "read_versions", broken)
    _, report = told(capsys, "--folder", tmp_path)
    assert [one["topic"] for one in report["findings"]] == TOPICS
    assert {one["fact"] for one in report["findings"]} == {"Not examined: RuntimeError: unknown machine"}


def test_what_hangs_is_wrong_and_leaves_the_others(capsys, tmp_path, monkeypatch):
    library = FakeNvml(gpus(1))
    library.hang_in = "nvmlInitWithFlags"
    use(monkeypatch, library)
    monkeypatch.setattr(examination, "_DRIVER_SECONDS", 0.05)
    code, report = told(capsys, "--folder", tmp_path)
    assert code == 1
    (gpu,) = of_topic(report, "GPUs")
    assert gpu["level"] == "error"
    assert "The NVIDIA driver did not answer within 0.05 s." in gpu["fact"]
    assert len(of_topic(report, "disk")) == 3
    library.let_go.set()


def test_a_disk_that_hangs_is_wrong_and_hangs_nobody(capsys, tmp_path, monkeypatch):
    let_go = threading.Event()
    monkeypatch.setattr(disk, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(examination, "_DISK_SECONDS", 0.05)
    monkeypatch.setattr(Path, "resolve", lambda self, strict=False: let_go.wait(60))
    code, report = told(capsys, "--folder", tmp_path)
    assert code == 1
    (found,) = of_topic(report, "disk")
    assert found["fact"] == f"Not examined: The disk of {tmp_path} did not answer within 0.05 s."
    let_go.set()


@pytest.mark.parametrize("name", ["cluster.network", "processor.read_processor", "cluster.findings"])
def test_a_kernel_that_does_not_answer_is_not_waited_for(capsys, tmp_path, monkeypatch, name):
    let_go = threading.Event()
    monkeypatch.setattr(examination, "_SYSTEM_SECONDS", 0.05)
    monkeypatch.setattr(f"keras_turbo.doctor.{name}", lambda *_: let_go.wait(60))
    code, report = told(capsys, "--folder", tmp_path)
    assert code == 1
    assert [one["topic"] for one in report["findings"] if "did not answer within 0.05 s" in one["fact"]]
    let_go.set()


def test_a_folder_that_is_not_there(capsys, tmp_path):
    with pytest.raises(SystemExit) as exit_info:
        main(["doctor", "--folder", str(tmp_path / "nowhere")])
    assert exit_info.value.code == 2
    assert f"There is no folder {tmp_path / 'nowhere'}." in capsys.readouterr().err


@pytest.mark.slow
def test_as_a_program(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "keras_turbo", "doctor", "--json", "--folder", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}'},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert [one["fact"] for one in of_topic(report, "cluster")] == [
        "TF_CONFIG: task.index is 1, and the cluster's list of type 'worker' has 1: 0 can be."
    ]
    assert list(tmp_path.iterdir()) == []
