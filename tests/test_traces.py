"""`--save-traces`: every measured cell has a trace and an unchanged row; a cell that can't be traced keeps its row."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.outcome import Skip
from bench.runs import measuring
from bench.runs.journal import Journal
from bench.runs.rows import Found
from bench.runs.traces import on_disk, save_trace
from bench.workers.tasks import Tasks

from .conftest import Suite, run_files, run_of

CELL = Cell(impls.get("fused"), Case.of(T=16, H=2, D_h=16))


def traced(folder: Path, cell: Cell, write: Callable[..., object]) -> Any:
    """Save the trace of a cell of a run with results in that folder; returns its path in the row."""
    run = run_of(cell, folder=folder / "machine", name="x")
    run.journal, run.found = Journal(folder / "x.1-1.journal"), {cell.key: Found(columns={"operators": 10})}
    return save_trace(run, cell, write)["trace"]


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def operators_in(path: Path) -> set[str]:
    """Return the names of the operators in a trace."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return {event["name"] for event in events if event.get("cat") == "cpu_op"}


def test_every_row_names_its_trace_and_is_otherwise_the_same(
    in_process: None, suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except calls with too many operators; also of a run that was interrupted behind its timing."""
    (tmp_path / "own.py").write_text("from torch.nn.functional import scaled_dot_product_attention as sdpa\n")
    cells = ("--impl", "loop,fused,ö+x=own:sdpa", "--T", "64", "--H", "1", "--dtype", "float32")
    with monkeypatch.context() as patch:
        patch.setattr(measuring, "save_trace", interrupted)
        assert suite("--save-traces", "--benchmark-save=x", *cells).returncode == 2
    traced = suite("--resume", "x")
    assert traced.returncode == 0, traced.stdout
    assert traced.stdout.count("no trace of 1 cells (loop): more than 10,000 operators a call") == 1
    assert "traces: 2, for `tensorboard --logdir " in traced.stdout
    data = json.loads(run_files(tmp_path)[-1].read_text())
    found = {row["extra_info"]["impl"]: row["extra_info"] for row in data["benchmarks"]}
    assert "trace" not in found.pop("loop")
    assert all(row["trace"].isascii() for row in found.values())
    assert len({Path(row["trace"]).parts[1] for row in found.values()}) == 1  # one folder a run
    paths = {name: tmp_path / "results" / row["trace"] for name, row in found.items()}
    assert {*paths.values()} == {*(tmp_path / "results/traces").rglob("*.gz")}
    for name, operator in (("fused", "aten::bmm"), ("ö+x", "aten::scaled_dot_product_attention")):
        assert {"aten::mm", operator} <= operators_in(paths[name])


def test_the_traced_call_is_the_timed_call(tasks: Tasks, tmp_path: Path) -> None:
    case = Case.of(T=16, H=2, D_h=16, mode="backward", dropout=0.1)
    tasks.prepare("x", "fused", case.columns())
    names = operators_in(tmp_path / traced(tmp_path, Cell(impls.get("fused"), case), partial(tasks.trace, "x")))
    assert any("MmBackward0" in name for name in names)
    assert any("dropout" in name for name in names)


def test_a_trace_that_cannot_be_written_says_why(tasks: Tasks, tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("a file")
    tasks.prepare("x", "fused", CELL.case.columns())
    with pytest.raises(Skip, match=f"^{tmp_path / 'traces'}.*: Not a directory$"):
        traced(tmp_path, CELL, partial(tasks.trace, "x"))


def test_names_on_disk_are_safe_and_stay_apart() -> None:
    names = [
        "fused+compile",
        "B1-T16-mask=causal+padding",
        "..",
        "a/b",
        "a_b",
        "力",
        "x" * 300,
        "x" * 301,
        "con\n",
    ]
    found = [on_disk(name) for name in names]
    assert len(set(found)) == len(names)
    assert found[:2] == names[:2]
    assert all(name.isascii() and name[0] != "." and not set(name) & set('/\\:*?"<>|\n ') for name in found)
    assert max(map(len, found)) < 250
