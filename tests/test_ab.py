"""Interleaved comparison of two variants: its command on simulated processes, and on real ones with tiny cells."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import psutil
import pytest
import torch

from bench.__main__ import main
from bench.ab import ab as measuring
from bench.ab import plan as planning
from bench.ab import sources
from bench.ab.options import parser
from bench.ab.plan import SameCode
from bench.ab.replicates import Replication, datum
from bench.cases.case import Case
from bench.cases.outcome import OutOfMemory, Skip, Wrong
from bench.checks.attention_problems import problem_of
from bench.selection.choice import own_files
from bench.selection.errors import UsageError
from bench.timing.devices.cpu import CpuMeter
from bench.timing.machine import fingerprint
from bench.timing.malloc import has_glibc
from bench.timing.reference_workload import GPU_WORK, WORK
from bench.workers.client import Lost, Variant, WorkerClient, WorkerSettings
from bench.workers.tree import Tree, loaded_libraries, opened
from commands.history import confirm
from stats.arguments import UNFINISHED
from stats.effects import of_saved
from stats.estimate import grouped
from stats.verdict import INCONCLUSIVE, REGRESSED, UNCHANGED

from .conftest import CHECKOUT, LocalWorker, ask_check, environment, started
from .experiments.fallback import committed, git

CELLS = "--H=2 --D_h=8 --dtype=float32"


@pytest.mark.parametrize(
    ("base", "head", "ratio"),
    [
        ([1e-3, 2e-3, 2e-3, 0.8e-3, 2e-3, 1e-3], [1.05e-3, 2.1e-3, 2.1e-3, 1.05e-3, 1.05e-3, 1.05e-3], 1.05),
        ([0.7, 1.0, 0.9, 0.7], [0.77, 0.77, 0.8, 1.4], 1.1),  # long calls, each disturbed twice
    ],
)
def test_drift_and_disturbed_rounds_do_not_change_the_datum(base, head, ratio):
    blocks = [(variant, times[i]) for i in range(len(base)) for variant, times in enumerate((base, head))]
    assert datum(blocks, long=len(base) == 4) == pytest.approx(math.log(ratio))


# The command on simulated processes


def named(*words):
    """Return the short name of a cell, `sdpa T16`, or of a reference workload, `control python`."""
    return re.sub(r"B1-(T\d+)-.*", r"\1", " ".join(words))


@dataclass
class World:
    """What simulated processes do, and what was asked of them, by `named` cells; of others a call takes a millisecond."""

    seconds: dict[str, float] = field(default_factory=dict)
    slower: dict[str, float] = field(default_factory=dict)
    """Ratio of head's calls to base's."""
    noise: dict[str, float] = field(default_factory=dict)
    """Standard deviation of the logarithm of that ratio, between replicates."""
    dies: str = ""
    """What ends head's process when it is timed, or the process of variant number `side` at this request."""
    side: int = 1
    building: float = 0.0
    """Seconds of the first import in each folder."""
    head: str = "the working tree"
    """Label of head."""
    now: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    """Request, variant and cell of each, and how a block is timed."""
    edited: list[tuple[int, bool]] = field(default_factory=list)
    """Variant of every process, and whether its code is that of the edited working tree."""
    folders: set[str] = field(default_factory=set)
    fault: Skip = field(default_factory=lambda: Lost("ended its process (SIGSEGV)"))
    """What happens where it `dies` in head while it is timed."""
    dropped: list[str] = field(default_factory=list)
    """Implementations whose memory was released after their check."""


FAILURES = {
    "wrong": Skip("error 1.0", "wrong"),
    "raises": Skip("ValueError: no"),
    "dead": Lost("ended its process (SIGKILL)"),
    "impossible": Skip("torch has no such kernel", "unsupported"),
}


class Simulated(LocalWorker):
    """A worker, to start which takes half a second. What an implementation does in the check follows from its name."""

    def __init__(self, world, variant, setting):
        self.world, self.variant, self.side = world, variant, int(variant.label == world.head)
        self.slower: dict[str, float] = {}
        self.drawn = {name: math.exp(world.rng.gauss(0, spread)) for name, spread in world.noise.items()}
        source = variant.impls / "impls" / "sdpa.py"
        world.edited.append((self.side, "# more" in source.read_text()))
        folder = f"{self.side} {variant.impls.relative_to(tempfile.gettempdir()).parts[1:]}"
        world.now += 0.5 + world.building * (folder not in world.folders)
        world.folders.add(folder)

    def close(self):
        self.world.asked.append(("close", self.side, ""))

    def ask(self, do, what="", **details):
        name = named(what)
        if (do, self.side) == (self.world.dies, self.world.side):
            raise Lost("ended its process (exit code 1): SyntaxError: invalid syntax")
        if do == "cells":
            versions = dict.fromkeys([*WORK, *GPU_WORK], "1") | {"product": self.variant.python}
            fingerprint = {"torch": self.variant.python}
            absent = {*(("young",), ("gone", "old"))[self.side], "nobody"}
            cells = dict.fromkeys([Case(**case).id for case in details["cases"]])
            names = [name.partition("=")[0] for name in details["names"]]
            known = {name: cells for name in names if name not in absent}
            there = {"nobody": f": can't import it in {self.variant.tree}"}
            unknown = {name: f"unknown {name}{there.get(name, '')}" for name in names if name in absent}
            return {"cells": known, "unknown": unknown, "fingerprint": fingerprint, "workloads": versions}
        if do == "probe":
            self.probed = details["impl"]
        elif do == "check":
            return self.check(*self.probed.split("-"))
        elif do == "drop":
            self.world.dropped.append(self.probed)
            if self.probed == "hangs":
                raise Lost("took longer than 300 s")
        elif do in ("prepare", "workload", "pin", "time") and what != "it":
            self.world.asked.append((do, self.side, name, *details.values()))
            if do == "prepare":
                self.slower[name] = details["slower"]
            return self.timed(do, name)
        return {"seconds": 1.0, "passed": []}

    def check(self, does, variant=""):
        if does in FAILURES and variant in ("", ("base", "head")[self.side]):
            raise FAILURES[does]
        return {"columns": {"error": 1e-7, "error_bound": 1e-6, "peak_bytes": 100, "kernel": "flash"}, "seconds": 1.0}

    def timed(self, do, name):
        seconds = self.world.seconds.get(name, 1e-3) * (1 + self.slower.get(name, 0.0))
        if self.side:
            seconds *= self.world.slower.get(name, 1.0) * self.drawn.get(name, 1.0)
            if (do, name) == ("time", self.world.dies):
                raise self.world.fault
        return {"seconds": seconds, "fastest": seconds}


