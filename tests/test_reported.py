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
    """What the gate says of a kernel in the case of its thread."""
    case = Case.of(**({"T": 64, "H": 2, "D_h": 64} | it.case))
    gated(impls.make("mine", it.kernel, limits=impls.Limits(beyond=EVERY_RULE)), case)


@pytest.mark.parametrize("name", [name for name, it in reported_kernels.KERNELS.items() if not it.passes])
def test_a_reported_fault_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    it = reported_kernels.KERNELS[name]
    with pytest.raises(Wrong) as refusal:
        checked(it)
    with capsys.disabled():
        print(f"\n{it.thread:<40} {name:<50} refused  {refusal.value}", end="")


@pytest.mark.parametrize("name", [name for name, it in reported_kernels.KERNELS.items() if it.passes])
def test_a_reported_fault_that_no_case_shows_passes(name: str) -> None:
    """One that is refused here is to lose its `passes`, and the documentation its sentence."""
    checked(reported_kernels.KERNELS[name])


def test_at_least_40_are_refused() -> None:
    assert sum(not it.passes for it in reported_kernels.KERNELS.values()) >= 40
