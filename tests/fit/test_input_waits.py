import pytest
import tensorflow as tf

from keras_turbo.fit import input_wait
from keras_turbo.fit.input_wait import FitInputWaits, Waits

SHORT, LONG = 0.010, 0.060


class KnownWaits:
    """Stands for the measurement in the graph, of batches of which it is known how long each is waited for."""

    def __init__(self, seconds_of):
        self._seconds_of = seconds_of
        self._sums = Waits()

    def timed(self, iterator):
        for batch in iterator:
            self._sums = self._sums.plus(Waits(self._seconds_of(int(batch[0])), 1, len(batch)))
            yield batch

    def read(self):
        return self._sums


def run(waits, iterator, executions, seconds):
    """Lets executions take a batch each; returns the batches, and how many of them were taken while measured."""
    batches, measured = [], 0
    waits.prepare(next, iterator)
    for number in range(executions):
        chosen = waits.chosen(iterator, seconds, number)
        measured += chosen is not iterator
        batches.append(int(next(chosen)[0]))
    return batches, measured


def numbers(count, rows=4):
    return iter(tf.data.Dataset.range(count).map(lambda number: tf.fill([rows], number)))


def test_of_short_executions_a_share_is_measured_and_stands_for_all():
    waits = FitInputWaits()
    batches, measured = run(waits, numbers(1000), 1000, SHORT)
    assert batches == list(range(1000))
    assert 100 + 120 < measured < 100 + 250
    read = waits.read()
    assert (read.batches, read.examples) == (1000, 4000)
    # A second look finds nothing new.
    assert waits.read() == read


def test_of_long_executions_all_are_measured():
    waits = FitInputWaits()
    assert run(waits, numbers(500), 500, LONG)[1] == 500
    assert waits.read().batches == 500


def test_a_wait_that_comes_once_is_not_multiplied(monkeypatch):
    monkeypatch.setattr(input_wait, "InputWait", lambda: KnownWaits(lambda number: 0.5 if number == 0 else 0.0))
    waits = FitInputWaits()
    assert run(waits, numbers(2000), 2000, SHORT)[1] < 800
    assert waits.read() == Waits(0.5, 2000, 8000)


@pytest.mark.parametrize("rhythm", [2, 5, 16])
def test_waits_in_a_rhythm_are_seen_as_long_as_they_are(monkeypatch, rhythm):
    monkeypatch.setattr(input_wait, "InputWait", lambda: KnownWaits(lambda number: float(number % rhythm == 0)))
    waits = FitInputWaits()
    assert run(waits, numbers(10_000), 10_000, SHORT)[1] < 2500
    # About 2,160 of them were measured: six standard deviations of what is drawn are 15 % at a rhythm of 2 and more.
    assert waits.read().seconds == pytest.approx(10_000 / rhythm, rel=0.5)
    assert waits.read().batches == 10_000


def test_each_epoch_begins_by_measuring_all():
    waits = FitInputWaits()
    run(waits, numbers(400), 400, SHORT)
    assert waits.read().batches == 400
    assert run(waits, numbers(100), 100, SHORT)[1] == 100
    assert waits.read().batches == 500
