"""Measurements of the suite itself; their tables are in docs/measured.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def measured(folder: Path, *options: str, checkout: Path = CHECKOUT, environment: dict[str, str] | None = None) -> Path:
    """Run `pytest bench/` from a folder; returns the file that it saves, whatever its exit code."""
    known = {*folder.glob("results/*/*.json")}
    command = [sys.executable, "-m", "pytest", str(checkout / "bench"), "-q", "--benchmark-save=x", *options]
    command += [f"--benchmark-storage=file://{folder / 'results'}"]
    done = subprocess.run(command, cwd=folder, env=os.environ | (environment or {}), capture_output=True, text=True)
    if not (new := {*folder.glob("results/*/*.json")} - known):
        sys.exit(done.stderr or done.stdout)
    return new.pop()