class Ran(NamedTuple):
    """What a comparison ended with, its files, and the world in which it ran."""

    code: int
    text: str
    errors: str
    saved: dict[str, Any]
    world: World

    @property
    def words(self):
        """The verdicts by cell."""
        return {named(cell["impl"], cell["id"]): cell["word"] for cell in self.saved["cells"]}


@pytest.fixture
def inside(repository, monkeypatch, capfd):
    """`inside("--base HEAD")` is `python -m bench ab --base HEAD` of a checkout, in this process: its exit code, and what it
    prints on stdout and stderr.
    """
    monkeypatch.chdir(repository)
    for module in (sources, planning):
        monkeypatch.setattr(module, "CHECKOUT", repository)
    monkeypatch.setattr("stats.arguments._HOME", repository)  # where commands are printed for
    monkeypatch.setattr(tempfile, "tempdir", str(repository.parent))
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(typed):
        try:
            code = main(("ab", *typed.split()))
        except SystemExit as end:  # argparse's own
            code = int(end.code or 0)
        except KeyboardInterrupt as why:
            code = UNFINISHED
            print(why, file=sys.stderr)
        return code, *capfd.readouterr()

    return run


def edited(repository):
    """Other code, which does the same."""
    with (repository / "impls" / "sdpa.py").open("a") as source:
        source.write("# more\n")


@pytest.fixture
def command(inside, repository, monkeypatch):
    """`command("--impl sdpa", dies="sdpa T16")` is `python -m bench ab ...` in such a world, if nothing else is compared of
    HEAD and an edited working tree. A replicate takes a second, as does the start.
    """
    edited(repository)

    def run(typed="", **world):
        usual = {"--T": "16,32", "--budget": "0.3"}
        if not any(it in typed for it in ("--base-", "--self-test")):
            usual |= {"--impl": "fused,sdpa", "--base": "HEAD"}
        missing = [f"{name}={value}" for name, value in usual.items() if name not in typed.split()]
        words = [] if "--continue" in typed else [CELLS, *missing]
        made = World(**world)
        monkeypatch.setattr(planning, "WorkerClient", partial(Simulated, made))
        monkeypatch.setattr("bench.ab.replicates.monotonic", lambda: made.now)
        before = {*repository.glob("results/*/ab/*.json")}
        code, text, errors = inside(" ".join([*words, typed]))
        saved = {*repository.glob("results/*/ab/*.json")} - before
        return Ran(code, text, errors, json.loads(saved.pop().read_text()) if len(saved) == 1 else {}, made)

    return run


def asked_of_first_replicate(world):
    """What its two processes were asked; the first two are those that check."""
    ends = [i for i, it in enumerate(world.asked) if it[0] == "close"]
    return world.asked[ends[1] + 1 : ends[3] + 1]


def test_each_round_has_every_cell_once_per_variant_in_random_order(command):
    """Processes are pinned before anything is timed, and new in each replicate."""
    ran = command(slower={"sdpa T16": 2.0})
    names = ("fused T16", "fused T32", "sdpa T16", "sdpa T32", "control product", "control python")
    for replicate in ran.saved["pairs"]:
        logs = {named(impl, case): log for impl, case, log in replicate["logs"]}
        assert logs == dict.fromkeys(names, 0.0) | {"sdpa T16": pytest.approx(math.log(2))}
        cells, sides = replicate["blocks"]["cell"], replicate["blocks"]["side"]
        rounds = [sorted(zip(cells[i : i + 12], sides[i : i + 12], strict=True)) for i in range(0, 20 * 12, 12)]
        assert rounds == [[*product(range(6), (0, 1))]] * 20
        assert Counter(Counter(cells).values()) == {40: 2, 160: 4}  # a workload's time need not be known as well
        assert cells[::2] == cells[1::2]  # the variants' blocks follow each other
        assert 0.3 < sum(sides[::2]) / len(sides[::2]) < 0.7
    asked = [do for do, side, *_ in asked_of_first_replicate(ran.world) if side]
    assert asked.index("pin") < asked.index("time")
    assert len(ran.world.edited) == 2 + 2 * len(ran.saved["pairs"])


def test_a_long_call_has_few_rounds_and_no_untimed_call(command):
    ran = command(seconds={"sdpa T16": 0.5, "sdpa T32": 0.01})
    asked = asked_of_first_replicate(ran.world)
    timed = grouped((name, (*how,)) for do, side, name, *how in asked if (do, side) == ("time", 0))
    assert timed["sdpa T16"] == [(1, 1, 0)] * 4
    assert {*timed["sdpa T32"]} == {(1, 1, 1)} and {*timed["fused T16"]} == {(1, 2, 1)}


def test_a_process_that_dies_while_it_is_timed_costs_its_cell(command):
    ran = command(dies="sdpa T16")
    assert ran.words == dict.fromkeys(ran.words, UNCHANGED) | {"sdpa T16": "BROKEN"}
    (failed,) = (cell for cell in ran.saved["cells"] if cell["failed"])
    assert (failed["failed"], failed["reason"]) == (["head"], "head: error: ended its process (SIGSEGV)")
    assert [len(replicate["logs"]) for replicate in ran.saved["pairs"]] == [5] * 3  # and no replicate without cells
    ran = command(dies="control python")  # without it drift is unknown
    assert ran.code == 2 and "could not be judged: ended its process (SIGSEGV)" in ran.errors


def test_of_a_cell_that_does_not_fit_into_memory_twice_only_the_facts_are_compared(command):
    ran = command(dies="sdpa T16", fault=OutOfMemory("full"))
    assert ran.words == dict.fromkeys(ran.words, UNCHANGED) | {"sdpa T16": INCONCLUSIVE} and ran.code == 0
    (cell,) = (it for it in ran.saved["cells"] if it["word"] == INCONCLUSIVE)
    assert cell["reason"] == "head: out of memory beside the other variant: full"
    assert cell["base"]["peak_bytes"] == cell["head"]["peak_bytes"] == 100


