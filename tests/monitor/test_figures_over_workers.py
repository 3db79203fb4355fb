import json
import os
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo.fit.workers import worker_of
from keras_turbo.monitor.figures import _GATHERED, over_workers

NAN = float("nan")


def test_minimum_mean_and_maximum_are_over_the_workers_that_have_a_figure():
    gathered = [[10.0, NAN, NAN], [30.0, 5.0, NAN]]
    assert over_workers(gathered, ["a_ms", "b_mb", "c"]) == {
        "workers_min_a_ms": 10.0,
        "workers_mean_a_ms": 20.0,
        "workers_max_a_ms": 30.0,
        "workers_min_b_mb": 5.0,
        "workers_mean_b_mb": 5.0,
        "workers_max_b_mb": 5.0,
    }


def test_one_process_is_the_only_worker(two_cpu_strategy):
    assert worker_of(tf.distribute.get_strategy()) == (0, 1)
    assert worker_of(two_cpu_strategy) == (0, 1)


@pytest.mark.parametrize(
    ("cluster", "task", "expected"),
    [
        ({"worker": ["a:1", "b:1"]}, ("worker", 1), (1, 2)),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, ("chief", 0), (0, 3)),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, ("worker", 1), (2, 3)),
    ],
)
def test_the_place_among_workers(cluster, task, expected):
    class Strategy:
        cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), task_type=task[0], task_id=task[1]
        )

    assert worker_of(Strategy) == expected


WORKER = """
    import json, sys
    import tensorflow as tf
    from keras_turbo.fit.workers import worker_of
    from keras_turbo.monitor.figures import gather_over_workers, over_workers

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index, number = worker_of(strategy)
    figures = {"step_ms_median": 10.0 + index}
    if index == 1:
        figures["gpu_utilization_percent"] = 55.0
    gathered = gather_over_workers(strategy, figures)
    print(json.dumps([index, number, list(gathered.shape), over_workers(gathered)]))
"""


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


@pytest.mark.slow
def test_two_real_workers():
    workers = [f"localhost:{free_port()}" for _ in range(2)]
    processes = []
    for index in range(2):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        environment = os.environ | {"TF_CONFIG": json.dumps(config), "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-c", textwrap.dedent(WORKER)]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        results = [json.loads(process.communicate(timeout=120)[0].splitlines()[-1]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    expected = {
        **{f"workers_{kind}_step_ms_median": value for kind, value in (("min", 10.0), ("mean", 10.5), ("max", 11.0))},
        **{f"workers_{kind}_gpu_utilization_percent": 55.0 for kind in ("min", "mean", "max")},
    }
    assert [result[:3] for result in results] == [[0, 2, [2, len(_GATHERED)]], [1, 2, [2, len(_GATHERED)]]]
    assert [result[3] for result in results] == [expected, expected]
    assert np.isfinite(list(expected.values())).all()
