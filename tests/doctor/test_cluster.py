"""TF_CONFIG, Slurm and Kubernetes."""

from __future__ import annotations

import json
import threading

import pytest

from keras_turbo.doctor.cluster import findings
from tests.doctor.judging import checked, only, worst

TWO = {"worker": ["a:1", "b:1"]}


def judged(environ, resolve=lambda host: None, **more):
    return checked(findings(environ, resolve, **{"usable_cores": 2.0, **more}))


def config(cluster=None, **task):
    return {"TF_CONFIG": json.dumps({"cluster": TWO if cluster is None else cluster, "task": task})}


def test_no_variables():
    found = findings({}, lambda host: pytest.fail("asked"))
    assert [one.fact for one in found] == ["No cluster variables: one process."]
    assert worst(judged({"TF_CONFIG": " "})) == "ok"


def test_a_good_tf_config():
    asked = []
    found = findings(config(type="worker", index=1), asked.append)
    assert [one.fact for one in found] == ["TF_CONFIG: this is worker 1; 2 tasks in all."]
    assert found[0].figures == {"machines": 2}
    assert asked == ["a", "b"]


def test_addresses_of_version_6_and_one_host_with_two_ports():
    asked = []
    found = findings(config({"worker": ["[::1]:1", "[::1]:2"]}, type="worker", index=0), asked.append)
    assert worst(found) == "ok"
    assert asked == ["::1"]
    assert found[0].figures == {"machines": 1}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{'cluster': 1}", "no JSON: Expecting property name enclosed in double quotes: line 1 column 2"),
        ('{"cluster": ', "no JSON"),
        ("[]", "a JSON object was expected. Received: []"),
        ("[" * 90_000, "it is nested too deep"),
        ('{"cluster": "a:1"}', "\"cluster\" has to be an object. Received: 'a:1'"),
        ('{"cluster": {"master": ["a:1"]}}', "tasks of type 'master' are unknown to TensorFlow"),
        ('{"cluster": {"chief": ["a:1", "b:1"]}}', "there are 2 of type 'chief'"),
        ('{"cluster": {"worker": "a:1"}}', '"worker" has to be a list'),
        ('{"cluster": {"worker": [1]}}', '"worker" has to be a list'),
        ('{"cluster": {"worker": ["a:1"]}}', 'it has no "task"'),
        ('{"cluster": {"worker": ["a:1"]}, "task": 3}', 'it has no "task"'),
    ],
)
def test_a_tf_config_that_can_not_be_read(text, part):
    found = judged({"TF_CONFIG": text}, lambda host: pytest.fail("asked"))
    assert only(found, part).level == "error"


@pytest.mark.parametrize(
    ("cluster", "task", "part"),
    [
        (TWO, {"type": "chief", "index": 0}, "of type 'chief', the cluster has worker"),
        (TWO, {"type": ["worker"], "index": 0}, "this task is of type ['worker'], the cluster has worker."),
        (TWO, {"index": 0}, "this task is of type None"),
        (TWO, {"type": "worker", "index": 2}, "the cluster's list of type 'worker' has 2: 0 to 1 can be."),
        ({"worker": ["a:1"]}, {"type": "worker", "index": 1}, "the cluster's list of type 'worker' has 1: 0 can be."),
        ({"worker": []}, {"type": "worker", "index": 0}, "the cluster's list of type 'worker' has 0."),
        (TWO, {"type": "worker", "index": -1}, "task.index is -1"),
        (TWO, {"type": "worker", "index": "one"}, "task.index is 'one', no whole number"),
        (TWO, {"type": "worker", "index": "9" * 5000}, "no whole number"),
        (TWO, {"type": "worker", "index": 1.0}, "task.index is 1.0, no whole number"),
        (TWO, {"type": "worker", "index": True}, "no whole number"),
        (TWO, {"type": "worker"}, "task.index is None"),
        ({"worker": ["a:1", "a:1"]}, {"type": "worker", "index": 0}, "'a:1' stands there twice"),
        ({"worker": ["a:1"], "chief": ["a:1"]}, {"type": "worker", "index": 0}, "'a:1' stands there twice"),
        *(
            ({"worker": [address]}, {"type": "worker", "index": 0}, "is no address")
            for address in (
                "a",
                ":1",
                "a:",
                "a:0",
                "a:65536",
                "a:-1",
                "a:1.5",
                "a:\u0663",
                "http://a:80",
                "::1:80",
                "a:1 ",
                "a b:1",
                "a\0b:1",
                "a\x1b[31m:1",
                "[::1]",
                "[::1:80",
                "",
            )
        ),
    ],
)
def test_a_tf_config_that_can_not_be(cluster, task, part):
    assert only(judged(config(cluster, **task)), part).level == "error"


@pytest.mark.parametrize("text", ["{}", '{"cluster": {}}', '{"task": {"type": "worker", "index": 0}}'])
def test_a_tf_config_without_a_cluster_is_that_of_one_process(text):
    # TensorFlow's strategies take it so.
    found = findings({"TF_CONFIG": text}, lambda host: pytest.fail("asked"))
    assert [(one.level, one.fact) for one in found] == [("ok", "TF_CONFIG names no cluster: one process.")]