def test_settled_cells_leave_and_open_ones_are_measured_on_within_the_budget(command):
    slower, noise = {"sdpa T16": 1.2, "sdpa T32": 1.012}, {"sdpa T32": 0.008}
    ran = command("--impl sdpa --budget 0.08 --seed 1", slower=slower, noise=noise)
    assert ran.words == {"sdpa T16": REGRESSED, "sdpa T32": INCONCLUSIVE}
    assert [len(it["logs"]) for it in ran.saved["pairs"]] == [4, 4, 4, 3]  # a fifth one might take too long
    assert [replicate["last"] for replicate in ran.saved["pairs"]] == [False, False, False, True]
    (file,) = Path().glob("results/*/ab/0001_*.json")
    more = command(f"--continue {file} --budget 10", slower={"sdpa T32": 1.012}, noise={"sdpa T32": 0.004})
    assert more.words == {"sdpa T16": REGRESSED, "sdpa T32": REGRESSED}
    assert more.saved["pairs"][:4] == ran.saved["pairs"] and more.saved["seconds"] > ran.saved["seconds"]
    assert {len(replicate["logs"]) for replicate in more.saved["pairs"][4:]} == {3}
    assert all(more.saved[name] == ran.saved[name] for name in ("asked", "command", "seed"))


def test_building_extensions_leaves_time_for_replicates(command):
    ran = command("--impl sdpa --budget 2 --seed 1", noise={"sdpa T32": 0.1}, building=30.0)
    took = [replicate["seconds"] for replicate in ran.saved["pairs"]]
    assert len(took) > 30 and max(took) > 60


def test_a_saved_comparison_is_continued_with_the_same_code_on_the_same_machine(command, repository, monkeypatch):
    saved = command("--save x").saved
    assert f" --base {saved['sides']['base']['commit'][:10]} " in saved["command"]
    (file,) = repository.glob("results/*/ab/0001_x.json")
    git(repository, "commit", "-qam", "HEAD is another commit than it was")
    monkeypatch.setattr("bench.ab.plan.fingerprint", lambda: fingerprint() | {"threads": 64})  # of this process
    ran = command(f"--continue {file}")
    assert ran.code == 0 and f"saved: {file}\n" in ran.text and not ran.saved  # nothing is left to measure
    (repository / "impls" / "sdpa.py").write_text("changed = True\n")
    monkeypatch.setattr("bench.ab.plan.fingerprint", lambda: fingerprint() | {"torch": "another"})
    (repository / "edited.json").write_text(json.dumps(json.loads(file.read_text()) | {"pairs": [{}]}))
    (repository / "no.json").write_text(json.dumps(json.loads(file.read_text()) | {"same": 3}))
    for other, options, says in (
        (file, "", "changed since then: code, torch; start another comparison, without --continue"),
        (repository / "impls" / "sdpa.py", "", "sdpa.py: not JSON"),
        (repository / "edited.json", "", "edited.json: not a comparison that `python -m bench ab` saved"),
        (repository / "no.json", "", "no.json: not a comparison that `python -m bench ab` saved"),
        (repository / "typo.json", "", "typo.json: can't be read (No such file or directory)"),
        (file, "--T 16 --base-impl fused --threads 1", "leave out --base-impl, --T, --threads"),
    ):
        ran = command(f"--continue {other} {options}")
        assert ran.code == 3 and says in ran.errors


def test_a_comparison_is_continued_only_in_its_folder(command, repository, monkeypatch):
    """Another folder may have another module of the kernel's name."""
    for name in ("one", "two"):
        (repository / name).mkdir()
    monkeypatch.chdir(repository / "one")
    command("--T 16 --base HEAD --impl mine=mine:mine --budget 0.05 --save x")
    (file,) = Path().resolve().glob("results/*/ab/0001_x.json")
    monkeypatch.chdir(repository / "two")
    ran = command(f"--continue {file}")
    assert ran.code == 3 and "changed since then: folder; start another" in ran.errors
    monkeypatch.chdir(repository / "one")
    assert command(f"--continue {file}").code == 0


def test_new_gone_wrong_and_dead(command):
    names = "same,wrong-head,dead,impossible,slow,raises-head,raises-base,gone,old,young"
    ran = command(f"--T 16 --impl {names} --allow-gone old,raises-head,typo --threads 999", slower={"slow T16": 1.2})
    assert "--allow-gone typo: not among the compared implementations\n" in ran.errors
    assert "old: not among" not in ran.errors and "more threads (999) than cores" in ran.errors
    found = {cell["impl"]: cell for cell in ran.saved["cells"]}
    assert {name: cell["word"] for name, cell in found.items()} == {
        "same": UNCHANGED, "wrong-head": "WRONG", "dead": INCONCLUSIVE, "impossible": INCONCLUSIVE, "slow": REGRESSED,
        "raises-head": "BROKEN", "raises-base": "WRONG", "gone": "BROKEN", "old": "GONE", "young": "NEW",
    }  # fmt: skip
    failed = {name: found[name]["failed"] for name in ("wrong-head", "raises-base", "impossible")}
    assert failed == {"wrong-head": ["head"], "raises-base": ["base"], "impossible": []} and ran.code == 1
    reasons = {
        "dead": "base and head: error: ended its process (SIGKILL)", "raises-head": "head: error: ValueError: no",
        "gone": "head: unknown gone (if intended: --allow-gone gone)", "old": "head: unknown old",
    }  # fmt: skip
    assert {name: found[name]["reason"] for name in reasons} == reasons


@pytest.mark.parametrize(
    ("base", "head", "allowed", "word", "code"),
    [
        ("same", "impossible", "", "BROKEN", 1),
        ("same", "impossible", "--allow-gone impossible", "GONE", 0),
        ("dead", "wrong-head", "", "WRONG", 1),  # though base fails in another way
    ],
)
def test_of_two_names_a_head_that_cannot_fails_unless_it_may_be_gone(command, base, head, allowed, word, code):
    ran = command(f"--T 16 --base-impl {base} --head-impl {head} {allowed}", head=head)
    assert (ran.words, ran.code) == ({f"{head} against {base} T16": word}, code)


def test_a_name_that_neither_variant_has_is_a_usage_error_that_names_no_copy(command):
    missing = command("--T 16 --impl nobody=mine:mine")
    assert missing.code == 3
    assert (
        f"error: the working tree: unknown nobody: can't import it in {os.getcwd()}; a variant lacks ignored"
        in missing.errors
    )


