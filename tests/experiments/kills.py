"""`python -m tests.experiments.kills run|ab|bisect|ray [KILLS [SECONDS]]`: a command killed at random moments and resumed.

The command runs once to its end, then again and again, each time in a new folder: it is killed after a random time of at most
SECONDS (default: as long as it takes uninterrupted), and resumed, until it ends by itself. This ends after KILLS (default: 20).

Prints, for every kill, the results on disk before and after it. Results that are on disk must stay until the command ends by
itself; no file may hold a result twice; and the end must be that of the uninterrupted command: the same cells of a run or a
sweep in one file, the same commit of a bisection.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .fallback import git

CHECKOUT = Path(__file__).resolve().parents[2]
CELLS = ("--T", "16,24,32", "--H", "2", "--dtype", "float32", "--impl", "fused,sdpa")
BENCH = (sys.executable, str(CHECKOUT / "bench"))
RAY = (*BENCH, "sweep", "--cluster", "ray", "--address", "local")
"""Starts a Ray of its own: without an address, Ray connects to the one that was started last on this machine."""

SDPA = "torch.nn.functional:scaled_dot_product_attention"
COMMANDS = {
    "run": (sys.executable, "-m", "pytest", str(CHECKOUT / "bench"), "--resume", "x", "--cell-time", "0.5", *CELLS),
    "ab": (*BENCH, "ab", "--base-impl", "sdpa", "--head-impl", f"same={SDPA}", "--margin", "0.0001", "--seed", "1",
           "--save", "x", "--budget", "0.5", "--T", "16,32", "--H", "2", "--dtype", "float32"),
    "bisect": (*BENCH, "bisect", "GOOD", "BAD", "--impl", "mine=mine:mine", "--seed", "1", "--budget", "5",
               "--margin", "0.4", "--T", "64", "--H", "2", "--dtype", "float32"),
    "ray": (*RAY, "--save", "x", "--processes", "1", "--cell-time", "0.05", *CELLS),
}  # fmt: skip
"""By kind: the command that begins. It also continues, except a sweep on a cluster."""

SAVED = "results/**/0*.json"
"""Saved files. A run, a sweep or a comparison has one, at its end."""

COMMITS, SLOW = 4, 2
"""Commits of a kernel, and the first that is slow: four times, which three replicates show."""

SOURCE = """
from torch.nn.functional import scaled_dot_product_attention as sdpa

def mine(q, k, v, *, is_causal=False):
    for _ in range({calls}):
        o = sdpa(q, k, v, is_causal=is_causal)
    return o
"""


def main() -> None:
    kind, kills = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20
    draw, left, after_results = random.Random(0), kills, 0
    with tempfile.TemporaryDirectory() as name:
        whole, began = Command(kind, Path(name) / "whole"), time.monotonic()
        whole.runs_to_its_end()
        length = time.monotonic() - began
        longest = float(sys.argv[3]) if len(sys.argv) > 3 else length
        print(f"uninterrupted: {length:.0f} s, {whole.check('')} results, {whole.end()}", flush=True)
        for run in itertools.count(1):
            command = Command(kind, Path(name) / str(run))
            while not command.runs_to_its_end(draw.uniform(0, longest) if left else None):
                left -= 1
                after_results += bool(command.check(f"kill {kills - left:>2}, run {run}: "))
            command.check(f"end of run {run}: ")
            assert command.end() == whole.end(), (command.end(), whole.end())
            if not left:
                break
    print(f"{kills} kills in {run} runs, {after_results} of them after results: nothing lost, nothing measured twice")


class Command:
    """A command in a folder of its own, which may be killed and resumed until it ends by itself."""

    def __init__(self, kind: str, folder: Path):
        self._kind, self._folder, self._kept = kind, folder, set[str]()
        folder.mkdir()
        if kind == "bisect":
            commits(folder)

    def runs_to_its_end(self, seconds: float | None = None) -> bool:
        """Begin or resume the command, and kill it after so many seconds; return whether it had done everything."""
        unfinished = any(b"\n" in it.read_bytes() for it in self._folder.glob("results/cluster/*.journal"))
        command = (*RAY, "--resume", "x") if unfinished else COMMANDS[self._kind]
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(command, cwd=self._folder, stdout=output, stderr=output)
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = None
            output.seek(0)
            self._said = output.read()
        assert code in (None, 0) or self._kind == "ab", self._said
        return code is not None or (self._kind != "bisect" and any(self._folder.glob(SAVED)))

    def check(self, what: str) -> int:
        """Check that all results are still on disk, each once in its file; returns their number."""
        files = [[*results(path)] for path in self._folder.glob("results/**/*.*")]
        now = {it for file in files for it in file}
        lost = self._kept - now
        twice = sum(len(file) - len({it.partition(" = ")[0] for it in file}) for file in files)
        if what:
            print(
                f"{what}{len(self._kept):>3} results before, {len(now):>3} after, {len(lost)} lost, {twice} twice",
                flush=True,
            )
        assert not lost and not twice, lost
        self._kept = now
        return len(now)

    def end(self) -> str:
        """Describe what a finished command has: the cells of a run or sweep, in one file, or the commit of a bisection."""
        if self._kind == "bisect":
            return " ".join(re.findall(r"the first that is slow: \w+ (.*)", self._said))
        (saved,) = (json.loads(path.read_text()) for path in self._folder.glob(SAVED))
        cells = saved["cells"] if self._kind == "ab" else [row["extra_info"] for row in saved["benchmarks"]]
        return ", ".join(sorted(f"{it['impl']} {it['id']}" for it in (*cells, *saved.get("skipped", ()))))


def commits(folder: Path) -> None:
    """Make a repository with commits of a kernel; tags GOOD and BAD."""
    git(folder, "init", "-q")
    for commit in range(COMMITS):
        (folder / "mine.py").write_text(SOURCE.format(calls=4 if commit >= SLOW else 1) + f"# {commit}\n")
        for arguments in (["add", "mine.py"], ["commit", "-qm", f"commit {commit}"]):
            git(folder, *arguments)
        if commit in (0, COMMITS - 1):
            git(folder, "tag", "BAD" if commit else "GOOD")


def results(path: Path) -> Iterator[str]:
    """Yield what a file holds: rows or replicates of a saved file, or of the complete lines of a journal. Of a sample its
    cell, round and seconds.
    """
    if path.match("0*.json"):
        saved = json.loads(path.read_text())
        yield from (str(pair["logs"]) for pair in saved.get("pairs", ()))
        yield from of_rows(saved)
    for text in path.read_text().splitlines(keepends=True) if path.suffix == ".journal" else ():
        match json.loads(text) if text.endswith("\n") else {}:
            case {"job": _, "reply": {"run": run}}:
                yield from of_rows(run)
            case {"logs": logs}:
                yield str(logs)
            case {"key": [impl, case], "found": {"seconds": _}}:
                yield f"checked {impl} {case}"
            case {"visit": [_, _, case], "cells": cells}:
                for impl, cell in cells.items():
                    yield from (f"{impl} {case} {it[1]} = {it[4]}" for it in cell["samples"])


def of_rows(saved: dict[str, Any]) -> Iterator[str]:
    for row in (it["extra_info"] for it in saved.get("benchmarks", ())):
        yield f"checked {row['impl']} {row['id']}"
        for number, fastest in zip(row["sample_rounds"], row["sample_fastest"], strict=True):
            yield f"{row['impl']} {row['id']} {number} = {fastest}"


if __name__ == "__main__":
    main()
