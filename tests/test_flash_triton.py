"""The Triton kernel, run by Triton's interpreter on the CPU: it passes the gate, and wrong versions of it are refused."""

import os
import subprocess
import sys
from importlib.util import find_spec
from unittest import mock

import pytest
import torch

import impls
from bench.cases.case import Case
from impls import flash_triton

from .conftest import CHECKOUT

SOURCE = CHECKOUT / "impls" / "flash_triton.py"

GATED = """
import sys
from dataclasses import replace
import bench.checks.probes
from bench.cases.case import Case
from bench.cases.outcome import Wrong
from tests.conftest import gated
import impls, injected
bench.checks.probes.PROBES = (37,)
impl = impls.get("injected")
impl = replace(impl, limits=replace(impl.limits, devices=None))
try:
    for dtype in ("float32", "float16"):  # the interpreter has no products of bfloat16
        for H_kv, T_kv, mask in ((1, 70, "causal"), (4, 130, "none"), (2, 65, "causal")):
            source = "self" if T_kv == 65 else "cross"
            gated(impl, Case.of(T=65, T_kv=T_kv, H=4, H_kv=H_kv, D_h=24, dtype=dtype, mask=mask, source=source, scope="core"))
    gated(impl, Case.of(T=1, T_kv=70, H=2, D_h=16, mode="decode", mask="none"))
    print("accepted")
except Wrong as why:
    print("refused:", why)
"""


LARGE = """
import sys
import torch
from impls.flash_triton import flash_triton
try:
    x = torch.empty_strided((3, 1, 65, 16), (1 << 30, 65 * 16, 16, 1), dtype=torch.float16)  # most of it is never touched
except RuntimeError:
    sys.exit("no room")
x.copy_(torch.randn(3, 1, 65, 16))
small = x.contiguous()
assert torch.equal(flash_triton(x, x, x), flash_triton(small, small, small))
"""

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="the interpreter comes with the package triton")


def interpreted(code, *folders):
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(map(str, (*folders, CHECKOUT)))}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=1800)


@needs_triton
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("", "", id="as it is"),
        pytest.param("columns[None, :] <= rows", "columns[None, :] <= 1 + rows", id="a mask that lets a later key through"),
        pytest.param("first + QUERIES)", "tl.maximum(1, first))", id="the diagonal's block left out"),
        pytest.param("visible = columns[None, :] < T_kv", "visible = columns[None, :] < T_kv + KEYS", id="padding is seen"),
        pytest.param("of, head // groups, columns, T_kv, v_b", "of, 0, columns, T_kv, v_b", id="one head's values for all"),
    ],
)  # fmt: skip
def test_it_is_accepted_and_refused_when_it_is_wrong(right, wrong, tmp_path):
    text = SOURCE.read_text()
    assert right in text
    text = text.replace(right, wrong) if right else text
    text = text.replace("from .registry", "from impls.registry").replace('"flash_triton"', '"injected"')
    (tmp_path / "injected.py").write_text(text)
    done = interpreted(GATED, tmp_path)
    assert done.stdout.startswith("refused" if right else "accepted"), done.stdout + done.stderr


@needs_triton
def test_elements_beyond_two_to_the_31_are_found():
    done = interpreted(LARGE)
    if done.stderr.endswith("no room\n"):
        pytest.skip("needs an address space of 4 GiB")
    assert done.returncode == 0, done.stderr


@needs_triton
def test_only_the_first_dimension_of_a_grid_counts_programs(monkeypatch):
    """The others have at most 65,535."""
    kernel = mock.MagicMock()
    monkeypatch.setattr(flash_triton, "_forward", kernel)
    x = torch.empty(1 << 11, 32, 65, 16, device="meta")
    flash_triton.flash_triton(x, x, x)
    assert kernel.__getitem__.call_args.args == (((2 << 16),),)


def test_it_says_what_it_needs():
    refusal, on = impls.get("flash_triton").refusal, {"T": 16, "H": 2, "D_h": 16, "scope": "core"}
    if find_spec("triton") is None:
        assert refusal(Case.of(**on, device="cuda")) == "flash_triton needs the package triton: pip install triton"
    else:
        assert refusal(Case.of(**on, device="cuda")) is None
        assert refusal(Case.of(**on)) == "flash_triton supports device cuda, not cpu"
