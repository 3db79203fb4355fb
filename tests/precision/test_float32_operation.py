"""An operation in float32, and what watching a model's layers leaves behind: nothing."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_turbo.precision import layer_calls
from keras_turbo.precision.float32_operation import Float32Operation
from keras_turbo.precision.layer_calls import all_graphs, layer_paths, recorded_calls, trace


def softmax_operation():
    return ops.softmax(keras.KerasTensor((2, 3)))._keras_history.operation


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_it_computes_in_float32(set_dtype_policy, policy):
    set_dtype_policy(policy)
    layer = Float32Operation(softmax_operation())
    outputs = layer(ops.cast(np.array([[0.0, 20.0, 80.0]]), "float16"))
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    # In float16 the first would be 0.
    assert 0 < float(outputs[0, 0]) < 1e-30
    copy = keras.layers.deserialize(keras.layers.serialize(layer))
    np.testing.assert_array_equal(copy(ops.ones((1, 4))), np.full((1, 4), 0.25))


def test_another_dtype_is_refused():
    with pytest.raises(ValueError, match="must be float32. Received: dtype='float16'"):
        Float32Operation(softmax_operation(), dtype="float16")


def nested():
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="deep")], name="inner")
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(2, name="last")(ops.relu(inner(inputs))))


def test_calls_are_in_order_and_leave_nothing():
    model = nested()
    with pytest.raises(RuntimeError), recorded_calls(model) as calls:
        model(np.ones((1, 4), "float32"))
        raise RuntimeError
    names = [call.layer.name for call in calls]
    assert names.index("deep") < names.index("inner") < names.index("last")
    assert [call.outputs[0].shape for call in calls][-1] == (1, 2)
    watched = [*model._flatten_layers(), *(one for graph in all_graphs(model) for one in graph.operations)]
    assert not any("call" in vars(one) for one in watched)


def test_another_keras_is_named(monkeypatch):
    model = nested()
    monkeypatch.setattr(layer_calls, "_PRIVATE_PARTS", ("_nodes", "_renamed"))
    with pytest.raises(RuntimeError, match=rf"of Keras {keras.__version__} has no \['_renamed'\]"):
        layer_calls.graph_of(model)


def test_paths_and_producers():
    model = nested()
    paths = layer_paths(model)
    assert {paths[id(model.get_layer("inner").layers[0])], paths[id(model.layers[-1])]} == {"inner/deep", "last"}
    traced = trace(model)
    assert [call.layer.name for call in traced.producers(traced.outputs[0])] == ["last"]
    assert traced.producers(object()) == []