def test_a_head_that_cannot_begin_is_broken_and_a_base_is_not_compared(command):
    ran = command(dies="cells", side=0)
    assert ran.code == 2 and "SyntaxError" in ran.errors
    ran = command(dies="cells", side=1)
    assert ran.code == 1 and "SyntaxError" in ran.text
    assert [cell["word"] for cell in ran.saved["cells"]] == ["BROKEN"] * 4


def test_interpreters_may_differ_in_everything(command, monkeypatch):
    """A reference workload of another version is left out."""
    monkeypatch.setattr(planning, "interpreter", lambda path: (path, "3.11 2.13"))
    ran = command("--base-python p --head-python q --impl sdpa", head="q")
    assert ran.code == 0 and "torch: p → q" in ran.text
    assert {*of_saved(ran.saved["pairs"])[1]} == {"python"}


def test_machine_drift_leaves_every_cell_open(command):
    ran = command("--T 16", slower=dict.fromkeys(("fused T16", "sdpa T16", "control python"), 1.1))
    assert ran.code == 2 and {*ran.words.values()} == {INCONCLUSIVE}


def test_folders_change_places_at_random_so_that_what_they_do_to_time_is_noise(command):
    """Each has a twin with the same code."""
    world = command("--impl sdpa", noise={"sdpa T16": 0.1}).world
    assert {*world.edited} == {(0, False), (1, True)} and len(world.folders) == 4


# A user's repository


def test_a_variant_imports_its_own_implementations_and_the_modules_of_its_tree_also_if_installed_as_editable(
    tmp_path, monkeypatch
):
    repository, tree = tmp_path / "repository", tmp_path / "tree"
    for root, source in (
        (repository, "raise RuntimeError('of the working tree')\n"),
        (tree, "from torch.nn.functional import scaled_dot_product_attention as mine\n"),
    ):
        for name in ("src/pkg/kern.py", "a folder/neighbour.py"):
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text(source)
        (root / "a folder" / "file.py").write_text("from neighbour import mine\n")
    registry = sources.copy_of_impls(tree) / "impls" / "__init__.py"
    registry.write_text(registry.read_text().replace("    packed,\n", ""))
    (tree / "stats").mkdir()
    (tree / "stats" / "__init__.py").write_text("raise RuntimeError('of a revision of the suite')\n")
    (tree / "built").mkdir()
    (tmp_path / "kernels.py").write_text(  # stands in for the package
        "import sys\nfrom torch.nn.functional import scaled_dot_product_attention as mine\n"
        "get_kernel = get_local_kernel = lambda place: sys.modules[__name__]\n"
    )
    (repository / "started here").mkdir()
    (repository / "new.py").write_text("mine = max\n")
    (tree / "mixed.py").write_text(
        f"import sys\nsys.path += [{str(repository / 'lib')!r}]\nfrom built_here import mine\n"
    )
    for root in (repository, tree):
        (root / "lib").mkdir()
        (root / "lib" / "source.cpp").touch()
    (repository / "lib" / "built_here.py").write_text("mine = max\n")
    for root in (repository, tmp_path / "tree of the other variant"):
        (root / "newer").mkdir(parents=True)
        (root / "newer" / "recent.py").write_text("mine = max\n")
    places = (repository / "src", repository / "newer", tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, places)))
    setting = WorkerSettings(str(repository / "started here"), repository=repository)
    client = WorkerClient(Variant("x", impls=tree, tree=tree), setting)
    read = repository / "lib" / "source.cpp"
    (tree / "reads.py").write_text(f"exec(open({str(read)!r}).read())\nmine = max\n")
    names = ["deep=pkg.kern:mine", "file=a folder/file.py:mine", "new=new:mine", "recent=recent:mine", "yaml=yaml:dump",
             "packed", "built=kernels:built#mine", "hub=kernels:some/where#mine", "reads=reads:mine",
             "mixed=mixed:mine"]  # fmt: skip
    answer = client.ask("cells", names=names, device="cpu", whole_registry=False, cases=[CASE])
    client.close()
    assert {*answer["cells"]} == {"deep", "file", "built"}
    assert f"kernels is imported from {tmp_path / 'kernels.py'}" in answer["unknown"]["hub"]
    for name in ("new", "recent"):
        assert f"can't import {name}: ModuleNotFoundError" in answer["unknown"][name]
    assert "yaml is imported from " in answer["unknown"]["yaml"]
    assert "unknown implementation 'packed'" in answer["unknown"]["packed"]
    assert f"{read} is read, which is the same for every revision" in answer["unknown"]["reads"]
    assert f"built_here is imported from {repository / 'lib'}" in answer["unknown"]["mixed"]


@pytest.mark.parametrize(
    ("file", "place", "refused"),
    [
        ("copied.py", "elsewhere", True),
        ("src/copied.py", "elsewhere", True),
        ("parts/copied.py", "elsewhere", True),  # a part of a namespace
        ("copied.py", "tree", False),
        ("antigravity.py", "elsewhere", False),  # Python's own can't be replaced
    ],
)
def test_a_copy_elsewhere_of_a_module_of_the_repository_is_refused(tmp_path, monkeypatch, file, place, refused):
    for folder in ("tree", "elsewhere"):
        (tmp_path / folder / file).parent.mkdir(parents=True)
        (tmp_path / folder / file).touch()
    name = file.removesuffix(".py").removeprefix("src/").replace("/", ".")
    in_head = Tree(str(tmp_path / "tree"), tmp_path / "tree", tmp_path / "repository")
    monkeypatch.setitem(sys.modules, name, mock.Mock(__file__=str(tmp_path / place / file)))
    refusal = pytest.raises(UsageError, match=f"^{name} is imported from .*, not from your repository")
    with refusal if refused else nullcontext():
        in_head.refuse_others()


