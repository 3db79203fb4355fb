"""The files for Slurm and Kubernetes in docs/: read by bash and a YAML parser, and by our own reader."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from keras_turbo.distribution import kubernetes
from keras_turbo.distribution.cluster import Cluster
from keras_turbo.distribution.kubernetes import read_kubernetes

yaml = pytest.importorskip("yaml", reason="no YAML parser here")

DOCS = Path(__file__).parents[2] / "docs"
SLURM = DOCS / "slurm.sh"
ARGUMENTS = ["--name", "it's é", '$(HOME) "$x"', "a\nb", "\x7f😀"]


def test_slurm_asks_for_the_machines():
    options = [line.removeprefix("#SBATCH ") for line in SLURM.read_text().splitlines() if line.startswith("#SBATCH")]
    assert options[:4] == ["--job-name=train", "--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8"]
    # A signal before the end, and a job that may be queued again, for AsyncCheckpoint.
    assert {"--signal=USR1@120", "--requeue"} <= set(options)


def run_slurm(tmp_path, codes):
    """Runs the script with an srun that notes what it is given, and whose workers end with these codes at each start.

    As the real one it gives the highest code, and with --kill-on-bad-exit=1 that of SIGTERM, by which it ends the
    others where one fails.
    """
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "srun").write_text(
        '#!/bin/sh\nfor one in "$@"; do printf "%s\\0" "$one"; done >>"$0.args"; echo . >>"$0.count"\n'
        'number=$(wc -l <"$0.count"); kill=0\n'
        'for one in "$@"; do [ "$one" = --kill-on-bad-exit=1 ] && kill=1; done\n'
        f"set -- {' '.join(map(str, codes))}\nshift $((number - 1))\n"
        '[ "$kill" = 1 ] && [ "$1" != 0 ] && exit 143\nexit "$1"\n'
    )
    (tools / "scontrol").write_text('#!/bin/sh\necho "$@" >"$0.args"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    environ = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "6", "LC_ALL": "C.UTF-8"}
    environ["MAX_RESTARTS"] = "2"
    command = ["bash", str(SLURM), "some dir/Train_1.py", *ARGUMENTS]
    done = subprocess.run(command, env=environ, capture_output=True, timeout=60, check=False)
    given = (tools / "srun.args").read_bytes().decode().split("\0")[:-1]
    requeued = tools / "scontrol.args"
    return done, given, requeued.read_text().strip() if requeued.exists() else None


def test_slurm_starts_the_script_with_its_arguments(tmp_path):
    done, given, requeued = run_slurm(tmp_path, [0])
    assert done.returncode == 0, done.stderr
    start = given.index("python")
    assert given[:start] == ["--kill-on-bad-exit=0", "--cpus-per-task=6", "--label"]
    assert given[start:] == ["python", "some dir/Train_1.py", *ARGUMENTS]
    assert requeued is None


@pytest.mark.parametrize(
    ("codes", "exit_code", "starts", "requeues"),
    [
        ([1, 137, 0], 0, 3, None),
        ([1, 5, 6, 0], 6, 3, None),
        ([143, 0], 143, 1, "requeue 7"),
    ],
    ids=["starts again after a failure", "gives up in the end", "queues a preempted job again"],
)
def test_slurm(tmp_path, codes, exit_code, starts, requeues):
    done, given, requeued = run_slurm(tmp_path, codes)
    assert (done.returncode, given.count("python"), requeued) == (exit_code, starts, requeues)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck on this machine")
def test_shellcheck_has_nothing_to_say():
    done = subprocess.run(["shellcheck", str(SLURM)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def manifest():
    return list(yaml.safe_load_all((DOCS / "kubernetes.yaml").read_text()))


def test_the_manifest_has_a_service_and_a_job():
    service, job = manifest()
    assert (service["kind"], service["spec"]["clusterIP"]) == ("Service", "None")
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    spec = job["spec"]
    workers = spec["completions"]
    assert (spec["completionMode"], spec["parallelism"], spec["backoffLimit"] % workers) == ("Indexed", workers, 0)
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}


def test_the_manifest_sets_what_distribute_reads():
    service, job = manifest()
    (container,) = job["spec"]["template"]["spec"]["containers"]
    environ = {one["name"]: one["value"] for one in container["env"]}
    name = job["metadata"]["name"]
    found = read_kubernetes({**environ, "JOB_COMPLETION_INDEX": "2"}, f"{name}-2")
    port = service["spec"]["ports"][0]["port"]
    assert found == Cluster(
        "Kubernetes",
        "KERAS_TURBO_SERVICE",
        {"worker": tuple(f"{name}-{index}.{name}:{port}" for index in range(job["spec"]["completions"]))},
        "worker",
        2,
    )
    assert container["ports"] == [{"containerPort": port}]
    assert port == kubernetes.DEFAULT_PORT
