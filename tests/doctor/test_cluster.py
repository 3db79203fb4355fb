"""TF_CONFIG, Slurm and Kubernetes."""

from __future__ import annotations

import json
import threading

import pytest

from keras_turbo.doctor.cluster import read_cluster
from tests.doctor.judging import checked, only, worst

TWO = {"worker": ["a:1", "b:1"]}


def judged(environ, resolve=lambda host: None, **more):
    return checked(read_cluster(environ, resolve, **more).findings)


def config(cluster=None, **task):
    return {"TF_CONFIG": json.dumps({"cluster": TWO if cluster is None else cluster, "task": task})}


def test_no_variables():
    found = read_cluster({}, lambda host: pytest.fail("asked"))
    assert [one.fact for one in found.findings] == ["No cluster variables: one process."]
    assert found.machines == 1
    assert worst(judged({"TF_CONFIG": " "})) == "fine"


def test_a_good_tf_config():
    asked = []
    found = read_cluster(config(type="worker", index=1), asked.append)
    assert [one.fact for one in found.findings] == ["TF_CONFIG: this is worker 1 of 2 tasks."]
    assert found.machines == 2
    assert asked == ["a", "b"]


def test_addresses_of_version_6_and_one_host_with_two_ports():
    asked = []
    found = read_cluster(config({"worker": ["[::1]:1", "[::1]:2"]}, type="worker", index=0), asked.append)
    assert worst(found.findings) == "fine"
    assert asked == ["::1"]
    assert found.machines == 1


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{'cluster': 1}", "no JSON: Expecting property name enclosed in double quotes: line 1 column 2"),
        ('{"cluster": ', "no JSON"),
        ("[]", "a JSON object was expected, it is list"),
        ("{}", 'it has no "cluster"'),
        ('{"cluster": {}}', 'it has no "cluster"'),
        ('{"cluster": {"worker": "a:1"}}', '"worker" has to be a list'),
        ('{"cluster": {"worker": [1]}}', '"worker" has to be a list'),
        ('{"cluster": {"worker": ["a:1"]}}', 'it has no "task"'),
        ('{"cluster": {"worker": ["a:1"]}, "task": 3}', 'it has no "task"'),
    ],
)
def test_a_tf_config_that_can_not_be_read(text, part):
    found = judged({"TF_CONFIG": text}, lambda host: pytest.fail("asked"))
    assert only(found, part).level == "wrong"


@pytest.mark.parametrize(
    ("cluster", "task", "part"),
    [
        (TWO, {"type": "chief", "index": 0}, "of type 'chief', the cluster has worker"),
        (TWO, {"type": "worker", "index": 2}, "task.index is 2, and there are 2 of type 'worker': 0 to 1"),
        (TWO, {"type": "worker", "index": -1}, "task.index is -1"),
        (TWO, {"type": "worker", "index": "1"}, "task.index is '1', no whole number"),
        (TWO, {"type": "worker", "index": True}, "no whole number"),
        (TWO, {"type": "worker"}, "task.index is None"),
        ({"worker": ["a:1", "a:1"]}, {"type": "worker", "index": 0}, "a:1 stands there twice"),
        ({"worker": ["a:1"], "chief": ["a:1"]}, {"type": "worker", "index": 0}, "a:1 stands there twice"),
        ({"worker": ["a"]}, {"type": "worker", "index": 0}, "'a' has no port"),
        ({"worker": [":1"]}, {"type": "worker", "index": 0}, "':1' has no port"),
    ],
)
def test_a_tf_config_that_can_not_be(cluster, task, part):
    assert only(judged(config(cluster, **task)), part).level == "wrong"


def test_hosts_without_an_address():
    def resolve(host):
        if host == "b":
            raise OSError("Name or service not known")

    found = judged(config(type="worker", index=0), resolve)
    assert only(found, "no address for b.").level == "wrong"


def test_a_host_that_can_not_be_a_name(monkeypatch):
    found = read_cluster(config({"worker": [f"{'x' * 70}.org:1"]}, type="worker", index=0)).findings
    assert only(found, "no address for").level == "wrong"


def test_a_name_server_that_hangs_does_not_hang_the_doctor():
    let_go = threading.Event()
    found = judged(config(type="worker", index=0), lambda host: let_go.wait(60), resolve_seconds=0.05)
    assert only(found, "not checked: a, b.").level == "could be better"
    let_go.set()


def test_localhost_has_an_address():
    assert worst(read_cluster(config({"worker": ["localhost:1"]}, type="worker", index=0)).findings) == "fine"


SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_NNODES": "2",
    "SLURM_CPUS_PER_TASK": "8",
    "SLURM_STEP_ID": "0",
}


@pytest.mark.parametrize(
    ("changes", "level", "part"),
    [
        ({}, "fine", "Slurm job 77: task 3 of 4, 2 machines."),
        ({"SLURM_PROCID": "4"}, "wrong", "SLURM_PROCID=4, and SLURM_NTASKS=4"),
        ({"SLURM_NTASKS": "four"}, "wrong", "SLURM_NTASKS='four' is no whole number"),
        ({"SLURM_CPUS_PER_TASK": None}, "could be better", "SLURM_CPUS_PER_TASK is not set"),
        ({"SLURM_STEP_ID": None, "SLURM_PROCID": "0"}, "could be better", "this process is none of them"),
        ({"SLURM_STEP_ID": None, "SLURM_NTASKS": None, "SLURM_PROCID": None}, "fine", "task 0 of 1"),
    ],
)
def test_slurm(changes, level, part):
    environ = {name: value for name, value in {**SLURM, **changes}.items() if value is not None}
    assert only(judged(environ), part).level == level
    assert read_cluster({"SLURM_NTASKS": "4"}).machines == 1


def test_the_machines_of_slurm_are_counted():
    assert read_cluster(SLURM).machines == 2


@pytest.mark.parametrize(
    ("environ", "level", "part"),
    [
        ({"JOB_COMPLETION_INDEX": "3"}, "fine", "Pod 3 of an indexed job"),
        ({"JOB_COMPLETION_INDEX": ""}, "wrong", "JOB_COMPLETION_INDEX='' is no whole number"),
        ({"JOB_COMPLETION_INDEX": "-1"}, "wrong", "is no whole number"),
        ({"JOB_COMPLETION_INDEX": "²"}, "wrong", "is no whole number"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "fine", "no index"),
    ],
)
def test_kubernetes(environ, level, part):
    assert only(judged(environ), part).level == level
