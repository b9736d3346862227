"""pytest's side of a run: options in, one test a cell, outcomes into the run file."""

from __future__ import annotations

import faulthandler
import gc
import random
from collections import defaultdict
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from . import cell as cells
from . import settings
from .cells import Cell, Key
from .clock import replay
from .gate import Gate
from .guard import guarded
from .ledger import spending
from .listing import show_plan, show_shelf
from .machine import fingerprint
from .options import pytest_addoption
from .outcome import FAILURES, NoRow, Unsupported, classify
from .progress import Progress
from .run import Run, begin, finite
from .saving import numbering, save
from .traces import Traces

__all__ = ["pytest_addoption"]

RUN = pytest.StashKey[Run]()
GATE = pytest.StashKey[Gate]()
TRACES = pytest.StashKey[Traces | None]()


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """`--list` and `--dry-run` answer and leave."""
    if config.getoption("attention_list"):
        show_shelf()
        return 0
    if config.getoption("attention_dry_run"):
        show_plan(begin(config), config.getoption("cell_time"))
        return 0
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    run = config.stash[RUN] = begin(config)
    if config.getoption("save_traces") and not (run.name or config.getoption("resume")):
        raise pytest.UsageError("--save-traces saves traces with a run: name it, with --benchmark-save=NAME")
    config.stash[GATE] = Gate()
    config.option.benchmark_storage = f"file://{run.folder.parent}"
    config.option.benchmark_save_data = True
    if not (config.option.benchmark_compare or config.option.benchmark_columns):
        config.option.benchmark_quiet = True  # the suite's own table stands at the end
    config.pluginmanager.register(Progress(config, run), "attention-progress")
    config.pluginmanager.register(OneAtATime(run.folder), "attention-numbering")
    traces = config.stash[TRACES] = Traces(run) if run.traced else None
    if traces:
        config.pluginmanager.register(traces, "attention-traces")


class OneAtATime:
    """While a run is saved, nobody else takes its number."""

    def __init__(self, folder: Path):
        self.folder = folder

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, Any, Any]:
        with numbering(self.folder):
            return (yield)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What a resumed run goes on behind."""
    return [f"given up: {cell}" for cell in config.stash[RUN].given_up]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "impl" in metafunc.fixturenames:
        keys = [
            cell.key for cell in metafunc.config.stash[RUN].selection.cells if _test(cell) == metafunc.function.__name__
        ]
        metafunc.parametrize(("impl", "case"), keys, ids=["-".join(key) for key in keys])


def _test(cell: Cell) -> str:
    """The test function that measures a cell."""
    return f"test_{cell.case.mode}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A resumed run leaves out what it already knows."""
    run = config.stash[RUN]
    items[:] = [item for item in items if not _empty(item)]
    left = [
        item for item in items if (key := _key(item)) not in run.known and (run.planned is None or key in run.planned)
    ]
    if len(left) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
        items[:] = left
    if (seed := config.getoption("shuffle")) is not None:
        _shuffle(items, seed)
    items.sort(key=lambda item: _key(item) in run.suspects)  # stable: the others keep their order


def _shuffle(items: list[pytest.Item], seed: int) -> None:
    """An order that the seed draws. What belongs to one case stays together, since it shares one reference."""
    draw = random.Random(seed)
    random_rank: dict[str, float] = defaultdict(draw.random)
    items.sort(key=lambda item: (random_rank[(_key(item) or ("", ""))[1]], draw.random()))


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # what was imported stays: no collection has to look at it again
    if not session.config.getoption("collectonly"):
        run = session.config.stash[RUN]
        run.plan(key for item in session.items if (key := _key(item)))
        if run.journal:
            faulthandler.enable(run.journal.faults)  # so that the next process learns which cell crashed this one


def _empty(item: pytest.Item) -> bool:
    """A test of a mode that no cell has: pytest makes one that is skipped."""
    return "impl" in getattr(item, "fixturenames", ()) and _key(item) is None


def _key(item: pytest.Item) -> Key | None:
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    impl, case = params.get("impl"), params.get("case")
    return (impl, case) if isinstance(impl, str) and isinstance(case, str) else None


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    return request.config.stash[RUN]


