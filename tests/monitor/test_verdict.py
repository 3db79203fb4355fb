import dataclasses

import pytest

from keras_turbo.monitor.verdict import StepFigures, judge

# Ten milliseconds in which everything is known and nothing takes time but the computation.
IDEAL = StepFigures(step_ms=10.0, input_wait_ms=0.0, dispatch_ms=0.0)


def figures(**changes):
    return dataclasses.replace(IDEAL, **changes)


@pytest.mark.parametrize(
    ("changes", "kind", "share"),
    [
        ({}, "compute-bound", 100),
        ({"input_wait_ms": 8.0}, "input-bound", 80),
        ({"dispatch_ms": 6.0}, "dispatch-bound", 60),
        ({"callbacks_ms": {"A": 1.0, "B": 6.0}}, "callback-bound", 70),
        ({"checkpoint_ms": 5.0, "checkpoint_names": ("ModelCheckpoint",)}, "checkpoint-stalls", 50),
        ({"workers_wait_ms": 5.0}, "waiting-for-workers", 50),
        (
            {"dispatch_ms": None, "utilization_percent": 40.0, "input_wait_ms": 1.0, "workers_wait_ms": 4.0},
            "waiting-for-workers",
            40,
        ),
        # The largest of several.
        ({"input_wait_ms": 3.0, "dispatch_ms": 4.0}, "dispatch-bound", 40),
        # None of them is the cause.
        ({"input_wait_ms": 1.9, "dispatch_ms": 1.9, "checkpoint_ms": 1.9}, "balanced", 57),
        # With figures of GPUs, idle time that nothing else explains is dispatch.
        ({"dispatch_ms": None, "utilization_percent": 40.0, "input_wait_ms": 1.0}, "dispatch-bound", 50),
        ({"dispatch_ms": None, "utilization_percent": 40.0, "input_wait_ms": 6.0}, "input-bound", 60),
        ({"dispatch_ms": None, "utilization_percent": 90.0, "input_wait_ms": 1.0}, "compute-bound", 90),
        # That is told only where the input wait is known.
        ({"dispatch_ms": None, "utilization_percent": 40.0, "input_wait_ms": None}, "unexplained", 60),
        ({"input_wait_ms": None}, "unexplained", 100),
        ({"utilization_percent": 70.0, "gpu_utilization_percents": (95.0, 95.0, 20.0)}, "gpu-lagging", 75),
        (
            {"utilization_percent": 60.0, "gpu_utilization_percents": (62.0, 58.0), "input_wait_ms": 4.0},
            "input-bound",
            40,
        ),
        (
            {"utilization_percent": 60.0, "throttled_percent": 50.0, "throttle_reasons": ("heat",)},
            "throttled",
            50,
        ),
    ],
)
def test_verdicts(changes, kind, share):
    verdict = judge(figures(**changes))
    assert verdict.kind == kind
    assert verdict.share_percent == pytest.approx(share)


def test_each_remedy_is_a_line_of_code_and_names_what_it_is_about():
    slow_callback = judge(figures(callbacks_ms={"Fast": 1.0, "Slow": 6.0}))
    assert "Slow" in slow_callback.text
    assert "Slow" in slow_callback.remedy
    assert "batch % 100" in slow_callback.remedy
    at_epochs = judge(figures(callbacks_ms={"Fast": 1.0, "Slow": 6.0}, epoch_hooks_ms={"Slow": 5.0}))
    assert "epoch % 10" in at_epochs.remedy
    assert "batch" not in at_epochs.remedy
    assert "keras_turbo.FastDataset(" in judge(figures(input_wait_ms=8.0)).remedy
    assert "train.report()" in judge(figures(input_wait_ms=8.0, reads_fast_dataset=True)).remedy
    assert "keras_turbo.TuneExecution()" in judge(figures(dispatch_ms=8.0)).remedy
    assert "find_batch_size=True" in judge(figures(dispatch_ms=8.0, steps_per_execution=50)).remedy
    stalls = figures(checkpoint_ms=8.0, checkpoint_names=("BackupAndRestore",))
    assert "AsyncCheckpoint(" in judge(stalls).remedy
    assert "BackupAndRestore" in judge(stalls).text
    # It is no remedy for itself.
    assert "save_freq" in judge(figures(checkpoint_ms=8.0, checkpoint_names=("AsyncCheckpoint",))).remedy
    both = judge(figures(checkpoint_ms=8.0, checkpoint_names=("ModelCheckpoint", "AsyncCheckpoint")))
    assert both.text.startswith("ModelCheckpoint and AsyncCheckpoint hold fit up")
    assert both.remedy.startswith("AsyncCheckpoint without ModelCheckpoint ")