@pytest.mark.parametrize(
    ("file", "refused"),
    [
        ("tracked.json", True),
        ("__pycache__/helper.cpython-311.pyc", True),
        ("ignored.json", False),
        ("tracked.so", True),
        ("build/ignored.so", True),
        (".venv/lib/x.so.1", False),
        ("deps/x/x.so", False),
        ("a cache/x.so", False),
    ],
)
def test_a_file_of_the_working_tree_that_is_read_or_loaded_is_refused(tmp_path, monkeypatch, file, refused):
    assert any("libtorch" in it for it in loaded_libraries()) or sys.platform != "linux"
    repository, tree = tmp_path / "repository", tmp_path / "trees" / "head"
    tree.mkdir(parents=True)
    (repository / "deps" / "x-1.dist-info").mkdir(parents=True)
    for name in ("tracked.json", "tracked.so", "helper.py"):
        (tree / name).touch()
    found = {str(tree / "helper.py"), str(repository / file)}
    is_library, hooks = ".so" in file, []
    monkeypatch.setattr("bench.workers.tree.loaded_libraries", lambda: found if is_library else set())
    monkeypatch.setattr(sys, "addaudithook", hooks.append)
    place = Tree(str(tree), tree, repository, opened(repository))
    for it in () if is_library else found:
        hooks[0]("open", (it, "r", os.O_RDONLY))
    refusal = pytest.raises(UsageError, match=r" is read, which is the same for every revision")
    with refusal if refused else nullcontext():
        place.refuse_others()


@pytest.mark.parametrize(
    ("source", "in_head", "refused"),
    [("csrc", "new", True), ("csrc", "old", False), ("dist/ext.whl", "new", True), ("../other/csrc", "new", False)],
)
def test_an_extension_installed_from_a_folder_of_the_repository_that_differs_is_refused(
    tmp_path, monkeypatch, source, in_head, refused
):
    repository, site, trees = tmp_path / "repository", tmp_path / "site-packages", tmp_path / "trees"
    for name, code in (("base", "old"), ("head", in_head)):
        (trees / name / "csrc").mkdir(parents=True)
        (trees / name / "csrc" / "ext.cpp").write_text(code)
    about = site / "ext-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Name: ext\nVersion: 1\n")
    (about / "RECORD").write_text("ext.so,,\n")
    (site / "ext.so").touch()  # Python 3.12 lists only files that exist
    (about / "direct_url.json").write_text(json.dumps({"url": f"file://{repository.resolve()}/{source}"}))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setitem(sys.modules, "ext", mock.Mock(__file__=str(site / "ext.so")))
    place = Tree(str(trees / "head"), trees / "head", repository)
    place._given.discard("ext")
    with pytest.raises(UsageError, match=r"^ext is imported from .*: load it by") if refused else nullcontext():
        place.refuse_others()


BUILDS = """
from pathlib import Path
from torch.utils.cpp_extension import _get_build_directory

library = Path(_get_build_directory("x", False), "x.so")  # as in `load_inline`, for which another process has built
library.exists() or library.write_text(VERSION)
assert library.read_text() == VERSION, "that of another variant"
mine = lambda q, k, v: v
"""


@pytest.mark.parametrize(
    "typed", ["--base HEAD --impl x=new:mine", "--base-impl old=old:mine --head-impl new=new:mine"]
)
def test_a_variant_does_not_import_the_extension_that_the_other_one_has_built(inside, repository, tmp_path, typed):
    for name in ("old", "new"):
        (repository / f"{name}.py").write_text(f"VERSION = 'old'{BUILDS}")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "x")
    (repository / "new.py").write_text(f"VERSION = 'new'{BUILDS}")
    plan = planning.plan_of(parser().parse_args([*typed.split(), CELLS.split()[0], "--T=16"]), tmp_path)
    with closing(plan.start()) as workers:
        assert [workers[name].first["unknown"] for name in ("base", "head")] == [{}, {}]


def test_a_file_named_by_its_absolute_path_is_that_of_each_revision(inside, repository, tmp_path_factory):
    edited(repository)
    elsewhere, shape = repository.parent / "elsewhere.json", {"num_attention_heads": 4, "hidden_size": 64}
    for file in (elsewhere, repository / "config.json"):
        file.write_text(json.dumps(shape))
    (repository.parent / "link").symlink_to(repository)
    for folder in (repository, repository.parent / "link"):  # the shell's $PWD may have links
        options = ["--base", "HEAD", "--impl", f"mine={folder}/a/mine.py:mine,x=x:f,sdpa"]
        options += ["--model", f"{folder}/config.json,{elsewhere}"]
        plan = planning.plan_of(parser().parse_args(options), tmp_path_factory.mktemp("variants"))
        assert plan.names == ["mine=a/mine.py:mine", "x=x:f", "sdpa"]
        assert f"config.json,{elsewhere}" in plan.words


def test_a_working_tree_is_copied_as_it_is_now(tmp_path, monkeypatch):
    root, odd = tmp_path / "repository", os.fsdecode(b"caf\xe9.py")  # no UTF-8

    def write(text, *names):
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return dict.fromkeys(names, text)

    kept = write("first\n", "kept.py", odd) | write("ignored.py\n", ".gitignore")
    kept |= write("first\n", "sub/results/plot.py")
    write("first\n", "gone.py", "sub/changed.py")
    git(root, "init", "-q")
    git(root, "add", ".")
    (root / "gone.py").unlink()
    kept |= write("now\n", "sub/changed.py", "sub/new.py", " new.py")
    write("now\n", "ignored.py", "sub/results/x/0001_x.json", "sub/venv/pyvenv.cfg", "sub/venv/lib/torch.py")
    write("now\n", "sub/reports/out/0001_x/index.html", f"tmp/{sources.PREFIX}of-a-killed-process/base/kept.py")
    write("stale\n", "__pycache__/kept.cpython-311.pyc")
    monkeypatch.chdir(root / "sub")
    assert sources.repository() == root
    sources.copy_of_working_tree(copy := root / "tmp" / f"{sources.PREFIX}x" / "head")
    assert {str(path.relative_to(copy)): path.read_text() for path in copy.rglob("*") if path.is_file()} == kept
    digests = [sources.digest(copy)]
    for name in ("notes.txt", odd):  # the first one is no code
        (copy / name).write_text("now\n")
        digests.append(sources.digest(copy))
    assert digests[0] == digests[1] != digests[2]


