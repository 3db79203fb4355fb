"""What `launch` prints for Slurm and Kubernetes: read by bash and a YAML parser, and by our own reader."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from keras_turbo.cli import main
from keras_turbo.distribution.cluster import Cluster
from keras_turbo.distribution.job_files import kubernetes_manifest, slurm_script
from keras_turbo.distribution.kubernetes import read_kubernetes

yaml = pytest.importorskip("yaml", reason="no YAML parser here")

ARGUMENTS = ["--name", "it's é", '$(HOME) "$x"', "a\nb", "\x7f😀"]


def slurm(**changes):
    return slurm_script(
        "some dir/Train_1.py", ARGUMENTS, **{"workers": 3, "gpus_per_worker": 4, "max_restarts": 2, **changes}
    )


def kubernetes(**changes):
    options = {"workers": 3, "gpus_per_worker": 4, "max_restarts": 2, "image": "me/it:1", **changes}
    return list(yaml.safe_load_all(kubernetes_manifest("some dir/Train_1.py", ARGUMENTS, **options)))


def test_slurm_asks_for_the_machines():
    options = [line.removeprefix("#SBATCH ") for line in slurm().splitlines() if line.startswith("#SBATCH")]
    assert options[:4] == ["--job-name=train-1", "--nodes=3", "--ntasks-per-node=1", "--gpus-per-node=4"]
    assert "gpus" not in slurm(gpus_per_worker=None)


def run_slurm(tmp_path, codes, **changes):
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
    script = tmp_path / "job.sh"
    script.write_text(slurm(**changes), encoding="utf-8")
    environ = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "6", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["bash", str(script)], env=environ, capture_output=True, timeout=60, check=False)
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


def test_slurm_starts_again_after_a_failure(tmp_path):
    done, given, _ = run_slurm(tmp_path, [1, 137, 0])
    assert done.returncode == 0
    assert given.count("python") == 3


def test_slurm_gives_up_in_the_end(tmp_path):
    done, given, requeued = run_slurm(tmp_path, [1, 5, 6, 0])
    assert (done.returncode, given.count("python"), requeued) == (6, 3, None)


def test_slurm_queues_a_preempted_job_again(tmp_path):
    done, given, requeued = run_slurm(tmp_path, [143, 0])
    assert (done.returncode, given.count("python"), requeued) == (143, 1, "requeue 7")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck on this machine")
def test_shellcheck_has_nothing_to_say(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(slurm())
    # SC2016: "expressions don't expand in single quotes", as arguments must not.
    command = ["shellcheck", "--exclude=SC2016", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_manifest_has_a_service_and_a_job():
    service, job = kubernetes()
    assert (service["kind"], service["spec"]["clusterIP"]) == ("Service", "None")
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (
        "Indexed",
        3,
        3,
        6,
    )
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    assert container["image"] == "me/it:1"
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}


def test_the_manifest_keeps_the_arguments():
    _, job = kubernetes()
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    # $(NAME) would be replaced by Kubernetes, and $$( stands for $(.
    assert [part.replace("$$(", "$(") for part in command] == ["python", "some dir/Train_1.py", *ARGUMENTS]
    assert "resources" not in kubernetes(gpus_per_worker=None)[1]["spec"]["template"]["spec"]["containers"][0]


def test_the_manifest_sets_what_distribute_reads():
    service, job = kubernetes()
    (container,) = job["spec"]["template"]["spec"]["containers"]
    environ = {one["name"]: one["value"] for one in container["env"]}
    name = job["metadata"]["name"]
    found = read_kubernetes({**environ, "JOB_COMPLETION_INDEX": "2"}, f"{name}-2")
    port = service["spec"]["ports"][0]["port"]
    assert found == Cluster(
        "Kubernetes",
        "KERAS_TURBO_SERVICE",
        {"worker": tuple(f"{name}-{index}.{name}:{port}" for index in range(3))},
        "worker",
        2,
    )
    assert container["ports"] == [{"containerPort": port}]


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"),
        ("./a/My Script_2.py", "my-script-2"),
        ("1.py", "train-1"),
        ("é.py", "train"),
        ("x" * 99, "x" * 40),
    ],
)
def test_names_that_kubernetes_takes(script, name):
    text = kubernetes_manifest(script, [], workers=1, gpus_per_worker=None, max_restarts=0, image="i")
    assert [one["metadata"]["name"] for one in yaml.safe_load_all(text)] == [name, name]


def test_the_command_line_prints_them(capsys):
    assert main(["launch", "--workers", "2", "--print-slurm", "train.py", "--epochs", "3"]) == 0
    assert "command=(python train.py --epochs 3)" in capsys.readouterr().out
    assert main(["launch", "--workers", "2", "--print-kubernetes", "train.py"]) == 0
    assert "registry.example.com" in capsys.readouterr().out
