"""Fixtures that start a small sweep as a user does, and read its results."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from ..conftest import CHECKOUT, environment, only_run, started, suite_arguments

os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}

FILE = '[{"T": [16, 24, 32, 40], "H": 2, "dtype": "float32"}]'
PICKED = ",".join(f"B1-T{T}-H2-D_h64-float32-cpu" for T in (16, 24, 32))
SWEEP = ("--cases", "cases.json", "--case", PICKED, "--impl", "fused,sdpa,linear", "--cell-time", "0.05")
PROCESSES = 2
CASES = 3
MEASURED = "float32-cpu: "
"""Part of every line that reports a result."""


class Sweeping:
    """Process of `python -m bench sweep --cluster ...` in a folder, with further options."""

    def __init__(self, folder, *options):
        (folder / "cases.json").write_text(FILE)
        command = [sys.executable, str(CHECKOUT / "bench"), "sweep", "--cluster", *options]
        env = environment() | {"XDG_CACHE_HOME": str(folder.parent / "cache")}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen(command, cwd=folder, env=env, **pipes)
        self.output: list[str] = []

    def until(self, words):
        """Wait for a line of output that contains these words."""
        for line in self._lines():
            self.output.append(line)
            if words in line:
                return
        pytest.fail(f"{words!r} was never printed:\n{''.join(self.output)}")

    def stopped_job(self, processes):
        """Stop one of the processes while it measures a case, so that it can't reply."""
        while self.process.poll() is None:
            for process in processes():
                with suppress(psutil.NoSuchProcess):  # it has just ended, or a child
                    process.suspend()
                    if any("--case=" in " ".join(child.cmdline()) for child in process.children(recursive=True)):
                        return process
                with suppress(psutil.NoSuchProcess):
                    process.resume()
            time.sleep(0.1)
        pytest.fail("the sweep ended before a job was stopped")

    def end(self):
        """Wait for its end; returns its output."""
        self.output += [*self._lines()]
        assert self.process.wait(60) == 0, "".join(self.output)
        return "".join(self.output)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def _lines(self):
        assert self.process.stdout
        return iter(self.process.stdout.readline, "")


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """Return the run of the same sweep without a cluster."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "cases.json").write_text(FILE)
    started(folder, "-m", "pytest", *suite_arguments(*SWEEP, f"--processes={PROCESSES}", "--benchmark-save=x"))
    return only_run(folder)


def check_same_cells(data, alone):
    """Check that a run has the same cells, processes, checks and reasons as the one without a cluster."""
    assert data["skipped"] == alone["skipped"] and data["complete"]
    for row, other in zip(data["benchmarks"], alone["benchmarks"], strict=True):
        now, was = row["extra_info"], other["extra_info"]
        assert now["processes"] == len(now["process_nodes"]) == len({*now["sample_processes"]}) == PROCESSES
        for name in ("impl", "id", "case_hash", "impl_hash", "peak_bytes", "error_bound", "kernel"):
            assert now[name] == was[name], name


def check_resumed(folder, alone, *options):
    """Resume the sweep of a killed driver, and check that nothing is measured twice and that no cell is missing."""
    (journal,) = folder.glob("results/cluster/x.*.journal")
    whole, _, _part = journal.read_text().rpartition("\n")
    known = whole.count('"machine_info"')  # a run of every measured job
    output = Sweeping(folder, *options, "--resume", "x").end()
    assert known >= 1 and output.count(MEASURED) == 2 * CASES - known
    runs = {file.parent.name: json.loads(file.read_text()) for file in folder.glob("results/*/*_x.json")}
    assert {*runs} == {"a", "b"}
    for data in runs.values():
        check_same_cells(data, alone)
    assert not [*folder.glob("results/cluster/*")]  # neither journal nor pickles