def test_a_kernel_is_compared_with_all_code_that_belongs_to_it(tmp_path):
    beside = {"helper.cu", "kernel_sm90.so"}  # of any kernel
    mine = {"mine.py", "helper.py", "helper/inner/deep.py", "helper/other.py"} | beside
    package, repository = ({f"{name}/a/mine.py", f"{name}/a/other.so"} for name in ("with-hyphen", "build"))
    for name in {"helper/data.bin", "unused.py", "kernels.py"} | mine | package | repository:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("import helper" if name == "mine.py" else "")
    (tmp_path / ".#mine.py").symlink_to("nowhere")  # as an editor leaves one
    (tmp_path / "link").symlink_to(tmp_path)
    for word, files in (
        ("x=mine:f", mine),
        ("x=./mine.py:f", mine),
        (f"x={tmp_path}/link/mine.py:f", mine),  # as by the shell's $PWD
        ("x=with-hyphen/a/mine.py:f", package | beside),
        ("x=kernels:build#f", repository),
        ("x=kernels:f", {"kernels.py"} | beside),  # a module of the user's
    ):
        assert own_files([word], tmp_path).keys() == files


def test_a_kernel_that_changes_meanwhile_ends_the_comparison(command, repository, monkeypatch):
    measure = Replication.replicate
    (repository / "mine.py").write_text("mine = max\n")

    def edited(name):
        def replicate(*given):
            with (repository / name).open("a") as file:
                file.write("# more\n")
            return measure(*given)

        monkeypatch.setattr(Replication, "replicate", replicate)
        return command("--T 16 --base-impl same --head-impl other=mine:mine", head="other")

    def is_refused(ran):
        return ran.code == 2 and "your code has changed meanwhile" in ran.errors

    assert edited("unused.py").code == 0
    assert is_refused(edited("mine.py"))
    (repository / "src").mkdir()
    (repository / "mine.py").rename(repository / "src" / "mine.py")
    monkeypatch.syspath_prepend(repository / "src")  # as by PYTHONPATH, or an editable installation
    assert is_refused(edited("src/mine.py"))


def test_a_step_of_history_is_compared_by_its_commits(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "plan_of", plan_of := mock.Mock(side_effect=SameCode("a", "b")))
    given = {"base": "a", "head": "b", "threads": 2, "device": "cpu", "impl": ["mine=mine:mine", "sdpa"]}
    assert confirm({**given, "cases": [{"T": 64}]}, tmp_path) == "no difference in code between a and b"
    options, _ = plan_of.call_args.args
    assert vars(options).items() >= given.items()
    assert json.loads(Path(options.cases).read_text()) == [{"T": 64}]


# Self-test


def test_cells_that_fail_release_their_memory_too_and_one_that_cannot_do_so_costs_only_its_process(command):
    ran = command("--impl fused,raises,hangs")
    assert Counter(ran.world.dropped) == {"fused": 4, "raises": 4, "hangs": 4}
    assert ran.words == {
        f"{name} {T}": word
        for name, word in (("fused", UNCHANGED), ("raises", INCONCLUSIVE), ("hangs", UNCHANGED))
        for T in ("T16", "T32")
    }


def test_a_self_test_goes_on_where_it_was_stopped(command, repository, monkeypatch):
    """A speedup of head is a regression of base."""
    ran = []
    whole = measuring.compare

    def compare(plan, *given):
        ran.append([{name: it for name, it in variant.slower.items() if it} for variant in plan.variants.values()])
        if len(ran) == 3:
            raise KeyboardInterrupt
        return whole(plan, *given)

    def tested(options=""):
        return command(f"--T 16 --impl sdpa,fused --self-test 3 {options}", head="a copy of it")

    monkeypatch.setattr(measuring, "compare", compare)
    first = tested()
    assert first.code == 2 and not first.text
    said = "self-test: about 3 min, beside checks; finished comparisons are kept, and the same command continues"
    assert said in first.errors
    text = tested().text
    assert ran == [
        *[[{}, {}]] * 4,
        *([{}, {"sdpa": share}] for share in (0.01, 0.02, 0.05, 0.1)),
        *([{"sdpa": pytest.approx(1 / (1 - share) - 1)}, {}] for share in (0.02, 0.05)),
    ]
    lines = text.splitlines()
    assert lines[0] == "self-test of this machine: 0 of 3 runs of unchanged code raised a false alarm (0 of 6 cells)"
    for share in ("+5", "-5"):
        assert f"self-test, {share} % injected: 1 of 1 cells found, 0 of 1 others flagged" in lines
    assert tested().text == text and len(ran) == 10
    tested("--margin 0.02")
    assert len(ran) == 19  # another margin is another test
    edited(repository)
    tested()
    assert len(ran) == 28  # as is other code


# The worker


@pytest.fixture
def worker(tmp_path):
    (tmp_path / "own.py").write_text(
        "import ctypes, os, sys, torch\n"
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "def loud(q, k, v, **options):\n"
        "    print('{\"seconds\": 0}', flush=True); sys.stdin.read(); return sdpa(q, k, v, **options)\n"
        "def dies(q, k, v, **_):\n    print('last \\x1b[1mwords', file=sys.stderr, flush=True); os._exit(3)\n"
        "def ends(q, k, v, **_): os._exit(4)\n"
        "def large(q, k, v, **_): return torch.empty(1 << 46)\n"
        "class Mute(Exception):\n    def __str__(self): raise ValueError\n"
        "def mute(q, k, v, **_): raise Mute\n"
        "def doubles(q, k, v, forked=[], **options):\n"
        "    if not forked: forked.append(ctypes.CDLL(None).fork())\n"
        "    return sdpa(q, k, v, **options)\n"
        "def forks(q, k, v, **options):\n    os.fork(); return sdpa(q, k, v, **options)\n"
    )
    client = WorkerClient(Variant("here", CHECKOUT), WorkerSettings(str(tmp_path), timeout=60.0))
    names = [f"{name}=own:{name}" for name in ("loud", "dies", "ends", "large", "mute", "doubles", "forks")]
    client.first = client.ask("cells", names=names, device="cpu", whole_registry=False, cases=[])
    yield client
    client.close()


CASE = Case.of(T=16, H=2, D_h=8).columns()


@pytest.mark.parametrize(("variable", "always"), [("THP_MEM_ALLOC_ENABLE", "1"), ("MALLOC_MMAP_MAX_", "0")])
def test_the_user_does_not_change_the_allocator_of_a_comparison(variable, always, monkeypatch, request):
    monkeypatch.setenv(variable, "7")
    allocator = request.getfixturevalue("worker").first["fingerprint"]["allocator"]
    assert allocator[variable] == always
    assert measuring.digest(allocator) == measuring.digest(planning.conditions()["allocator"])


