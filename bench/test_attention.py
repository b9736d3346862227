"""One test function per mode. Each test reports the outcome of one cell, measured before (`runs/measuring.py`)."""

import pytest

from .cases.modes import MODES
from .runs.replay import replayed

pytestmark = [
    pytest.mark.benchmark(timer=replayed),
    pytest.mark.usefixtures("benchmark"),  # so that --benchmark-only and --benchmark-skip select these tests
    pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"),  # by a cell that failed
]


def _test_of(mode):
    def test(report):
        report()

    test.__name__, test.__doc__ = f"test_{mode}", MODES[mode].about
    return test


globals().update({f"test_{mode}": _test_of(mode) for mode in MODES})
