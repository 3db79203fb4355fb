#!/usr/bin/env bash
# One training on several machines under Slurm, one worker on each, which trains on all GPUs that it has there:
#
#     sbatch slurm.sh train.py --epochs 10
#     sbatch --nodes=16 --gpus-per-node=4 slurm.sh train.py --epochs 10
#
# The script that is given calls keras_turbo.distribute(), which finds the other workers by Slurm's variables, and has
# AsyncCheckpoint among its callbacks, in a folder that all machines see. MAX_RESTARTS says how often all workers are
# started again after one has failed.

#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
# 120 s before the time is over, or when the job has to make room, the workers save and end with 143.
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -u

max_restarts=${MAX_RESTARTS:-3}
restarts=0
while true; do
    # The others notice by themselves when a worker fails. Ended by srun, their exit code would be that of workers that
    # make room; and a worker that has saved and left would end those that still save. srun does not take
    # --cpus-per-task over by itself.
    srun --kill-on-bad-exit=0 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --label python "$@"
    code=$?
    if ((code == 0)); then
        exit 0
    fi
    if ((code == 143)); then
        scontrol requeue "$SLURM_JOB_ID"
        exit "$code"
    fi
    if ((restarts >= max_restarts)); then
        exit "$code"
    fi
    restarts=$((restarts + 1))
    echo "Exit code $code: all workers start again ($restarts of $max_restarts)." >&2
done
