"""What a person sees: the cell being measured, how many are left and about how long, and the table at the end."""

from __future__ import annotations

from time import perf_counter

import pytest
from rich.console import Console

from .cells import Cell
from .controls import warning
from .ledger import spent
from .options import clock_text, seconds_of
from .run import Run
from .table import rankings
from .units import time_text


class Progress:
    """Replaces pytest's dots by one line a cell."""

    def __init__(self, config: pytest.Config, run: Run):
        self.run = run
        self.cell_time: float = config.getoption("cell_time")
        self.reporter: pytest.TerminalReporter | None = None
        self.cells: list[Cell] = []
        self.done = 0
        self.spent = self.expected = 0.0
        self.started = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if self.reporter:
            self.reporter.showfspath = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        params = (item.callspec.params for item in session.items if hasattr(item, "callspec"))
        self.cells = [self.run.cell((it["impl"], it["case"])) for it in params]

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """The counts at the end stay pytest's; the letters go."""
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            return report.outcome, "", ""
        return "", "", ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.started = perf_counter()
        if cell := self._current():
            place = f"[{self.done + 1:>3}/{len(self.cells)}, {self._left()} left]"
            self._write(f"{place:<28} {cell.case.id}  {cell.impl.name:<20} ")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if cell := self._current():
            self._write(f"{self._result(cell)}\n")
        self.spent += perf_counter() - self.started
        self.expected += seconds_of(self.cells[self.done], self.cell_time)
        self.done += 1

    def _current(self) -> Cell | None:
        """The cell that is being measured; None for one that can't be, which gets no line."""
        cell = self.cells[self.done]
        return cell if cell.impl.refusal(cell.case) is None else None

    def _result(self, cell: Cell) -> str:
        entry = self.run.entry(cell.key)
        if entry is None:
            return "not saved"
        if "row" in entry:
            return time_text(entry["row"]["stats"]["median"])
        return f"{entry['skipped']['reason']}: {entry['skipped']['detail']}"

    def _left(self) -> str:
        """The guess for the cells that are left, corrected by how the guesses went so far."""
        pace = self.spent / self.expected if self.expected > 5 else 1.0
        return clock_text(pace * sum(seconds_of(cell, self.cell_time) for cell in self.cells[self.done :]))

    def _write(self, text: str) -> None:
        if self.reporter:
            self.reporter.write(text, flush=True)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        run = self.run
        if terminalreporter.no_summary:
            return
        terminalreporter.ensure_newline()
        console = Console(width=max(Console().width, 88))
        with console.capture() as text:
            for table in rankings(run.rows, run.skipped, run.yardstick):
                console.print(table)
        terminalreporter.write(text.get())
        terminalreporter.write_line(_shares())
        if moved := warning(run.controls.drift()):
            terminalreporter.write_line(moved)
        if not run.name:
            return
        if run.complete:
            terminalreporter.write_line(f"saved: {run.saved}")
        elif run.journal:
            terminalreporter.write_line(
                f"unfinished; `pytest bench/ --resume {run.name}` goes on behind the {len(run.known)} cells that are saved"
            )


def _shares() -> str:
    """`timed 61 %, gate 12 %, ...`: what the seconds went to, most first."""
    seconds = sorted(spent().items(), key=lambda item: -item[1])
    whole = sum(spent().values())
    return "time spent: " + ", ".join(f"{purpose} {s / whole:.0%}" for purpose, s in seconds) if whole else ""
