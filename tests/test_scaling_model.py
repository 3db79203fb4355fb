"""The model of docs/scaling.md: its formulas by hand, their limits, and the document's own tables."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
SCRIPT = DOCS / "scaling_model.py"


@pytest.fixture(scope="module")
def model():
    spec = importlib.util.spec_from_file_location("scaling_model", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def cluster(model):
    """Machines of 8 GPUs: 10 us and 100 GB/s inside, 50 us and 1 GB/s between."""
    return model.Cluster(8, model.Link(10e-6, 100e9), model.Link(50e-6, 1e9))


def test_ring_by_hand(model):
    # 6 messages of 50 us and 25 MB at 1 GB/s.
    assert model.ring_seconds(4, 100e6, model.Link(50e-6, 1e9)) == pytest.approx(6 * (50e-6 + 25e-3))


def test_tree_by_hand(model):
    # Up and down three levels, and 100 MB at 1 GB/s twice.
    assert model.tree_seconds(8, 100e6, model.Link(50e-6, 1e9)) == pytest.approx(6 * 50e-6 + 0.2)
    assert model.tree_seconds(5, 100e6, model.Link(50e-6, 1e9)) == pytest.approx(6 * 50e-6 + 0.2)


@pytest.mark.parametrize("name", ["ring_seconds", "tree_seconds"])
def test_one_end_has_nothing_to_send(model, name):
    assert getattr(model, name)(1, 1e9, model.Link(1.0, 1.0)) == 0


def test_limits(model):
    link = model.Link(0.0, 1e9)
    # Without latency, a ring of many ends sends every byte twice, and a tree always.
    assert model.ring_seconds(10**6, 1e8, link) == pytest.approx(0.2, rel=1e-5)
    assert model.tree_seconds(10**6, 1e8, link) == pytest.approx(0.2)
    # Two ends send each byte once in either direction.
    assert model.ring_seconds(2, 1e8, link) == pytest.approx(0.1)
    # Without bytes, only latencies are left: as many as ends, or as their logarithm.
    wait = model.Link(1e-3, 1e9)
    assert model.ring_seconds(1024, 0, wait) == pytest.approx(2.046)
    assert model.tree_seconds(1024, 0, wait) == pytest.approx(0.02)


def test_inside_a_machine_the_network_is_of_no_account(model, cluster):
    slow = model.Cluster(8, cluster.local, model.Link(1.0, 1.0))
    assert model.all_reduce_seconds(8, 1e8, slow, "best") == model.ring_seconds(8, 1e8, cluster.local)
    assert model.all_reduce_seconds(4, 1e8, slow, "best") == model.ring_seconds(4, 1e8, cluster.local)


def test_two_machines_by_hand(model, cluster):
    inside = 14 * (10e-6 + 100e6 / 8 / 100e9)
    between = 2 * (50e-6 + 50e6 / 1e9)
    assert model.all_reduce_seconds(16, 100e6, cluster, "ring") == pytest.approx(inside + between)
    step = model.Step(0.2, 100e6)
    assert model.efficiency(16, step, cluster, "ring") == pytest.approx(0.2 / (0.2 + inside + between))
    assert model.efficiency(16, step, cluster, "ring", accumulation=4) == pytest.approx(
        0.2 / (0.2 + (inside + between) / 4)
    )


def test_overlap_hides_up_to_its_share(model, cluster):
    step = model.Step(0.2, 100e6, overlap=0.5)
    sending = model.all_reduce_seconds(16, 100e6, cluster, "best")
    assert sending > 0.1
    assert model.step_seconds(16, step, cluster) == pytest.approx(0.2 + sending - 0.1)
    assert model.step_seconds(8, step, cluster) == 0.2


def test_compression_by_hand(model, cluster):
    step = model.Step(0.2, 100e6, memory_bytes_per_second=1e12)
    half = model.all_reduce_seconds(64, 50e6, cluster, "best")
    scales = model.all_reduce_seconds(64, 0, cluster, "best")
    seconds = model.communication_seconds(64, step, cluster, "best", compressed=True)
    assert seconds == pytest.approx(half + scales + 3 * 100e6 / 1e12)
    # What only waits for latencies loses by it.
    small = model.Step(0.2, 1e3)
    assert model.step_seconds(64, small, cluster, compressed=True) > model.step_seconds(64, small, cluster)


def test_monotonic(model, cluster):
    step = model.Step(0.1, 200e6)
    counts = model.GPU_COUNTS
    for compressed in (False, True):
        shares = [model.efficiency(gpus, step, cluster, compressed=compressed) for gpus in counts]
        assert shares == sorted(shares, reverse=True)
        assert all(0 < share < 1 for share in shares)
    for gpus in counts:
        by_accumulation = [model.efficiency(gpus, step, cluster, accumulation=k) for k in (1, 2, 4, 8, 1000)]
        assert by_accumulation == sorted(by_accumulation)
        assert by_accumulation[-1] > 0.99
        faster = model.Cluster(8, cluster.local, model.Link(50e-6, 10e9))
        assert model.step_seconds(gpus, step, faster) <= model.step_seconds(gpus, step, cluster)
    # More examples a second with every machine, though each of them is worse used.
    rates = [gpus / model.step_seconds(gpus, step, cluster) for gpus in counts if gpus >= 16]
    assert rates == sorted(rates)


def test_least_accumulation_is_the_least(model, cluster):
    step = model.Step(0.1, 200e6)
    for gpus in model.GPU_COUNTS:
        least = model.least_accumulation(gpus, step, cluster)
        assert model.efficiency(gpus, step, cluster, accumulation=least) >= model.GOOD_EFFICIENCY - 1e-9
        if least > 1:
            assert model.efficiency(gpus, step, cluster, accumulation=least - 1) < model.GOOD_EFFICIENCY


@pytest.mark.parametrize(
    "make",
    [
        lambda model: model.Link(-1e-6, 1e9),
        lambda model: model.Link(1e-6, 0),
        lambda model: model.Link(math.nan, 1e9),
        lambda model: model.Link(1e-6, math.inf),
        lambda model: model.Cluster(0, model.Link(0, 1), model.Link(0, 1)),
        lambda model: model.Step(0, 1e6),
        lambda model: model.Step(math.nan, 1e6),
        lambda model: model.Step(1, -1),
        lambda model: model.Step(1, 1, overlap=1.5),
        lambda model: model.all_reduce_seconds(12, 1, model.Cluster(8, model.Link(0, 1), model.Link(0, 1)), "ring"),
        lambda model: model.all_reduce_seconds(8, 1, model.Cluster(8, model.Link(0, 1), model.Link(0, 1)), "butterfly"),
        lambda model: model.step_seconds(
            8, model.Step(1, 1), model.Cluster(8, model.Link(0, 1), model.Link(0, 1)), accumulation=0
        ),
    ],
)
def test_what_can_not_be_is_refused(model, make):
    with pytest.raises(ValueError, match="Received|don't fill"):
        make(model)


def script(*arguments, code=0):
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_the_document_shows_what_the_script_prints():
    """Every command in the document, with what it prints below it."""
    text = (DOCS / "scaling.md").read_text(encoding="utf-8")
    commands = [line for line in text.splitlines() if line.startswith("python docs/scaling_model.py")]
    assert len(commands) >= 3
    for command in commands:
        assert script(*command.split()[2:]).strip() in text


def test_bad_figures_are_refused_by_the_script():
    assert "above 0" in script("--network-gbit", "0", code=2)
    assert "don't fill" in script("--gpus", "8", "12", code=2)
    assert "at least 1 GPU" in script("--gpus", "0", code=2)
    assert "invalid float" in script("--step-ms", "fast", code=2)


def test_where_nothing_is_to_be_gained_it_says_so():
    printed = script("--step-ms", "1000", "--gradient-mb", "1", "--network-gbit", "400")
    assert "is computation as it is" in printed
