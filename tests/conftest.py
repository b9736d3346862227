"""Fixtures of the tests that need torch: starting the suite as a user does."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

import pytest

from reports.reading.axes import KNOWN_AXES

if TYPE_CHECKING:
    from bench.cases.case import Case
    from bench.cases.cells import Cell
    from bench.runs.run import Run
    from bench.timing.cell import Built, MeasuredCalls
    from bench.workers.client import Reply, Variant, WorkerSettings
    from bench.workers.tasks import Tasks
    from impls import Impl

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers that share the cores wait for each other otherwise

pytest_plugins = ["pytester"]

CHECKOUT = Path(__file__).resolve().parent.parent
Suite = Callable[..., "subprocess.CompletedProcess[str]"]


@contextmanager
def registry_kept() -> Iterator[pytest.MonkeyPatch]:
    """Context that removes later registrations from the registry; yields its MonkeyPatch."""
    from impls import registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registry", dict(registry._registry))
        yield patch


@pytest.fixture(autouse=True)
def own_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Implementations that a test registers, modules that it wrote and their folders are known in that test alone; tests of
    reports need no torch.
    """
    before, path = {*sys.modules}, [*sys.path]
    with registry_kept() if "impls" in sys.modules else nullcontext():
        yield
    sys.path[:] = path
    written = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(written):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def known_axes() -> Iterator[None]:
    """Forget after each test the axes that its run describes."""
    before = dict(KNOWN_AXES)
    yield
    KNOWN_AXES.clear()
    KNOWN_AXES.update(before)


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Freeze imported objects, so that garbage collections, as before memory is measured, don't scan them again."""
    gc.collect()
    gc.freeze()


def suite_arguments(*options: str) -> list[str]:
    """Return the arguments of pytest for `pytest bench/ ...` with one process and short timing, unless chosen otherwise."""
    given = [option.partition("=")[0] for option in options]
    usual = ("--cell-time=0.01", "--processes=1") if "--list" not in given else ()
    return [str(CHECKOUT / "bench"), *(it for it in usual if it.partition("=")[0] not in given), *options]


def environment() -> dict[str, str]:
    """Return the environment without the variables of pytest-xdist, under which nothing can be timed."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # hypothesis' plugin imports all of hypothesis at the end of every session: a second of nothing
    return plain | {"COLUMNS": "160", "PYTEST_ADDOPTS": "-p no:hypothesispytest"}


def python(*arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run this interpreter, in the checkout by default."""
    usual = {
        "cwd": CHECKOUT,
        "env": environment(),
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "timeout": 300,
    }
    return subprocess.run([sys.executable, *map(str, arguments)], text=True, **usual | how)


