"""A snapshot is of one moment, in memory that is used again and never by two."""

from __future__ import annotations

import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo.checkpoint import snapshot as snapshot_module
from keras_turbo.checkpoint.snapshot import Snapshots
from keras_turbo.fit.first_step import build_metrics
from keras_turbo.fit.training_state import assign_state
from tests.checkpoint.models import (
    KINDS,
    L,
    arrays,
    batches,
    compiled,
    dense,
    differing,
    sequential,
    state_arrays,
    train,
    with_random_layers,
)


@pytest.fixture
def snapshots_of():
    """Makes Snapshots that are closed at the end of the test."""
    made = []

    def make(model, **options):
        made.append(Snapshots(model, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def addresses(snapshot):
    return {path: array.ctypes.data for path, array in {**snapshot.weights, **snapshot.extra}.items()}


def is_equal(snapshot, state):
    snapshot.wait()
    return [differing(part, kept) for part, kept in zip((snapshot.weights, snapshot.extra), state, strict=True)] == [
        [],
        [],
    ]


@pytest.mark.parametrize("by_reference", [False, True])
@pytest.mark.parametrize("name", ["with_random_layers", "subclassed", "safely_loss_scaled", "of_bfloat16", "under_xla"])
def test_a_snapshot_keeps_its_moment_while_training_goes_on(name, by_reference, snapshots_of):
    model = KINDS[name]()
    train(model)
    snapshots = snapshots_of(model, by_reference=by_reference)
    kept = state_arrays(model)
    snapshot = snapshots.take()
    train(model)
    assert is_equal(snapshot, kept)
    assert differing(state_arrays(model)[0], kept[0]) != []
    fresh = KINDS[name]()
    build_metrics(fresh, batches().element_spec)
    assert assign_state(fresh, snapshot.weights, snapshot.extra) == ()
    snapshot.release()
    for one, other in zip(kept, state_arrays(fresh), strict=True):
        assert differing(one, other) == []


def test_by_reference_holds_no_memory_that_training_writes_to(snapshots_of):
    model = dense()
    train(model)
    kept = state_arrays(model)
    snapshot = snapshots_of(model, by_reference=True).take()
    train(model)
    assert is_equal(snapshot, kept)
    snapshot.release()


def test_an_error_of_the_copy_is_raised_where_the_arrays_are_waited_for(snapshots_of, monkeypatch):
    snapshots = snapshots_of(dense(), by_reference=True)

    def fail(*_, **__):
        raise OSError("the device is lost")

    with monkeypatch.context() as patched:
        patched.setattr("keras_turbo.checkpoint.snapshot.copy_all", fail)
        with snapshots.take() as snapshot:
            for _ in range(2):
                with pytest.raises(OSError, match="the device is lost"):
                    snapshot.wait()
    with snapshots.take() as snapshot:
        snapshot.wait()


@pytest.mark.parametrize("size", [1, 3, 100, snapshot_module.PART_BYTES // 4 + 3, snapshot_module.PART_BYTES])
@pytest.mark.parametrize("threads", [1, 2, 5, None])
def test_copies_of_any_size_by_any_number_of_threads(size, threads):
    values = [
        tf.random.stateless_uniform((size,), (1, 2)),
        tf.cast(tf.random.stateless_uniform((size,), (3, 4)), tf.bfloat16),
        tf.range(size) % 2 == 0,
        tf.constant(7, tf.int64),
        tf.zeros((0, 3)),
        tf.complex(tf.ones((2, 2), tf.float64), tf.zeros((2, 2), tf.float64)),
    ]
    copies = [np.zeros(value.shape, value.dtype.as_numpy_dtype) for value in values]
    pairs = list(zip(copies, values, strict=True))
    snapshot_module.copy_all(pairs, threads)
    assert pairs == []
    for copy, value in zip(copies, values, strict=True):
        assert copy.tobytes() == value.numpy().tobytes()


def test_reading_a_variable_copies_nothing():
    model = dense()
    for variable in model.variables:
        one, other = (np.asarray(snapshot_module.read_tensor(variable.value)).ctypes.data for _ in range(2))
        assert one == other


def test_an_error_in_a_thread_that_copies_is_raised():
    big = tf.zeros((snapshot_module.PART_BYTES,), tf.uint8)
    read_only = np.zeros(big.shape, np.uint8)
    read_only.flags.writeable = False
    pairs = [(np.zeros(big.shape, np.uint8), big), (read_only, big)]
    with pytest.raises(ValueError, match="read-only"):
        snapshot_module.copy_all(pairs, 3)


def test_memory_is_used_again_and_never_by_two(snapshots_of):
    model = with_random_layers()
    train(model)
    snapshots = snapshots_of(model)
    first = snapshots.take()
    second = snapshots.take()
    one, other = addresses(first), addresses(second)
    assert not set(one.values()) & set(other.values())
    for _ in range(3):
        second.release()
        second.release()  # twice is once
        train(model, 1)
        second = snapshots.take()
        assert addresses(second) == other
        assert is_equal(second, state_arrays(model))
    first.release()
    second.release()
    third = snapshots.take()
    assert addresses(third) in (one, other)
    third.release()


def test_one_variable_under_two_paths_is_kept_once(snapshots_of):
    model = KINDS["loss_scaled"]()
    snapshot = snapshots_of(model).take()
    twice = [path for path in snapshot.weights if path.startswith("optimizer/inner_optimizer/")]
    assert twice
    found = addresses(snapshot)
    places = {found[path] for path in twice}
    assert places <= {found[path] for path in snapshot.weights if path not in twice}
    sizes = {found[path]: snapshot.weights[path].nbytes for path in snapshot.weights}
    sizes |= {found[path]: snapshot.extra[path].nbytes for path in snapshot.extra}
    assert snapshot.nbytes == sum(sizes.values())
    snapshot.release()


def test_a_busy_snapshot_is_skipped_and_counted(snapshots_of):
    snapshots = snapshots_of(dense(), when_busy="skip")
    first, second = snapshots.take(), snapshots.take()
    assert snapshots.take() is None
    assert snapshots.take() is None
    assert snapshots.skipped == 2
    assert snapshots.waited_ms == 0
    second.release()
    again = snapshots.take()
    assert again is not None
    first.release()
    again.release()


def test_a_busy_snapshot_is_waited_for_and_counted(snapshots_of):
    model = dense()
    snapshots = snapshots_of(model, num_buffers=1)
    first = snapshots.take()
    kept = arrays(first.weights)
    released = threading.Event()

    def release_later():
        time.sleep(0.05)
        released.set()
        first.release()

    thread = threading.Thread(target=release_later)
    thread.start()
    second = snapshots.take()
    assert released.is_set()
    thread.join()
    assert differing(second.weights, kept) == []
    assert snapshots.waited_ms > 0
    assert snapshots.skipped == 0
    second.release()


def test_other_variables_get_other_memory_and_the_rest_keeps_its_own(snapshots_of):
    model = dense()
    snapshots = snapshots_of(model)
    with snapshots.take() as snapshot:
        before = addresses(snapshot)
        assert "metrics/CompileMetrics/0" not in before  # the metrics are created at the first step
    snapshots.close()
    snapshots = snapshots_of(model, num_buffers=1)
    with snapshots.take() as snapshot:
        before = addresses(snapshot)
    train(model)
    with snapshots.take() as snapshot:
        after = addresses(snapshot)
        assert is_equal(snapshot, state_arrays(model))
    assert {path: after[path] for path in before} == before
    assert "metrics/CompileMetrics/0" in after
    compiled(model, "sgd")
    train(model)
    with snapshots.take() as snapshot:
        assert is_equal(snapshot, state_arrays(model))
        assert snapshot.weights.keys() == state_arrays(model)[0].keys()


def test_values_that_a_layer_computes_are_of_their_moment(snapshots_of):
    model = sequential(L.Dense(6))
    for layer in model.layers:
        layer.quantize("int8")
    model.layers[0].enable_lora(2)
    snapshots = snapshots_of(model)
    with snapshots.take() as snapshot:
        before = snapshot.weights["layers/dense/vars/0"].copy()
    model.layers[0].lora_kernel_b.assign(np.ones(model.layers[0].lora_kernel_b.shape))
    with snapshots.take() as snapshot:
        assert not np.array_equal(before, snapshot.weights["layers/dense/vars/0"])
        assert is_equal(snapshot, state_arrays(model))


@pytest.mark.parametrize("by_reference", [False, True])
def test_under_a_strategy_one_copy_is_taken(by_reference, two_cpu_strategy, snapshots_of):
    with two_cpu_strategy.scope():
        model = with_random_layers()
    train(model)
    snapshot = snapshots_of(model, by_reference=by_reference).take()
    assert is_equal(snapshot, state_arrays(model))
    # Each of two replicas has counted its half of the batches.
    assert snapshot.extra["metrics/CompileMetrics/1"] == 16
    single = with_random_layers()
    train(single)
    assert snapshot.weights.keys() == state_arrays(single)[0].keys()
    assert snapshot.nbytes == sum(part.nbytes for each in state_arrays(single) for part in each.values())
    snapshot.release()


def test_a_snapshot_stays_valid_after_close(snapshots_of):
    model = dense()
    snapshots = snapshots_of(model)
    snapshot = snapshots.take()
    snapshots.close()
    snapshots.close()
    assert is_equal(snapshot, state_arrays(model))
    snapshot.release()
    with pytest.raises(RuntimeError, match="`close` has been called"):
        snapshots.take()


def test_memory_is_given_back_when_a_snapshot_fails(snapshots_of, monkeypatch):
    snapshots = snapshots_of(dense(), num_buffers=1)
    with monkeypatch.context() as patched:
        patched.setattr("keras_turbo.checkpoint.snapshot.read_tensor", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            snapshots.take()
    snapshots.take().release()


def test_all_memory_is_there_before_the_first_snapshot(snapshots_of):
    assert snapshots_of(dense(), num_buffers=3)._free.qsize() == 3


def test_a_second_set_is_not_made_in_advance_where_memory_is_short(snapshots_of, monkeypatch):
    monkeypatch.setattr(snapshot_module, "free_memory_bytes", lambda: 100)
    snapshots = snapshots_of(dense())
    with snapshots.take() as snapshot:
        assert snapshots._free.qsize() == 0
        # It is made when there is no way round it.
        with snapshots.take() as second:
            assert not set(addresses(snapshot).values()) & set(addresses(second).values())


def test_strings_are_refused():
    model = dense()
    model.words = tf.Variable(["a", "b"])
    with pytest.raises(ValueError, match=r"can't be saved: it is of string \(2,\)"):
        Snapshots(model)


def test_an_unbuilt_model_is_refused():
    with pytest.raises(ValueError, match="isn't built"):
        Snapshots(compiled(keras.Sequential([L.Dense(3)])))
