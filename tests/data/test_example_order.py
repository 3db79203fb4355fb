"""The order of examples is a complete, uniform permutation, and a function of seed, epoch and shard alone."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.engine.order import WHOLE_PERMUTATION_LIMIT, EpochCounter, ExampleOrder
from tests.data.epochs import rows_of

# Around the limit between the two algorithms, and beyond.
LENGTHS = [1, 2, 3, 100, WHOLE_PERMUTATION_LIMIT, WHOLE_PERMUTATION_LIMIT + 1, 100_000, 4**9 + 1]

# One length for each algorithm.
BOTH_ALGORITHMS = [100, WHOLE_PERMUTATION_LIMIT + 1]


@pytest.mark.parametrize("length", LENGTHS)
class TestPermutations:
    def test_every_epoch_visits_each_position_once(self, length):
        order = ExampleOrder(length, shuffle=True, seed=3)
        for epoch in (0, 1):
            np.testing.assert_array_equal(np.sort(order.positions(epoch)), np.arange(length))

    def test_seed_and_epoch_decide_it(self, length):
        positions = ExampleOrder(length, shuffle=True, seed=3).positions(1)
        np.testing.assert_array_equal(positions, ExampleOrder(length, shuffle=True, seed=3).positions(1))

    def test_without_shuffle_positions_ascend(self, length):
        np.testing.assert_array_equal(ExampleOrder(length, seed=3).positions(5), np.arange(length))

    def test_shards_are_disjoint_and_complete(self, length):
        order = ExampleOrder(length, shuffle=True, seed=3)
        shards = [order.shard(3, index) for index in range(3)]
        dealt = [shard.positions(1) for shard in shards]
        assert [len(part) for part in dealt] == [shard.num_examples for shard in shards]
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        np.testing.assert_array_equal(np.sort(np.concatenate(dealt)), np.arange(length))
        # Dealt out after the shuffle, one position to each in turn.
        np.testing.assert_array_equal(dealt[0], order.positions(1)[::3])

    def test_shards_of_shards_are_disjoint_and_complete(self, length):
        order = ExampleOrder(length, shuffle=True, seed=3)
        nested = [order.shard(2, outer).shard(3, inner) for outer in range(2) for inner in range(3)]
        dealt = [shard.positions(0) for shard in nested]
        assert [len(part) for part in dealt] == [shard.num_examples for shard in nested]
        np.testing.assert_array_equal(np.sort(np.concatenate(dealt)), np.arange(length))
        np.testing.assert_array_equal(dealt[4], order.shard(2, 1).positions(0)[1::3])


@pytest.mark.parametrize("length", BOTH_ALGORITHMS)
@pytest.mark.parametrize("num_shards", [3, 7])
class TestEqualShards:
    def test_what_is_left_over_is_dropped(self, length, num_shards):
        order = ExampleOrder(length, shuffle=True, seed=3)
        shards = [order.shard(num_shards, index, "drop") for index in range(num_shards)]
        dealt = [shard.positions(1) for shard in shards]
        assert {len(part) for part in dealt} == {shard.num_examples for shard in shards} == {length // num_shards}
        whole = order.positions(1)[: length // num_shards * num_shards]
        np.testing.assert_array_equal(np.stack(dealt, 1).ravel(), whole)

    def test_the_last_turn_is_filled_up_by_the_first_positions(self, length, num_shards):
        order = ExampleOrder(length, shuffle=True, seed=3)
        shards = [order.shard(num_shards, index, "fill") for index in range(num_shards)]
        dealt = [shard.positions(1) for shard in shards]
        assert {len(part) for part in dealt} == {shard.num_examples for shard in shards} == {-(-length // num_shards)}
        whole = order.positions(1)
        twice = whole[: -length % num_shards]
        np.testing.assert_array_equal(np.stack(dealt, 1).ravel(), np.concatenate([whole, twice]))


def test_shards_of_more_than_there_is():
    assert [ExampleOrder(2).shard(5, index, "fill").positions(0).tolist() for index in range(5)] == [
        [0],
        [1],
        [0],
        [1],
        [0],
    ]
    assert ExampleOrder(2).shard(5, 0, "drop").num_examples == 0


@pytest.mark.parametrize("length", BOTH_ALGORITHMS)
class TestRandomness:
    def test_seeds_and_epochs_differ(self, length):
        orders = [
            ExampleOrder(length, shuffle=True, seed=seed).positions(epoch) for seed in (0, 1) for epoch in (0, 1, 2)
        ]
        assert len({order.tobytes() for order in orders}) == len(orders)

    def test_reshuffling_can_be_turned_off(self, length):
        fixed = ExampleOrder(length, shuffle=True, seed=3, reshuffle_each_epoch=False)
        np.testing.assert_array_equal(fixed.positions(7), fixed.positions(0))
        np.testing.assert_array_equal(fixed.positions(0), ExampleOrder(length, shuffle=True, seed=3).positions(0))

    def test_an_example_may_come_anywhere(self, length):
        """The first position lands in each twentieth of the epoch equally often, over many seeds."""
        draws, bins = 4000, 20

        # Epochs stand for seeds: both are words of the key.
        order = ExampleOrder(length, shuffle=True, seed=11)
        landed = np.concatenate([order.positions(epoch, np.zeros(1, np.int64)) for epoch in range(draws)])
        counts, _ = np.histogram(landed, bins=bins, range=(0, length))
        chi_square = float(np.sum((counts - draws / bins) ** 2 / (draws / bins)))
        # 19 degrees of freedom: 43.8 is exceeded once in a thousand times by chance; these seeds are always the same.
        assert chi_square < 43.8

    def test_epochs_are_unrelated(self, length):
        """How far an example moves from one epoch to the next is anything, equally often."""
        bins = 10
        order = ExampleOrder(length, shuffle=True, seed=5)
        counts = np.zeros(bins)
        for epoch in range(8):
            moved = (order.positions(epoch) - order.positions(epoch + 1)) % length
            counts += np.histogram(moved, bins=bins, range=(0, length))[0]
        expected = 8 * length / bins
        chi_square = float(np.sum((counts - expected) ** 2 / expected))
        # 9 degrees of freedom: 27.9 is exceeded once in a thousand times by chance; these seeds are always the same.
        assert chi_square < 27.9

    def test_neighbours_do_not_stay_together(self, length):
        order = ExampleOrder(length, shuffle=True, seed=5).positions(0)
        close = np.abs(np.diff(order)) == 1
        # Two in n of the steps are to a neighbour by chance.
        assert close.sum() <= 12

    def test_some_ordinals_are_as_in_the_whole(self, length):
        order = ExampleOrder(length, shuffle=True, seed=5)
        np.testing.assert_array_equal(order.positions(2, np.array([7, 0, 9])), order.positions(2)[[7, 0, 9]])


def test_what_makes_an_order_fixed():
    assert ExampleOrder(5).is_fixed
    assert ExampleOrder(5, shuffle=True, reshuffle_each_epoch=False).is_fixed
    assert not ExampleOrder(5, shuffle=True).is_fixed


def test_more_shards_than_positions_leave_some_empty():
    assert [ExampleOrder(2).shard(3, index).num_examples for index in range(3)] == [1, 1, 0]
    assert ExampleOrder(2).shard(3, 2).positions(0).shape == (0,)


@pytest.mark.parametrize(("num_shards", "index"), [(2, 2), (2, -1), (0, 0), (1, 1)])
def test_impossible_shards_are_refused(num_shards, index):
    with pytest.raises(ValueError, match=rf"(?s)(num_shards={num_shards}, index={index})"):
        ExampleOrder(10).shard(num_shards, index)


def test_impossible_orders_are_refused():
    with pytest.raises(ValueError, match="num_shards must be at least 1"):
        ExampleOrder(10, num_shards=0)
    with pytest.raises(ValueError, match="between 0 and num_shards - 1 = 2"):
        ExampleOrder(10, num_shards=3, shard_index=3)
    with pytest.raises(ValueError, match="`remainder` must be one of keep, drop, fill. Received: 'pad'"):
        ExampleOrder(10, remainder="pad")


class TestEpochCounter:
    def test_counts_from_zero(self):
        counter = EpochCounter()
        assert counter.next_epoch == 0
        assert [counter.begin_epoch() for _ in range(3)] == [(0, 0), (1, 0), (2, 0)]
        assert counter.next_epoch == 3
        counter.resume_at(7, 5)
        assert [counter.begin_epoch() for _ in range(2)] == [(7, 5), (8, 0)]

    def test_an_iterator_that_is_never_read_is_no_epoch(self):
        x = np.arange(40)
        straight = FastDataset(x, batch_size=8, shuffle=True, seed=1)
        expected = [rows_of(straight).tolist() for _ in range(3)]
        disturbed = FastDataset(x, batch_size=8, shuffle=True, seed=1)
        seen = []
        for _ in range(3):
            del (unread := [iter(disturbed), iter(disturbed)])[:]
            assert not unread
            seen.append(rows_of(disturbed).tolist())
        assert seen == expected

    def test_an_epoch_that_is_left_early_is_an_epoch(self):
        x = np.arange(40)
        straight = FastDataset(x, batch_size=8, shuffle=True, seed=1)
        rows_of(straight)
        second = rows_of(straight)
        left_early = FastDataset(x, batch_size=8, shuffle=True, seed=1)
        next(iter(left_early))
        np.testing.assert_array_equal(rows_of(left_early), second)

    def test_two_datasets_count_by_themselves(self):
        x = np.arange(40)
        one, other = (FastDataset(x, batch_size=8, shuffle=True, seed=1) for _ in range(2))
        rows_of(one)
        rows_of(one)
        first = FastDataset(x, batch_size=8, shuffle=True, seed=1)
        np.testing.assert_array_equal(rows_of(other), rows_of(first))


def test_a_seed_is_drawn_from_what_keras_seeds():
    def drawn(seed: int) -> int:
        keras.utils.set_random_seed(seed)
        return FastDataset(np.arange(3)).seed

    assert drawn(4) == drawn(4) != drawn(5)


def test_a_model_has_the_same_weights_with_a_dataset_and_without():
    def first_weights(*datasets: FastDataset) -> list[np.ndarray]:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).get_weights()

    keras.utils.set_random_seed(0)
    without = first_weights()
    keras.utils.set_random_seed(0)
    data = FastDataset(
        np.ones((8, 3)), shuffle=True, augment_fn=lambda x, seed: x + tf.random.stateless_normal([3], seed)
    )
    for _ in data:
        pass
    np.testing.assert_array_equal(first_weights(data)[0], without[0])
