"""Which cluster the variables of TF_CONFIG, Slurm and Kubernetes describe."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from keras_turbo.distribution import environment
from keras_turbo.distribution.cluster import Cluster, ClusterError
from keras_turbo.distribution.environment import check_cluster, cluster_of
from keras_turbo.distribution.kubernetes import read_kubernetes
from keras_turbo.distribution.slurm import expand_hosts, expand_tasks, read_slurm
from tests.test_imports import imported_names

TWO = {"worker": ["a:1", "b:1"]}


def config(cluster=None, **task):
    return {"TF_CONFIG": json.dumps({"cluster": TWO if cluster is None else cluster, "task": task})}


def test_no_variables_are_no_cluster():
    assert cluster_of({}) is None
    assert cluster_of({"TF_CONFIG": "  "}) is None
    assert cluster_of({"TF_CONFIG": "{}"}) is None
    assert cluster_of(config({"worker": ["a:1"]}, type="worker", index=0)) is None


@pytest.mark.parametrize(
    ("cluster", "task", "index", "address"),
    [
        (TWO, {"type": "worker", "index": 1}, 1, "b:1"),
        (TWO, {"type": "worker", "index": "1"}, 1, "b:1"),
        ({"chief": ["c:1"], **TWO}, {"type": "chief", "index": 0}, 0, "c:1"),
        ({"chief": ["c:1"], **TWO}, {"type": "worker", "index": 1}, 2, "b:1"),
        ({**TWO, "evaluator": ["e:1"]}, {"type": "worker", "index": 0}, 0, "a:1"),
    ],
)
def test_tf_config(cluster, task, index, address):
    found = cluster_of(config(cluster, **task))
    assert (found.source, found.index, found.address) == ("TF_CONFIG", index, address)
    assert cluster_of({"TF_CONFIG": found.tf_config}) == found


@pytest.mark.parametrize(
    ("environ", "part"),
    [
        ({"TF_CONFIG": "{cluster"}, "TF_CONFIG: no JSON: Expecting property name"),
        (
            config(type="worker", index=2),
            "TF_CONFIG: task.index is 2, and the cluster's list of type 'worker' has 2: 0",
        ),
        (config({"worker": ["a:1", "a:1"]}, type="worker", index=0), "'a:1' stands there twice. Give each task"),
        (
            config({**TWO, "ps": ["p:1"]}, type="worker", index=0),
            "TF_CONFIG: the cluster has parameter servers .* 'worker'",
        ),
        (config({**TWO, "ps": ["p:1"]}, type="ps", index=0), "parameter servers"),
        (config(type="evaluator", index=0), "TF_CONFIG: this task is an evaluator, .* `validation_data`"),
    ],
)
def test_a_cluster_that_can_not_be(environ, part):
    with pytest.raises(ClusterError, match=part) as error:
        cluster_of(environ)
    assert error.value.variable == "TF_CONFIG"
    assert error.value.remedy


SLURM = {
    "SLURM_JOB_ID": "1017",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_NNODES": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "1",
}


def slurm(**changes):
    return {name: value for name, value in {**SLURM, **changes}.items() if value is not None}


def test_slurm():
    found = cluster_of(SLURM)
    assert found.addresses == ("gpu07:12340", "gpu07:12341", "gpu08:12340")
    assert (found.source, found.index, found.local_index, found.local_count) == ("Slurm", 1, 1, 2)


def test_slurm_tasks_that_were_dealt_out_in_turn():
    # srun --distribution=cyclic: task 1 is the first on the second machine.
    found = cluster_of(slurm(SLURM_NODEID="1", SLURM_LOCALID="0"))
    assert (found.index, found.address) == (2, "gpu08:12340")
    assert (found.local_index, found.local_count) == (0, 1)


def test_two_jobs_on_a_machine_have_ports_of_their_own():
    one, other = (set(cluster_of(slurm(SLURM_JOB_ID=job)).addresses) for job in ("1017", "1018"))
    assert not one & other
    assert cluster_of(slurm(KERAS_TURBO_PORT="5000")).address == "gpu07:5001"


def test_slurm_without_several_tasks():
    assert cluster_of({}) is None
    assert cluster_of(slurm(SLURM_STEP_NUM_TASKS="1", SLURM_PROCID="0")) is None
    with pytest.warns(UserWarning, match="3 tasks, and this process is none of them"):
        assert cluster_of(slurm(SLURM_STEP_ID=None)) is None


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"SLURM_STEP_NODELIST": None}, "SLURM_STEP_NODELIST: it is not set"),
        ({"SLURM_STEP_TASKS_PER_NODE": "3"}, "SLURM_STEP_TASKS_PER_NODE='3' tells of 3 tasks on 1 machines"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1,1"}, "tells of 2 tasks on 2 machines, .* of 3 tasks"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2;1"}, "SLURM_STEP_TASKS_PER_NODE='2;1' is no list of numbers"),
        ({"SLURM_STEP_NODELIST": "gpu[07-"}, r"SLURM_STEP_NODELIST='gpu\[07-' is no list of machines"),
        ({"SLURM_LOCALID": "2"}, "SLURM_NODEID=0 and SLURM_LOCALID=2 are no task"),
        ({"SLURM_NODEID": None}, "SLURM_NODEID=None"),
        ({"SLURM_PROCID": "3"}, "SLURM_PROCID=3, and the step has 3: 0 to 2 can be"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID='x' is no whole number from 0"),
        ({"KERAS_TURBO_PORT": "x"}, "KERAS_TURBO_PORT='x' is no whole number"),
        ({"KERAS_TURBO_PORT": "65535"}, "KERAS_TURBO_PORT='65535' is no whole number from 1 to 65534"),
    ],
)
def test_slurm_variables_that_can_not_be(changes, part):
    with pytest.raises(ClusterError, match=part):
        read_slurm(slurm(**changes))


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n", ["n"]),
        ("n[1-3],m5", ["n1", "n2", "n3", "m5"]),
        ("o[3-4,6,07-08]", ["o3", "o4", "o6", "o07", "o08"]),
        ("r[1-2]n[01-02]-ib", ["r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
    ],
)
def test_lists_of_hosts(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text",
    ["", "n[", "n]", "n[]", "n[1-]", "n[2-1]", "n[a-b]", "a,,b", "n[[1]]", "n[1-999999999]", "n[1-1000]x[1-9999]"],
)
def test_lists_that_can_not_be(text):
    with pytest.raises(ClusterError, match="SLURM_STEP_NODELIST"):
        expand_hosts(text)


def test_lists_of_numbers():
    assert expand_tasks("2(x3),1") == [2, 2, 2, 1]


KUBERNETES = {"JOB_COMPLETION_INDEX": "1", "KERAS_TURBO_WORKERS": "2", "KERAS_TURBO_SERVICE": "train.team"}


def test_kubernetes():
    found = read_kubernetes(KUBERNETES, "digits-1")
    assert found.addresses == ("digits-0.train.team:2222", "digits-1.train.team:2222")
    assert (found.source, found.index) == ("Kubernetes", 1)
    named = read_kubernetes({**KUBERNETES, "KERAS_TURBO_JOB": "other", "KERAS_TURBO_PORT": "99"}, "x")
    assert named.address == "other-1.train.team:99"


def test_pods_that_have_nothing_to_do_with_one_another():
    with pytest.warns(UserWarning, match="pod 1 of an indexed job, and trains on its own: KERAS_TURBO_WORKERS"):
        assert cluster_of({"JOB_COMPLETION_INDEX": "1"}) is None


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX='x' is no whole number from 0"),
        ({"JOB_COMPLETION_INDEX": "2"}, "JOB_COMPLETION_INDEX=2, and KERAS_TURBO_WORKERS=2: 0 to 1 can be"),
        ({"KERAS_TURBO_WORKERS": None}, "KERAS_TURBO_WORKERS: it is not set, and KERAS_TURBO_SERVICE is"),
        ({"KERAS_TURBO_WORKERS": "two"}, "KERAS_TURBO_WORKERS='two' is no whole number from 1. Set it to the job's"),
        ({"KERAS_TURBO_SERVICE": None}, "KERAS_TURBO_SERVICE='' is no name of a service"),
        ({"KERAS_TURBO_SERVICE": "a b"}, "KERAS_TURBO_SERVICE='a b' is no name of a service"),
        ({"KERAS_TURBO_PORT": "70000"}, "KERAS_TURBO_PORT='70000' is no whole number from 1 to 65535"),
    ],
)
def test_kubernetes_variables_that_can_not_be(changes, part):
    environ = {name: value for name, value in {**KUBERNETES, **changes}.items() if value is not None}
    with pytest.raises(ClusterError, match=part):
        read_kubernetes(environ, "digits-1")


def test_a_host_name_that_does_not_tell_the_job():
    with pytest.raises(
        ClusterError, match="KERAS_TURBO_JOB: it is not set, and the host name 'digits-2' does not end in"
    ):
        read_kubernetes(KUBERNETES, "digits-2")


def test_tf_config_comes_first():
    both = {**SLURM, **KUBERNETES, **config(type="worker", index=0)}
    assert cluster_of(both).source == "TF_CONFIG"
    # One process of several that search for hyperparameters, say.
    assert cluster_of({**SLURM, **config({"worker": ["a:1"]}, type="worker", index=0)}) is None


def on_port(port, host="localhost"):
    return Cluster("TF_CONFIG", "TF_CONFIG", {"worker": (f"{host}:{port}", "localhost:1")}, "worker", 0)


def test_a_port_that_is_taken():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ClusterError, match=rf"TF_CONFIG: port {port} of this worker's address .* is taken .*ss -l"):
            check_cluster(on_port(port), {})
    check_cluster(on_port(port), {})


def test_a_host_without_an_address(monkeypatch):
    def resolve(host):
        raise OSError("Name or service not known")

    monkeypatch.setattr(environment, "resolve_hosts", lambda addresses: original(addresses, resolve))
    with pytest.raises(ClusterError, match=r"TF_CONFIG: no address for localhost, nowhere\. See the spelling"):
        check_cluster(on_port(2000, "nowhere"), {})
    with pytest.warns(UserWarning, match=r"TF_CONFIG: no address for localhost, nowhere\. Pods that have not started"):
        check_cluster(on_port(2000, "nowhere"), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


original = environment.resolve_hosts

LIGHT = [
    "cluster",
    "environment",
    "kubernetes",
    "launch",
    "meeting",
    "slurm",
    "tf_config",
    "worker_process",
]


@pytest.mark.parametrize("name", LIGHT)
def test_what_the_doctor_and_launch_need_imports_no_tensorflow(name):
    path = Path(environment.__file__).with_name(f"{name}.py")
    roots = {one.partition(".")[0] for one, _ in imported_names(path.read_text(), "keras_turbo.distribution")}
    assert not roots & {"tensorflow", "keras"}
