"""A racer of train_step.py that needs a process of its own: `_train_step_peer.py FRAMEWORK PROBLEM OPTIONS FILE`.

It trains once for each line on its standard input, and answers each with a line of JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from _train_step_models import PROBLEMS, Problem, Run, fit_racer, new_model


def racer_of(framework: str, name: str, options: dict[str, Any], file: str) -> Callable[[], Run]:
    with np.load(file) as arrays:
        x, y, weights = arrays["x"], arrays["y"], [arrays[f"weight_{i}"] for i in range(len(arrays.files) - 2)]
    epochs = options.pop("epochs")
    problem: Problem = dataclasses.replace(PROBLEMS[name], steps=len(x) // PROBLEMS[name].batch_size)
    if framework == "torch":
        from _train_step_torch import loop_racer

        return loop_racer(name, problem, epochs, x, y, weights)
    model = new_model(problem, weights, **options)
    return fit_racer(model, problem, epochs, x, y, batch_size=problem.batch_size)


def main() -> None:
    framework, name, options, file = sys.argv[1:]
    racer = racer_of(framework, name, json.loads(options), file)
    for _ in sys.stdin:
        print(json.dumps(dataclasses.asdict(racer())), flush=True)


if __name__ == "__main__":
    main()
