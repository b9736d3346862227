"""pytest plugin of a run: parses options, creates one test per cell, writes outcomes to the run file."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.utils import get_commit_info

from stats import interrupts
from stats.arguments import as_typed

from . import CHECKOUT
from .cases.cells import Cell
from .cases.outcome import FAILURES, Unsupported
from .runs.begin import Finished, begin
from .runs.listing import show_plan, show_registry
from .runs.measuring import Measuring
from .runs.progress import Progress
from .runs.run import FirstFailure, Run
from .runs.saving import save, writable
from .selection.choice import unsupported
from .selection.errors import UsageError
from .selection.options import pytest_addoption, refuse_unused
from .workers.client import Variant, WorkerClient, WorkerSettings

__all__ = ["pytest_addoption"]

RUN = pytest.StashKey[Run]()


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn usage errors into pytest's, which are one line."""
    try:
        yield
    except UsageError as error:
        raise pytest.UsageError(as_typed(str(error))) from None


@pytest.hookimpl(tryfirst=True)  # before pytest's `--markers`, which configures
@_usage_errors()
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Build the run. `--list`, `--dry-run`, and a run to resume that is finished, end the session."""
    refuse_unused(config)
    try:
        if config.getoption("attention_list"):
            show_registry()
            return 0
        run = config.stash[RUN] = begin(config)
        if config.getoption("attention_dry_run"):
            show_plan(run)
            return 0
    except Finished as finished:
        print(finished)
        return int(any(it["reason"] in FAILURES for it in finished.skipped))
    except OSError as error:
        raise UsageError(": ".join(filter(None, (error.filename, error.strerror)))) from None
    if run.name and not (config.getoption("help") or config.getoption("collectonly")):
        writable(run.folder)  # one line, before pytest's first
    for option, what in (("save_traces", "--save-traces saves traces with"), ("report", "--report makes the page of")):
        if config.getoption(option) and not run.name:
            raise UsageError(f"{what} a run: name it, with --benchmark-save=NAME")
    interrupts.raise_from_now_on()
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.option.benchmark_storage = f"file://{CHECKOUT / 'bench'}"  # pytest-benchmark creates it, even for --help
    config.option.no_header = True  # pytest-benchmark's would show its timer, rounds and warm-up, unused here
    config.option.tbstyle = "no"  # failed cells have one sentence
    run = config.stash[RUN]
    progress = Progress(run)
    run.tell = progress.tell
    config.pluginmanager.register(progress, "attention-progress")


class CellTest(pytest.Item):
    """Reports the outcome of a cell, which was measured before."""

    cell: Cell

    def runtest(self) -> None:
        run, key = self.config.stash[RUN], self.cell.key
        if entry := run.skipped.get(key):
            sentence = f"{entry['reason']}: {entry['detail']}"
            if entry["reason"] in FAILURES:
                pytest.fail(sentence, pytrace=False)
            pytest.skip(sentence)
        if key not in run.finished:
            pytest.skip("not measured: the run ended before")


class Cells(pytest.File):
    """The file of all tests, one for each cell; in a resumed run for those of its plan."""

    def collect(self) -> Iterator[CellTest]:
        run = self.config.stash[RUN]
        for cell in run.selection.cells:
            if not run.planned or cell.key in run.planned:
                test = CellTest.from_parent(self, name=f"test_{cell.case.mode}[{'-'.join(cell.key)}]")
                test.cell = cell
                yield test


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Cells:
    return Cells.from_parent(parent, path=module_path)


def _cells(session: pytest.Session) -> list[Cell]:
    return [test.cell for test in session.items if isinstance(test, CellTest)]


@_usage_errors()
def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.getoption("collectonly"):
        session.config.stash[RUN].plan(cell.key for cell in _cells(session))


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    """Measure all cells before the first test, since the cells of a case are interleaved."""
    config, run, cells = session.config, session.config.stash[RUN], _cells(session)
    try:
        if not config.getoption("collectonly") and cells and not session.testsfailed:
            _measure(config, run, cells)
        return (yield)
    except KeyboardInterrupt:  # without the interrupted line of code
        pytest.exit("interrupted", pytest.ExitCode.INTERRUPTED)


@_usage_errors()
def _measure(config: pytest.Config, run: Run, cells: list[Cell]) -> None:
    """Measure all cells without results; after an interruption, rows are built from the samples taken so far."""
    for cell in cells:
        if cell.key not in run.skipped and (why := unsupported(cell)):
            run.add_skipped(cell, Unsupported(why))
    left = [cell for cell in cells if cell.key not in run.skipped]
    if not left:
        run.ended = True
        return
    deterministic = any(cell.case.deterministic for cell in run.selection.cells)
    folder, timeout = str(config.invocation_params.dir), run.timing["cell_timeout"]
    setting = WorkerSettings(folder, None, timeout, deterministic=deterministic)
    run.fail_fast = bool(config.getoption("maxfail"))
    try:
        with suppress(FirstFailure):
            Measuring(run, left, lambda: WorkerClient(Variant(), setting)).measure()
    except KeyboardInterrupt:
        run.add({"interrupted": True})  # no cell has ended the run
        raise
    finally:
        run.finish()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Save the run; keep or delete the journal."""
    run = session.config.stash[RUN]
    if session.config.getoption("collectonly"):
        return
    if run.name and (run.finished or run.skipped) and not run.unsaved:
        of_file = {
            "commit_info": get_commit_info(),
            "datetime": datetime.now(UTC).isoformat(),
            "version": version("pytest-benchmark"),
        }
        try:
            run.saved = save(run.folder, run.name, of_file | run.top_level())
        except OSError as error:
            run.unsaved = error
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    run.close()


def pytest_unconfigure(config: pytest.Config) -> None:
    """With `--report`, build the page of this run, if any."""
    run = config.stash.get(RUN, None)
    if run and run.saved and run.complete and config.getoption("report"):
        import_module("reports.__main__").main([str(run.saved), "--quiet"])  # the run has printed its table
