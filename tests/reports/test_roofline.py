"""Which roof a row is drawn under."""

from __future__ import annotations

from typing import Any

import pytest
import synthetic_runs as synthetic

from reports.judging import frame, roofline

ROOFS = [{"device": "cpu", "dtype": dtype, "threads": 2, "flops_per_s": rate}
         for dtype, rate in (("float32", 1e11), ("bfloat16", 4e11), ("float16", 5e10))]  # fmt: skip
COPIES = [
    {"device": "cpu", "footprint": 2**n, "threads": 2, "bytes_per_s": rate} for n, rate in ((16, 9e10), (20, 3e10))
]


def corners(as_run: Any, *rows: dict[str, Any], roofs: Any = ROOFS) -> dict[str, roofline.Corners]:
    axes = [{"name": "autocast", "kind": "choice", "unsaid": None}]
    made = [
        synthetic.row("fused", synthetic.case(**at), [1e-3], id=str(at), autocast=at.get("autocast")) for at in rows
    ]
    run = as_run(synthetic.document(made, schema=2, axes=axes, roofs=[*roofs, *COPIES]))
    return roofline.ceilings(run.roofs, roofline.points(frame.tidy(run)))


@pytest.mark.parametrize(
    ("at", "product"),
    [
        ({"dtype": "float32"}, "product in fp32, 100 GFLOP/s"),
        ({"dtype": "bfloat16"}, "product in bf16, 400 GFLOP/s"),
        ({"dtype": "float16"}, "product in fp32, 100 GFLOP/s"),  # which is faster here
        ({"dtype": "float32", "autocast": "bfloat16"}, "product in bf16, 400 GFLOP/s"),
    ],
)
def test_a_row_lies_under_the_roof_of_the_dtype_of_its_products(at: dict[str, Any], product: str, as_run: Any) -> None:
    copies = ("large copy, 30 GB/s", "fastest copy, 90 GB/s")
    assert {*corners(as_run, at)} == {f"{copy}; {product}" for copy in copies}


def test_a_ceiling_bends_where_the_product_is_as_fast_as_the_copy(as_run: Any) -> None:
    found = corners(as_run, {"dtype": "float32"}, {"dtype": "float32", "autocast": "bfloat16"}, {"dtype": "bfloat16"})
    assert len(found) == 4
    for name, (low, ridge, high) in found.items():
        bandwidth, peak = (9e10 if "fastest" in name else 3e10), (4e11 if "bf16" in name else 1e11)
        assert ridge == (pytest.approx(peak / bandwidth), peak) and high[1] == peak
        assert low[1] == pytest.approx(low[0] * bandwidth)


def test_without_a_measured_product_there_is_no_roof(as_run: Any) -> None:
    assert corners(as_run, {"dtype": "float64"}) == {} == corners(as_run, {"dtype": "float32"}, roofs=[])
