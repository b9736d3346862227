"""What a person sees: what is being measured, how far it is and about how long it takes, and the table at the end."""

from __future__ import annotations

from time import monotonic

import pytest
from rich.console import Console

from ..cases.ledger import spent
from ..timing.controls import warning
from .run import Run
from .table import WIDE, rankings


class Progress:
    """Replaces pytest's dots by a line for every cell that is proved, and for every visit."""

    def __init__(self, config: pytest.Config, run: Run):
        self.run = run
        self.reporter: pytest.TerminalReporter | None = None
        self.began = monotonic()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if self.reporter:
            self.reporter.showfspath = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """The counts at the end stay pytest's; the letters go."""
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            return report.outcome, "", ""
        return "", "", ""

    def tell(self, text: str) -> None:
        """A line, with the time that has passed."""
        if self.reporter:
            self.reporter.write(f"[{monotonic() - self.began:4.0f} s] {text}\n", flush=True)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        run = self.run
        if terminalreporter.no_summary:
            return
        terminalreporter.ensure_newline()
        console = Console(width=max(Console().width, 80))
        with console.capture() as text:
            for table in rankings(run.rows, run.skips, run.baseline_impl, console.width):
                console.print(table)
            if console.width < WIDE and run.rows:
                console.print(f"errors are left out: the terminal has fewer than {WIDE} columns", highlight=False)
        terminalreporter.write(text.get())
        terminalreporter.write_line(_shares())
        if drift := warning(run.controls.drift()):
            terminalreporter.write_line(drift)
        if not run.name:
            return
        if run.complete:
            terminalreporter.write_line(f"saved: {run.saved}")
        elif run.journal:
            terminalreporter.write_line(f"unfinished; `pytest bench/ --resume {run.name}` goes on")


IN_WORKERS = ("gate", "reference", "compiling", "memory")
"""What workers spend during the proof, two at a time: it is told beside the rest, not in it."""


def _shares() -> str:
    """`time spent: timed calls 52%, proof 25%, ...`: what the seconds went to, most first."""
    seconds = spent()
    timed = seconds.get("timed calls", 0.0)
    here = {purpose: s for purpose, s in seconds.items() if purpose not in IN_WORKERS}
    if "timing" in here:
        here["timing"] = max(0.0, here["timing"] - timed)
        here["between timed calls"] = here.pop("timing")
    whole = sum(here.values())
    if not whole:
        return ""
    shares = ", ".join(f"{purpose} {s / whole:.0%}" for purpose, s in sorted(here.items(), key=lambda it: -it[1]))
    proof = ", ".join(f"{purpose} {seconds[purpose]:.1f} s" for purpose in IN_WORKERS if purpose in seconds)
    return f"time spent: {shares}" + (f"; workers' proof: {proof}" if proof else "")
