"""Which checkpoints may go: never the best, never the only good one."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

from keras_turbo.checkpoint.retention import SavedCheckpoint, names_to_delete

HOUR = 3600.0


def entries(*metrics, good=None, times=None):
    good = good or [True] * len(metrics)
    times = times or [HOUR * index for index in range(len(metrics))]
    return [
        SavedCheckpoint(str(index), time, metric, whole)
        for index, (metric, whole, time) in enumerate(zip(metrics, good, times, strict=True))
    ]


@pytest.mark.parametrize(
    ("metrics", "options", "deleted"),
    [
        ((None,) * 5, {"max_to_keep": 2}, "012"),
        ((None,) * 5, {}, ""),
        ((0.5, 0.9, 0.7), {"max_to_keep": 1}, "1"),
        ((0.5, 0.9, 0.7), {"max_to_keep": 1, "mode": "max"}, "0"),
        ((5, 4, 3, 2, 1, 6, 7), {"max_to_keep": 1, "keep_best": 3}, "015"),
        ((0.5, 0.5, 0.7), {"max_to_keep": 1}, "1"),
        ((0.5, 0.9, 0.7), {"max_to_keep": 1, "keep_best": 0}, "1"),
        ((math.nan, 2.0, 3.0), {"max_to_keep": 1}, "0"),
        ((math.nan, 2.0, math.inf), {"max_to_keep": 1, "mode": "max"}, "01"),
        ((), {"max_to_keep": 1}, ""),
    ],
)
def test_the_newest_and_the_best_are_kept(metrics, options, deleted):
    assert "".join(names_to_delete(entries(*metrics), **options)) == deleted


def test_one_for_every_so_many_hours():
    saved = entries(*[None] * 10)
    assert "".join(names_to_delete(saved, max_to_keep=1, keep_every_hours=3)) == "124578"
    # What was kept decides the same again when the others are gone.
    left = [entry for entry in saved if entry.name in "0369"]
    assert names_to_delete(left, max_to_keep=1, keep_every_hours=3) == []


def test_a_clock_that_was_set_back_stops_nothing():
    times = [0.0, 2 * HOUR, -50 * HOUR, -49 * HOUR, -48 * HOUR, -47 * HOUR]
    deleted = names_to_delete(entries(*[None] * 6, times=times), max_to_keep=1, keep_every_hours=2)
    # The third is older by the clock only; two hours are counted from it on.
    assert "".join(deleted) == "23"


def test_damaged_ones_count_for_nothing():
    saved = entries(0.1, 0.5, 0.6, 0.7, 0.0, good=[False, True, True, True, False])
    # The newest good two are 2 and 3, the best good one is 1; the damaged 4 may be looked into, 0 is old.
    assert names_to_delete(saved, max_to_keep=2) == ["0"]


def test_the_newest_before_the_loss_was_nan_stays():
    whole, nan = SavedCheckpoint("a", 0.0), SavedCheckpoint("b", 1.0)
    diverged = [dataclasses.replace(nan, name=name, diverged=True) for name in "cdef"]
    assert names_to_delete([whole, nan, *diverged], max_to_keep=2) == ["a", "c", "d"]
    # Until there is another one.
    assert names_to_delete([nan, *diverged, SavedCheckpoint("g", 9.0)], max_to_keep=1) == ["b", "c", "d", "e", "f"]
    assert names_to_delete(diverged, max_to_keep=1) == ["c", "d", "e"]


def test_the_only_good_one_stays():
    assert names_to_delete(entries(1.0, 2.0, 3.0, good=[True, False, False]), max_to_keep=1) == []
    assert names_to_delete(entries(1.0, 2.0, good=[False, False]), max_to_keep=1) == []


def test_whatever_is_asked_for_best_and_newest_good_stay():
    for good in itertools.product([True, False], repeat=4):
        for metrics in itertools.permutations([1.0, 2.0, None, math.nan]):
            saved = entries(*metrics, good=list(good))
            for most, mode in itertools.product((1, 2), ("min", "max")):
                gone = names_to_delete(saved, max_to_keep=most, keep_best=0, mode=mode)
                left = [entry for entry in saved if entry.good]
                if not left:
                    assert gone == []
                    continue
                assert left[-1].name not in gone
                known = [entry for entry in left if entry.metric in (1.0, 2.0)]
                if known:
                    best = (min if mode == "min" else max)(known, key=lambda entry: entry.metric)
                    assert best.name not in gone


@pytest.mark.parametrize(
    "options",
    [
        {"max_to_keep": 0},
        {"max_to_keep": True},
        {"max_to_keep": 1.5},
        {"keep_best": -1},
        {"keep_best": False},
        {"keep_every_hours": 0},
        {"keep_every_hours": True},
        {"keep_every_hours": math.nan},
        {"mode": "auto"},
    ],
)
def test_options_that_can_not_be(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        names_to_delete(entries(1.0), **options)
