"""Questions that may never be answered."""

from __future__ import annotations

import sys
import threading

import pytest

from keras_turbo.monitor.time_limit import answer_within


def test_an_answer():
    assert answer_within(60, lambda: 7, "the driver") == 7


def test_an_error_is_the_caller_s():
    def fail():
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        answer_within(60, fail, "the driver")


def test_the_end_of_the_program_is_no_hang():
    with pytest.raises(SystemExit):
        answer_within(60, sys.exit, "the driver")


def test_no_answer():
    let_go = threading.Event()
    with pytest.raises(TimeoutError, match="The driver did not answer within 0.01 s."):
        answer_within(0.01, lambda: let_go.wait(60), "The driver")
    let_go.set()
