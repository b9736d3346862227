"""Shared by the tests that need torch: the suite as a user would start it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers that share the cores wait for each other otherwise

pytest_plugins = ["pytester"]

CHECKOUT = Path(__file__).resolve().parent.parent
Suite = Callable[..., "subprocess.CompletedProcess[str]"]


def suite_command(*options: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pytest",
        str(CHECKOUT / "bench"),
        "--cell-time",
        "0.01",
        "--processes",
        "1",
        *options,
    ]


def environment() -> dict[str, str]:
    """As at a user's shell: without what pytest-xdist sets for its workers, where nothing can be timed."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {"COLUMNS": "160"}


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """`suite("--T", "16")` is `pytest PATH/TO/bench --T 16`, started in a folder of the test's own."""

    def start(*options: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        command = suite_command(*options)
        return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300)

    return start


def run_files(folder: Path) -> list[Path]:
    """The run files under a user's folder, in the order of their numbers."""
    return sorted(folder.glob("results/*/*.json"))