def test_tune_is_a_remedy_where_it_can_be_called():
    idle = figures(dispatch_ms=8.0)
    assert "steps_per_execution=" in judge(dataclasses.replace(idle, backend="jax")).remedy
    on_torch = judge(dataclasses.replace(idle, backend="torch")).remedy
    assert "batches" in on_torch
    for backend in ("jax", "torch"):
        assert "tune(" not in judge(dataclasses.replace(idle, backend=backend)).remedy


def test_what_is_compute_bound_is_promised_nothing():
    for changes in ({}, {"utilization_percent": 95.0}, {"dispatch_ms": None}):
        verdict = judge(figures(**changes))
        assert verdict.kind == "compute-bound"
        assert verdict.remedy == ""
        assert not verdict.is_warning


def test_a_warning_comes_below_the_limit_alone():
    idle = figures(input_wait_ms=4.0)
    assert judge(idle).is_warning
    for limit in (60, 0):
        # The cause stays what it is: a model that waits for 40 % of the time is not called compute-bound.
        assert judge(idle, warn_below=limit).kind == "input-bound"
        assert not judge(idle, warn_below=limit).is_warning
    lagging = figures(utilization_percent=50.0, gpu_utilization_percents=(80.0, 20.0))
    assert judge(lagging, warn_below=0).kind == "gpu-lagging"
    assert not judge(lagging, warn_below=0).is_warning
    assert judge(lagging).is_warning
    # A higher limit counts too.
    assert judge(figures(input_wait_ms=2.5), warn_below=90).kind == "input-bound"
    assert judge(figures(input_wait_ms=2.5), warn_below=90).is_warning


def test_idle_gpus_that_nothing_explains_are_not_put_down_to_short_steps():
    slow = judge(figures(step_ms=800.0, dispatch_ms=None, utilization_percent=40.0, input_wait_ms=1.0))
    assert slow.kind == "dispatch-bound"
    assert "too short for Python between them" not in slow.text
    assert "idle for 60 % of a step's 800 ms" in slow.text


def test_a_busy_gpu_at_its_power_limit_is_no_reason_for_a_warning():
    at_limit = {"throttled_percent": 100.0, "throttle_reasons": ("power",)}
    assert not judge(figures(utilization_percent=99.0, **at_limit)).is_warning
    assert judge(figures(utilization_percent=50.0, **at_limit)).is_warning


def test_utilization_is_what_is_compared_where_there_is_one():
    assert figures(utilization_percent=33.0, input_wait_ms=9.0).busy_percent == 33.0
    assert figures(input_wait_ms=2.0, callbacks_ms={"A": 1.0}, dispatch_ms=1.0).busy_percent == pytest.approx(60)


@pytest.mark.parametrize(
    "changes",
    [
        {"step_ms": 0.0},
        {"step_ms": float("nan")},
        {"input_wait_ms": -1.0},
        {"callbacks_ms": {"A": -0.5}},
        {"dispatch_ms": float("inf")},
        {"checkpoint_ms": -1.0},
    ],
)
def test_figures_that_can_not_be_are_refused(changes):
    with pytest.raises(ValueError, match="Received"):
        figures(**changes)
