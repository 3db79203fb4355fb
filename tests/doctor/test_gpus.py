"""What the GPUs' facts mean."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from keras_turbo.doctor import gpus
from keras_turbo.doctor.gpus import Driver, PcieLink, read_driver
from tests.doctor.judging import NO_GPU, checked, counters, driver, only, worst
from tests.monitor.fake_nvml import FakeGpu, FakeMig, FakeNvml, use


def findings(machine, root=Path("/"), environ=None, gpus_of_tensorflow=None):
    return list(gpus.findings(machine, environ or {}, gpus_of_tensorflow, root))


def test_a_good_gpu():
    found = checked(findings(driver()))
    assert worst(found) == "ok"
    assert {one.subject for one in found} == {"GPU 0"}
    fact = only(found, "Tensor Cores").fact
    assert "A100" in fact
    assert "compute capability 8.0" in fact
    assert "40 GB" in fact
    assert "float16 and bfloat16" in fact
    assert only(found, "generation 4 x16.").figures["pcie_width"] == 16


def test_no_gpu_is_no_fault(tmp_path):
    (found,) = checked(findings(NO_GPU, tmp_path))
    assert found.level == "warning"
    assert found.fact == "No GPU, so training runs on the CPU. No NVIDIA driver on this machine."


def test_what_happened_and_what_to_do_stand_apart(tmp_path):
    problem = "No driver here (no libnvidia-ml.so.1): the CPU only. In a container, start it with the GPUs: --gpus all."
    (found,) = checked(findings(Driver(problem=problem), tmp_path))
    assert found.fact.endswith("No driver here (no libnvidia-ml.so.1): the CPU only.")
    assert found.hint == "In a container, start it with the GPUs: --gpus all."
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    (found,) = checked(findings(Driver(problem="The driver is not loaded. Load it: modprobe nvidia."), tmp_path))
    assert (found.level, found.hint) == ("error", "Load it: modprobe nvidia.")


def test_gpus_of_which_there_are_no_figures_are_gpus():
    (found,) = checked(findings(Driver(problem="nvidia-ml-py is not installed. Install it."), gpus_of_tensorflow=2))
    assert found.fact == "TensorFlow lists 2 GPUs, of which there are no figures here. nvidia-ml-py is not installed."
    (found,) = checked(findings(Driver(problem="AMD GPUs give no figures here."), gpus_of_tensorflow=1))
    assert "TensorFlow lists 1 GPU," in found.fact


@pytest.mark.parametrize(
    ("value", "is_told"),
    [("0,7", True), ("0,7,1", True), ("0,GPU-1", True), ("0", False), ("0,", False), ("0,-1,1", False), (None, False)],
)
def test_entries_that_cuda_stops_at(value, is_told):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    found = [one for one in checked(findings(driver(), environ=environ)) if "CUDA stops at" in one.fact]
    assert len(found) == is_told
    if is_told:
        assert f"{value.split(',')[1]!r}." in found[0].fact


def test_a_mig_instance_stands_alone_whatever_the_variable_lists():
    found = findings(driver(counters(mig=True)), environ={"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"})
    assert not [one for one in found if "CUDA stops at" in one.fact]


def test_a_gpu_that_is_there_and_can_not_be_used_is_wrong(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    (found,) = checked(findings(Driver(problem="The versions differ."), tmp_path))
    assert found.level == "error"
    hidden = Driver(problem="CUDA_VISIBLE_DEVICES='' hides every GPU from this process.")
    assert findings(hidden, tmp_path)[0].level == "warning"


@pytest.mark.parametrize(
    ("name", "capability", "level", "part"),
    [
        ("Tesla T4", (7, 5), "ok", "Tensor Cores for float16:"),
        ("NVIDIA GeForce GTX 1660", (7, 5), "warning", "no Tensor Cores"),
        ("Tesla P100", (6, 0), "warning", "no Tensor Cores"),
        ("NVIDIA H200", (9, 0), "ok", "float16 and bfloat16"),
    ],
)
def test_abilities(name, capability, level, part):
    found = checked(findings(driver(counters(name=name, capability=capability))))
    assert only(found, part).level == level


@pytest.mark.parametrize(
    ("link", "level", "part"),
    [
        (PcieLink(1, 4, 4, 16, 16), "ok", "generation 4 x16 (now 1, as long as it has nothing to do)"),
        (PcieLink(4, 4, 4, 8, 16), "warning", "x8 of x16"),
        (PcieLink(3, 3, 4, 16, 16), "warning", "generation 3 of 4"),
        (PcieLink(3, 3, None, 16, None), "ok", "generation 3 x16"),
    ],
)
def test_pcie(link, level, part):
    assert only(checked(findings(driver(pcie=[link]))), part).level == level


def test_pcie_that_is_not_known_is_not_spoken_of():
    assert not [one for one in findings(driver(pcie=[PcieLink()])) if "PCIe" in one.fact]


@pytest.mark.parametrize(
    ("figures", "part"),
    [
        ({"throttle_reasons": ("heat",)}, "by: heat"),
        ({"throttle_reasons": ("clock_limit", "power_brake")}, "by: clock_limit, power_brake"),
        ({"memory_used_mb": 20_480.0}, "20.0 of 40 GB are taken by other processes"),
    ],
)
def test_what_holds_a_gpu_back(figures, part):
    assert only(checked(findings(driver(counters(**figures)))), part).level == "warning"


@pytest.mark.parametrize("reasons", [None, (), ("power",), ("display", "sync_boost")])
def test_what_is_usual_holds_nothing_back(reasons):
    assert worst(findings(driver(counters(throttle_reasons=reasons)))) == "ok"


@pytest.mark.parametrize(
    ("pairs", "links", "level", "part"),
    [
        ({(0, 1), (0, 2), (1, 2)}, 12, "ok", "NVLink between all 3 GPUs, 12 links each."),
        ({(0, 1)}, 4, "warning", "NVLink between GPUs 0-1 only."),
        (set(), None, "warning", "No NVLink between the 3 GPUs."),
        (set(), 0, "warning", "NVLink is there and not up on GPU 0, 1, 2."),
    ],
)
def test_nvlink(pairs, links, level, part):
    gpus = [counters(index, nvlink_links_active=links) for index in range(3)]
    found = checked(findings(driver(*gpus, nvlink_pairs=frozenset(pairs))))
    assert only(found, part).level == level


def test_one_gpu_needs_no_nvlink():
    assert not [one for one in findings(driver()) if "NVLink" in one.fact]


def test_a_lost_gpu():
    found = findings(dataclasses.replace(driver(), problem="GPU 0 (A100): GPU is lost."))
    assert only(found, "GPU is lost").level == "warning"


def test_from_nvml_to_findings(monkeypatch):
    use(monkeypatch, FakeNvml([FakeGpu(pcie_widths=(4, 16), throttle_bits=0x40)]))
    found = checked(findings(read_driver({})))
    assert only(found, "x4 of x16")
    assert only(found, "by: heat")
    use(monkeypatch, FakeNvml([FakeGpu(mig=[FakeMig("MIG-aaaa")])]))
    assert only(findings(read_driver({})), "a MIG instance: it has no utilization figure")
