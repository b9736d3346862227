"""pytest plugin of a run: parses options, creates one test per cell, writes outcomes to the run file."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stats.arguments import as_typed

from . import CHECKOUT, interrupts, terminal
from .cases.cells import Cell, Key
from .cases.modes import MODES
from .cases.outcome import FAILURES
from .runs.begin import begin
from .runs.listing import show_plan, show_registry
from .runs.measuring import Measuring
from .runs.progress import Progress
from .runs.replay import replay
from .runs.run import Run
from .runs.saving import run_reports, save, writable
from .runs.skips import skip_of
from .selection.errors import UsageError
from .selection.options import pytest_addoption, refuse_unused
from .timing.machine import fingerprint
from .workers.client import Setting, Variant, WorkerClient

__all__ = ["pytest_addoption"]

RUN = pytest.StashKey[Run]()
PROGRESS = pytest.StashKey[Progress]()

OF_TABLE = tuple(f"--benchmark-{name}" for name in ("compare", "columns", "sort", "group-by", "name"))
"""Prefixes of options that request pytest-benchmark's own table."""

UNSAVED = ("help", "collectonly", "attention_list", "attention_dry_run")
"""Options with which nothing is measured, and so nothing saved."""


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn usage errors into pytest's, which are one line."""
    try:
        yield
    except UsageError as error:
        raise pytest.UsageError(as_typed(str(error))) from None


@_usage_errors()
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Handle `--list` and `--dry-run`, which end the session."""
    terminal.prepare()
    refuse_unused(config)
    try:
        if config.getoption("attention_list"):
            show_registry()
            return 0
        if config.getoption("attention_dry_run"):
            show_plan(begin(config))
            return 0
    except OSError as error:
        terminal.close()
        raise UsageError(f"standard output: {error.strerror}") from None
    interrupts.raise_from_now_on()
    return None


@pytest.hookimpl(tryfirst=True)
@_usage_errors()
def pytest_configure(config: pytest.Config) -> None:
    run = config.stash[RUN] = begin(config)
    if run.name and not any(map(config.getoption, UNSAVED)):
        writable(run.folder)  # one line, before pytest's first
    for option, what in (("save_traces", "--save-traces saves traces with"), ("report", "--report makes the page of")):
        if config.getoption(option) and not (run.name or config.getoption("resume")):
            raise UsageError(f"{what} a run: name it, with --benchmark-save=NAME")
    there = run.folder.parent.is_dir()  # otherwise pytest-benchmark creates an empty folder, even for --help
    config.option.benchmark_storage = f"file://{run.folder.parent if there else CHECKOUT / 'bench'}"
    if not any(str(it).startswith(OF_TABLE) for it in config.invocation_params.args):
        config.option.benchmark_quiet = True  # the suite prints its own table at the end
    config.option.no_header |= not run.ended  # pytest-benchmark's would show its timer, rounds and warm-up, unused here
    progress = config.stash[PROGRESS] = Progress(config, run)
    config.pluginmanager.register(progress, "attention-progress")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the header line of a resumed run."""
    run, name = config.stash[RUN], config.getoption("resume")
    finished = f"run {name} is finished: nothing is left to measure (--benchmark-save={name}: once more)"
    return [finished] if run.ended else []


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str) -> list[pytest.Item] | None:
    """Collect no tests for modes without cells."""
    selected = {_test(cell) for cell in collector.config.stash[RUN].selection.cells}
    return [] if name in {f"test_{mode}" for mode in MODES} - selected else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "impl" in metafunc.fixturenames:
        keys = [
            cell.key for cell in metafunc.config.stash[RUN].selection.cells if _test(cell) == metafunc.function.__name__
        ]
        metafunc.parametrize(("impl", "case"), keys, ids=["-".join(key) for key in keys])


def _test(cell: Cell) -> str:
    """Return the name of the test function that reports a cell."""
    return f"test_{cell.case.mode}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Restrict a resumed run to its original cells; shuffle the tests with `--shuffle`."""
    run = config.stash[RUN]
    left = [item for item in items if run.planned is None or _key(item) in run.planned]
    if len(left) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
        items[:] = left
    if (seed := config.getoption("shuffle")) is not None:
        random.Random(seed).shuffle(items)


@_usage_errors()
def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.getoption("collectonly"):
        session.config.stash[RUN].plan(key for item in session.items if (key := _key(item)))


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    """Measure all cells before the first test, since the cells of a case are interleaved."""
    config, run = session.config, session.config.stash[RUN]
    wanted = (item for item in session.items if not item.get_closest_marker("skip"))
    cells = [run.cell(key) for item in wanted if (key := _key(item))]
    with _interruptible():
        if not config.getoption("collectonly") and cells and not session.testsfailed:
            _measure(config, run, cells)
        return (yield)


