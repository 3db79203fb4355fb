"""Orders of rows that are read a row group at a time: complete, by the seed, and each row group at one time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from keras_turbo.data.engine.order import ExampleOrder
from keras_turbo.data.tables.row_group_order import RowGroupOrder

SIZES = (5, 1, 40, 7, 7, 0, 13, 27)
N = sum(SIZES)
GROUP_OF = np.repeat(np.arange(len(SIZES)), SIZES)


def order_of(window: int = 2, **options) -> RowGroupOrder:
    return RowGroupOrder(N, **{"shuffle": True, "seed": 3, **options}, group_sizes=SIZES, window=window)


@pytest.mark.parametrize("window", [1, 2, 3, 8, 100])
def test_every_position_once_an_epoch(window):
    order = order_of(window)
    epochs = [order.positions(epoch).tolist() for epoch in range(4)]
    for positions in epochs:
        assert sorted(positions) == list(range(N))
    assert len({tuple(positions) for positions in epochs}) == 4


def test_groups_come_in_windows_in_random_order():
    order = order_of(window=2)
    of_epochs = []
    for epoch in range(3):
        groups = GROUP_OF[order.positions(epoch)]
        # A window is over before the next one begins: at no place are more groups begun and not through.
        spans = {group: np.flatnonzero(groups == group) for group in set(groups.tolist())}
        begun = [sum(places[0] <= place <= places[-1] for places in spans.values()) for place in range(N)]
        assert max(begun) == 2
        of_epochs.append(tuple(sorted(spans, key=lambda group: spans[group][0])))
    assert len(set(of_epochs)) == 3


def test_rows_of_a_window_are_mixed():
    order = RowGroupOrder(2000, shuffle=True, seed=0, group_sizes=(1000, 1000), window=2)
    positions = order.positions(0)
    # As in a full shuffle, neither where a row was nor which was before it tells where it is.
    assert abs(np.corrcoef(np.arange(2000), positions)[0, 1]) < 0.1
    assert abs(np.mean(positions[:1000] < 1000) - 0.5) < 0.06
    assert np.mean(np.abs(np.diff(positions)) == 1) < 0.01


def test_a_window_of_all_groups_is_a_full_shuffle_and_of_one_is_none():
    alone = GROUP_OF[order_of(window=1).positions(0)]
    assert len(list(itertools.groupby(alone))) == len(set(GROUP_OF.tolist()))
    assert len(list(itertools.groupby(GROUP_OF[order_of(window=8).positions(0)]))) > 30


def test_without_shuffle_positions_in_order():
    order = order_of(shuffle=False)
    np.testing.assert_array_equal(order.positions(5), np.arange(N))
    assert order.is_fixed
    assert order.details == {}


def test_the_order_is_that_of_the_seed_and_stays_so():
    assert order_of().positions(1).tolist() == order_of().positions(1).tolist()
    assert order_of(seed=4).positions(1).tolist() != order_of().positions(1).tolist()
    fixed = order_of(reshuffle_each_epoch=False)
    assert fixed.positions(0).tolist() == fixed.positions(7).tolist() == order_of().positions(0).tolist()
    # Written down, since a run is resumed with other versions of NumPy and TensorFlow, too.
    small = RowGroupOrder(10, shuffle=True, seed=7, group_sizes=(3, 3, 4), window=2)
    assert [small.positions(epoch).tolist() for epoch in (0, 1)] == [
        [3, 2, 5, 4, 0, 1, 6, 9, 7, 8],
        [4, 3, 8, 5, 9, 7, 6, 2, 0, 1],
    ]


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("number", [2, 3, 7])
def test_shards_are_disjoint_complete_and_equal(window, shuffle, number):
    order = order_of(window, shuffle=shuffle)
    for epoch in range(2):
        kept = [order.shard(number, index) for index in range(number)]
        positions = [part.positions(epoch) for part in kept]
        assert [len(part) for part in positions] == [part.num_examples for part in kept]
        assert sorted(np.concatenate(positions).tolist()) == list(range(N))
        assert max(map(len, positions)) - min(map(len, positions)) <= 1
        dropped = [order.shard(number, index, "drop").positions(epoch) for index in range(number)]
        assert {len(part) for part in dropped} == {N // number}
        assert len(set(np.concatenate(dropped).tolist())) == N // number * number
        filled = [order.shard(number, index, "fill").positions(epoch) for index in range(number)]
        assert {len(part) for part in filled} == {-(-N // number)}
        assert set(np.concatenate(filled).tolist()) == set(range(N))


def test_a_shard_reads_its_own_row_groups():
    order = RowGroupOrder(1000, shuffle=True, seed=1, group_sizes=(10,) * 100, window=4)
    for index in range(4):
        groups = set((order.shard(4, index).positions(2) // 10).tolist())
        assert len(groups) == 25
    # Where it ends within a row group, the next one has the rest.
    assert sum(len(set((order.shard(3, index).positions(2) // 10).tolist())) for index in range(3)) <= 102


def test_a_shard_of_a_shard_is_a_part_of_it():
    order = order_of()
    outer = order.shard(2, 1)
    inner = [outer.shard(3, index).positions(1).tolist() for index in range(3)]
    assert sorted(itertools.chain(*inner)) == sorted(outer.positions(1).tolist())


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"num_shards": 3, "shard_index": 2, "remainder": "fill"}])
def test_a_part_of_an_epoch_is_that_of_the_whole(options):
    order = order_of(**options)
    for epoch in (0, 2):
        whole = order.positions(epoch)
        np.testing.assert_array_equal(order.positions(epoch, np.array([3, 0, 3])), whole[[3, 0, 3]])
        for first in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
            pieces = [np.empty(0, np.int64), *order.pieces(epoch, first)]
            np.testing.assert_array_equal(np.concatenate(pieces), whole[first:])


def test_what_decides_the_order_is_told():
    assert order_of(window=3).details == {"row_groups": 8, "shuffled_within_row_groups": 3}
    assert order_of(shuffle=False, num_shards=2).details == {"row_groups": 8}
    assert ExampleOrder(N, shuffle=True).details == {}


@pytest.mark.parametrize("options", [{"group_sizes": (1, 2), "window": 1}, {"group_sizes": (4,), "window": 0}])
def test_sizes_that_do_not_fit(options):
    with pytest.raises(ValueError, match="no order of"):
        RowGroupOrder(4, **options)