@pytest.mark.parametrize("checked", [True, False])
def test_expected_outputs_are_kept_for_other_processes(tasks, tmp_path, checked):
    """Each of which compares its own output with them."""
    file, problem = tmp_path / "base-0.expected", problem_of(Case(**CASE))
    given = {"what": "x", "impl": "fused", "case": CASE, "expected": str(file)}
    if checked:
        tasks.probe("x", "fused", CASE)
        tasks.check("x", expected=str(file))
    else:
        tasks.prepare(**given)
    ((known,), written) = vars(problem).pop("expected"), file.stat().st_mtime_ns
    tasks.prepare(**given)
    assert file.stat().st_mtime_ns == written and [*tmp_path.iterdir()] == [file]
    del vars(problem)["expected"]
    torch.save((replace(known, reference=known.reference + 1.0),), file)
    with pytest.raises(Wrong, match="in a timed call: "):
        tasks.prepare(**given)
    del vars(problem)["expected"]  # other tests share the problem


def test_a_self_test_slows_the_calls_of_a_cell(tasks, monkeypatch):
    def slowed(meter, call, share):
        raise ValueError(share)

    monkeypatch.setattr(CpuMeter, "slowed", slowed)
    tasks.prepare("x", "fused", CASE)
    with pytest.raises(ValueError, match=r"0\.1"):
        tasks.prepare("x", "fused", CASE, slower=0.1)


def test_what_an_implementation_does_to_its_process_is_no_reply(worker):
    """It prints to the pipe, reads from it, forks, has no message, or ends."""
    assert ask_check(worker.ask, "loud", CASE)["columns"]["kernel"] == "flash"
    worker.ask("prepare", what="x", impl="loud", case=CASE)
    worker._timeout = 1e300
    assert worker.ask("time", what="x", calls=2, warm=1)["seconds"] > 0
    ask_check(worker.ask, "doubles", CASE)
    (other,) = psutil.Process(worker._process.pid).children()
    while other.status() != psutil.STATUS_ZOMBIE and not select.select([worker], [], [], 0.01)[0]:
        pass
    assert not select.select([worker], [], [], 0)[0]  # a forked process that continues sends no reply
    with pytest.raises(Skip, match=r"os\.fork\(\) in a worker process"):
        ask_check(worker.ask, "forks", CASE)
    with pytest.raises(Skip, match=r"Mute: no message \(own\.py:"):
        ask_check(worker.ask, "mute", CASE)
    with pytest.raises(Lost, match=r"exit code 3\): last \\x1b\[1mwords$"):
        ask_check(worker.ask, "dies", CASE)
    with pytest.raises(Lost, match="exit code 3"):
        worker.ask("settle")


def test_what_another_implementation_printed_is_no_reason(worker):
    ask_check(worker.ask, "loud", CASE)
    with pytest.raises(Lost, match=r"exit code 4\)$"):
        ask_check(worker.ask, "ends", CASE)


@pytest.mark.skipif(not has_glibc(), reason="only glibc has arenas")
def test_a_process_in_which_an_allocation_failed_is_replaced(worker):
    """In it glibc's malloc keeps no pages any more."""
    with pytest.raises(Skip, match=r"needs .* at least") as outcome:
        ask_check(worker.ask, "loud", Case.of(T=1 << 24, H=64, D_h=8).columns())
    assert not isinstance(outcome.value, Lost)
    with pytest.raises(Lost, match="can't allocate memory"):
        ask_check(worker.ask, "large", CASE)


