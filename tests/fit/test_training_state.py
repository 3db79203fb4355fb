"""What training changes is found, all of it, and put back to the bit."""

from __future__ import annotations

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo.fit import keras_internals
from keras_turbo.fit.first_step import build_metrics
from keras_turbo.fit.training_state import assign_state, build_optimizer, find_state, raw
from tests.checkpoint.models import (
    CLASSES,
    FEATURES,
    KINDS,
    L,
    batches,
    compiled,
    dense,
    differing,
    nested_and_shared,
    sequential,
    state_arrays,
    train,
    with_random_layers,
)


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request):
    """Makes a model, whose seeds differ each time."""
    return request.param


def saved_by_keras(model, folder):
    path = folder / "saved.weights.h5"
    model.save_weights(path)
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


@pytest.mark.compatibility
def test_paths_and_values_are_those_that_keras_saves(kind, tmp_path):
    model = kind()
    train(model)
    weights, _ = state_arrays(model)
    saved = saved_by_keras(model, tmp_path)
    assert weights.keys() == saved.keys()
    # HDF5 does not know bfloat16, which Keras writes as bytes.
    assert [path for path in saved if saved[path].tobytes() != weights[path].tobytes()] == []


@pytest.mark.compatibility
def test_nothing_that_training_changes_is_left_out(kind):
    model = kind()
    train(model)
    known = {
        id(raw(each)) for part in vars(find_state(model)).values() if isinstance(part, dict) for each in part.values()
    }
    held = [each for each in tf.train.TrackableView(model).descendants() if isinstance(each, tf.Variable)]
    assert [each.name for each in [*held, *map(raw, model.variables)] if id(each) not in known] == []
    assert {id(raw(each)) for each in model.optimizer.variables + model.metrics_variables} <= known


def test_a_state_put_into_a_fresh_model_goes_on_as_the_old_one(kind):
    model, fresh = kind(), kind()
    train(model)
    weights, extra = state_arrays(model)
    kept = {path: value.copy() for path, value in weights.items()}
    build_metrics(fresh, batches().element_spec)
    assert assign_state(fresh, weights, extra) == ()
    for before, now in zip((weights, extra), state_arrays(fresh), strict=True):
        assert differing(before, now) == []
    train(model)
    train(fresh)
    for one, other in zip(state_arrays(model), state_arrays(fresh), strict=True):
        assert differing(one, other) == []
    assert differing(kept, weights) == []  # variables have memory of their own


@pytest.mark.parametrize("name", ["with_random_layers", "subclassed", "safely_loss_scaled", "under_xla"])
def test_a_traced_train_function_sees_what_is_assigned(name):
    model, traced = KINDS[name](), KINDS[name]()
    train(model)
    train(traced, 2)
    train_function = traced.train_function
    assert assign_state(traced, *state_arrays(model)) == ()
    train(model)
    train(traced)
    assert traced.train_function is train_function
    for one, other in zip(state_arrays(model), state_arrays(traced), strict=True):
        assert differing(one, other) == []


def test_without_the_extra_state_a_run_would_not_go_on_as_before():
    model, fresh = with_random_layers(), with_random_layers()
    train(model)
    weights, _ = state_arrays(model)
    assign_state(fresh, weights)
    train(model)
    train(fresh)
    assert "layers/dense/vars/0" in differing(state_arrays(model)[0], state_arrays(fresh)[0])


def test_replicas_and_a_single_device_take_each_others_state(two_cpu_strategy):
    with two_cpu_strategy.scope():
        replicated, back = with_random_layers(), with_random_layers()
    train(replicated)
    weights, extra = state_arrays(replicated)
    single = with_random_layers()
    build_metrics(single, batches().element_spec)
    assert assign_state(single, weights, extra) == ()
    assert differing(state_arrays(single)[0], weights) == []
    build_metrics(back, batches().element_spec)
    assert assign_state(back, *state_arrays(single)) == ()
    for before, now in zip((weights, extra), state_arrays(back), strict=True):
        assert differing(before, now) == []
    for variable in [*back.variables, *back.optimizer.variables]:
        copies = [copy.numpy() for copy in two_cpu_strategy.experimental_local_results(raw(variable))]
        assert len(copies) == 2
        assert copies[0].tobytes() == copies[1].tobytes()
    train(replicated)
    train(back)
    assert differing(state_arrays(replicated)[0], state_arrays(back)[0]) == []


