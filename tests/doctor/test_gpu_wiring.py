"""How the driver says that the GPUs are wired."""

from __future__ import annotations

import pynvml

from keras_turbo.doctor.gpus import Driver, PcieLink, read_driver
from tests.monitor.fake_nvml import FakeGpu, FakeMig, FakeNvml, gpus, use


def test_four_gpus_of_which_two_are_linked(monkeypatch):
    library = FakeNvml(gpus(4, pcie_generations=(1, 4, 5), pcie_widths=(8, 16)))
    library.gpus[1].linked_to, library.gpus[3].linked_to = (3,), (1,)
    use(monkeypatch, library)
    driver = read_driver({})
    assert driver.version == "570.86.15"
    assert driver.cuda_version == (12, 8)
    assert [one.gpu.index for one in driver.gpus] == [0, 1, 2, 3]
    assert driver.pcie == (PcieLink(1, 4, 5, 8, 16),) * 4
    assert driver.nvlink_pairs == {(1, 3)}
    assert driver.problem is None
    # Places in the list of this process, not numbers of NVML.
    assert read_driver({"CUDA_VISIBLE_DEVICES": "3,1"}).nvlink_pairs == {(0, 1)}
    assert library.open_sessions == 0


def test_what_an_older_driver_does_not_tell(monkeypatch):
    missing = ("nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetGpuMaxPcieLinkGeneration", "nvmlDeviceGetP2PStatus")
    use(monkeypatch, FakeNvml(gpus(2), missing=missing))
    driver = read_driver({})
    assert driver.cuda_version is None
    assert driver.pcie[0] == PcieLink(4, 4, None, 16, 16)
    assert driver.nvlink_pairs == frozenset()


def test_a_mig_instance_is_wired_as_its_gpu(monkeypatch):
    use(monkeypatch, FakeNvml([FakeGpu(mig=[FakeMig("MIG-aaaa")])]))
    driver = read_driver({})
    assert driver.gpus[0].gpu.is_mig
    assert driver.pcie == (PcieLink(4, 4, 4, 16, 16),)


def test_no_driver(monkeypatch):
    use(monkeypatch, None)
    driver = read_driver({})
    assert driver == Driver(problem=driver.problem)
    assert "No NVIDIA driver" in driver.problem


def test_a_driver_of_another_version(monkeypatch):
    use(monkeypatch, FakeNvml([], init_error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH))
    assert "different versions" in read_driver({}).problem
