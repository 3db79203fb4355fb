"""Scripts for Slurm and manifests for Kubernetes, by which a cluster starts what `launch` starts on one machine."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from keras_turbo.distribution import kubernetes

# Between the signal and the end of a job's time: what a save may take.
_SECONDS_TO_SAVE = 120

_SLURM = """\
#!/usr/bin/env bash
# {workers} machines, one worker on each, which trains on all GPUs that it has there. Written by
#   python -m keras_turbo launch --print-slurm
#SBATCH --job-name={name}
#SBATCH --nodes={workers}
#SBATCH --ntasks-per-node=1
{gpus}#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
# {seconds} s before the time is over, or when the job has to make room, the workers save and end with {preempted}.
#SBATCH --signal=USR1@{seconds}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={name}-%j.log
set -u

# The folder of the checkpoints has to be one that all machines see.
command=({command})

restarts=0
while true; do
    # The others notice by themselves when a worker fails. Ended by srun, their exit code would be that of workers that
    # make room; and a worker that has saved and left would end those that still save. srun does not take
    # --cpus-per-task over by itself.
    srun --kill-on-bad-exit=0 --cpus-per-task="${{SLURM_CPUS_PER_TASK:-1}}" --label "${{command[@]}}"
    code=$?
    if ((code == 0)); then
        exit 0
    fi
    if ((code == {preempted})); then
        scontrol requeue "$SLURM_JOB_ID"
        exit "$code"
    fi
    if ((restarts >= {max_restarts})); then
        exit "$code"
    fi
    restarts=$((restarts + 1))
    echo "Exit code $code: all workers start again ($restarts of {max_restarts})." >&2
done
"""

_KUBERNETES = """\
# {workers} pods, one worker in each, which trains on all GPUs that it has there. Written by
#   python -m keras_turbo launch --print-kubernetes
# Put in your image, and a volume that all pods see for the folder of the checkpoints.
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None  # headless: each pod has a name of its own, such as {name}-0.{name}
  publishNotReadyAddresses: true  # the workers look for one another while they start
  selector:
    job-name: {name}
  ports:
    - name: tensorflow
      port: {port}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {workers}
  parallelism: {workers}
  backoffLimit: {backoff}  # when one worker fails all do, so that each restart counts {workers} times
  podFailurePolicy:
    rules:
      - action: Ignore  # preempted: does not count
        onPodConditions:
          - type: DisruptionTarget
            status: "True"
  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
      terminationGracePeriodSeconds: {seconds}
      containers:
        - name: worker
          image: {image}
          command: {command}
          env:
            - name: {workers_variable}
              value: "{workers}"
            - name: {service_variable}
              value: {name}
            - name: {job_variable}
              value: {name}
            - name: {port_variable}
              value: "{port}"
          ports:
            - containerPort: {port}
{gpus}          volumeMounts:
            - name: shared-memory  # the 64 MB that a container has otherwise are too few for NCCL
              mountPath: /dev/shm
      volumes:
        - name: shared-memory
          emptyDir:
            medium: Memory
"""


def slurm_script(
    script: str, arguments: Sequence[str], *, workers: int, gpus_per_worker: int | None, max_restarts: int
) -> str:
    """A script for sbatch.

    Args:
        script: the training script.
        arguments: what it is given.
        workers: machines, each with one worker.
        gpus_per_worker: GPUs of each; None and 0: none are asked for.
        max_restarts: how often all are started again after one has failed.
    """
    return _SLURM.format(
        name=_name_of(script),
        workers=workers,
        gpus=f"#SBATCH --gpus-per-node={gpus_per_worker}\n" if gpus_per_worker else "",
        command=shlex.join(["python", script, *arguments]),
        max_restarts=max_restarts,
        seconds=_SECONDS_TO_SAVE,
        preempted=143,
    )


def kubernetes_manifest(
    script: str,
    arguments: Sequence[str],
    *,
    workers: int,
    gpus_per_worker: int | None,
    max_restarts: int,
    image: str,
) -> str:
    """A manifest for kubectl apply: a headless service and an indexed job.

    Args:
        script: the training script, as the image has it.
        arguments: what it is given.
        workers: pods.
        gpus_per_worker: GPUs of each; None and 0: none are asked for.
        max_restarts: how often all are started again after one has failed.
        image: of the container.
    """
    gpus = f"          resources:\n            limits:\n              nvidia.com/gpu: {gpus_per_worker}\n"
    # Kubernetes puts variables in where an argument says $(NAME), unless the dollar is doubled.
    command = [part.replace("$(", "$$(") for part in ["python", script, *arguments]]
    return _KUBERNETES.format(
        name=_name_of(script),
        workers=workers,
        backoff=workers * max_restarts,
        seconds=_SECONDS_TO_SAVE,
        image=_quoted(image),
        command=f"[{', '.join(map(_quoted, command))}]",
        port=kubernetes.DEFAULT_PORT,
        workers_variable=kubernetes.WORKERS,
        service_variable=kubernetes.SERVICE,
        job_variable=kubernetes.JOB,
        port_variable=kubernetes.PORT,
        gpus=gpus if gpus_per_worker else "",
    )


def _quoted(text: str) -> str:
    """As YAML reads it back: it reads what JSON writes, but characters that can't be printed and surrogates."""
    shown = json.dumps(text, ensure_ascii=False)
    return "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in shown)


def _name_of(script: str) -> str:
    """The script's name as Kubernetes takes names: small ASCII letters, digits and dashes; pods put an index behind."""
    name = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")[:40].strip("-")
    # A service's name begins with a letter.
    return name if name[:1].isalpha() else f"train-{name}".strip("-")