def test_quantized_layers():
    model, fresh = sequential(L.Dense(6)), sequential(L.Dense(6))
    for each in (*model.layers, *fresh.layers):
        each.quantize("int8")
    weights, _ = state_arrays(model)
    assert weights["layers/dense/vars/0"].dtype == np.int8
    assign_state(fresh, weights)
    assert differing(state_arrays(fresh)[0], weights) == []
    x = np.ones((2, FEATURES), "float32")
    np.testing.assert_array_equal(model.predict(x, verbose=0), fresh.predict(x, verbose=0))


def test_values_that_a_layer_computes_are_computed_anew(tmp_path):
    model, fresh = sequential(L.Dense(6)), sequential(L.Dense(6))
    # A quantized layer saves its kernel with what LoRA has learnt merged into it.
    for each in (*model.layers, *fresh.layers):
        each.quantize("int8")
    model.layers[0].enable_lora(2)
    state = find_state(model)
    before = state.refresh().weights["layers/dense/vars/0"].copy()
    model.layers[0].lora_kernel_b.assign(np.ones(model.layers[0].lora_kernel_b.shape))
    after = state.refresh().weights["layers/dense/vars/0"]
    assert not np.array_equal(before, after)
    saved = saved_by_keras(model, tmp_path)
    np.testing.assert_array_equal(after, saved["layers/dense/vars/0"])
    assign_state(fresh, saved)
    np.testing.assert_array_equal(raw(fresh.layers[0]._kernel).numpy(), after)


def test_an_unbuilt_model_is_refused():
    model = compiled(keras.Sequential([L.Dense(3, name="mine")], name="unbuilt"))
    for use in (find_state, lambda model: assign_state(model, {})):
        with pytest.raises(ValueError, match=r"'unbuilt' isn't built.*keras\.Input"):
            use(model)


def test_a_changed_model_is_refused_with_paths_and_shapes_and_left_as_it_was():
    model, other = compiled(sequential(L.Dense(6))), compiled(sequential(L.Dense(7), L.Dropout(0.5)), "sgd")
    train(model)
    train(other)
    before = state_arrays(other)
    with pytest.raises(ValueError, match="differs from the one that the state is of. Nothing was assigned") as refused:
        assign_state(other, *state_arrays(model))
    for part in (
        f"layers/dense/vars/0: float32 ({FEATURES}, 7) in the model, float32 ({FEATURES}, 6) in the state",
        f"layers/dense_1/vars/0: float32 (7, {CLASSES}) in the model, float32 (6, {CLASSES}) in the state",
        "optimizer/vars/9: float32 (3,) in the state, not in the model",
        "layers/dropout/state/0",
    ):
        assert part in str(refused.value)
    for one, now in zip(before, state_arrays(other), strict=True):
        assert differing(one, now) == []


def test_another_dtype_is_refused():
    model = dense()
    weights, extra = state_arrays(model)
    weights["layers/dense/vars/1"] = weights["layers/dense/vars/1"].astype("float64")
    with pytest.raises(ValueError, match=r"layers/dense/vars/1: float32 \(6,\) in the model, float64 \(6,\)"):
        assign_state(model, weights, extra)


def test_many_differences_are_counted():
    deep = compiled(sequential(*[L.Dense(2) for _ in range(30)]))
    with pytest.raises(ValueError, match=r"and \d+ more"):
        assign_state(deep, *state_arrays(dense()))


def test_an_unbuilt_layer_is_named():
    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.late = L.Dense(CLASSES)
            self.built = True

        def call(self, x):
            return self.late(x)

    early, late = compiled(Late()), compiled(Late())
    early(np.zeros((1, FEATURES)))
    with pytest.raises(ValueError, match="Not built yet: late. Call the model once on a batch first"):
        assign_state(late, *state_arrays(early))


def test_partial_assignment_says_what_it_left_out():
    model = with_random_layers()
    train(model)
    weights, extra = state_arrays(model)
    bare = keras.Sequential([keras.Input([FEATURES]), L.Dense(6), L.BatchNormalization()])
    left_out = assign_state(bare, weights, extra, partial=True)
    bare_weights, bare_extra = state_arrays(bare)
    assert differing(bare_weights, {path: weights[path] for path in bare_weights}) == []
    # Keras has one global seed generator, or none yet, whichever tests ran before.
    assert bare_extra.keys() <= {"global_seed_generator/state"}
    assert set(left_out) == (weights.keys() | extra.keys()) - bare_weights.keys() - bare_extra.keys()
    wrong = {**weights, "layers/dense/vars/1": np.zeros(5, "float32")}
    with pytest.raises(ValueError, match="layers/dense/vars/1"):
        assign_state(bare, wrong, extra, partial=True)


