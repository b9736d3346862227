"""The gate refuses kernels with faults that were reported in bug trackers (`reported_kernels.py`)."""

from __future__ import annotations

import pytest

import impls
from bench.cases.case import Case
from bench.cases.outcome import Wrong
from impls.rules import EVERY_RULE

from . import reported_kernels
from .conftest import gated


@pytest.mark.parametrize("name", reported_kernels.KERNELS)
def test_a_reported_fault_is_refused(name: str) -> None:
    it = reported_kernels.KERNELS[name]
    limits = impls.Limits(beyond=EVERY_RULE, **getattr(it.kernel, "limits", {}))
    with pytest.raises(Wrong):
        gated(impls.make("mine", it.kernel, limits=limits), Case.of(**({"T": 64, "H": 2, "D_h": 64} | it.case)))


def test_as_many_are_refused_as_the_method_says() -> None:
    assert len(reported_kernels.KERNELS) >= 70
