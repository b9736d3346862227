"""`python -m tests.experiments.kills`: a run killed at 20 random moments and resumed, beside one that never was.

Prints, for every kill, the outcomes on disk before it and after; and whether the finished file has the same cells.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
CELLS = ("--T", "16,32,64,128", "--H", "1,2")
KILLS = 20


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        killed, whole = Path(name) / "killed", Path(name) / "whole"
        killed.mkdir()
        whole.mkdir()
        _pytest(whole, "--benchmark-save=x", *CELLS).wait()
        draw = random.Random(0)
        kept: list[str] = []
        for kill in range(KILLS):
            begun = _headers(killed)
            process = _pytest(killed, "--resume", "x", *CELLS)
            _wait_until_it_measures(killed, process, begun)
            time.sleep(draw.uniform(0, 10))
            process.send_signal(signal.SIGKILL)
            process.wait()
            now = _outcomes(killed)
            lost = [line for line in kept if line not in now]
            print(
                f"kill {kill + 1:>2}: {len(kept):>3} outcomes before, {len(now):>3} after, {len(lost)} lost", flush=True
            )
            assert now[: len(kept)] == kept
            kept = now
        print("resumed, exit code", _pytest(killed, "--resume", "x", *CELLS).wait())
        a, b = _cells(killed), _cells(whole)
        print(f"cells: {len(a)} of the killed run, {len(b)} of the other; the same: {a == b}")


def _pytest(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", str(CHECKOUT / "bench"), *options]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _wait_until_it_measures(folder: Path, process: subprocess.Popen[bytes], begun: int) -> None:
    """Until the process has opened the journal: every process writes a header. Or has ended: nothing was left to do."""
    while _headers(folder) == begun and process.poll() is None:
        time.sleep(0.02)


def _headers(folder: Path) -> int:
    return sum(path.read_text().count('{"header"') for path in folder.glob("results/*/*.journal"))


def _outcomes(folder: Path) -> list[str]:
    """The whole lines of the journal that hold an outcome."""
    journals = [*folder.glob("results/*/*.journal")]
    if not journals:  # the run was finished, and its journal is gone
        (file,) = folder.glob("results/*/*.json")
        data = json.loads(file.read_text())
        return [json.dumps({"row": row}) for row in data["benchmarks"]]
    lines = journals[0].read_text().splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n") and line.startswith(('{"proved"', '{"visit"', '{"skipped"'))]


def _cells(folder: Path) -> set[tuple[str, str]]:
    (file,) = folder.glob("results/*/*.json")
    data = json.loads(file.read_text())
    told = [row["extra_info"] for row in data["benchmarks"]] + data["skipped"]
    return {(it["impl"], it["id"]) for it in told}


if __name__ == "__main__":
    main()
