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
from typing import Any

from pytest_benchmark.utils import get_machine_id
from rich.console import Console

from .choice import Mistake
from .command import Parser, complain, count, named, said
from .controls import warning
from .fresh import start
from .journal import alive, begun, process
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
        if options.resume:
            folder, plan = _resumed(options, pytest_options)
        else:
            folder, plan = _begun(options, pytest_options, said("sweep", arguments))
    except Mistake as mistake:
        return complain(mistake, USAGE_ERROR)
    return _measured(folder, plan)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "sweep",
        USAGE_ERROR,
        description="Measure a sweep in several fresh processes, in shuffled order, and save them as one run.",
        epilog="All other options are those of `pytest bench/`: --sweep, --impl, --T, --cell-time, ...",
    )
    parser.add_argument("--processes", type=count, metavar="K", help="how many (default: 5)")
    parser.add_argument("--save", metavar="NAME", help="what the run is called")
    parser.add_argument("--resume", metavar="NAME", help="finish a run that was interrupted")
    parser.add_argument(
        "--quiet-machine",
        action="store_true",
        help="one thread, pinned to one core, and an allocator that keeps what it has",
    )
    parser.add_argument("--benchmark-storage", metavar="URI", help="where results lie (default: results/)")
    return parser


def _begun(options: argparse.Namespace, pytest_options: list[str], command: str) -> tuple[Path, dict[str, Any]]:
    """A new folder for the processes' own runs, and the plan in it."""
    if not options.save:
        raise Mistake("--save NAME is missing: what is the run called? (--resume NAME finishes one)")
    for option in pytest_options:
        if option.startswith(("--benchmark-save", "--benchmark-autosave", "--resume")):
            raise Mistake(f"{option}: the run is named by --save, and finished by --resume")
        if option == "--save-traces":
            raise Mistake("--save-traces: a trace is of one process; `pytest bench/ --benchmark-save=NAME` saves them")
    folder = _folder(options, named(options.save, "--save"))
    plan = {
        "name": options.save,
        "processes": options.processes or 5,
        "quiet": options.quiet_machine,
        "arguments": pytest_options,
        "command": command,
        "owner": process(),
    }
    try:
        folder.mkdir(parents=True)
        (folder / PLAN).write_text(json.dumps(plan), encoding="utf-8")
    except FileExistsError:
        raise Mistake(
            f"run {options.save} was begun and not finished: `python -m bench sweep --resume {options.save}` goes on, "
            f"or remove {folder}"
        ) from None
    except OSError as error:
        raise Mistake(f"results can't be written to {folder.parent}: {error.strerror}") from None
    return folder, plan


def _resumed(options: argparse.Namespace, pytest_options: list[str]) -> tuple[Path, dict[str, Any]]:
    """The folder and the plan of a run that was interrupted."""
    folder = _folder(options, named(options.resume, "--resume"))
    plan = load(folder / PLAN)
    if not plan:
        raise Mistake(f"no run {options.resume} was begun in {folder.parent}: --save {options.resume} begins one")
    if pytest_options or options.processes or options.save or options.quiet_machine:
        raise Mistake(f"--resume {options.resume} goes on as it was begun; leave out the other options")
    if alive(plan["owner"]):
        raise Mistake(f"run {options.resume} is being measured right now, by process {plan['owner']['pid']}")
    try:
        (folder / PLAN).write_text(json.dumps(plan | {"owner": process()}), encoding="utf-8")
    except OSError as error:
        raise Mistake(f"results can't be written to {folder}: {error.strerror}") from None
    return folder, plan


def _measured(folder: Path, plan: dict[str, Any]) -> int:
    """Run what is left of the processes, then merge them; the exit code."""
    runs = []
    for index in range(plan["processes"]):
        print(f"process {index + 1} of {plan['processes']}", flush=True)
        code = _process(folder, plan, index)
        run = _finished(folder, index)
        if run is None:
            return _unfinished(folder, plan["name"], code)
        runs.append(run)
    try:
        data = merged(runs, plan["command"])
    except ValueError as error:
        return complain(f"run {plan['name']}: {error}; remove {folder}, and begin again", USAGE_ERROR)
    try:
        with numbering(folder.parent):
            path = save(folder.parent, plan["name"], data)
    except OSError as error:
        again = f"`python -m bench sweep --resume {plan['name']}` goes on when that is mended"
        return complain(f"{folder.parent}: {error.strerror}; {again}", 1)
    shutil.rmtree(folder)
    for table in rankings(data["benchmarks"], data["skipped"], data["yardstick"]):
        Console(width=max(Console().width, 88)).print(table)
    if moved := warning(data["controls"]["drift"]):
        print(moved)
    print(f"saved: {path}")
    return 1 if any(entry["reason"] in FAILURES for entry in data["skipped"]) else 0


def _unfinished(folder: Path, name: str, code: int) -> int:
    """What is left of it can be resumed; where no cell was begun (a mistake, `--list`, `-k nothing`), nothing is left."""
    if not (begun(folder) or any(folder.glob("*/*.json"))):
        shutil.rmtree(folder)
        return code
    print(f"unfinished; `python -m bench sweep --resume {name}` goes on", file=sys.stderr)
    return code or 1


def _process(folder: Path, plan: dict[str, Any], index: int) -> int:
    """Measure in a fresh process; again, behind the cell, as long as a cell ends the process. Gives the last exit code."""
    while True:
        before = begun(folder)
        code = _pytest(folder, plan, index)
        ended_by_itself = code in (0, INTERRUPTED, USAGE_ERROR) or _finished(folder, index)
        if ended_by_itself or begun(folder) <= before:
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
