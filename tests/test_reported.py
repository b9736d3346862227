"""Faults that were reported of others' kernels: which of them the gate refuses."""

from __future__ import annotations

import pytest

import impls
from bench.cases.case import Case
from bench.cases.outcome import Wrong
from impls.rules import EVERY_RULE

from . import reported_kernels
from .conftest import gated


def checked(it: reported_kernels.Reported) -> None:
    """Return the check's message for a kernel in its case."""
    case = Case.of(**({"T": 64, "H": 2, "D_h": 64} | it.case))
    limits = impls.Limits(beyond=EVERY_RULE, **getattr(it.kernel, "limits", {}))
    gated(impls.make("mine", it.kernel, limits=limits), case)


@pytest.mark.parametrize("name", reported_kernels.KERNELS)
def test_a_reported_fault_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    it = reported_kernels.KERNELS[name]
    with pytest.raises(Wrong) as refusal:
        checked(it)
    with capsys.disabled():
        print(f"\n{it.thread:<40} {name:<50} refused  {refusal.value}", end="")


def test_at_least_60_are_refused() -> None:
    assert len(reported_kernels.KERNELS) >= 60
