"""What is timed: one call of a layer or its core, its inputs, weights and masks already in place.

A case is measured as a whole, before its tests run (`measuring.py`); a test reports what was found out about one cell.
"""

import pytest

from .runs.replay import replayed

pytestmark = [
    pytest.mark.benchmark(timer=replayed),
    pytest.mark.usefixtures("benchmark"),  # so that --benchmark-only and --benchmark-skip know them
    pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"),  # by a cell that failed
]


def test_forward(report):
    """o = layer(x)"""
    report()


def test_backward(report):
    """o = layer(x), and from a gradient of o the gradients of x and of every weight"""
    report()


def test_decode(report):
    """o = layer(x, cache) for one new token, whose key and value are written to the cache"""
    report()
