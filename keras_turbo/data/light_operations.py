"""tf.data's `map`, `flat_map`, `scan` and their like for code of our own, at a tenth of the cost to each iterator.

TensorFlow instantiates the functions of a dataset anew for each iterator. It does so as if a function could spread over
several devices: it is placed, split and optimized, which takes 2 to 3 ms each (TensorFlow 2.21, two cores), and an
epoch of thirty short steps is over in 25. A function that says it stays on one device is instantiated in 0.2 ms, and
each of its calls is cheaper too.

That is so for what is written in this package, which runs on the CPU and hardly branches (a branch is a function of its
own there, called by a kernel). A user's function may name a device, and goes through tf.data's own methods.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_turbo.data.variant_dataset import VariantDataset


def light_map(
    dataset: tf.data.Dataset, function: Callable[[Any], Any], num_parallel_calls: int | None = None
) -> tf.data.Dataset:
    """As `dataset.map(function, num_parallel_calls, deterministic=True)`, for code on the CPU.

    Args:
        dataset: elements are structures of dense tensors.
        function: takes an element, as one argument whatever its structure, and returns a structure of tensors.
        num_parallel_calls: elements made at a time; None for one after the other, when they are asked for.
    """
    traced, spec = _traced(function, dataset.element_spec)
    shared: dict[str, Any] = {
        "input_dataset": tf.data.experimental.to_variant(dataset),
        "other_arguments": traced.captured_inputs,
        "f": traced,
        "preserve_cardinality": True,
        **_flat_types(spec),
    }
    if num_parallel_calls is None:
        variant = tf.raw_ops.MapDataset(**shared)
    else:
        number = tf.constant(num_parallel_calls, tf.int64)
        variant = tf.raw_ops.ParallelMapDatasetV2(num_parallel_calls=number, deterministic="true", **shared)
    return VariantDataset(variant, spec, [dataset], holds=(traced, function))


def light_flat_map(dataset: tf.data.Dataset, function: Callable[[Any], tf.data.Dataset]) -> tf.data.Dataset:
    """As `dataset.flat_map(function)`, for code on the CPU.

    Args:
        dataset: elements are structures of dense tensors.
        function: takes an element, as one argument whatever its structure, and returns a dataset.
    """
    traced, spec = _traced(function, dataset.element_spec)
    variant = tf.raw_ops.FlatMapDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        other_arguments=traced.captured_inputs,
        f=traced,
        **_flat_types(spec),
    )
    return VariantDataset(variant, spec, [dataset], holds=(traced, function))


def light_scan(
    dataset: tf.data.Dataset, state: Any, function: Callable[[Any, Any], tuple[Any, Any]]
) -> tf.data.Dataset:
    """As `dataset.scan(state, function)`, for code on the CPU.

    Args:
        dataset: elements are structures of dense tensors.
        state: structure of tensors before the first element.
        function: takes state and element, and returns the next state, of the same structure, and what to give.
    """
    traced, (_, spec) = _traced(lambda both: function(*both), (_spec_of(state), dataset.element_spec))
    variant = tf.raw_ops.ScanDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        initial_state=tf.nest.flatten(state),
        other_arguments=traced.captured_inputs,
        f=traced,
        preserve_cardinality=True,
        **_flat_types(spec),
    )
    return VariantDataset(variant, spec, [dataset], holds=(traced, function))


def light_filter(dataset: tf.data.Dataset, predicate: Callable[[Any], tf.Tensor]) -> tf.data.Dataset:
    """As `dataset.filter(predicate)`, for code on the CPU; the predicate takes an element whole."""
    traced, _ = _traced(predicate, dataset.element_spec)
    variant = tf.raw_ops.FilterDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        other_arguments=traced.captured_inputs,
        predicate=traced,
        **_flat_types(dataset.element_spec),
    )
    return VariantDataset(variant, dataset.element_spec, [dataset], holds=(traced, predicate))


def light_unbatch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """As `dataset.unbatch()` for dense tensors, without the function that would make them dense."""
    spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), dataset.element_spec)
    variant = tf.raw_ops.UnbatchDataset(input_dataset=tf.data.experimental.to_variant(dataset), **_flat_types(spec))
    return VariantDataset(variant, spec, [dataset], holds=None)


def _traced(function: Callable[[Any], Any], element_spec: Any) -> tuple[Any, Any]:
    """The function as tf.data's operations take it, and the spec of what it gives, or of the elements of it."""
    spec = None

    def flat(*leaves: tf.Tensor) -> Any:
        nonlocal spec
        result = function(tf.nest.pack_sequence_as(element_spec, leaves))
        if isinstance(result, tf.data.Dataset):
            spec = result.element_spec
            return tf.data.experimental.to_variant(result)
        spec = _spec_of(result)
        return tf.nest.flatten(result)

    return traced_on_cpu(flat, tf.nest.flatten(element_spec)), spec


def traced_on_cpu(function: Callable[..., Any], signature: list[tf.TensorSpec]) -> Any:
    """A function of tensors that stays on the CPU, as the operations of tf.data take one."""
    traced: Any = tf.function(
        function, input_signature=signature, autograph=False, experimental_attributes=on_one_device()
    )
    return traced.get_concrete_function()


def _spec_of(tensors: Any) -> Any:
    return tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), tensors)


def _flat_types(spec: Any) -> dict[str, Any]:
    leaves = tf.nest.flatten(spec)
    return {"output_types": [leaf.dtype for leaf in leaves], "output_shapes": [leaf.shape for leaf in leaves]}


@functools.cache
def on_one_device() -> dict[str, Any]:
    """Attributes of a `tf.function` that say it stays on one device."""
    # TensorFlow's own datasets mark their functions so (data/experimental/ops/prefetching_ops.py, 2.17 to 2.21); the
    # name is about where integers lie on a GPU, and of no account on a CPU. It is an attribute and no interface: where
    # a TensorFlow does not know it, functions are instantiated as any other is, which is slower and the same.
    mark = {"experimental_ints_on_device": True}
    try:
        function: Any = tf.function(lambda: tf.constant(0), autograph=False, experimental_attributes=mark)
        function.get_concrete_function()
    except ValueError:
        return {}
    return mark
