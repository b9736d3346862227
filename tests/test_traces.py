"""`--save-traces`: every measured cell has a trace and an unchanged row; a cell that can't be traced keeps its row."""

import gzip
import json
from pathlib import Path
from unittest import mock

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.runs.measuring import Measuring, trace_path

from .conftest import only_run


def operators_in(path):
    """Return the names of the operators in a trace."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return {event["name"] for event in events if event.get("cat") == "cpu_op"}


def test_every_row_names_its_trace_and_is_otherwise_the_same(in_process, suite, tmp_path, monkeypatch):
    """Except calls with too many operators; also of a run that was interrupted behind its timing."""
    (tmp_path / "own.py").write_text("from torch.nn.functional import scaled_dot_product_attention as sdpa\n")
    cells = ("--impl", "loop,fused,ö+x=own:sdpa", "--T", "64", "--H", "1", "--dtype", "float32")
    here = tmp_path / "a folder"
    stored = (f"--benchmark-storage={here}/results",)
    with monkeypatch.context() as patch:
        patch.setattr(Measuring, "_finish", mock.Mock(side_effect=KeyboardInterrupt))
        suite("--save-traces", "--benchmark-save=x", *cells, *stored, fine=(2,))
    assert "traces: `tensorboard --logdir '" in suite("--resume", "x", *stored).stdout
    data = only_run(here)
    found = {row["extra_info"]["impl"]: row["extra_info"] for row in data["benchmarks"]}
    assert "trace" not in found.pop("loop")
    paths = {name: here / "results" / row["trace"] for name, row in found.items()}
    assert {*paths.values()} == {*(here / "results/traces").rglob("*.gz")}
    for name, operator in (("fused", "aten::bmm"), ("ö+x", "aten::scaled_dot_product_attention")):
        assert {"aten::mm", operator} <= operators_in(paths[name])


def test_paths_are_safe_and_stay_apart():
    names = ["fused+compile", "..", "a/b", "a_b", "力", "con\n"]
    case, run = Case.of(T=16, H=2, D_h=16), mock.Mock(**{"journal.path": Path("x.1-1.journal")})
    found = [Path(trace_path(run, Cell(impls.make(name, lambda q, k, v: q), case))) for name in names]
    assert len({*found}) == len(names) and {path.parent for path in found} == {Path("traces", "x.1-1", case.id)}
    assert found[0].name == "fused+compile.pt.trace.json.gz"
    assert all(path.name.isascii() and not {*path.name} & {*'/\\:*?"<>|\n '} for path in found)
