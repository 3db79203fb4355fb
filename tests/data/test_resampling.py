"""Audio at another rate is what it would have been if recorded at that rate, as far as that has room for it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo.data.resampling import resample
from tests.data.sound_files import tone

# Nothing is known of what is before and behind the samples; so much of the result, in samples, shows it.
EDGE = 400


def resampled(samples: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    return resample(tf.constant(samples, tf.float32), tf.constant(rate), new_rate).numpy()


@pytest.mark.parametrize(
    ("rate", "new_rate"),
    [
        (44_100, 16_000),
        (48_000, 16_000),
        (16_000, 48_000),
        (22_050, 44_100),
        (8_000, 11_025),
        (11_127, 8_000),
        (16_000, 15_999),
    ],
)
def test_a_tone_stays_itself(rate, new_rate):
    samples = resampled(tone(700, 0.3, rate), rate, new_rate)
    assert samples.shape == (-(-round(0.3 * rate) * new_rate // rate), 1)
    expected = tone(700, 0.3, new_rate)[: len(samples)]
    np.testing.assert_allclose(samples[EDGE:-EDGE], expected[EDGE:-EDGE], atol=2e-4)


@pytest.mark.parametrize("hertz", [8_000, 9_000, 15_000, 21_000])
def test_what_the_lower_rate_has_no_room_for_is_gone(hertz):
    samples = resampled(tone(hertz, 0.3, 44_100, amplitude=1.0), 44_100, 16_000)
    assert 20 * np.log10(np.abs(samples[EDGE:-EDGE]).max()) < -78


@pytest.mark.parametrize("hertz", [20, 1_000, 5_000, 6_700])
def test_what_it_has_room_for_is_kept(hertz):
    samples = resampled(tone(hertz, 0.3, 44_100, amplitude=1.0), 44_100, 16_000)
    loudness = np.sqrt(np.mean(samples[EDGE:-EDGE] ** 2) * 2)
    assert abs(20 * np.log10(loudness)) < 0.1


def test_a_constant_stays_constant_and_channels_apart():
    samples = np.ones((3_000, 1)) * [0.25, -0.5]
    np.testing.assert_allclose(
        resampled(samples, 44_100, 16_000)[EDGE:-EDGE], np.ones((289, 2)) * [0.25, -0.5], atol=1e-6
    )


@pytest.mark.parametrize("length", [0, 1, 2, 159, 160, 161, 442])
def test_short_ones(length):
    samples = resampled(np.ones((length, 2)), 44_100, 16_000)
    assert samples.shape == (-(-length * 160 // 441), 2)
    assert np.isfinite(samples).all()


def test_extreme_ratios():
    assert resampled(np.ones((192_000, 1)), 192_000, 1_000).shape == (1_000, 1)
    assert resampled(np.ones((100, 1)), 1_000, 192_000).shape == (19_200, 1)
