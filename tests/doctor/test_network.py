"""RDMA devices and NCCL."""

from __future__ import annotations

import pytest

from keras_turbo.doctor.cluster import network
from tests.doctor.judging import checked, only, worst

UP = {"state": "4: ACTIVE", "rate": "200 Gb/sec (4X HDR)", "link_layer": "InfiniBand"}
DOWN = {"state": "1: DOWN", "rate": "10 Gb/sec (4X SDR)", "link_layer": "Ethernet"}


@pytest.fixture
def judged(tmp_path):
    """Findings on a machine whose kernel lists these ports."""

    def judge(*ports, environ=None, gpu_number=0, machines=1, nccl=None, has_gpu_direct=True):
        for number, texts in enumerate(ports):
            folder = tmp_path / f"sys/class/infiniband/mlx5_{number}/ports/1"
            folder.mkdir(parents=True, exist_ok=True)
            for file, text in texts.items():
                (folder / file).write_text(f"{text}\n")
        if has_gpu_direct:
            (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True, exist_ok=True)
        return checked(list(network(environ or {}, gpu_number, machines, nccl, tmp_path)))

    return judge


def test_no_rdma_matters_between_machines_only(judged):
    assert worst(judged()) == "ok"
    assert only(judged(machines=2), "talk over TCP").level == "warning"


def test_ports(judged):
    found = judged(UP, DOWN, {})
    assert only(found, "mlx5_0/1: InfiniBand, 200 Gb/sec (4X HDR).").level == "ok"
    assert only(found, "mlx5_1/1: Ethernet, 10 Gb/sec (4X SDR), not up.").level == "warning"
    assert only(found, "mlx5_2/1: unknown kind, unknown rate, not up.").level == "warning"


@pytest.mark.parametrize(
    ("gpu_number", "has_gpu_direct", "level"), [(1, True, "ok"), (1, False, "warning"), (0, False, "ok")]
)
def test_gpu_direct(judged, gpu_number, has_gpu_direct, level):
    found = judged(UP, gpu_number=gpu_number, has_gpu_direct=has_gpu_direct)
    assert worst(found) == level
    assert ("nvidia_peermem" in found[-1].fact) == (level == "warning")


def test_nccl(judged):
    assert not [one for one in judged(gpu_number=1) if "NCCL" in one.fact]
    assert only(judged(gpu_number=2, nccl="2.25.1"), "NCCL 2.25.1").level == "ok"
    assert only(judged(gpu_number=2), "NCCL is not among").level == "warning"


@pytest.mark.parametrize("name", ["NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE"])
def test_switches_that_were_left_set(judged, name):
    assert only(judged(environ={name: "1"}), f"{name} is set").level == "warning"
    assert worst(judged(environ={name: "0"})) == "ok"
