"""One test function per mode. Each test reports the outcome of one cell, measured before (`runs/measuring.py`)."""

from .cases.modes import MODES


def _test_of(mode):
    def test(report):
        report()

    test.__name__, test.__doc__ = f"test_{mode}", MODES[mode].about
    return test


globals().update({f"test_{mode}": _test_of(mode) for mode in MODES})
