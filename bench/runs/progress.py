"""Prints progress lines with the elapsed time, and the summary at the end."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch

from stats import conditions
from stats.arguments import as_typed, wrapped
from stats.shares import varied, without_numbers

from ..cases.outcome import FAILURES, undeclared
from .run import Run
from .saving import results_root


class Progress:
    """Replaces pytest's dots by a line for every checked cell and for every visit, and tracebacks by a sentence."""

    def __init__(self, run: Run):
        self.run = run
        self.reporter: pytest.TerminalReporter | None = None
        self.began = monotonic()
        self.over = False

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if self.reporter:
            self.reporter.showfspath = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Suppress pytest's letters while tests run; its counts and the output of `-r` stay."""
        if self.over:
            return None
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            return report.outcome, "", ""
        return "", "", ""

    def tell(self, text: str) -> None:
        """Print a line with the elapsed time."""
        if self.reporter:
            self.reporter.write(f"[{monotonic() - self.began:4.0f} s] {text}\n", flush=True)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> Generator[None, None, None]:
        """Leave out pytest's summary of failed cells, which have one sentence."""
        self.over = True
        failed = terminalreporter.stats.pop("failed", None)
        yield
        if failed:
            terminalreporter.stats["failed"] = failed
        if not terminalreporter.no_summary:
            terminalreporter.ensure_newline()
            self._show(terminalreporter, exitstatus)

    def _show(self, out: pytest.TerminalReporter, exitstatus: int) -> None:
        run, headline = self.run, ""
        parts = Counter(run.spent).most_common()
        spent = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in parts if seconds >= 0.05)
        lines = [
            *skips(run.skips),
            *undeclared(it["detail"] for it in run.skips),
            spent and f"time spent: {spent}",
            unverified(run.selection.device),
        ]
        if rows := [*run.finished.values()]:
            of_run, every = import_module("commands.summary").of_run, out.config.getoption("verbose") > 0
            table, headline = of_run(run.top_level(), every)
            out.write(f"{table}\n\n")
            workload = run.workload.table()
            lines += [drifting(workload["drift"]), conditions.disturbed(rows, workload), *weights_left_out(rows)]
        for line in filter(None, lines):
            out.write_line(wrapped(line))
        results = run.folder.parent
        if traces := [path for row in rows if (path := row["extra_info"].get("trace"))]:
            folder = results / Path(traces[0]).parents[1]
            out.write_line(f"traces: `tensorboard --logdir {shlex.quote(str(folder))}`")
        if run.name and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            out.write_line("nothing was saved: no cell is selected")
        usual = results == results_root(out.config.invocation_params.dir, None)
        words = ["--resume", str(run.name), *[f"--benchmark-storage={results}"] * (not usual)]
        resume = as_typed(f"`pytest bench/ {shlex.join(words)}`")
        if run.unsaved:
            why = f"{run.unsaved.filename or run.folder}: {run.unsaved.strerror}"
            out.write_line(f"not saved: {why}; {resume} continues once that is fixed", red=True)
        elif run.name and run.complete:
            out.write_line(f"saved: {run.saved}")
        elif run.journal:
            kept = f"{len(run.settled)} of {len(run.planned)} cells checked"
            out.write_line(f"unfinished, and kept: {kept}; {resume} continues")
        elif rows:
            out.write_line("not saved: --benchmark-save=NAME saves a run")
        if headline:
            out.write_line(wrapped(headline), bold=True)


def unverified(device: str) -> str | None:
    """Return what is unverified of a run on a device, and what ROCm lacks; None on a CPU."""
    if device == "cpu":
        return None
    lacks = "; ROCm: no clocks, power, temperature or throttling" if torch.version.hip else ""
    return f"CUDA: times and memory are unverified on a GPU{lacks}"


def skips(skipped: Sequence[Mapping[str, str]]) -> list[str]:
    """Return one line per reason for missing rows, up to numbers in it; declared limits are counted together."""
    found: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
    for entry in skipped:
        reason, impl, detail = entry["reason"], entry["impl"], entry["detail"]
        what = "" if reason == "unsupported" and detail.startswith(impl) else without_numbers(detail)
        found.setdefault((reason, what, impl * (reason in FAILURES)), []).append(entry)
    return [_skip(*key[:2], found[key]) for key in sorted(found, key=lambda key: key[0] in FAILURES)]


def _skip(reason: str, what: str, entries: Sequence[Mapping[str, str]]) -> str:
    """Format a reason: `error: mine: ValueError: no 32 (2 cells; the first: B1-T32-H2)`."""
    impls = ", ".join(dict.fromkeys(entry["impl"] for entry in entries))
    named = reason == "unsupported"  # a sentence on an implementation begins with its name
    detail, *others = dict.fromkeys(
        entry["detail"].removeprefix(f"{entry['impl']} " if named else "") for entry in entries
    )
    if others and not what:
        detail = "can't do these cases (--dry-run says why)"
    first, count = entries[0]["id"], len(entries)
    is_there = reason in FAILURES and first in detail
    cells = [f"{count} cells"] * (count > 1) + [first if count == 1 else f"the first: {first}"] * (not is_there)
    return f"{reason}: {impls}: {detail}" + (f" ({'; '.join(cells)})" if cells else "")


def weights_left_out(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line for every layer with weights that attention doesn't have, and that leave its output right."""
    names = {it["extra_info"]["impl"]: it["extra_info"].get("left_out") for it in rows}
    return [
        f"{impl}: attention has no {weights}, which time and memory may include"
        for impl, weights in names.items()
        if weights
    ]


def drifting(drift: float) -> str | None:
    """Return one sentence if the machine drifted; None if it did not."""
    if drift <= conditions.DRIFT:
        return None
    return (
        f"machine drift: the reference workload's time changed by {varied(drift)} between the halves of this run; "
        "medians in seconds may be off by as much; judge by ratios and their intervals"
    )
