"""Audio to another sample rate: band-limited interpolation, the same on every TensorFlow.

Each new sample is a weighted sum of the old ones around its place, by a windowed sinc (J. O. Smith, Digital Audio
Resampling, ccrma.stanford.edu/~jos/resample). The window is Kaiser's. Weights repeat after `up` new and `down` old
samples, if the two rates are as `up` to `down`; so a file is cut into frames `down` samples apart, and multiplied by
one matrix of weights.

From the Nyquist frequency of the lower rate on, everything is 80 dB down. Up to 0.84 of it, nothing changes.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import tensorflow as tf

from keras_turbo.data.python_calls import call_on

# Zeros of the sinc on each side. Kaiser's formulas give the rest: the window's parameter for that attenuation, and for
# it and this length the width of the transition, as a share of the Nyquist frequency. The cutoff lies in its middle.
_NUM_ZEROS = 32
_ATTENUATION_DB = 80.0
_KAISER_BETA = 0.1102 * (_ATTENUATION_DB - 8.7)
_TRANSITION = (_ATTENUATION_DB - 8.0) / (2.285 * 2 * _NUM_ZEROS * math.pi)
_CUTOFF = 1.0 - _TRANSITION / 2

# Where rates have no large divisor in common, `up` is large, and the matrix is cut along its diagonal.
_MOST_COLUMNS = 256


def resample(samples: tf.Tensor, rate: tf.Tensor, new_rate: int) -> tf.Tensor:
    """Graph code: audio at another rate.

    Args:
        samples: float32, shape `(samples, channels)`.
        rate: int32 scalar, that of the samples, in Hz.
        new_rate: that of the result.

    Returns:
        float32, shape `(ceil(samples * new_rate / rate), channels)`. What is before and behind the samples counts as 0.
    """
    weights, offsets, ratio = call_on(
        _weights, lambda weights, rate: weights(int(rate), new_rate), [rate], [tf.float32, tf.int32, tf.int32]
    )
    weights = tf.ensure_shape(weights, [None, None, None])
    up, down = ratio[0], ratio[1]
    shape = tf.shape(samples)
    number = tf.cast(-(-tf.cast(shape[0], tf.int64) * tf.cast(up, tf.int64) // tf.cast(down, tf.int64)), tf.int32)
    num_frames = -(-number // up)
    # (group of columns, frame, sample): where in the file the samples of each frame are.
    frames = down * tf.range(num_frames)
    indices = tf.ensure_shape(offsets, [None])[:, None, None] + frames[None, :, None] + tf.range(tf.shape(weights)[1])
    is_inside = (indices >= 0) & (indices < shape[0])
    around = tf.gather(samples, tf.where(is_inside, indices, 0))
    around *= tf.cast(is_inside, tf.float32)[..., None]
    resampled = tf.einsum("gfsc,gsn->fgnc", around, weights)
    resampled = tf.reshape(resampled, [num_frames, -1, shape[1]])[:, :up]
    return tf.reshape(resampled, [-1, shape[1]])[:number]


@functools.lru_cache(maxsize=4)
def _weights(rate: int, new_rate: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What to multiply frames of samples with.

    Returns:
        The weights, float32, shape `(groups, samples of a frame, new samples of a group)`; for each group, where its
        samples begin in a frame, int32; and `up, down`.
    """
    divisor = math.gcd(rate, new_rate)
    up, down = new_rate // divisor, rate // divisor
    cutoff = _CUTOFF * min(1.0, up / down)
    half_width = _NUM_ZEROS / cutoff
    columns = min(up, _MOST_COLUMNS)
    firsts = np.arange(0, up, columns)
    offsets = firsts * down // up - math.ceil(half_width)
    length = math.ceil((columns - 1) * down / up) + 2 * math.ceil(half_width) + 2
    places = (firsts[:, None] + np.arange(columns)) * down / up
    distances = places[:, None, :] - (offsets[:, None] + np.arange(length))[:, :, None]
    inside = np.maximum(0.0, 1.0 - (distances / half_width) ** 2)
    weights = np.sinc(cutoff * distances) * np.i0(_KAISER_BETA * np.sqrt(inside))
    weights[np.abs(distances) > half_width] = 0.0
    # What is constant stays what it was.
    weights /= weights.sum(axis=1, keepdims=True)
    return weights.astype(np.float32), offsets.astype(np.int32), np.array([up, down], np.int32)