def test_an_index_in_quotes_is_taken_as_tensorflow_takes_it():
    assert only(judged(config(type="worker", index="1")), "this is worker 1;").level == "ok"
    assert only(judged(config(type="worker", index="2")), "has 2: 0 to 1 can be.").level == "error"


def test_an_evaluator_need_not_be_in_the_cluster():
    assert only(judged(config(type="evaluator", index=0)), "an evaluator").level == "ok"


def test_of_many_hosts_the_first_are_named():
    def resolve(host):
        raise OSError("Name or service not known")

    cluster = {"worker": [f"host{index:03}:1" for index in range(200)]}
    found = judged(config(cluster, type="worker", index=0), resolve, resolve_seconds=60)
    assert only(found, "no address for host000, host001, host002, host003, host004 and 195 more.")


def test_hosts_without_an_address():
    def resolve(host):
        if host == "b":
            raise OSError("Name or service not known")

    found = judged(config(type="worker", index=0), resolve)
    assert only(found, "no address for b.").level == "error"


def test_a_host_that_can_not_be_a_name(monkeypatch):
    found = findings(config({"worker": [f"{'x' * 70}.org:1"]}, type="worker", index=0))
    assert only(found, "no address for").level == "error"


def test_a_name_server_that_hangs_does_not_hang_the_doctor():
    let_go = threading.Event()
    found = judged(config(type="worker", index=0), lambda host: let_go.wait(60), resolve_seconds=0.05)
    assert only(found, "not checked: a, b.").level == "warning"
    let_go.set()


def test_of_hosts_beside_one_that_hangs_is_told_what_is_known():
    let_go = threading.Event()

    def resolve(host):
        if host == "a":
            let_go.wait(60)
        elif host == "c":
            raise OSError("Name or service not known")

    cluster = {"worker": ["a:1", "b:1", "c:1"]}
    found = judged(config(cluster, type="worker", index=0), resolve, resolve_seconds=3)
    let_go.set()
    assert only(found, "not checked: a.").level == "warning"
    assert only(found, "no address for c.").level == "error"


def test_localhost_has_an_address():
    assert worst(findings(config({"worker": ["localhost:1"]}, type="worker", index=0))) == "ok"


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
        ({}, "ok", "Slurm job 77: task 3 (from 0) of 4, 2 machines."),
        ({"SLURM_PROCID": "4"}, "error", "SLURM_PROCID=4, and the step has 4: 0 to 3 can be."),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "error", "SLURM_PROCID=3, and the step has 2"),
        ({"SLURM_NTASKS": "0"}, "error", "SLURM_NTASKS='0' is no whole number from 1"),
        ({"SLURM_NTASKS": "-1"}, "error", "SLURM_NTASKS='-1' is no whole number"),
        ({"SLURM_PROCID": ""}, "error", "SLURM_PROCID='' is no whole number from 0"),
        ({"SLURM_CPUS_PER_TASK": "9" * 5000}, "error", "(5002 characters) is no whole number"),
        ({"SLURM_NTASKS": None}, "error", "SLURM_PROCID=3, and there is no SLURM_NTASKS."),
        ({"SLURM_NNODES": "8"}, "warning", "8 machines, and fewer tasks (4): some machines do nothing."),
        ({"SLURM_NTASKS": "four"}, "error", "SLURM_NTASKS='four' is no whole number"),
        ({"SLURM_CPUS_PER_TASK": None}, "warning", "SLURM_CPUS_PER_TASK is not set, and this process has 2 c"),
        ({"SLURM_STEP_ID": None, "SLURM_PROCID": "0"}, "warning", "this process is none of them"),
        ({"SLURM_STEP_ID": None, "SLURM_NTASKS": None, "SLURM_PROCID": None, "SLURM_NNODES": "1"}, "ok", "0) of 1"),
    ],
)
def test_slurm(changes, level, part):
    environ = {name: value for name, value in {**SLURM, **changes}.items() if value is not None}
    assert only(judged(environ), part).level == level


def test_variables_of_no_job_of_slurm_are_no_cluster():
    assert only(findings({"SLURM_NTASKS": "4"}), "No cluster variables")


def test_slurm_may_give_many_cores_unasked():
    environ = {name: value for name, value in SLURM.items() if name != "SLURM_CPUS_PER_TASK"}
    assert worst(judged(environ, usable_cores=32.0)) == "ok"


def test_the_machines_of_slurm_are_counted():
    assert findings(SLURM)[0].figures == {"machines": 2}


@pytest.mark.parametrize(
    ("environ", "level", "part"),
    [
        ({"JOB_COMPLETION_INDEX": "3"}, "ok", "Pod 3 (from 0) of an indexed job"),
        ({"JOB_COMPLETION_INDEX": "9" * 5000}, "error", "is no whole number"),
        ({"JOB_COMPLETION_INDEX": ""}, "error", "JOB_COMPLETION_INDEX='' is no whole number"),
        ({"JOB_COMPLETION_INDEX": "-1"}, "error", "is no whole number"),
        ({"JOB_COMPLETION_INDEX": "²"}, "error", "is no whole number"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "ok", "no index"),
    ],
)
def test_kubernetes(environ, level, part):
    assert only(judged(environ), part).level == level
