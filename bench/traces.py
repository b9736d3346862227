"""`--save-traces`: a profiler trace of one call of every measured cell, where TensorBoard and Perfetto find it."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

import pytest
from torch.profiler import ProfilerActivity, profile, schedule

from .cell import Ready
from .cells import Cell
from .dispatch import trace_of
from .ledger import spending
from .modes import recording
from .run import Run

FOLDER = "traces"
"""Beside the machines' folders of run files."""

FILE = "call.pt.trace.json.gz"
"""TensorBoard's plugin knows a trace by this ending, and calls it by what stands before; its folder is the plugin's run."""

MOST_OPERATORS = 10_000
"""Operators of one call above which no trace is taken: it takes about a kilobyte for each to write, and to read again."""

LONGEST_NAME = 200


class Traces:
    """Takes the traces of a run, and says in the end which cells have none."""

    def __init__(self, run: Run):
        self.run = run
        self.saved = 0
        self.without: dict[str, list[Cell]] = {}
        """Cells by the reason why there is no trace of them."""

    def save(self, cell: Cell, proved: Ready, operators: int) -> dict[str, str]:
        """Trace one more call, of so many operators: the row's column that says where the trace lies; none without one.

        The row is measured by now, so whatever goes wrong here is told and costs no more than the trace.
        """
        if operators > MOST_OPERATORS:
            self._without(f"more than {MOST_OPERATORS:,} operators a call", cell)
            return {}
        path = self.folder / on_disk(cell.case.id) / on_disk(cell.impl.name) / FILE
        try:
            with spending("traces"):
                write(trace(cell, proved), path)
        except OSError as error:
            self._without(f"can't be written to {self.folder}: {error.strerror or error}", cell)
            return {}
        except Exception as error:
            self._without(f"the traced call failed, {type(error).__name__}: {error}", cell)
            return {}
        self.saved += 1
        return {"trace": path.relative_to(self.run.folder.parent).as_posix()}

    @property
    def folder(self) -> Path:
        """Called as the journal is: one for every run, also where two have one name, and a resumed run goes on in it."""
        assert self.run.journal, "only a run that is saved has traces"
        return self.run.folder.parent / FOLDER / on_disk(self.run.journal.path.stem)

    def _without(self, why: str, cell: Cell) -> None:
        self.without.setdefault(why, []).append(cell)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for why, cells in self.without.items():
            names = dict.fromkeys(cell.impl.name for cell in cells)
            terminalreporter.write_line(f"no trace of {len(cells)} cells ({', '.join(names)}): {why}")
        if self.saved:
            terminalreporter.write_line(f"traces: {self.saved}, for `tensorboard --logdir {self.folder}`")


def trace(cell: Cell, proved: Ready) -> bytes:
    """The profiler's Chrome trace of one call, with its shapes and allocations; the call before it makes ready."""
    found: list[bytes] = []
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (cell.case.device == "cuda")
    if cell.case.drops:
        proved.module.train()  # as it was timed
    with recording(cell.case), profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda profiler: found.append(trace_of(profiler)),
        record_shapes=True,
        profile_memory=True,
        acc_events=False,
    ) as profiler:  # fmt: skip
        proved.call.run()
        profiler.step()
        kept = proved.call.run()  # an answer is part of what a call needs: it is held until the trace ends
        profiler.step()
        del kept
    return found[0]


def write(trace: bytes, path: Path) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name("part")
    try:
        part.write_bytes(gzip.compress(trace))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def on_disk(name: str) -> str:
    """A name as a folder can be called; names that differ stay apart.

    >>> on_disk("fused+compile"), on_disk("a/b")
    ('fused+compile', 'a_b~07f4401c')
    """
    if re.fullmatch(r"\w[\w.+=-]*", name, re.ASCII) and len(name) <= LONGEST_NAME:
        return name
    plain = re.sub(r"[^\w+=-]", "_", name, flags=re.ASCII)[:LONGEST_NAME]
    return f"{plain}~{zlib.crc32(name.encode('utf-8', 'backslashreplace')):08x}"
