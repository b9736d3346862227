"""Fixtures of the tests that need torch: starting the suite as a user does."""

import gc
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import pytest

from stats.arguments import ENDING

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers that share the cores wait for each other otherwise

pytest_plugins = ["pytester"]

CHECKOUT = Path(__file__).resolve().parent.parent


@contextmanager
def registry_kept():
    """Context that removes later registrations from the registry; yields its MonkeyPatch."""
    from impls import registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registry", dict(registry._registry))
        yield patch


@pytest.fixture(autouse=True)
def own_registry(tmp_path_factory):
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


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """Freeze imported objects, so that garbage collections, as before memory is measured, don't scan them again."""
    gc.collect()
    gc.freeze()


def suite_arguments(*options):
    """Return the arguments of pytest for `pytest bench/ ...` with one process and short timing, unless chosen otherwise."""
    given = [option.partition("=")[0] for option in options]
    usual = ("--cell-time=0.01", "--processes=1") if "--list" not in given else ()
    return [str(CHECKOUT / "bench"), *(it for it in usual if it.partition("=")[0] not in given), *options]


def environment():
    """Return the environment without the variables of pytest-xdist, under which nothing can be timed."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # where it is installed, hypothesis' plugin imports all of hypothesis at the end of every session: a second of nothing
    return plain | {"COLUMNS": "160", "PYTEST_ADDOPTS": "-p no:hypothesispytest"}


def python(*arguments, **how):
    """Run this interpreter, in the checkout by default."""
    usual = {
        "cwd": CHECKOUT,
        "env": environment(),
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "timeout": 600,
    }
    return subprocess.run([sys.executable, *map(str, arguments)], text=True, **usual | how)


def started(folder, *arguments):
    """Run `python ...` in a folder; returns what it prints."""
    done = python(*arguments, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def loaded():
    """Import these before pytester, which removes what its runs import: NumPy can't be imported twice, pandas is slow."""
    import pandas  # noqa: F401
    import rich.progress  # noqa: F401
    import scipy.special  # noqa: F401


@pytest.fixture
def suite(loaded, pytester, tmp_path):
    """The same in this process, which has imported torch, with one of the exit codes `fine`: implementations run in workers
    of their own either way.

    What may end the process, or depends on how it was started, needs `started`.
    """

    def run(*options, fine=(0,)):
        with registry_kept() as patch, mock.patch.dict(os.environ, environment(), clear=True):
            patch.chdir(tmp_path)
            done = pytester.runpytest_inprocess(*suite_arguments(*options))
        assert done.ret in fine, done.stdout.str() + done.stderr.str()
        return subprocess.CompletedProcess(options, int(done.ret), done.stdout.str(), done.stderr.str())

    return run


@pytest.fixture
def own_signals():
    """Restore what signals do, which commands change."""
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def short_probes(monkeypatch):
    """Check with the probe of 37 tokens only, and shorter probes of dropout, which suffices for right implementations."""
    monkeypatch.setattr("bench.checks.probes.PROBES", (37,))
    monkeypatch.setattr("bench.checks.probes.LENGTH_WITH_DROPOUT", {"core": 80, "layer": 80})


def gated(impl, case):
    """Run all checks of an implementation before a case is timed; raises what they find."""
    from bench.checks.gate import Gate
    from bench.checks.module_checks import check_case

    Gate().check(impl, case)
    check_case(impl, case)


def checked(cell):
    """Run all checks of a cell; returns it built, with what was measured."""
    from bench.checks.gate import Gate
    from bench.timing.cell import check_built, probe

    built = probe(cell, Gate())
    return built, check_built(built)


def run_of(*cells, folder=Path(), name=None):
    """Return a run of these cells that begins."""
    from bench.cases.sweep import SWEEPS
    from bench.runs.run import Run
    from bench.selection.options import Selection

    impls = tuple(dict.fromkeys(cell.impl for cell in cells))
    run = Run({}, Selection(SWEEPS["quick"], "cpu", impls, cells, {}), folder, name)
    run.timing = {"cell_time": 0.25, "processes": 1, "precision": 0.02, "cell_timeout": 60.0}
    return run


def ask_check(ask, impl, case, what="x"):
    """Return a worker's result of `check` for a cell."""
    ask("probe", what=what, impl=impl, case=case)
    return ask("check", what=what)


@pytest.fixture
def tasks(tmp_path):
    """Return a worker's `Tasks` in this process. Garbage collection, which they disable, is restored."""
    from bench.workers.tasks import Tasks

    yield Tasks(str(tmp_path))
    gc.enable()


class LocalWorker:
    """A client whose worker is in this process: `ask` replies, as soon as the reply is received."""

    lost, left, readable = False, 100.0, os.open(os.devnull, os.O_RDONLY)

    def ask(self, do, **details):
        raise NotImplementedError

    def __new__(cls, *_, **__):
        worker = super().__new__(cls)
        worker.first, worker.ready = {}, {}
        return worker

    def send(self, do, **details):
        self.sent = do, details
        return self

    def receive(self):
        from bench.workers.client import Lost

        do, details = self.sent
        try:
            return self.ask(do, **details)
        except Lost:
            self.lost = True
            raise

    def fileno(self):
        return self.readable

    def close(self):
        gc.enable()  # which timing disables


class InProcess(LocalWorker):
    """A worker that does its tasks: starting a process takes seconds."""

    def __init__(self, variant, setting):
        from bench.workers.tasks import Tasks

        self._tasks = Tasks(setting.folder)

    def ask(self, do, **details):
        from bench.cases.outcome import classify

        try:
            reply = json.loads(json.dumps(getattr(self._tasks, do)(**details) or {}))
        except Exception as error:
            raise classify(error) from error
        return reply


@pytest.fixture
def in_process(short_probes, monkeypatch):
    """Run the tasks of workers in this process, with short probes, in tests of runs that no implementation ends."""
    import torch._inductor.compile_fx  # noqa: F401  which can't be imported twice either

    monkeypatch.setattr("bench.workers.client.WorkerClient", InProcess)
    monkeypatch.setattr("bench.runs.check.WorkerClient", InProcess)
    with registry_kept():  # which this may be the first test to import
        yield


def run_files(folder):
    """Return the run files below a user's folder, in the order of their numbers."""
    return sorted(folder.glob("results/*/*.json"))


def only_run(folder):
    """Return the content of the only run file below a user's folder."""
    (file,) = run_files(folder)
    return dict(json.loads(file.read_text(), parse_constant=pytest.fail))  # NaN is not JSON
