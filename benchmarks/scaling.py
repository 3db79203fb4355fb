"""Two workers on loopback: time and bytes of a step, by hand and with keras_turbo, in turn.

    python benchmarks/scaling.py

- stock: `fit` on one worker with the same global batch. Over two workers stock Keras 3 fails (its issue 20585).
- by hand: the loop of TensorFlow's guide, with `strategy.run` and a Keras optimizer.
- keras_turbo: `fit` on a FastDataset; with gradients sent as float16 or bfloat16; with those of 4 steps accumulated.

All start from the same weights and see the same batches; those that send gradients as they are must reach the same
losses, those that compress them nearly so. Bytes are those of the loopback interface, where all that workers send
passes once. The two workers share the cores of this machine, so that it is no faster than one: what is compared is what
a step costs. `docs/scaling.md` says what to expect on real networks.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import _measure
import numpy as np

STOCK = "stock"
BY_HAND = "by hand"
TURBO = "keras_turbo"
FLOAT16 = "keras_turbo, float16"
BFLOAT16 = "keras_turbo, bfloat16"
ACCUMULATED = "keras_turbo, accumulated 4"

MOST_TIMES_BY_HAND = 1.05
# Half, and what frames, agreements and metrics take.
MOST_BYTES_COMPRESSED = 0.55
# Relative differences of an epoch's loss: rounding of float32 sums in another order; of what is sent.
SAME, NEARLY = 1e-4, 2e-2
WORKER = Path(__file__).parent / "_scaling_worker.py"
TIMEOUT_SECONDS = 3600.0


def ports(count: int) -> list[int]:
    """Free ports of this machine."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]


def measured_by(workers: int, settings: Mapping[str, Any], contenders: list[str]) -> dict[str, list[dict[str, Any]]]:
    """What worker 0 of so many has measured: for each contender its rounds."""
    addresses = [f"localhost:{port}" for port in ports(workers)]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "measured.json"
        command = [sys.executable, str(WORKER), json.dumps({**settings, "contenders": contenders}), str(output)]
        processes = []
        try:
            for index in range(workers):
                environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
                if workers > 1:
                    task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
                    environment["TF_CONFIG"] = json.dumps(task)
                processes.append(subprocess.Popen(command, env=environment))
            wait_for(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return json.loads(output.read_text(encoding="utf-8"))


def wait_for(processes: list[subprocess.Popen]) -> None:
    """Waits until all have ended well; one that fails leaves the others waiting for it."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    codes = [process.poll() for process in processes]
    if any(code != 0 for code in codes):
        raise RuntimeError(f"A worker failed, or took too long: exit codes {codes}.")


def best(rounds: list[dict[str, Any]], what: str) -> list[float]:
    """The best epoch of each round."""
    return [min(one[what]) for one in rounds]


def largest_difference(measured: Mapping[str, list[dict[str, Any]]], names: list[str]) -> float:
    """Of an epoch's loss from stock's, relative to it."""
    expected = np.array(measured[STOCK][0]["losses"])
    return max(float(np.abs(np.array(one["losses"]) / expected - 1).max()) for name in names for one in measured[name])


def main() -> None:
    options = _measure.parser(__doc__, "scaling", rounds=5).parse_args()
    rounds = _measure.num_rounds(options)
    size = {"features": 16, "units": 32, "layers": 2, "batch": 16, "steps": 8, "epochs": 2}
    if not options.quick:
        size = {"features": 256, "units": 1024, "layers": 4, "batch": 128, "steps": 40, "epochs": 3}
    settings = {**size, "rounds": rounds}
    both = [BY_HAND, TURBO, FLOAT16, BFLOAT16, ACCUMULATED]
    measured = {**measured_by(1, settings, [STOCK]), **measured_by(2, settings, both)}

    same = largest_difference(measured, [BY_HAND, TURBO])
    nearly = largest_difference(measured, [FLOAT16, BFLOAT16])
    if same > SAME or nearly > NEARLY:
        raise _measure.ResultsDifferError(
            f"Losses differ from one worker's by up to {same:.2g}, and by {nearly:.2g} with compression."
        )
    step_ms = {name: best(one, "step_ms") for name, one in measured.items()}
    kilobytes = {name: [number / 1e3 for number in best(one, "step_bytes")] for name, one in measured.items()}
    times = _measure.Comparison(
        "a step: stock on one worker, all others on two", "ms", "lower", _measure.figures(step_ms), stock=STOCK
    )
    sent = _measure.Comparison("sent in a step by both workers", "kB", "lower", _measure.figures(kilobytes))
    for comparison in (times, sent):
        comparison.print()
    targets = [
        _measure.Target(
            "time of a step, in times of the loop by hand", 1 / times.ratio(TURBO, BY_HAND), at_most=MOST_TIMES_BY_HAND
        ),
        *(
            _measure.Target(
                f"bytes of a step with {name.split()[-1]}, as a share of those as they are",
                1 / sent.ratio(name, TURBO),
                at_most=MOST_BYTES_COMPRESSED,
            )
            for name in (FLOAT16, BFLOAT16)
        ),
    ]
    checks = {
        "largest relative difference of losses from one worker's": same,
        "largest relative difference of losses with compressed gradients": nearly,
    }
    _measure.finish(options, settings, [times, sent], targets, checks)


if __name__ == "__main__":
    main()
