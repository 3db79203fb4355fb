"""Stock Keras loads what is in a checkpoint, and writes the same."""

from __future__ import annotations

import json

import h5py
import keras
import numpy as np
import pytest

from keras_turbo.checkpoint import restore, verify
from keras_turbo.checkpoint.writing import write_checkpoint
from keras_turbo.fit.training_state import find_state
from tests.checkpoint.saved import assert_equal_arrays, make_state

pytestmark = pytest.mark.compatibility


def make_model(seed=0):
    keras.utils.set_random_seed(seed)
    inner = keras.Sequential([keras.layers.Dense(6), keras.layers.BatchNormalization()], name="inner")
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, dtype="bfloat16"),
            keras.layers.Dense(16, dtype="float16"),
            keras.layers.Dropout(0.5),
            inner,
            keras.layers.Dense(4),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01, use_ema=True), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def arrays_of(variables):
    return {path: np.asarray(keras.ops.convert_to_numpy(variable)) for path, variable in variables.items()}


@pytest.fixture(scope="module")
def trained():
    model = make_model()
    model.fit(np.ones((8, 8), np.float32), np.ones((8, 4), np.float32), batch_size=4, verbose=0)
    return model


def write(directory, model, **options):
    state = find_state(model)
    return write_checkpoint(
        directory,
        "step-00000002",
        arrays_of(state.weights),
        arrays_of(state.extra),
        make_state(2),
        layer_names=find_state(model).names,
        **options,
    )


def tree(path):
    """Everything in an HDF5 file: groups, attributes, types, bytes."""
    found = {}

    def look(name, member):
        data = None if isinstance(member, h5py.Group) else (member.dtype, member.shape, np.asarray(member).tobytes())
        found[name] = (dict(member.attrs), data)

    with h5py.File(path) as file:
        file.visititems(look)
    return found


@pytest.mark.parametrize(
    ("max_shard_mb", "name"),
    [(None, "model.weights.h5"), (0.004, "model.weights.json"), (0.0001, "model.weights.json")],
    ids=["one file", "a few shards", "a shard an array"],
)
def test_stock_load_weights_gives_weights_and_optimizer(tmp_path, trained, max_shard_mb, name):
    folder = write(tmp_path, trained, max_shard_mb=max_shard_mb)
    expected = arrays_of(find_state(trained).weights)
    assert {array.dtype.name for array in expected.values()} >= {"float32", "bfloat16", "float16"}
    model = make_model(seed=1)
    model.load_weights(folder / name)
    assert_equal_arrays(arrays_of(find_state(model).weights), expected)
    # Keras 3.12 opens shards for writing, even to read them.
    assert verify(tmp_path)[0].ok


def test_the_file_is_what_stock_keras_writes(tmp_path, trained):
    folder = write(tmp_path, trained)
    trained.save_weights(tmp_path / "stock.weights.h5")
    assert tree(folder / "model.weights.h5") == tree(tmp_path / "stock.weights.h5")


def test_the_shards_are_what_stock_keras_writes(tmp_path, trained):
    folder = write(tmp_path, trained, max_shard_mb=1024**3 * 2e-6 / 1e6)
    trained.save_weights(tmp_path / "model.weights.json", max_shard_size=2e-6)
    ours, stock = (json.loads((path / "model.weights.json").read_text()) for path in (folder, tmp_path))
    assert ours["weight_map"] == stock["weight_map"]
    assert ours["metadata"] == stock["metadata"]
    shards = sorted(path.name for path in tmp_path.glob("*.weights.h5"))
    assert len(shards) > 2
    for name in shards:
        arrays = {path: value for path, value in tree(tmp_path / name).items() if value[1] is not None}
        assert {path: value for path, value in tree(folder / name).items() if value[1] is not None} == arrays


def test_restore_gives_what_the_file_of_keras_leaves_out_too(tmp_path, trained):
    write(tmp_path, trained)
    model = make_model(seed=1)
    state = restore(model, tmp_path)
    assert state.optimizer_step == 2
    expected, found = find_state(trained), find_state(model)
    assert_equal_arrays(arrays_of(found.weights), arrays_of(expected.weights))
    seeds = [path for path in expected.extra if "dropout" in path]
    assert seeds
    found_extra, expected_extra = arrays_of(found.extra), arrays_of(expected.extra)
    for path in seeds:
        np.testing.assert_array_equal(found_extra[path], expected_extra[path])


def test_arrays_of_other_callbacks_are_not_the_models(tmp_path, trained):
    state = find_state(trained)
    extra = {**arrays_of(state.extra), "callbacks/EarlyStopping/best_weights/0": np.zeros(3)}
    write_checkpoint(tmp_path, "x", arrays_of(state.weights), extra, make_state(2))
    restore(make_model(seed=1), tmp_path)


def test_a_changed_model_is_refused(tmp_path, trained):
    write(tmp_path, trained)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile("adam", "mse")
    before = arrays_of(find_state(model).weights)
    with pytest.raises(ValueError, match="layers/dense/vars/0"):
        restore(model, tmp_path / "step-00000002")
    found = arrays_of(find_state(model).weights)
    assert_equal_arrays({path: found[path] for path in before}, before)
