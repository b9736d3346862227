"""A sweep through submitit, whose local executor stands in for Slurm; a job and the driver are killed."""

from argparse import Namespace
from collections import Counter
from contextlib import suppress

import psutil
import pytest

from bench.selection.errors import UsageError

from .conftest import MEASURED, PROCESSES, SWEEP, Sweeping, check_resumed

pytest.importorskip("submitit")

from bench.cluster.on_slurm import Cluster  # needs submitit


def test_a_job_is_killed_and_the_driver_too(alone, tmp_path):
    folder = tmp_path / "user"
    folder.mkdir()
    where = ("slurm", "--address", "local")
    types = ("--node-types", "a:2,b")
    first = Sweeping(folder, *where, *types, "--save", "x", "--processes", str(PROCESSES), *SWEEP)
    first.until(MEASURED)
    first.stopped_job(lambda: jobs_of(first)).kill()
    first.until(" is lost: ")
    first.kill()
    check_resumed(folder, alone, *where)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Stand in for Slurm's programs: there is no account, and no partition."""
    for name, does in (
        ("srun", "true"),
        ("sbatch", "grep -e --partition= $1 >&2; echo 'sbatch: error: Invalid account' >&2; exit 1"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_the_default_partition_measures_or_those_that_are_named(slurm, tmp_path):
    options = Namespace(address=None, slurm_option=[("account", "x")])
    for kinds in ({}, {"default": None}):  # as a sweep is started, and resumed
        engine = Cluster(options, b"", kinds, tmp_path / "x")
        assert [*engine.nodes(())] == [("default", 0)]
        with pytest.raises(UsageError, match=r"^--cluster slurm: sbatch: error: Invalid account"):
            engine.submit(("default", 0), {})
    engine = Cluster(options, b"", {"gpu": 2, "cpu": None}, tmp_path / "x")
    assert Counter(engine.nodes(["n1"]).values()) == {"gpu": 2, "cpu": 1}
    with pytest.raises(UsageError, match=r"^--cluster slurm: #SBATCH --partition=gpu$"):
        engine.submit(("gpu", 1), {})
    options.slurm_option = [("nonsense", 1)]
    with pytest.raises(UsageError, match=r"--cluster slurm: .*nonsense"):
        Cluster(options, b"", {}, tmp_path / "x")


def jobs_of(driver):
    for child in psutil.Process(driver.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # one that has just ended
            if "_submit" in " ".join(child.cmdline()):
                yield child