def test_part_of_a_layer():
    model = dense()
    kernel = np.full((FEATURES, 6), 3.0, "float32")
    left_out = assign_state(model, {"layers/dense/vars/0": kernel}, partial=True)
    assert "layers/dense/vars/1" in left_out
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), kernel)


def test_metrics_that_do_not_exist_yet_are_reported_then_built():
    model, fresh = dense(), dense()
    train(model)
    weights, extra = state_arrays(model)
    assert assign_state(fresh, weights, extra) == ("metrics/CompileMetrics/0", "metrics/CompileMetrics/1")
    build_metrics(fresh, batches().element_spec)
    assert assign_state(fresh, weights, extra) == ()
    assert differing(state_arrays(fresh)[1], extra) == []
    assert fresh.get_metrics_result() == model.get_metrics_result()


def test_other_metrics_do_not_make_another_model():
    model, other = dense(), compiled(dense(), metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2), "accuracy"])
    train(model)
    train(other)
    weights, extra = state_arrays(model)
    # The first two metrics of `other` are of one shape with the accuracy of `model`; it has two more.
    assert assign_state(other, weights, extra) == ()
    assert assign_state(model, *state_arrays(other)) == ("metrics/CompileMetrics/2", "metrics/CompileMetrics/3")


def test_the_global_seed_generator_is_restored():
    model, fresh = dense(), dense()
    build_optimizer(model)
    before = keras_internals.global_seed_generator(create=False)
    keras.random.uniform((2,))
    weights, extra = state_arrays(model)
    first = keras.random.uniform((2,)).numpy()
    keras.random.uniform((2,))
    assert assign_state(fresh, weights, extra) == ()
    np.testing.assert_array_equal(keras.random.uniform((2,)).numpy(), first)
    # A state from before it was there does not ask for it.
    del extra["global_seed_generator/state"]
    assert assign_state(fresh, weights, extra) == ()
    assert before is None or before is keras_internals.global_seed_generator(create=False)


def test_the_vocabulary_must_be_that_of_the_weights():
    def reads(words):
        lookup = L.StringLookup(output_mode="multi_hot")
        lookup.adapt(words)
        inputs = keras.Input((1,), dtype="string")
        return keras.Model(inputs, L.Dense(2)(lookup(inputs)))

    model = reads(["a", "b", "b"])
    weights, extra = state_arrays(model)
    assert bytes(extra["assets/layers/string_lookup/vocabulary.txt"]) == b"[UNK]\nb\na"
    assert assign_state(reads(["a", "b", "b"]), weights, extra) == ()
    with pytest.raises(ValueError, match=r"assets/layers/string_lookup/vocabulary.txt: the file differs"):
        assign_state(reads(["a", "a", "b"]), weights, extra)


def test_a_layers_own_loading_that_fails_leaves_the_model_as_it_was():
    class Picky(L.Dense):
        def load_own_variables(self, store):
            super().load_own_variables(store)
            if store["1"].sum() > 1:
                raise KeyError("too much")

    model = compiled(sequential(Picky(6), L.Dense(6)))
    train(model)
    before = state_arrays(model)
    weights = {path: np.ones_like(value) for path, value in before[0].items()}
    with pytest.raises(KeyError, match="too much"):
        assign_state(model, weights, before[1])
    for one, now in zip(before, state_arrays(model), strict=True):
        assert differing(one, now) == []


@pytest.mark.compatibility
@pytest.mark.parametrize("broken", ["_save_state", "NpzIOStore"])
def test_another_version_of_keras_is_named(broken, monkeypatch):
    from keras.src.saving import saving_lib

    monkeypatch.delattr(saving_lib, broken)
    with pytest.raises(RuntimeError, match=f"Keras {keras.__version__} has no _save_state and NpzIOStore"):
        find_state(dense())


@pytest.mark.compatibility
def test_a_walk_with_other_names_is_noticed(monkeypatch):
    from keras.src.saving import saving_lib

    def renamed(model, weights_store, assets_store, inner_path, visited_saveables):
        visited_saveables.add(id(model))

    monkeypatch.setattr(saving_lib, "_save_state", renamed)
    with pytest.raises(RuntimeError, match="has no _save_state as it was"):
        find_state(dense())


def test_shared_layers_are_there_once():
    weights, extra = state_arrays(nested_and_shared())
    assert sum(path.startswith("layers/dense") and path.count("/") == 3 for path in weights) == 4
    assert [path for path in extra if path.endswith("state/0")] == ["layers/sequential/layers/dropout/state/0"]