@pytest.fixture
def cell(request: pytest.FixtureRequest, run: Run, impl: str, case: str) -> Generator[Cell]:
    """The cell of this test, with its number of threads set; ends the test where the implementation can't."""
    cell = run.cell((impl, case))
    if why := cell.impl.refusal(cell.case):
        end(run, cell, Unsupported(why))
    if not request.config.getoption("benchmark_disable"):
        run.look()
    run.begin(cell)
    before = settings.read()
    torch.set_num_threads(cell.case.threads or torch.get_num_threads())
    yield cell
    settings.put_back(before)


@pytest.fixture
def guarded_step(request: pytest.FixtureRequest, run: Run, cell: Cell) -> Callable[[Callable[[], Any]], Any]:
    """Runs what calls the implementation: whatever goes wrong there becomes the outcome of this cell alone."""

    def step(of: Callable[[], Any]) -> Any:
        note = partial(run.add_skipped, cell)
        faults = run.journal.faults if run.journal else None
        try:
            with guarded(request.config.getoption("cell_timeout"), note, faults), spending("other"):
                return of()
        except (Exception, SystemExit) as error:
            end(run, cell, classify(error))

    return step


@pytest.fixture
def call(request: pytest.FixtureRequest, cell: Cell, guarded_step: Callable[..., Any]) -> cells.Ready:
    """The gate stands before the clock: a call that fails it is never handed over."""
    ready: cells.Ready = guarded_step(lambda: cells.ready(cell, request.config.stash[GATE]))
    return ready


@pytest.fixture
def measure(
    request: pytest.FixtureRequest, run: Run, cell: Cell, guarded_step: Callable[..., Any]
) -> Callable[[cells.Ready], None]:
    """Time and weigh a call that is ready, and write its row."""

    def measure(call: cells.Ready) -> None:
        if request.config.getoption("benchmark_disable"):
            call.call.run()
            return
        seconds, precision = (request.config.getoption(name) for name in ("cell_time", "precision"))
        traces = request.config.stash[TRACES]
        trace = traces.save if traces else None
        samples, columns = guarded_step(lambda: cells.measure(cell, call, seconds, precision, run.roofs, trace))
        benchmark = request.getfixturevalue("benchmark")
        benchmark.group = cell.case.id
        benchmark.extra_info.update(finite(columns))
        replay(benchmark, samples.data)
        if benchmark.stats is not None:  # None under xdist, where nothing can be timed
            run.add_row(benchmark.stats.as_dict(include_data=True))

    return measure


def end(run: Run, cell: Cell, outcome: NoRow) -> NoReturn:
    """Write down why a cell has no row, and end its test: skipped, or failed where that makes the run fail."""
    run.add_skipped(cell, outcome)
    sentence = f"{outcome.reason}: {outcome}"
    if outcome.reason in FAILURES:
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


def pytest_benchmark_generate_machine_info(config: pytest.Config) -> dict[str, Any]:
    """Only what is stable: pytest-benchmark's own holds the clock of the moment, and warns when that differs."""
    return fingerprint()


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """The whole run, what an earlier process measured included."""
    run = config.stash[RUN]
    output_json["benchmarks"] = run.rows
    output_json.update(run.top_level())


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    """A last look at the controls, before anything is saved."""
    result = yield
    controls = session.config.stash[RUN].controls
    if controls.seen:
        controls.look()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Save what pytest-benchmark (a wrapper, which has saved by now) won't; keep or drop the journal; settle the exit code."""
    run = session.config.stash[RUN]
    if run.planned is None or session.config.getoption("collectonly"):
        return
    if run.name:
        run.saved = _saved_file(session.config, run)
    run.close()
    quiet_ends = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if run.known and run.complete and session.exitstatus in quiet_ends:
        # what is left of a resumed run may be nothing: it ends like the whole run
        session.exitstatus = pytest.ExitCode.TESTS_FAILED if run.failed else pytest.ExitCode.OK


def _saved_file(config: pytest.Config, run: Run) -> Path | None:
    """The file that pytest-benchmark has just written; or, since it saves nothing when no test was timed, ours."""
    path = run.own_file()
    if path is None and run.known:
        hook = config.hook
        machine, commit = (
            hook.pytest_benchmark_generate_machine_info(config=config),
            hook.pytest_benchmark_generate_commit_info(config=config),
        )
        data = hook.pytest_benchmark_generate_json(
            config=config, benchmarks=[], include_data=True, machine_info=machine, commit_info=commit
        )
        hook.pytest_benchmark_update_json(config=config, benchmarks=[], output_json=data)
        path = save(run.folder, run.name or "", data)
    return path
