"""What several tests of data share."""

from __future__ import annotations

import warnings

import pytest


@pytest.fixture
def one_warning():
    """Fails the test unless exactly one example was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    messages = [str(warning.message) for warning in caught if "was left out" in str(warning.message)]
    assert len(messages) == 1, messages
