"""A stock `fit` in two worker processes, compared with one device."""

from __future__ import annotations

import numpy as np
import pytest

from tests.distribution.scenarios import SCENARIOS, largest_difference, on_one_device, on_this_worker
from tests.distribution.test_mirrored import TOLERANCES
from tests.distribution.workers import run_workers


@pytest.fixture(scope="module")
def results():
    """What each scenario gives on each of two workers, which run all of them."""
    return run_workers(on_this_worker, list(SCENARIOS))


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_workers_are_as_one_device(results, name):
    first, second = (one[name] for one in results)
    assert largest_difference(first, second) == 0.0
    assert largest_difference(first, on_one_device(name)) <= TOLERANCES.get(name, 1e-6)


def test_random_numbers_are_the_chiefs(results):
    """Each worker began with another seed. In 3 epochs, each row of what Keras shuffles counts 3 times."""
    chief, other = (one["random numbers"] for one in results)
    assert largest_difference(chief.pop("own"), other.pop("own")) > 0
    assert largest_difference(chief, other) == 0.0
    np.testing.assert_array_equal(chief["counts"], np.full(12, 3.0))