def started(folder: Path, *arguments: object) -> str:
    """Run `python ...` in a folder; returns what it prints."""
    done = python(*arguments, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def loaded() -> None:
    """Import these before pytester, which removes what its runs import: NumPy can't be imported twice, pandas is slow."""
    import pandas  # noqa: F401
    import rich.progress  # noqa: F401
    import scipy.special  # noqa: F401


@pytest.fixture
def suite(loaded: None, pytester: pytest.Pytester, tmp_path: Path) -> Suite:
    """The same in this process, which has imported torch, with one of the exit codes `fine`: implementations run in workers
    of their own either way.

    What may end the process, or depends on how it was started, needs `started`.
    """

    def run(*options: str, fine: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
        with registry_kept() as patch, mock.patch.dict(os.environ, environment(), clear=True):
            patch.chdir(tmp_path)
            done = pytester.runpytest_inprocess(*suite_arguments(*options))
        assert done.ret in fine, done.stdout.str() + done.stderr.str()
        return subprocess.CompletedProcess(options, int(done.ret), done.stdout.str(), done.stderr.str())

    return run


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Restore what SIGTERM does, which commands change."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check with the probe of 37 tokens only, and shorter probes of dropout, which suffices for right implementations."""
    monkeypatch.setattr("bench.checks.probes.PROBES", (37,))
    monkeypatch.setattr("bench.checks.probes.LENGTH_WITH_DROPOUT", {"core": 80, "layer": 80})


def gated(impl: Impl, case: Case) -> None:
    """Run all checks of an implementation before a case is timed; raises what they find."""
    from bench.checks.gate import Gate
    from bench.checks.module_checks import check_case

    Gate().check(impl, case)
    check_case(impl, case)


def checked(cell: Cell) -> tuple[Built, MeasuredCalls]:
    """Run all checks of a cell; returns it built, with what was measured."""
    from bench.checks.gate import Gate
    from bench.timing.cell import check_built, probe

    built = probe(cell, Gate())
    return built, check_built(built)


def run_of(*cells: Cell, folder: Path = Path(), name: str | None = None) -> Run:
    """Return a run of these cells that begins."""
    from bench.cases.sweep import SWEEPS
    from bench.runs.run import Run
    from bench.selection.options import Selection

    impls = tuple(dict.fromkeys(cell.impl for cell in cells))
    run = Run({}, Selection(SWEEPS["quick"], "cpu", impls, cells), folder, name)
    run.timing = {"cell_time": 0.25, "processes": 1, "precision": 0.02, "cell_timeout": 60.0}
    return run


def ask_check(ask: Callable[..., Reply], impl: str, case: dict[str, Any], what: str = "x") -> Reply:
    """Return a worker's result of `check` for a cell."""
    ask("probe", what=what, impl=impl, case=case)
    return ask("check", what=what)


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Tasks]:
    """Return a worker's `Tasks` in this process. Garbage collection, which they disable, is restored."""
    from bench.workers.tasks import Tasks

    yield Tasks(str(tmp_path))
    gc.enable()


class LocalWorker:
    """A client whose worker is in this process: `ask` replies, as soon as the reply is received."""

    first: Reply
    ready: dict[Any, Any]
    lost, left, readable = False, 100.0, os.open(os.devnull, os.O_RDONLY)

    def ask(self, do: str, **details: Any) -> Reply:
        raise NotImplementedError

    def __new__(cls, *_: Any, **__: Any) -> Self:
        worker = super().__new__(cls)
        worker.first, worker.ready = {}, {}
        return worker

    def send(self, do: str, **details: Any) -> Self:
        self.sent = do, details
        return self

    def message(self) -> Reply:
        from bench.workers.client import Lost

        do, details = self.sent
        try:
            return self.ask(do, **details)
        except Lost:
            self.lost = True
            raise

    receive = message

    def fileno(self) -> int:
        return self.readable

    def close(self) -> None:
        gc.enable()  # which timing disables


class InProcess(LocalWorker):
    """A worker that does its tasks: starting a process takes seconds."""

    def __init__(self, variant: Variant, setting: WorkerSettings):
        from bench.workers.tasks import Tasks

        self._tasks = Tasks(setting.folder)

    def ask(self, do: str, **details: Any) -> Reply:
        from bench.cases.outcome import classify

        try:
            reply: Reply = json.loads(json.dumps(getattr(self._tasks, do)(**details) or {}))
        except Exception as error:
            raise classify(error) from error
        return reply


@pytest.fixture
def in_process(short_probes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tasks of workers in this process, with short probes, in tests of runs that no implementation ends."""
    import torch._inductor.compile_fx  # noqa: F401  which can't be imported twice either

    monkeypatch.setattr("bench.workers.client.WorkerClient", InProcess)
    monkeypatch.setattr("bench.runs.check.WorkerClient", InProcess)


def run_files(folder: Path) -> list[Path]:
    """Return the run files below a user's folder, in the order of their numbers."""
    return sorted(folder.glob("results/*/*.json"))


def only_run(folder: Path) -> dict[str, Any]:
    """Return the content of the only run file below a user's folder."""
    (file,) = run_files(folder)
    return dict(json.loads(file.read_text(), parse_constant=pytest.fail))  # NaN is not JSON
