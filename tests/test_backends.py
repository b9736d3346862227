"""Third-party backends, if installed (`tox -e backends`), pass the same checks as torch's kernels."""

import pytest

import impls
from bench.cases.case import Case

from .conftest import gated

BACKENDS = [impl for impl in impls.registered() if impl.owner.startswith("impls.backends.")]
CASES = [
    Case.of(T=64, H=3, D_h=32, B=2, mask=mask, dtype=dtype, scope=scope)
    for mask in ("none", "causal")
    for dtype in ("float32", "bfloat16", "float16")
    for scope in ("layer", "core")
] + [
    Case.of(T=40, T_kv=24, H=4, D_h=32, H_kv=2, mask="none", source="cross"),
    Case.of(T=24, T_kv=40, H=4, D_h=16, D_v=32, source="cross"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@pytest.mark.parametrize("impl", BACKENDS, ids=lambda impl: impl.name)
def test_a_backend_passes_the_checks(impl, case):
    if why := impl.refusal(case):
        pytest.skip(why)
    gated(impl, case)


def test_backends_are_isolated_and_declare_their_packages():
    assert {impl.name for impl in BACKENDS} >= {"onnxruntime", "openvino", "jax", "numpy"}
    assert all(impl.limits.alone and impl.limits.package and not impl.common for impl in BACKENDS)
