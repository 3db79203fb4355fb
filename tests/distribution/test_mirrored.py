"""A stock `fit` over two devices of one machine, compared with one device."""

from __future__ import annotations

import pytest

from keras_turbo.distribution import strategies
from tests.distribution.scenarios import (
    EXPECTED_IN_CASES,
    SCENARIOS,
    largest_difference,
    on_one_device,
    opened,
    run_scenario,
)

pytestmark = pytest.mark.compatibility

# float16 rounds sums of other parts of a batch otherwise. Synchronized statistics take the variance as a difference.
TOLERANCES = {
    "float16": 2e-3,
    "accumulated_float16": 2e-3,
    "synchronized_statistics": 1e-5,
    "images_of_unknown_size": 1e-5,
}


@pytest.fixture(scope="module")
def strategy():
    return strategies.mirrored(["CPU:0", "CPU:1"])


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_devices_are_as_one(strategy, name):
    found = run_scenario(name, lambda: opened(strategy))
    assert largest_difference(found, on_one_device(name)) <= TOLERANCES.get(name, 1e-6)


def test_the_known_numbers_on_one_device():
    """What the others are compared with is right."""
    assert largest_difference(on_one_device("reported_cases"), EXPECTED_IN_CASES) <= 1e-6
    assert (on_one_device("float16")["scale"], on_one_device("float16")["updates"]) == (256.0, 3)
    assert on_one_device("accumulated_float16")["updates"] == 2
