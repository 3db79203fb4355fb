from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_turbo.auditing.pipeline_graph import pipeline_graph, with_parallel_maps


def doubled(x):
    return 2 * x


def test_what_a_pipeline_is_made_of():
    dataset = tf.data.Dataset.range(20).shuffle(20, seed=1).map(doubled).batch(4).prefetch(2)
    graph = pipeline_graph(dataset)
    assert graph.stages == ("range", "shuffle", "map", "batch", "prefetch")
    assert graph.shuffles
    assert not graph.is_random
    assert not graph.has_cache
    assert not graph.from_python


def test_caches_random_numbers_and_generators_are_seen():
    assert pipeline_graph(tf.data.Dataset.range(3).cache().repeat()).has_cache
    noisy = tf.data.Dataset.range(3).map(lambda x: tf.cast(x, tf.float32) + tf.random.uniform([]))
    assert pipeline_graph(noisy).is_random
    generated = tf.data.Dataset.from_generator(lambda: iter(range(3)), output_signature=tf.TensorSpec([], tf.int32))
    assert pipeline_graph(generated).from_python


def test_parallel_maps_give_the_same_elements_in_the_same_order():
    dataset = tf.data.Dataset.range(100).map(doubled).map(lambda x: (x, x + 1)).batch(8)
    parallel = with_parallel_maps(dataset)
    assert pipeline_graph(parallel).stages == ("range", "parallel_map", "parallel_map", "batch")
    assert parallel.element_spec == dataset.element_spec
    for mine, theirs in zip(parallel, dataset, strict=True):
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_array_equal(mine[1], theirs[1])


def test_nothing_to_run_in_parallel():
    assert with_parallel_maps(tf.data.Dataset.range(3).map(doubled, num_parallel_calls=2)) is None
