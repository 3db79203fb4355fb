"""RDMA devices and NCCL."""

from __future__ import annotations

import pytest

from keras_turbo.doctor.network import Network, RdmaPort, findings, read_network
from tests.doctor.judging import checked, only, worst

UP = RdmaPort("mlx5_0/1", True, "200 Gb/sec (4X HDR)", "InfiniBand")
DOWN = RdmaPort("mlx5_1/1", False, "10 Gb/sec (4X SDR)", "Ethernet")


def judged(*ports, environ=None, gpu_number=0, has_many_machines=False, nccl=None, has_gpu_direct=True):
    return checked(
        findings(
            Network(ports, has_gpu_direct),
            environ or {},
            gpu_number=gpu_number,
            has_many_machines=has_many_machines,
            nccl=nccl,
        )
    )


def write_port(root, name, **texts):
    folder = root / "sys/class/infiniband" / name
    folder.mkdir(parents=True)
    for file, text in texts.items():
        (folder / file).write_text(f"{text}\n")


def test_the_kernel_s_list(tmp_path):
    assert read_network(tmp_path) == Network((), False)
    write_port(tmp_path, "mlx5_0/ports/1", state="4: ACTIVE", rate="200 Gb/sec (4X HDR)", link_layer="InfiniBand")
    write_port(tmp_path, "mlx5_1/ports/1", state="1: DOWN", rate="10 Gb/sec (4X SDR)", link_layer="Ethernet")
    write_port(tmp_path, "mlx5_2/ports/1")
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert read_network(tmp_path) == Network((UP, DOWN, RdmaPort("mlx5_2/1", False, "", "")), True)


def test_no_rdma_matters_between_machines_only():
    assert worst(judged()) == "ok"
    assert only(judged(has_many_machines=True), "talk over TCP").level == "warning"


def test_ports():
    found = judged(UP, DOWN)
    assert only(found, "mlx5_0/1: InfiniBand, 200 Gb/sec").level == "ok"
    assert only(found, "mlx5_1/1").level == "warning"


def test_gpu_direct():
    assert worst(judged(UP, gpu_number=1)) == "ok"
    assert only(judged(UP, gpu_number=1, has_gpu_direct=False), "nvidia_peermem").level == "warning"
    assert worst(judged(UP, has_gpu_direct=False)) == "ok"


def test_nccl():
    assert not [one for one in judged(gpu_number=1) if "NCCL" in one.fact]
    assert only(judged(gpu_number=2, nccl="2.25.1"), "NCCL 2.25.1").level == "ok"
    assert only(judged(gpu_number=2), "NCCL is not among").level == "warning"


@pytest.mark.parametrize("name", ["NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE"])
def test_switches_that_were_left_set(name):
    assert only(judged(environ={name: "1"}), f"{name} is set").level == "warning"
    assert worst(judged(environ={name: "0"})) == "ok"