def test_a_worker_needs_torch_numpy_and_psutil_only_and_no_compiler_for_an_eager_call():
    """The compiler takes seconds to import, and slows every later garbage collection."""
    code = (
        "import sys\n"
        "for name in ('pytest', 'pytest_benchmark', 'rich', 'scipy', 'pandas', 'reports'): sys.modules[name] = None\n"
        "import bench.workers.worker\n"
        "from bench.workers.tasks import Tasks\n"
        "tasks = Tasks('.')\n"
        f"tasks.probe('x', 'sdpa', {CASE})\n"
        "assert tasks.check('x')['columns']['peak_bytes']\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    started(CHECKOUT, "-c", code)


# Whole comparisons


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A separate checkout with one commit."""
    return committed(tmp_path_factory.mktemp("committed") / "checkout")


@pytest.fixture
def repository(checkout, tmp_path):
    """A copy of it, which the test may change."""
    return shutil.copytree(checkout, tmp_path / "checkout")


def still_run(workers):
    return any(it.is_running() and it.status() != psutil.STATUS_ZOMBIE for it in workers)


@pytest.mark.parametrize(
    ("ending", "says"),
    [
        (signal.SIGKILL, ""),
        *((it, "bench: interrupted; the same command continues\n") for it in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_a_killed_comparison_leaves_no_process_and_an_interrupted_one_no_file(repository, ending, says):
    """SIGTERM and a closed terminal end it as Ctrl-C does."""
    edited(repository)
    command = f"{sys.executable} -m bench ab {CELLS} --T=16 --budget=5 --base=HEAD --impl=fused".split()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": repository}
    env = environment() | {"TMPDIR": str(repository.parent)}
    with subprocess.Popen(command, env=env, **pipes) as running:
        assert running.stderr and any("checking" in text for text in running.stderr)
        found = psutil.Process(running.pid).children()
        workers = [it for it in found if any("bench.workers.worker" in word for word in it.cmdline())]
        assert workers and [*repository.parent.glob(f"{sources.PREFIX}*")]
        running.send_signal(ending)
        _, errors = running.communicate(timeout=60)
    assert errors.endswith(says) and running.returncode == (2 if says else -ending)
    until = time.monotonic() + 60
    while still_run(workers) and time.monotonic() < until:
        time.sleep(0.1)
    assert not still_run(workers)
    assert bool(says) != any(repository.parent.glob(f"{sources.PREFIX}*"))


def test_the_same_command_continues_with_the_replicates_of_an_interrupted_one(command, repository, monkeypatch):
    """Or of one that found the disk full at its end."""
    measure, replicates, most = Replication.replicate, [], [1]

    def replicate(*given):
        if len(replicates) == most[0]:
            raise KeyboardInterrupt
        replicates.append(measure(*given))
        return replicates[-1]

    monkeypatch.setattr(Replication, "replicate", replicate)
    ran = command("--seed 1")
    assert ran.code == 2 and "interrupted; the same command continues" in ran.errors
    assert "continues after 1 saved replicate\n" in command("--seed 1").errors
    (kept,) = repository.glob("results/*/ab/*.journal")
    with kept.open("a") as file:
        file.write('{"logs": [["sd')  # as after `kill -9`
    most[0] = 100
    command("--seed 2")
    assert kept.exists()  # of another comparison
    del replicates[1:]
    with monkeypatch.context() as disk:
        disk.setattr(measuring, "save", mock.Mock(side_effect=OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            command("--seed 1")
    whole, saved = len(replicates), command("--seed 1").saved["pairs"]
    assert [it["blocks"] for it in saved] == json.loads(json.dumps([it["blocks"] for it in replicates]))
    assert len(replicates) == whole > 2 and not kept.exists()


def test_no_difference_in_code_is_no_regression(inside, repository, monkeypatch):
    """Except for names that neither variant has. What both share, such as the rest of the suite, is no difference."""
    monkeypatch.setattr(planning, "WorkerClient", partial(Simulated, World()))
    out = repository.parent / "out.json"
    (repository / "bench/__init__.py").write_text("")
    code, text, _ = inside(f"{CELLS} --T 16 --base HEAD --impl fused --json {out} --markdown {out}.md")
    assert code == 0 and "no difference in code between HEAD (" in text and "\nNothing regressed: " in text
    assert json.loads(out.read_text())["cells"] == [] and "Machine:" not in Path(f"{out}.md").read_text()
    assert inside(f"{CELLS} --T 16 --base HEAD --head HEAD --impl fused")[0] == 0
    code, text, errors = inside(f"{CELLS} --T 16 --base HEAD --impl fused,nobody")
    assert (code, text) == (3, "") and "unknown nobody" in errors
    assert not [*repository.glob("results/*/ab/*")]


@pytest.mark.parametrize("changed", [{"new.json": "2"}, {"hidden.json": "2"}, {}])
def test_data_that_git_shows_no_difference_of_is_a_difference(repository, monkeypatch, tmp_path, changed):
    monkeypatch.chdir(repository)
    for name in ("mine.py", "hidden.json"):
        (repository / name).touch()
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "x")
    git(repository, "update-index", "--assume-unchanged", "hidden.json")
    for name, text in changed.items():
        (repository / name).write_text(text)
    options = parser().parse_args(["--base", "HEAD", "--impl", "mine=mine:mine"])
    (tmp_path / "variants").mkdir()
    assert planning.plan_of(options, tmp_path / "variants").same_code == (not changed)


def test_a_link_to_another_folder_is_a_difference(tmp_path):
    for variant in ("v1", "v2"):
        (tmp_path / variant).mkdir()
        (tmp_path / variant / "current").symlink_to(tmp_path / variant)
    assert not sources.same_folders(tmp_path / "v1", tmp_path / "v2")


def test_a_disk_that_is_full_is_an_error_and_names_the_file_that_was_written(inside, monkeypatch):
    """Exit code 2, that nothing could be judged, may pass a check in CI."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "large", None, "copy/large")
    monkeypatch.setattr(sources.shutil, "copy2", mock.Mock(side_effect=full))
    code, out, errors = inside("--base HEAD --impl x=mine:f")
    assert (code, out, errors) == (3, "", "bench: error: copy/large: No space left on device\n")


def test_a_shallow_clone_says_how_to_complete_it(repository, tmp_path, monkeypatch):
    git(repository, "branch", "good")
    git(repository, "commit", "-q", "--allow-empty", "-m", "x")
    git(tmp_path, "clone", "-q", "--depth", "1", "--no-single-branch", f"file://{repository}", "clone")
    monkeypatch.chdir(tmp_path / "clone")
    with pytest.raises(UsageError, match=r"unknown revision 'HEAD~1': `git fetch --unshallow` .* completes .*clone"):
        sources.commit_of("HEAD~1")
    with pytest.raises(UsageError, match=r"is no ancestor of .*: `git fetch --unshallow` .* completes .*clone"):
        sources.commits_between(sources.commit_of("origin/good"), sources.commit_of("HEAD"))


def test_commits_that_a_good_one_on_a_merged_branch_is_not_in_are_no_candidates(repository, monkeypatch):
    monkeypatch.chdir(repository)
    git(repository, "checkout", "-q", "-b", "main_line")
    git(repository, "checkout", "-q", "-b", "side")
    git(repository, "commit", "-q", "--allow-empty", "-m", "good")
    git(repository, "checkout", "-q", "main_line")
    git(repository, "commit", "-q", "--allow-empty", "-m", "without it")
    git(repository, "merge", "-q", "--no-ff", "-m", "merge", "side")
    git(repository, "commit", "-q", "--allow-empty", "-m", "bad")
    found = sources.commits_between(sources.commit_of("side"), sources.commit_of("main_line"))
    assert [sources.subject_of(it).partition(" ")[2] for it in found] == ["merge", "bad"]
    assert len(sources.commits_between(sources.commit_of("HEAD~3"), sources.commit_of("HEAD"))) == 3


USAGE = {
    "": "give one comparison: --base REF",
    "--base nowhere --json left.json": "unknown revision 'nowhere': give a branch",
    "--base-impl fused": "or --base-impl NAME --head-impl NAME",
    "--base HEAD --head-impl fused": "give one comparison",
    "--base-impl fused --head-impl sdpa --impl packed": "name what is compared: leave out --impl",
    "--base-impl fused --head-impl sdpa,packed": "take one name each",
    "--base-python ../bare": "No module named 'torch'): `../bare -m pip install torch numpy psutil`",
    "--base-python ../text": "../text can't be started: Exec format error",
    "--base HEAD --margin 1": "from 0 to below 0.5",
    "--base HEAD --json /dev/null/x": "can't be written",
    "--nothing": "unrecognized arguments",
}


def test_usage_errors(inside, repository, monkeypatch):
    for name, text in (("bare", f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n'), ("text", "no program")):
        (python := repository.parent / name).write_text(text)
        python.chmod(0o755)
    for typed, says in USAGE.items():
        code, _, errors = inside(typed)
        assert code == 3 and says in errors and errors.count("bench: error") == 1, (typed, errors)
    assert not any(repository.parent.glob(f"{sources.PREFIX}*")) and not (repository / "left.json").exists()
    monkeypatch.chdir(repository.parent)
    assert "is not in a git repository: start in your kernel's repository" in inside("--base HEAD --impl x=mine:f")[2]
