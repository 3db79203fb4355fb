"""Options are checked before anything is built, with what they could be."""

from __future__ import annotations

import os
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.settings import Settings, available_cores, check_count
from keras_turbo.machine import Cores


@pytest.mark.parametrize("value", [1, 64, np.int64(3), np.uint8(3), None])
@pytest.mark.parametrize("name", ["batch_size", "workers"])
def test_counts(name, value):
    assert getattr(Settings(**{name: value}), name) == value


class TestBadCounts:
    WORKERS = "`workers` must be an integer from 1; or 0, for this process, .*; or None, .* Received: workers="

    @pytest.mark.parametrize("value", [-1, np.int64(-5)])
    def test_too_small(self, value):
        with pytest.raises(ValueError, match=r"`batch_size` must be at least 1, or None, .* Received: batch_size=-"):
            Settings(batch_size=value)
        with pytest.raises(ValueError, match=self.WORKERS):
            Settings(workers=value)

    @pytest.mark.parametrize("value", [1.0, "many", True, np.True_, np.array([1, 2]), np.array(2.5), [32]])
    def test_no_integers(self, value):
        with pytest.raises(TypeError, match=r"`batch_size` must be a positive integer, or None, .* Received: batch_"):
            Settings(batch_size=value)
        with pytest.raises(TypeError, match=self.WORKERS):
            Settings(workers=value)


def test_zero():
    with pytest.raises(ValueError, match=r"`batch_size` must be at least 1, or None, .* Received: batch_size=0\."):
        Settings(batch_size=0)
    # This process itself, for data that Python code makes; nothing for what TensorFlow reads in threads.
    with pytest.raises(ValueError, match=r"`workers` must be at least 1, or None, .* Received: workers=0\."):
        _ = Settings(workers=0).parallel_calls


@pytest.mark.parametrize("name", ["shuffle", "reshuffle_each_epoch", "drop_remainder"])
@pytest.mark.parametrize("value", [1, 0, None, "yes", 1000])
def test_switches_are_true_or_false(name, value):
    with pytest.raises(TypeError, match=rf"`{name}` must be True or False. Received: {name}={value!r}\."):
        Settings(**{name: value})


def test_a_buffer_size_is_explained_away():
    with pytest.raises(TypeError, match="All examples are shuffled, so there is no buffer to size"):
        Settings(shuffle=1000)


@pytest.mark.parametrize("value", [0, 7, 2**63 - 1, np.int32(7)])
def test_seeds(value):
    assert Settings(seed=value).seed == value
    assert FastDataset(np.arange(4), seed=value, shuffle=True).seed == value


@pytest.mark.parametrize("value", [1.0, "7", True, [1, 2]])
def test_seeds_are_integers(value):
    with pytest.raises(TypeError, match="`seed` must be an integer or None"):
        Settings(seed=value)


@pytest.mark.parametrize("value", [-1, 2**63])
def test_seeds_have_bounds(value):
    with pytest.raises(ValueError, match=rf"between 0 and 2\*\*63 - 1. Received: seed={value}"):
        Settings(seed=value)


@pytest.mark.parametrize("value", ["auto", "memory", "disk", False])
def test_caches(value):
    assert Settings(cache=value).cache == value


@pytest.mark.parametrize("value", ["ram", "", None, 0, 1, np.array(["disk"])])
def test_unknown_caches(value):
    with pytest.raises(ValueError, match="`cache` must be 'auto', 'memory', 'disk' or False. Received: cache="):
        Settings(cache=value)


def test_cache_true_is_pointed_to_auto():
    with pytest.raises(ValueError, match="'auto' picks memory or disk by what is free"):
        Settings(cache=True)


@pytest.mark.parametrize("value", ["ignore", True, None])
def test_unknown_ways_to_treat_errors(value):
    with pytest.raises(ValueError, match="`on_error` must be 'raise' or 'skip'. Received: on_error="):
        Settings(on_error=value)


@pytest.mark.parametrize("name", ["map_fn", "augment_fn"])
def test_functions(name):
    for function in (len, lambda x: x, keras.layers.Rescaling(2.0), tf.function(lambda x: x)):
        assert getattr(Settings(**{name: function}), name) is function
    with pytest.raises(
        TypeError, match=rf"`{name}` must be a function, a Keras layer or None. Received: {name}='flip'"
    ):
        Settings(**{name: "flip"})


def test_no_batches_have_no_remainder():
    with pytest.raises(ValueError, match="no meaning with batch_size=None"):
        Settings(batch_size=None, drop_remainder=True)


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Settings().cache_folder == tmp_path / "keras_turbo" / "examples"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings().cache_folder == tmp_path / ".cache" / "keras_turbo" / "examples"
    assert Settings(cache_dir="here").cache_folder == Path.cwd() / "here"
    assert Settings(cache_dir=tmp_path).cache_folder == tmp_path


@pytest.mark.parametrize("value", [5, True, ["a"]])
def test_cache_folders_are_paths(value):
    with pytest.raises(TypeError, match="`cache_dir` must be the path of a folder, or None. Received: cache_dir="):
        Settings(cache_dir=value)


def test_validation_has_nothing_of_training():
    settings = Settings(shuffle=True, augment_fn=len, map_fn=abs, batch_size=7, seed=3).for_validation()
    assert settings == Settings(map_fn=abs, batch_size=7, seed=3)


def test_parallel_calls():
    assert Settings(workers=3).parallel_calls == 3
    assert Settings().parallel_calls == 2 * available_cores()
    assert 1 <= available_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(("quota", "expected"), [(None, 64), (1.5, 2), (0.1, 1)])
def test_cores_are_those_that_a_container_may_use(monkeypatch, quota, expected):
    monkeypatch.setattr("keras_turbo.data.settings.cores", lambda: Cores(128, 64, quota))
    assert available_cores() == expected
    assert Settings().parallel_calls == 2 * expected


def test_the_constructors_pass_options_on(tmp_path):
    with pytest.raises(TypeError, match=r"from_image_folder\(\) has no option batchsize. .* batch_size, shuffle"):
        FastDataset.from_image_folder(tmp_path, batchsize=3, shuffle=False)
    with pytest.raises(TypeError, match=r"from_files\(\) has no option buffer"):
        FastDataset.from_files("*.jpg", tf.io.read_file, buffer=3)
    with pytest.raises(ValueError, match="`batch_size` must be at least 1"):
        FastDataset.from_files("*.jpg", tf.io.read_file, batch_size=0)


def test_check_count_names_what_it_checks():
    with pytest.raises(ValueError, match=r"`steps` must be at least 1, or None, for all\. Received: steps=0\."):
        check_count("steps", 0, "None, for all")
