"""Figures of GPUs by NVML; the library is a fake one, the module that calls it is the real one."""

from __future__ import annotations

import dataclasses
import sys
import types

import pynvml
import pytest

from keras_turbo.monitor import nvml
from keras_turbo.monitor.counters import Gpu, GpuCounters
from keras_turbo.monitor.nvml import NvmlSession, pci_bus_id, visible_gpus
from tests.monitor.fake_nvml import FakeGpu, FakeMig, FakeNvml, gpus, use

ALWAYS = ("gpu", "throttle_reasons")


def figures(counters: GpuCounters) -> dict[str, object]:
    """Those that exist."""
    values = {field.name: getattr(counters, field.name) for field in dataclasses.fields(counters)}
    return {name: value for name, value in values.items() if name != "gpu" and value is not None}


def problem_of(environ) -> str | None:
    with NvmlSession(environ) as session:
        return session.problem


def one_reading(monkeypatch, library, readings=1, **environ):
    use(monkeypatch, library)
    with NvmlSession(environ) as session:
        for _ in range(readings):
            counters = session.read()
    assert library.open_sessions == 0
    assert library.gpm_samples == set()
    return counters


def test_all_figures_of_one_gpu(monkeypatch):
    (counters,) = one_reading(monkeypatch, FakeNvml([FakeGpu()]))
    assert counters.gpu == Gpu(
        0, "GPU-00000000-0000-0000-0000-000000000000", "0000:01:00.0", "NVIDIA A100-SXM4-40GB", 40_000.0, (8, 0)
    )
    assert counters.gpu.hardware.tensor_cores
    assert figures(counters) == {
        "utilization_percent": 75.0,
        "memory_used_mb": 12_000.0,
        "memory_total_mb": 40_000.0,
        "power_watts": 250.5,
        "energy_joules": 9_000.0,
        "throttle_reasons": (),
    }


