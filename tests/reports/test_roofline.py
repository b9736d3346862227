"""The roofline ceiling of a row."""

import re

import pytest
import synthetic_runs as synthetic

from reports.drawing import svg
from reports.drawing.palette import Palette
from reports.judging import roofline
from reports.judging.rows import rows_of
from reports.pages import more, tables
from reports.pages.report import report
from reports.reading import units

CEILINGS = [{"device": device, "dtype": dtype, "threads": 2, "flops_per_s": rate and scale * rate}
            for device, scale in (("cpu", 1), ("cuda", 1000))
            for dtype, rate in (("float32", 1e11), ("bfloat16", 4e11), ("float16", 5e10), ("tf32", 6e11),
                                ("tf32", None))]  # fmt: skip
COPIES = [{"device": device, "footprint": 2**n, "threads": 2, "bytes_per_s": rate}
          for device in ("cpu", "cuda") for n, rate in ((16, 9e10), (20, 3e10))]  # fmt: skip


def measured(as_run, at, roofs=CEILINGS):
    made = [synthetic.row("fused", synthetic.case(**at), [1e-3])]
    return as_run(synthetic.document(made, roofs=[*roofs, *COPIES]))


def corners(as_run, at, roofs=CEILINGS):
    run = measured(as_run, at, roofs)
    return roofline.ceilings(run.rooflines, rows_of(run))


@pytest.mark.parametrize(
    ("at", "product"),
    [
        ({"dtype": "float32"}, "product in fp32, 100 GFLOP/s"),
        ({"dtype": "bfloat16"}, "product in bf16, 400 GFLOP/s"),
        ({"dtype": "float16"}, "product in fp32, 100 GFLOP/s"),  # which is faster here
        ({"dtype": "float32", "autocast": "bfloat16"}, "product in bf16, 400 GFLOP/s"),
        ({"dtype": "float32", "tf32": True, "device": "cuda"}, "product in tf32, 600 TFLOP/s"),
        ({"dtype": "float32", "device": "cuda"}, "product in a third of tf32, 200 TFLOP/s"),
    ],
)
def test_a_row_has_the_ceiling_of_the_dtype_of_its_products(at, product, as_run):
    copies = ("large copy, 30 GB/s", "fastest copy, 90 GB/s")
    assert {*corners(as_run, at)} == {f"{copy}; {product}" for copy in copies}


def test_both_axes_of_the_chart_have_a_name_clear_of_the_ticks():
    drawn = svg.roofline([(2.0, 1e15, Palette()["fused"], "")], {"copy": [(1.0, 9e14), (4.0, 2e15)]})
    texts = {text: float(y) for y, text in re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>([^<]*)</text>', drawn)}
    assert {"FLOP per byte", "FLOP per second", "1000 T"} <= {*texts}
    assert min(y for text, y in texts.items() if text.endswith(" T")) - texts["FLOP per second"] >= svg.LINE


def test_without_a_measured_product_there_is_no_ceiling_and_no_chart(as_run):
    assert corners(as_run, {"dtype": "float64"}) == {} == corners(as_run, {"dtype": "float32"}, roofs=[])
    charts = [
        [it.title for it in more.tables_of(report(measured(as_run, {"dtype": of})))] for of in ("float64", "float32")
    ]
    assert charts == [[], ["Roofline"]]


@pytest.mark.parametrize(
    ("gpu", "at", "share"),
    [
        ("NVIDIA H200", {"dtype": "bfloat16"}, 0.5),
        ("NVIDIA H200", {"dtype": "float32", "autocast": "bfloat16"}, 0.5),
        ("NVIDIA H200", {"dtype": "float32"}, 989.4 / 66.9 / 2),
        ("NVIDIA H100 80GB HBM3", {"dtype": "float32", "tf32": True}, 1.0),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", {"dtype": "bfloat16"}, None),
        (None, {"dtype": "bfloat16"}, None),
    ],
)
def test_the_share_of_the_data_sheets_peak(gpu, at, share, as_run):
    (found,) = rows_of(on_gpu(as_run, gpu, at))
    assert found["of_peak"] == (pytest.approx(share) if share else pytest.approx(float("nan"), nan_ok=True))


def on_gpu(as_run, gpu, at):
    """A run of one call with 494.7 TFLOP/s."""
    row = synthetic.row("sdpa", synthetic.case(device="cuda", **at), [1.0], flops=494.7e12, device_s=0.75)
    return as_run(synthetic.document([row], machine_info=synthetic.MACHINE | {"gpu": gpu}))


def test_the_state_of_each_gpu_is_one_line_of_the_page():
    state = {"gpus": [{"sm_mhz": 1755, "mig": False}, {"sm_mhz": 1980, "reasons": ["idle", "power cap"]}]}
    assert [*tables.flat(state)] == [
        ("gpus 0", "sm_mhz 1755, mig False"),
        ("gpus 1", "sm_mhz 1980, reasons idle, power cap"),
    ]


def test_a_file_without_counts_of_operations_has_no_rate_of_a_gpu(as_run):
    row = synthetic.row("sdpa", synthetic.case(device="cuda"), [1.0])
    del row["extra_info"]["flops"]
    made = report(as_run(synthetic.document([row])))
    assert tables.columns(made.grid.cases[0].ranked[0])["TFLOP/s"] == units.MISSING


def test_a_gpu_has_columns_of_its_own_and_its_times_are_called_unverified(as_run, tiny):
    made = report(on_gpu(as_run, "NVIDIA H200", {"dtype": "bfloat16"}))
    said = tables.columns(made.grid.cases[0].ranked[0])
    columns = ("TFLOP/s", "device only", "launches", "of peak")
    assert [said[column] for column in columns] == ["495", "750 ms", "25.0 %", "50.0 %"]
    assert {*columns} <= {*tables.headings(made.grid)} and not {*columns} & {*tables.headings(report(tiny).grid)}
    assert "times on CUDA are unverified on a GPU" in made.trust
