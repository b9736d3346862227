"""Runs a sweep on many machines, from its journal's header to its run files."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

from pytest_benchmark.utils import get_commit_info

from stats.arguments import as_typed

from ..cases.outcome import FAILURES
from ..runs.journal import Journal, Line
from ..runs.progress import skips
from ..runs.saving import load, run_files, save
from ..selection.command import complain
from ..selection.errors import UsageError
from ..starting import UNFINISHED
from .driver import Driver, Engine, tell
from .merging import merged


def measure(engine: Engine, results: Path, name: str, header: Line, path: Path | None = None) -> int:
    """Measure all remaining cases and write the run files; returns the exit code.

    `header`: `arguments` of a run, `kinds` of nodes, `command` line, `digest` of the code. `path`: the journal to
    resume.
    """
    with closing(engine):
        header["kinds"] = header["kinds"] or dict.fromkeys(engine.nodes(()))
        if not header["kinds"]:
            raise UsageError("the cluster has no node")
        journal = Journal.reopen(path) if path else Journal.start(results / "cluster", name, header)
        driver = Driver(engine, journal, header["arguments"], header["kinds"])
        try:
            driver.run()
        except KeyboardInterrupt:
            tell(f"unfinished; `--resume {name}` continues")
            raise
        except UsageError as error:
            if any(job.case for job in driver.answers):
                return complain(f"{error}; `--resume {name}` continues", UNFINISHED)
            journal.delete()
            raise
    return _save(results, name, driver, header["command"])


def _save(results: Path, name: str, driver: Driver, command: str) -> int:
    """Save a run file for each type of node."""
    of_all = {"commit_info": get_commit_info(), "command": command, "journal": driver.journal.path.name}
    code, files = 0, []
    for kind in driver.kinds:
        if not any(job.case for job in driver.answers if job.kind == kind):
            why = next(why for job, why in driver.given_up.items() if job.kind == kind)
            code = complain(f"{kind}: nothing was measured: {why}", 1)
            continue
        data = merged(driver, kind) | of_all
        files.append(_file(results / re.sub(r"[^\w.+-]+", "_", kind), name, data))
        for line in (*data["notes"], *skips(data["skipped"]), f"saved: {files[-1]}"):
            print(f"{kind}: {line}")
        code = max(code, any(entry["reason"] in FAILURES for entry in data["skipped"]))
    if len(files) > 1:
        print(as_typed(f"side by side: python -m reports {' '.join(map(str, files))}"))
    driver.journal.delete()
    return code


def _file(folder: Path, name: str, data: dict[str, Any]) -> Path:
    """Save the run of a type, unless a driver that was then killed has already saved it."""
    folder.mkdir(parents=True, exist_ok=True)
    there = [path for path in run_files(folder, name) if load(path).get("journal") == data["journal"]]
    return there[0] if there else save(folder, name, data, indent=None)
