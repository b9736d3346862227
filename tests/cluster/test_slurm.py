"""The same through submitit, whose local executor stands in for Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from .conftest import CASES, MEASURED, PROCESSES, SWEEP, Sweeping, answered, check_same_cells, runs_of, side_by_side

pytest.importorskip("submitit")


def test_a_job_is_killed_and_the_driver_too(alone: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    where = ("slurm", "--address", "local")
    types = ("--node-types", "a:2,b")
    first = Sweeping(folder, *where, *types, "--save", "x", "--processes", str(PROCESSES), *SWEEP)
    first.until(MEASURED)
    first.stopped_job(lambda: jobs_of(first)).kill()
    first.until(" is lost: ")
    first.kill()
    known = answered(folder)
    again = Sweeping(folder, *where, "--resume", "x")
    said = again.end()
    assert len({*known}) == len(known) >= 1
    assert said.count(MEASURED) == 2 * CASES - len(known)  # nothing twice
    runs = runs_of(folder)
    assert {*runs} == {"a", "b"}
    for data in runs.values():
        check_same_cells(data, alone)
    assert "0001_x (a)" in side_by_side(folder)
    assert not [*folder.glob("results/cluster/*")]  # neither journal nor pickles


def jobs_of(driver: Sweeping) -> Iterator[psutil.Process]:
    for child in psutil.Process(driver.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # one that has just ended
            if "_submit" in " ".join(child.cmdline()):
                yield child
