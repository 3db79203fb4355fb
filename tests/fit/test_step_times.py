import random

import numpy as np
import pytest
from keras_turbo.callbacks.step_times import Reservoir


def test_percentiles_of_few_values_are_exact():
    reservoir = Reservoir()
    for value in range(1, 101):
        reservoir.add(float(value))
    assert reservoir.percentile(50) == pytest.approx(np.percentile(range(1, 101), 50))
    assert reservoir.percentile(95) == pytest.approx(np.percentile(range(1, 101), 95))
    assert len(reservoir) == 100


def test_nothing_has_no_percentile():
    assert Reservoir().percentile(50) is None


def test_memory_is_bounded_and_every_value_has_the_same_chance():
    reservoir = Reservoir(most=500)
    state = random.getstate()
    # Growing values: a selection of the first or of the last ones would be far off.
    for value in range(20_000):
        reservoir.add(float(value))
    assert len(reservoir._kept) == 500
    assert reservoir.percentile(50) == pytest.approx(10_000, abs=2_000)
    assert reservoir.percentile(95) == pytest.approx(19_000, abs=900)
    assert random.getstate() == state
