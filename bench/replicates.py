"""`python -m bench sweep --processes K --save NAME [pytest options]`: a sweep in K fresh processes, saved as one run.

Rounds of one process share one memory layout and one mood of the machine; what they agree on is not what another process
finds. So every process measures every cell once, in an order of its own, and the run's rows carry the processes' medians.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pytest_benchmark.utils import get_machine_id
from rich.console import Console

from .controls import warning
from .fresh import start
from .journal import alive, process
from .merge import merged
from .outcome import FAILURES
from .run import CHECKOUT, results_root
from .saving import load, numbering, run_files, save
from .table import rankings

USAGE_ERROR = 4
"""pytest's own code for it."""

INTERRUPTED = 2

PLAN = "plan.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code, as pytest's: 0 measured; 1 a cell is wrong, failed or timed out; 2 interrupted; 4 a mistake of the user's."""
    options, pytest_options = _parser().parse_known_args(arguments)
    try:
        folder, plan = _resumed(options, pytest_options) if options.resume else _begun(options, pytest_options)
    except _Mistake as mistake:
        print(f"bench: error: {mistake}", file=sys.stderr)
        return USAGE_ERROR
    return _measured(folder, plan)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m bench sweep",
        description="Measure a sweep in several fresh processes, in shuffled order, and save them as one run.",
        epilog="All other options are those of `pytest bench/`: --sweep, --impl, --T, --cell-time, ...",
    )
    parser.add_argument("--processes", type=_count, metavar="K", help="how many (default: 5)")
    parser.add_argument("--save", metavar="NAME", help="what the run is called")
    parser.add_argument("--resume", metavar="NAME", help="finish a run that was interrupted")
    parser.add_argument(
        "--quiet-machine",
        action="store_true",
        help="one thread, pinned to one core, and an allocator that keeps what it has",
    )
    parser.add_argument("--benchmark-storage", metavar="URI", help="where results lie (default: results/)")
    return parser


def _begun(options: argparse.Namespace, pytest_options: list[str]) -> tuple[Path, dict[str, Any]]:
    """A new folder for the processes' own runs, and the plan in it."""
    if not options.save:
        raise _Mistake("--save NAME is missing: what is the run called? (--resume NAME finishes one)")
    for option in pytest_options:
        if option.startswith(("--benchmark-save", "--benchmark-autosave", "--resume")):
            raise _Mistake(f"{option}: the run is named by --save, and finished by --resume")
        if option == "--save-traces":
            raise _Mistake("--save-traces: a trace is of one process; `pytest bench/ --benchmark-save=NAME` saves them")
    folder = _folder(options, options.save)
    plan = {
        "name": options.save,
        "processes": options.processes or 5,
        "quiet": options.quiet_machine,
        "arguments": pytest_options,
        "command": " ".join(["python -m bench sweep", *sys.argv[2:]]),
        "owner": process(),
    }
    try:
        folder.mkdir(parents=True)
        (folder / PLAN).write_text(json.dumps(plan), encoding="utf-8")
    except FileExistsError:
        raise _Mistake(
            f"run {options.save} was begun and not finished: `python -m bench sweep --resume {options.save}` goes on, "
            f"or remove {folder}"
        ) from None
    except OSError as error:
        raise _Mistake(f"results can't be written to {folder.parent}: {error.strerror}") from None
    return folder, plan


def _resumed(options: argparse.Namespace, pytest_options: list[str]) -> tuple[Path, dict[str, Any]]:
    """The folder and the plan of a run that was interrupted."""
    folder = _folder(options, options.resume)
    plan = load(folder / PLAN)
    if not plan:
        raise _Mistake(f"no run {options.resume} was begun in {folder.parent}: --save {options.resume} begins one")
    if pytest_options or options.processes or options.save or options.quiet_machine:
        raise _Mistake(f"--resume {options.resume} goes on as it was begun; leave out the other options")
    if alive(plan["owner"]):
        raise _Mistake(f"run {options.resume} is being measured right now, by process {plan['owner']['pid']}")
    (folder / PLAN).write_text(json.dumps(plan | {"owner": process()}), encoding="utf-8")
    return folder, plan


def _measured(folder: Path, plan: dict[str, Any]) -> int:
    """Run what is left of the processes, then merge them; the exit code."""
    runs = []
    for index in range(plan["processes"]):
        print(f"process {index + 1} of {plan['processes']}", flush=True)
        code = _process(folder, plan, index)
        run = _finished(folder, index)
        if run is None:
            if code != USAGE_ERROR:
                print(f"unfinished; `python -m bench sweep --resume {plan['name']}` goes on", file=sys.stderr)
            elif not any(folder.glob("*/*")):
                shutil.rmtree(folder)  # nothing was begun: the mistake is told by now
            return code or 1
        runs.append(run)
    try:
        data = merged(runs, plan["command"])
    except ValueError as error:
        print(f"bench: error: run {plan['name']}: {error}; remove {folder}, and begin again", file=sys.stderr)
        return USAGE_ERROR
    with numbering(folder.parent):
        path = save(folder.parent, plan["name"], data)
    shutil.rmtree(folder)
    for table in rankings(data["benchmarks"], data["skipped"], data["yardstick"]):
        Console(width=max(Console().width, 88)).print(table)
    if moved := warning(data["controls"]["drift"]):
        print(moved)
    print(f"saved: {path}")
    return 1 if any(entry["reason"] in FAILURES for entry in data["skipped"]) else 0


def _process(folder: Path, plan: dict[str, Any], index: int) -> int:
    """Measure in a fresh process; again, behind the cell, as long as a cell ends the process. Gives the last exit code."""
    while True:
        before = _size(folder)
        code = _pytest(folder, plan, index)
        ended_by_itself = code in (0, INTERRUPTED, USAGE_ERROR) or _finished(folder, index)
        if ended_by_itself or _size(folder) <= before:
            return code


def _pytest(folder: Path, plan: dict[str, Any], index: int) -> int:
    command = [sys.executable, "-m", "pytest", str(CHECKOUT / "bench"), f"--benchmark-storage=file://{folder}"]
    command += ["--resume", _name(index), "--shuffle", str(index), "--no-summary", *plan["arguments"]]
    child = start(command, quiet=plan["quiet"])
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.wait()  # the terminal told it too: it keeps what it has
        return INTERRUPTED


def _finished(folder: Path, index: int) -> dict[str, Any] | None:
    """The complete run of a process; None when there is none yet."""
    files = run_files(folder / str(get_machine_id()), _name(index))
    return next((data for path in files if (data := load(path)).get("complete")), None)


def _name(index: int) -> str:
    return f"process-{index + 1}"


def _folder(options: argparse.Namespace, name: str) -> Path:
    """Where the processes keep their own runs until they are merged."""
    return results_root(Path.cwd(), options.benchmark_storage) / str(get_machine_id()) / f"{name}.processes"


def _size(folder: Path) -> int:
    """Bytes of journals: they grow with every cell that is begun."""
    return sum(path.stat().st_size for path in folder.glob("*/*.journal"))


class _Mistake(Exception):
    """Of the user's; the message says what would be right."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"bench: error: {message}", file=sys.stderr)
        raise SystemExit(USAGE_ERROR)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes")
    return int(text)