@contextmanager
def _interruptible() -> Iterator[None]:
    """End the session by name on Ctrl-C, without the interrupted line of code."""
    try:
        yield
    except KeyboardInterrupt:
        pytest.exit("interrupted", pytest.ExitCode.INTERRUPTED)


@_usage_errors()
def _measure(config: pytest.Config, run: Run, cells: list[Cell]) -> None:
    """Measure all cells without results; after an interruption, rows are built from the samples taken so far."""
    tell = config.stash[PROGRESS].tell
    for cell in cells:
        if cell.key not in run.known and (why := skip_of(cell)):
            run.add_skipped(cell, why)
            if why.reason in FAILURES:
                tell(run.skip_line(cell, why))
    left = [cell for cell in cells if cell.key not in run.known]
    if not left:
        run.ended = True
        return
    deterministic = any(cell.case.deterministic for cell in run.selection.cells)
    folder, timeout = str(config.invocation_params.dir), run.timing["cell_timeout"]
    setting = Setting(folder, None, timeout, quiet=False, deterministic=deterministic)
    seed, fail_fast = config.getoption("shuffle"), bool(config.getoption("maxfail"))
    try:
        measuring = Measuring(run, left, lambda: WorkerClient(Variant("run"), setting), seed, fail_fast, tell)
        if config.getoption("benchmark_disable"):
            return measuring.check()
        measuring.measure()
        run.ended = True
    finally:
        run.finish()


def _key(item: pytest.Item) -> Key | None:
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    impl, case = params.get("impl"), params.get("case")
    return (impl, case) if isinstance(impl, str) and isinstance(case, str) else None


@pytest.fixture
def report(request: pytest.FixtureRequest, impl: str, case: str) -> Callable[[], None]:
    """Report the outcome of this test's cell to pytest and pytest-benchmark."""
    run, key = request.config.stash[RUN], (impl, case)

    def report() -> None:
        if key in run.skipped:
            entry = run.skipped[key]
            sentence = f"{entry['reason']}: {entry['detail']}"
            if entry["reason"] in FAILURES:
                pytest.fail(sentence, pytrace=False)
            pytest.skip(sentence)
        if key in run.finished and not request.config.getoption("benchmark_disable"):
            benchmark, row = request.getfixturevalue("benchmark"), run.finished[key]
            benchmark.group = row["group"]
            benchmark.extra_info.update(row["extra_info"])
            replay(benchmark, row["stats"]["data"])
        elif key not in run.found:
            pytest.skip("not measured: the run ended before")

    return report


def pytest_benchmark_generate_machine_info(config: pytest.Config) -> dict[str, Any]:
    """Return constant facts only: those of pytest-benchmark include the clock rate, and it warns when that changes."""
    return fingerprint()


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Write the whole run, including results of earlier processes."""
    run = config.stash[RUN]
    output_json["benchmarks"] = run.rows
    output_json.update(run.top_level())


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Save the run; keep or delete the journal."""
    run = session.config.stash[RUN]
    if run.planned is None or session.config.getoption("collectonly"):
        return
    if run.name and run.known:
        try:
            run.saved = save(run.folder, run.name, _contents(session.config))
        except OSError as error:
            run.unsaved = f"{error.filename or run.folder}: {error.strerror}"
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    run.close()


def _contents(config: pytest.Config) -> dict[str, Any]:
    """Return the contents of a run file, built by pytest-benchmark's own hooks."""
    hook = config.hook
    machine, commit = (
        hook.pytest_benchmark_generate_machine_info(config=config),
        hook.pytest_benchmark_generate_commit_info(config=config),
    )
    data: dict[str, Any] = hook.pytest_benchmark_generate_json(
        config=config, benchmarks=[], include_data=True, machine_info=machine, commit_info=commit
    )
    hook.pytest_benchmark_update_json(config=config, benchmarks=[], output_json=data)
    return data


def pytest_unconfigure(config: pytest.Config) -> None:
    """Drop buffered output if its reader has gone; then, with `--report`, build the page of this run, if any."""
    sys.stdout.flush()
    run = config.stash.get(RUN, None)
    if run and run.saved and run.complete and config.getoption("report"):
        run_reports(str(run.saved), "--quiet")  # the run has printed its table