@pytest.mark.parametrize(
    ("function", "absent"),
    [
        ("nvmlDeviceGetUtilizationRates", {"utilization_percent"}),
        ("nvmlDeviceGetPowerUsage", {"power_watts"}),
        ("nvmlDeviceGetTotalEnergyConsumption", {"energy_joules"}),
    ],
)
@pytest.mark.parametrize("how", ["not supported", "no permission", "not in this driver", "not in this pynvml"])
def test_a_single_figure_that_does_not_exist_is_absent_and_never_0(monkeypatch, function, absent, how):
    library = FakeNvml([FakeGpu()])
    if how == "not supported":
        library.gpus[0].refused[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    elif how == "no permission":
        library.gpus[0].refused[function] = pynvml.NVML_ERROR_NO_PERMISSION
    elif how == "not in this driver":
        library.missing = (function,)
    else:
        monkeypatch.delattr(pynvml, function)
    (whole,) = one_reading(monkeypatch, FakeNvml([FakeGpu()])) if how != "not in this pynvml" else (None,)
    (counters,) = one_reading(monkeypatch, library, readings=3)
    assert not absent & figures(counters).keys()
    if whole is not None:
        assert figures(whole).keys() - figures(counters).keys() == absent


def test_what_does_not_exist_is_not_asked_for_again(monkeypatch):
    library = FakeNvml([FakeGpu(refused={"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_NOT_SUPPORTED})])
    one_reading(monkeypatch, library, readings=5)
    assert library.calls["nvmlDeviceGetPowerUsage"] == 1
    assert library.calls["nvmlDeviceGetUtilizationRates"] == 5


def test_older_drivers_have_older_functions(monkeypatch):
    newer = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons")
    library = FakeNvml([FakeGpu(throttle_bits=pynvml.nvmlClocksThrottleReasonSwPowerCap)], missing=newer)
    (counters,) = one_reading(monkeypatch, library)
    assert counters.memory_used_mb == 12_500
    assert counters.throttle_reasons == ("power",)


@pytest.mark.parametrize(
    ("names", "reasons"),
    [
        ((), ()),
        (("GpuIdle",), ()),
        (("SwThermalSlowdown",), ("heat",)),
        (("HwSlowdown", "HwThermalSlowdown", "SwPowerCap"), ("heat", "power")),
        (("HwSlowdown", "HwPowerBrakeSlowdown"), ("power_brake",)),
        (("HwSlowdown",), ("hardware_slowdown",)),
        (("ApplicationsClocksSetting", "SyncBoost", "DisplayClockSetting"), ("clock_limit", "sync_boost", "display")),
    ],
)
def test_throttle_reasons(monkeypatch, names, reasons):
    bits = sum(getattr(pynvml, f"nvmlClocksThrottleReason{name}") for name in names)
    (counters,) = one_reading(monkeypatch, FakeNvml([FakeGpu(throttle_bits=bits)]))
    assert counters.throttle_reasons == reasons


def test_throttle_reasons_that_are_not_known_are_not_none_of_them(monkeypatch):
    missing = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    (counters,) = one_reading(monkeypatch, FakeNvml([FakeGpu()], missing=missing))
    assert counters.throttle_reasons is None


@pytest.mark.parametrize(
    ("value", "indices"), [(None, [0, 1, 2, 3]), ("2,0", [2, 0]), ("1,-1,2", [1]), ("GPU-33aa,GPU-11aa", [3, 1])]
)
def test_of_four_gpus_those_that_this_process_uses(monkeypatch, value, indices):
    library = FakeNvml(gpus(4))
    for index, gpu in enumerate(library.gpus):
        gpu.utilization_percent = 10 * index
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    counters = one_reading(monkeypatch, library, **environ)
    assert [one.gpu.index for one in counters] == indices
    assert [one.utilization_percent for one in counters] == [10.0 * index for index in indices]
    assert [one.gpu.pci_bus_id for one in counters] == [f"0000:0{index + 1}:00.0" for index in indices]
    assert [gpu.index for gpu in visible_gpus(environ)] == indices


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpus_are_said_to_be(monkeypatch, value):
    use(monkeypatch, FakeNvml(gpus(4)))
    environ = {"CUDA_VISIBLE_DEVICES": value}
    assert visible_gpus(environ) == []
    assert problem_of(environ) == f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU from this process."


def test_the_order_of_cuda_is_taken_from_cores_and_clocks(monkeypatch):
    slow, fast = gpus(2)
    slow.cores = 2048
    use(monkeypatch, FakeNvml([slow, fast]))
    assert [gpu.index for gpu in visible_gpus({})] == [1, 0]
    assert [gpu.index for gpu in visible_gpus({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})] == [0, 1]


def mig_machine():
    whole = FakeGpu(mig=[FakeMig("MIG-aaaa", 3), FakeMig("MIG-bbbb", 5, memory_total_mb=20_000)])
    return FakeNvml([whole])


def test_a_mig_instance_has_no_utilization_and_no_power_of_its_own(monkeypatch):
    (counters,) = one_reading(monkeypatch, mig_machine(), CUDA_VISIBLE_DEVICES="MIG-bbbb")
    assert counters.gpu.is_mig
    assert counters.gpu.mig_instance == (5, 0)
    assert counters.gpu.mig_parent_uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert figures(counters) == {
        "memory_used_mb": 100.0,
        "memory_total_mb": 20_000.0,
        "throttle_reasons": (),
    }


def test_a_mig_instance_on_hopper_has_its_activity(monkeypatch):
    library = mig_machine()
    library.gpus[0].gpm = {
        "NVML_GPM_METRIC_SM_UTIL": 61.5,
        "NVML_GPM_METRIC_ANY_TENSOR_UTIL": 20.25,
    }
    (counters,) = one_reading(monkeypatch, library, readings=2)
    assert counters.utilization_percent is None
    assert counters.sm_activity_percent == 61.5
    assert counters.tensor_activity_percent == 20.25


GPM = {"NVML_GPM_METRIC_SM_UTIL": 80.5, "NVML_GPM_METRIC_ANY_TENSOR_UTIL": 33.0}


def test_activity_on_hopper(monkeypatch):
    library = FakeNvml(gpus(2, gpm=GPM, links=(True,) * 18))
    use(monkeypatch, library)
    with NvmlSession({}) as session:
        first = session.read()
        # The first has nothing to be compared with.
        assert [one.sm_activity_percent for one in first] == [None, None]
        for counters in session.read():
            assert counters.sm_activity_percent == 80.5
            assert counters.tensor_activity_percent == 33.0
            assert counters.nvlink_links_active == 18
        assert len(library.gpm_samples) == 4
    assert library.gpm_samples == set()
    assert library.open_sessions == 0


def test_a_metric_that_a_gpu_does_not_have_is_absent(monkeypatch):
    gpm = {"NVML_GPM_METRIC_SM_UTIL": 80.5}
    (counters,) = one_reading(monkeypatch, FakeNvml([FakeGpu(gpm=gpm)]), readings=2)
    assert counters.sm_activity_percent == 80.5
    assert counters.tensor_activity_percent is None


@pytest.mark.parametrize(
    "function", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"]
)
def test_drivers_without_gpm(monkeypatch, function):
    (counters,) = one_reading(monkeypatch, FakeNvml([FakeGpu(gpm=GPM)], missing=(function,)), readings=3)
    assert counters.sm_activity_percent is None
    assert counters.utilization_percent == 75


def test_nvlink_that_is_there_and_not_up_is_0_links(monkeypatch):
    (counters,) = one_reading(monkeypatch, FakeNvml([FakeGpu(links=(False, False))]), readings=2)
    assert counters.nvlink_links_active == 0


def test_a_gpu_that_is_lost_in_mid_run(monkeypatch):
    library = FakeNvml(gpus(2))
    use(monkeypatch, library)
    with NvmlSession({}) as session:
        session.read()
        assert session.problem is None
        lost = library.gpus[1]
        functions = [name.removeprefix("c_") for name in dir(FakeNvml) if name.startswith("c_nvmlDevice")]
        lost.refused = dict.fromkeys(functions, pynvml.NVML_ERROR_GPU_IS_LOST)
        whole, gone = session.read()
        assert whole.utilization_percent == 75
        assert figures(gone) == {}
        assert session.problem == "GPU 1 (NVIDIA A100-SXM4-40GB): GPU is lost."
        lost.refused = {}
        assert session.read()[1].utilization_percent == 75
        assert session.problem is None
    assert library.open_sessions == 0


def test_a_gpu_that_can_not_be_opened_leaves_the_others(monkeypatch):
    library = FakeNvml(gpus(3))
    library.gpus[0].refused["nvmlDeviceGetHandleByIndex_v2"] = pynvml.NVML_ERROR_GPU_IS_LOST
    counters = one_reading(monkeypatch, library)
    assert [one.gpu.index for one in counters] == [1, 2]
    assert problem_of({}) == "NVML can't open every GPU: GPU 0: GPU is lost."
    library.gpus[1].refused["nvmlDeviceGetUtilizationRates"] = pynvml.NVML_ERROR_GPU_IS_LOST
    with NvmlSession({}) as session:
        session.read()
        assert "GPU 0: GPU is lost. GPU 1 (NVIDIA A100-SXM4-40GB): GPU is lost." in session.problem


def test_gpus_of_other_jobs_are_no_problem(monkeypatch):
    library = FakeNvml(gpus(3))
    library.gpus[0].refused["nvmlDeviceGetHandleByIndex_v2"] = pynvml.NVML_ERROR_NO_PERMISSION
    assert [one.gpu.index for one in one_reading(monkeypatch, library)] == [1, 2]
    assert problem_of({}) is None


def test_a_variable_of_any_length_leaves_a_short_problem(monkeypatch):
    use(monkeypatch, FakeNvml(gpus(1)))
    assert len(problem_of({"CUDA_VISIBLE_DEVICES": "x" * 50_000})) < 200


def test_no_gpu_can_be_opened(monkeypatch):
    library = FakeNvml(gpus(1))
    library.gpus[0].refused["nvmlDeviceGetHandleByIndex_v2"] = pynvml.NVML_ERROR_NO_PERMISSION
    use(monkeypatch, library)
    assert problem_of({}) == "NVML can't open any GPU: GPU 0: Insufficient Permissions."


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "different versions"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "modprobe nvidia"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "/dev/nvidiactl"),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "too old for nvidia-ml-py"),
        (pynvml.NVML_ERROR_UNKNOWN, "NVML does not start: Unknown Error"),
        (pynvml.NVML_ERROR_NOT_READY, "NVML does not start: "),
    ],
)
def test_a_library_that_does_not_start(monkeypatch, error, text):
    library = FakeNvml(gpus(1), init_error=error)
    use(monkeypatch, library)
    assert visible_gpus({}) == []
    problem = problem_of({})
    assert text in problem
    assert "\n" not in problem
    assert library.open_sessions == 0


def test_no_library(monkeypatch, tmp_path):
    use(monkeypatch, None)
    assert visible_gpus({}) == []
    session = NvmlSession({}, root=tmp_path)
    assert session.read() == ()
    assert "No NVIDIA driver on this machine" in session.problem


def test_amd_gpus_are_said_to_have_none(monkeypatch, tmp_path):
    use(monkeypatch, None)
    vendor = tmp_path / "sys/class/drm/card0/device/vendor"
    vendor.parent.mkdir(parents=True)
    vendor.write_text("0x1002\n")
    assert NvmlSession({}, root=tmp_path).problem.startswith("AMD GPUs give no figures here")


def test_apple_gpus_are_said_to_have_none(monkeypatch, tmp_path):
    use(monkeypatch, None)
    monkeypatch.setattr(nvml, "sys", types.SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(nvml.platform, "machine", lambda: "arm64")
    assert NvmlSession({}, root=tmp_path).problem.startswith("Apple's GPU gives no figures")


def test_no_pynvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert visible_gpus({}) == []
    assert 'pip install "nvidia-ml-py"' in problem_of({})


def test_another_pynvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", types.ModuleType("pynvml"))
    assert "is not NVIDIA's module of this name" in problem_of({})


def test_a_driver_without_gpus(monkeypatch):
    use(monkeypatch, FakeNvml([]))
    assert problem_of({}) == "The NVIDIA driver is there and finds no GPU."


def test_mig_mode_without_instances(monkeypatch):
    use(monkeypatch, FakeNvml([FakeGpu(mig=[])]))
    assert "nvidia-smi mig -cgi" in problem_of({})


def test_a_driver_that_hangs_hangs_nobody(monkeypatch):
    library = FakeNvml(gpus(1))
    use(monkeypatch, library)
    library.hang_in = "nvmlDeviceGetCount_v2"
    monkeypatch.setattr(nvml, "_ANSWER_SECONDS", 0.05)
    assert visible_gpus({}) == []
    library.let_go.set()


@pytest.mark.parametrize(
    ("vendor", "kind", "has"),
    [
        ("0x10de", "0x030200", True),
        ("0x1002", "0x030000", True),
        ("0x10de", "0x020000", False),
        ("0x1af4", "0x038000", False),
    ],
    ids=["NVIDIA", "AMD", "a network card of NVIDIA", "a virtual display"],
)
def test_what_the_machine_has_is_seen_without_a_driver(monkeypatch, tmp_path, vendor, kind, has):
    use(monkeypatch, None)
    assert not NvmlSession({}, root=tmp_path).may_have_gpus
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    assert NvmlSession({}, root=tmp_path).may_have_gpus is has
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert NvmlSession({}, root=tmp_path).may_have_gpus


def test_an_error_of_ours_while_it_opens_leaves_nothing_open(monkeypatch):
    library = FakeNvml(gpus(1))
    use(monkeypatch, library)

    def broken(machine, environ):
        raise RuntimeError("broken")

    monkeypatch.setattr(nvml, "visible_to_cuda", broken)
    with pytest.raises(RuntimeError, match="broken"):
        NvmlSession({})
    assert library.open_sessions == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:65:00.0", "0000:65:00.0"),
        ("0000:AF:00.0", "0000:af:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("", ""),
        ("no id", "no id"),
    ],
)
def test_pci_bus_id(text, expected):
    assert pci_bus_id(text) == expected
