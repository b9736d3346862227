"""`python -m tests.experiments.kills run|ab|bisect|ray [KILLS [SECONDS]]`: a command killed at random moments and resumed each
time. KILLS: 20. SECONDS: most before a kill, by default 13 to 33; a busy machine needs more.

Prints, for every kill, the results on disk before and after it. Results that are on disk must stay, in their order, until the
command ends by itself; no result may be there twice. Of a run also: whether the finished file has the cells of one that was
never killed.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .fallback import git

CHECKOUT = Path(__file__).resolve().parents[2]
CELLS = ("--T", "16,32,64,128", "--H", "1,2", "--dtype", "float32")
KILLS = 20
LONGEST = {"run": 10.0, "ab": 20.0, "bisect": 30.0, "ray": 30.0}
"""Most seconds before a kill: several replicates of a comparison."""

STARTING = 3.0
"""Seconds before any kill: importing torch."""

BENCH = (sys.executable, str(CHECKOUT / "bench"))
SDPA = "torch.nn.functional:scaled_dot_product_attention"
COMMANDS = {
    "run": ((sys.executable, "-m", "pytest", str(CHECKOUT / "bench"), "--resume", "x", *CELLS),
            (sys.executable, "-m", "pytest", str(CHECKOUT / "bench"), "--resume", "x")),
    "ab": ((*BENCH, "ab", "--base-impl", "sdpa", "--head-impl", f"same={SDPA}", "--margin", "0.0001", "--seed", "1",
            "--save", "x", *CELLS, "--budget", "1"),) * 2,
    "bisect": ((*BENCH, "bisect", "GOOD", "BAD", "--impl", "mine=mine:mine", "--seed", "1", "--budget", "0.5",
                "--T", "64", "--H", "2", "--dtype", "float32"),) * 2,
    "ray": ((*BENCH, "sweep", "--cluster", "ray", "--save", "x", "--processes", "1", "--cell-time", "0.05", *CELLS),
            (*BENCH, "sweep", "--cluster", "ray", "--resume", "x")),
}  # fmt: skip
"""By kind: the command that begins, and the one that continues."""

SOURCE = """
from torch.nn.functional import scaled_dot_product_attention as sdpa

def mine(q, k, v, *, is_causal=False):
    for _ in range({calls}):
        o = sdpa(q, k, v, is_causal=is_causal)
    return o
"""


def main() -> None:
    kind, kills = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else KILLS
    longest = float(sys.argv[3]) if len(sys.argv) > 3 else STARTING + LONGEST[kind]
    begin, go_on = COMMANDS[kind]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "killed"
        folder.mkdir()
        if kind == "bisect":
            commits(folder)
        draw, kept = random.Random(0), list[str]()
        for kill in range(kills):
            process = started(folder, go_on if begun(folder) else begin)
            end = time.monotonic() + draw.uniform(STARTING, longest)
            while time.monotonic() < end and process.poll() is None:
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
            ended = process.wait() != -signal.SIGKILL
            now = (
                [*results(folder)] if kind != "bisect" else [*dict.fromkeys(results(folder))]
            )  # a step continues with another's
            lost = [it for it in kept if it not in now]
            twice = len(now) - len({it.partition(" = ")[0] for it in now})
            print(f"kill {kill + 1:>2}: {len(kept):>3} results before, {len(now):>3} after, {len(lost)} lost, {twice} twice",
                  flush=True)  # fmt: skip
            assert not lost and not twice
            kept = now
            if ended:
                break
        code = started(folder, go_on if begun(folder) else begin).wait()
        now = [*results(folder)]
        lost = [it for it in kept if it not in now]
        print(f"resumed, exit code {code}: {len(now)} results, {len(lost)} of {len(kept)} lost")
        if kind == "run":
            whole = Path(name) / "whole"
            whole.mkdir()
            started(whole, begin).wait()
            a, b = cells(folder), cells(whole)
            print(f"cells: {len(a)} of the killed run, {len(b)} of the other; the same: {a == b}")


def commits(folder: Path) -> None:
    """A repository with six commits of a kernel, of which the fourth makes it four times as slow; tags GOOD and BAD."""
    git(folder, "init", "-q")
    for commit in range(6):
        (folder / "mine.py").write_text(SOURCE.format(calls=1 if commit < 3 else 4) + f"# {commit}\n")
        for arguments in (["add", "mine.py"], ["commit", "-qm", f"commit {commit}"]):
            git(folder, *arguments)
        if commit in (0, 5):
            git(folder, "tag", "BAD" if commit else "GOOD")


def begun(folder: Path) -> bool:
    return any(folder.glob("results/**/*.*"))


def started(folder: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def results(folder: Path) -> Iterator[str]:
    """What is on disk: rows or replicates of saved files, and lines with a result of journals. Of a sample its cell,
    round and seconds.
    """
    for path in sorted(folder.glob("results/**/*.json")):
        if path.parent.name == "ab":
            yield from (str(pair["logs"]) for pair in saved(path)["pairs"])
        elif "benchmarks" in saved(path) and saved(path)["complete"]:
            yield from of_rows(saved(path))
    for path in folder.glob("results/**/*.journal"):
        for text in path.read_text().splitlines(keepends=True):
            match json.loads(text) if text.endswith("\n") else {}:
                case {"job": _, "reply": {"run": run}}:
                    yield from of_rows(run)
                case {"pair": pair}:
                    yield str(pair["logs"])
                case {"key": [impl, case], "found": {"seconds": _}}:
                    yield f"checked {impl} {case}"
                case {"visit": visit}:
                    for impl, cell in visit["cells"].items():
                        yield from (f"{impl} {visit['id']} {it[1]} = {it[4]}" for it in cell["samples"])


def of_rows(run: dict[str, Any]) -> Iterator[str]:
    for row in (it["extra_info"] for it in run["benchmarks"]):
        yield f"checked {row['impl']} {row['id']}"
        for number, fastest in zip(row["sample_rounds"], row["sample_fastest"], strict=True):
            yield f"{row['impl']} {row['id']} {number} = {fastest}"


def saved(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def cells(folder: Path) -> set[tuple[str, str]]:
    (file,) = folder.glob("results/*/*.json")
    data = json.loads(file.read_text())
    told = [row["extra_info"] for row in data["benchmarks"]] + data["skipped"]
    return {(it["impl"], it["id"]) for it in told}


if __name__ == "__main__":
    main()
