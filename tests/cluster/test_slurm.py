"""A sweep through submitit, whose local executor stands in for Slurm; a job and the driver are killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from .conftest import MEASURED, PROCESSES, SWEEP, Sweeping, answered, check_resumed

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
    check_resumed(folder, alone, *where, known=answered(folder))


def jobs_of(driver: Sweeping) -> Iterator[psutil.Process]:
    for child in psutil.Process(driver.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # one that has just ended
            if "_submit" in " ".join(child.cmdline()):
                yield child
