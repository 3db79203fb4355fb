"""Audits in shorter turns: as many of everything, with a budget that a busy machine does not spend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from keras_turbo.auditing import bench, measuring


@contextlib.contextmanager
def turns_of(seconds: float) -> Iterator[None]:
    """Turns of about so many seconds, of the 60 that an audit has; a race of the ways to run steps of twenty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "LEAST_TURN_SECONDS", seconds)
        patch.setattr(bench, "_TURN_SHARE", seconds / 60)
        patch.setattr(measuring, "_ROUNDS_SHARE", 4 * seconds / 60)
        patch.setattr(measuring, "_RACE_SHARE", 20 * seconds / 60)
        patch.setattr(measuring, "_ENTRY_SHARE", 40 * seconds / 60)
        patch.setattr(measuring, "_STAGES_SHARE", 2 * seconds / 60)
        yield
