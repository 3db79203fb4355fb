import pytest

from keras_turbo.monitor.figures import HardwareFigures
from tests.monitor.samples import counters, sample


def figures_of(*samples, seconds=100.0):
    hardware = HardwareFigures()
    hardware.add(samples)
    return hardware.figures(seconds)


def test_one_gpu():
    figures = figures_of(
        *(
            sample(
                counters(
                    utilization_percent=utilization,
                    memory_used_mb=used,
                    memory_total_mb=80_000.0,
                    power_watts=400.0,
                    energy_joules=joules,
                    throttle_reasons=reasons,
                    sm_activity_percent=40.0,
                    tensor_activity_percent=10.0,
                )
            )
            for utilization, used, joules, reasons in (
                (10.0, 20_000.0, 1_000_000.0, ()),
                (90.0, 60_000.0, 1_003_600.0, ("heat",)),
                (95.0, 40_000.0, 1_007_200.0, ("clock_limit",)),
                (95.0, 40_000.0, 1_010_800.0, ()),
            )
        )
    )
    assert figures == pytest.approx(
        {
            "gpu_utilization_percent": 72.5,
            "gpu_utilization_p10_percent": 34.0,
            "gpu_memory_peak_mb": 60_000.0,
            "gpu_memory_peak_percent": 75.0,
            "gpu_power_watts": 400.0,
            "gpu_energy_wh": 3.0,
            # That somebody limited the clock is neither heat nor power.
            "gpu_throttled_percent": 25.0,
            "gpu_sm_activity_percent": 40.0,
            "gpu_tensor_activity_percent": 10.0,
        }
    )


def test_several_gpus():
    hardware = HardwareFigures()
    for _ in range(3):
        hardware.add(
            [
                sample(
                    counters(
                        0, utilization_percent=90.0, memory_used_mb=10.0, memory_total_mb=100.0, power_watts=300.0
                    ),
                    counters(
                        1, utilization_percent=30.0, memory_used_mb=50.0, memory_total_mb=100.0, power_watts=100.0
                    ),
                )
            ]
        )
    figures = hardware.figures(36.0)
    assert figures["gpu_utilization_percent"] == pytest.approx(60.0)
    assert figures["gpu_memory_peak_percent"] == pytest.approx(50.0)
    # All draw power at the same time. Without a counter of energy it is power times time.
    assert figures["gpu_power_watts"] == pytest.approx(400.0)
    assert figures["gpu_energy_wh"] == pytest.approx(4.0)
    assert hardware.gpu_utilization_percents == (90.0, 30.0)


def test_what_a_gpu_does_not_have_is_absent_never_0():
    # A MIG instance has neither utilization nor power.
    figures = figures_of(sample(counters(memory_used_mb=1.0, memory_total_mb=4.0)))
    assert figures == {"gpu_memory_peak_mb": 1.0, "gpu_memory_peak_percent": 25.0}
    assert figures_of(sample(counters())) == {}
    assert figures_of() == {}


def test_without_a_gpu_the_figures_are_the_cpus():
    assert figures_of(sample(share=40.0, free=50.0), sample(share=60.0, free=30.0)) == {
        "cpu_utilization_percent": 50.0,
        "cpu_free_percent": 40.0,
    }
    # The first reading knows of no span of time.
    assert figures_of(sample(share=None, free=None)) == {}


def test_energy_goes_on_from_the_last_reading_of_the_epoch_before():
    hardware = HardwareFigures()
    hardware.add([sample(counters(energy_joules=0.0)), sample(counters(energy_joules=3600.0))])
    assert hardware.figures(1.0)["gpu_energy_wh"] == pytest.approx(1.0)
    hardware.next_epoch()
    hardware.add([sample(counters(energy_joules=10_800.0))])
    assert hardware.figures(1.0)["gpu_energy_wh"] == pytest.approx(2.0)
    hardware.next_epoch()
    # A driver that was loaded anew counts from 0; nothing is known of that step.
    hardware.add([sample(counters(energy_joules=5.0, power_watts=360.0))])
    assert hardware.figures(10.0)["gpu_energy_wh"] == pytest.approx(1.0)


def test_an_epoch_shorter_than_the_interval_has_the_reading_before_it():
    hardware = HardwareFigures()
    hardware.add([sample(counters(utilization_percent=80.0))])
    hardware.figures(1.0)
    hardware.next_epoch()
    assert hardware.figures(1.0)["gpu_utilization_percent"] == 80.0


def test_reasons_are_told_by_frequency():
    hardware = HardwareFigures()
    hardware.add([sample(counters(throttle_reasons=("heat", "power")))] * 2)
    hardware.add([sample(counters(throttle_reasons=("power", "display")))])
    assert hardware.throttle_reasons == ("power", "heat")
    assert hardware.throttled_percent == 100.0
