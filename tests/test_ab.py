"""Interleaved comparison of two variants: schedule and stages on simulated processes, whole comparisons of tiny cells."""

from __future__ import annotations

import json
import math
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import impls
from bench.__main__ import main
from bench.ab import ab as measuring
from bench.ab import comparison, planning, sources
from bench.ab.comparison import Plan, Record, Unjudgeable
from bench.ab.options import parser
from bench.ab.planning import SameCode
from bench.ab.replicates import (
    COLUMNS,
    WORKLOADS,
    Replicate,
    Replication,
    datum,
    interleaved,
    until_settled,
    verdicts_of,
)
from bench.ab.selftest import injected, kept, schedule
from bench.ab.sources import PREFIX
from bench.cases.case import AXES, Case
from bench.cases.cells import Key
from bench.cases.outcome import Skip
from bench.cases.sweep import SWEEPS, Sweep
from bench.selection.errors import UsageError
from bench.selection.options import cases_of, sweep_of
from bench.workers.client import Lost, Setting, Variant, WorkerClient
from bench.workers.tasks import Tasks
from commands.history import confirm
from reports.judging import ab_file, confirmations
from reports.judging.comparison import Comparison as Shown
from reports.pages.comparison_text import as_markdown
from reports.reading.axes import add_axes, without_defaults
from stats.effects import FIRST_ANALYSIS, of_saved
from stats.verdict import INCONCLUSIVE, REGRESSED, UNCHANGED, Verdict

from .conftest import CHECKOUT, ask_check, environment
from .experiments.fallback import committed, fall

A, B, C = (("a", "T16"), ("b", "T16"), ("c", "T16"))
TINY = ("--T", "16", "--H", "2", "--D_h", "8", "--dtype", "float32", "--budget", "0.01")


# Order


def test_each_round_has_every_cell_once_per_variant_in_random_order() -> None:
    rounds = list(interleaved(dict.fromkeys([A, B, C], 50), random.Random(0)))
    each = [rounds[i : i + 6] for i in range(0, len(rounds), 6)]
    assert all(sorted(it) == sorted((key, i) for key in (A, B, C) for i in (0, 1)) for it in each)
    assert all(it[n][0] == it[n + 1][0] for it in each for n in (0, 2, 4))  # a cell's two blocks follow each other
    first = Counter(variant for _, variant in rounds[::2])
    assert min(first.values()) > 50
    assert len({tuple(key for key, _ in it) for it in each}) == 6


def test_a_long_call_has_two_rounds_in_which_the_heap_does_not_grow() -> None:
    log: list[tuple[Any, ...]] = []
    took = {A: 0.5, C: 1e-5}
    growing = Fake(0, log, took, faults=chain([90_000] * 2, repeat(0)))
    replication_of(growing, Fake(1, log, took)).replicate([A, B, C], 5)
    timed = {key: [it[3:] for it in log if it[:3] == ("time", 0, key)] for key in (A, B, C)}
    assert timed == {A: [(1, 1, 0)] * 4, B: [(1, 2, 1)] * 5, C: [(25, 8, 25)] * 5}


def test_machine_conditions_common_to_both_variants_cancel_in_the_datum() -> None:
    drift = [1.0, 2.0, 2.0, 1.0, 2.0, 1.0]
    base, head = drift, [1.05 * seconds for seconds in drift]
    head[4] = 1.05  # once it changed between the two blocks
    blocks = [(variant, times[i]) for i in range(6) for variant, times in enumerate((base, head))]
    assert datum(blocks, long=False) == pytest.approx(math.log(1.05))


def test_disturbed_rounds_of_long_calls_do_not_change_the_datum() -> None:
    base, head = [1.1, 0.7, 0.9], [0.77, 1.4, 1.3]
    blocks = [(variant, times[i]) for i in range(3) for variant, times in enumerate((base, head))]
    assert datum(blocks, long=True) == pytest.approx(math.log(1.1))


# Pairs


def replicate_of(logs: dict[Key, float]) -> Replicate:
    return {"logs": [[*key, log] for key, log in logs.items()], "seconds": 1.0}


def logs_of(replicate: Replicate) -> dict[Key, float]:
    return {(impl, case): log for impl, case, log in replicate["logs"]}


class Answering:
    """Client of a worker that replies at once with the result of `ask`."""

    left, readable = 100.0, os.open(os.devnull, os.O_RDONLY)

    def send(self, do: str, timeout: float | None = None, **details: Any) -> None:
        self.sent = do, details

    def receive(self) -> dict[str, Any]:
        do, details = self.sent
        return self.ask(do, **details)

    def fileno(self) -> int:
        return self.readable

    def calls_done(self) -> bool:
        return False

    def ask(self, do: str, timeout: float | None = None, **details: Any) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(eq=False)
class Fake(Answering):
    """Client of a simulated process whose cells take given times."""

    variant: int
    log: list[tuple[Any, ...]]
    seconds: dict[Key, float] = field(default_factory=dict)
    dies_at: Key | None = None
    faults: Iterator[int] = field(default_factory=lambda: repeat(0))
    """Page faults of its long blocks; others always have many."""

    def ask(self, do: str, timeout: float | None = None, **details: Any) -> dict[str, Any]:
        key = tuple(details.pop("what", "").split())
        if do == "time" and key == self.dies_at:
            raise Lost("ended its process (SIGSEGV)")
        self.log.append((do, self.variant, key, *(details.values() if do == "time" else ())))
        seconds = self.seconds.get(key, 1e-3)
        faults = 90_000 if do != "time" or seconds < 0.1 else next(self.faults)
        return {"seconds": seconds, "fastest": seconds, "page_faults": faults}

    def close(self) -> None:
        self.log.append(("close", self.variant))


class Two:
    """`NamedWorkers` of two simulated processes."""

    def __init__(self, base: Fake, head: Fake):
        self.clients = {"base": base, "head": head}

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


def replication_of(base: Fake, head: Fake, workloads: Sequence[Key] = WORKLOADS, **options: Any) -> Replication:
    """Return a `Replication` with these processes for the cells A, B and C."""
    requests: dict[Key, dict[str, Any]] = {key: {"impl": key[0]} for key in (A, B, C)}
    return Replication(lambda: Two(base, head), (requests,) * 2, random.Random(0), workloads, **options)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_both_variants_are_prepared_at_the_same_time_but_not_on_a_gpu(device: str) -> None:
    log: list[tuple[Any, ...]] = []
    plan = plan_of("same", "same", cases=(Case.of(T=16, H=1, D_h=8, device=device),))
    replication_of(Fake(0, log), Fake(1, log), (), in_parallel=plan.in_parallel).replicate([A, B], 3)
    variants = [it[1] for it in log if it[0] in ("prepare", "pin")]
    assert variants == ([0, 1] * 3 if device == "cpu" else [0] * 3 + [1] * 3)


def test_a_replicate_gives_log_ratios_and_ends_its_processes() -> None:
    log: list[tuple[Any, ...]] = []
    found = replication_of(Fake(0, log), Fake(1, log, {A: 2e-3})).replicate([A, B], 3)
    assert logs_of(found) == {A: math.log(2), B: 0.0} | dict.fromkeys(WORKLOADS, 0.0)
    keys, blocks = [*logs_of(found)], [*zip(*(found["blocks"][name] for name in COLUMNS), strict=True)]
    assert [(keys[it[0]], it[1]) for it in blocks] == [(it[2], it[1]) for it in log if it[0] == "time"]
    assert {it[2] for it in blocks if keys[it[0]] == A} == {1e-3, 2e-3}
    assert [it for it in log if it[0] == "close"] == [("close", 0), ("close", 1)]
    timed = [it for it in log if it[0] == "time"]
    assert len(timed) == 3 * 2 * 4
    assert {tuple(it[3:]) for it in timed if it[2] == B} == {(1, 2, 1)}  # blocks of about 2 ms
    prepared = [[key for what, i, *key in log if what == "prepare" and i == variant] for variant in (0, 1)]
    assert prepared[0] == prepared[1]
    assert log.index(("pin", 1, ())) < log.index(timed[0])


def test_a_process_that_dies_costs_its_cell_and_the_replicate_begins_anew() -> None:
    log: list[tuple[Any, ...]] = []
    fight = replication_of(Fake(0, log), Fake(1, log, dies_at=B))
    assert {*logs_of(fight.replicate([A, B], 1))} == {A, *WORKLOADS}
    assert (fight.failures[B].variant, str(fight.failures[B].outcome)) == ("head", "ended its process (SIGSEGV)")
    assert [it for it in log if it[0] == "close"] == [("close", 0), ("close", 1)] * 2
    assert {*logs_of(fight.replicate([A, B], 1))} == {A, *WORKLOADS}


def test_without_a_reference_workload_no_drift_is_reported() -> None:
    with pytest.raises(Skip, match="SIGSEGV"):
        replication_of(Fake(0, []), Fake(1, [], dies_at=WORKLOADS[0])).replicate([A], 1)


# Pairs until all is settled


@dataclass
class World:
    """Simulated replicates: each cell has a true log ratio and a spread; each replicate takes a second."""

    truth: dict[Key, tuple[float, float]]
    seconds: float
    machine: float = 0.0
    noise: float = 1e-4
    """Spread of the reference workload."""
    asked: list[tuple[Key, ...]] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def replicate(self, cells: Collection[Key], rounds: int) -> Replicate:
        self.asked.append(tuple(cells))
        self.seconds -= 1
        drawn = {key: self.rng.gauss(*self.truth[key]) + self.machine for key in cells}
        return replicate_of(drawn | {key: self.rng.gauss(self.machine, self.noise) for key in WORKLOADS})

    def compare(self, **options: Any) -> list[Replicate]:
        return until_settled(self.replicate, list(self.truth), 0.01, lambda: self.seconds, **options)


def words_of(replicates: list[Replicate]) -> dict[Key, str]:
    keys = [key for key in (A, B, C) if key in logs_of(replicates[0])]
    return {key: verdict.word for key, verdict in verdicts_of(keys, replicates, 0.01).items()}


def test_settled_cells_leave_and_open_ones_are_measured_on() -> None:
    world = World({A: (0.0, 0.001), B: (0.012, 0.008), C: (0.05, 0.001)}, 80)
    found = world.compare()
    assert world.asked[:FIRST_ANALYSIS] == [(A, B, C)] * FIRST_ANALYSIS
    assert set(world.asked[FIRST_ANALYSIS:]) <= {(B, C), (B,)} and world.asked[-1] == (B,)
    assert words_of(found) == {A: UNCHANGED, B: REGRESSED, C: REGRESSED} and world.seconds > 0


def test_the_budget_ends_it() -> None:
    world = World({A: (0.0, 0.5)}, 20)
    assert words_of(world.compare()) == {A: INCONCLUSIVE}
    assert 18 <= len(world.asked) <= 20


def test_more_minutes_go_to_what_is_open_and_all_replicates_count() -> None:
    world = World({A: (0.0, 0.001), B: (0.012, 0.01)}, 5)
    first = world.compare()
    assert words_of(first) == {A: UNCHANGED, B: INCONCLUSIVE}
    world.seconds, world.asked = 60, []
    kept: list[Replicate] = []
    found = world.compare(before=first, keep=kept.append)
    assert words_of(found) == {A: UNCHANGED, B: REGRESSED}
    assert found == [*first, *kept] and {*world.asked} == {(B,)}


def test_a_cell_that_is_lost_keeps_its_replicates() -> None:
    world = World({A: (0.0, 0.004), B: (0.0, 0.004)}, 40)

    def losing(cells: Collection[Key], rounds: int) -> Replicate:
        found = logs_of(world.replicate(cells, rounds))
        return replicate_of({key: log for key, log in found.items() if key != B or len(world.asked) < 3})

    found = until_settled(losing, [A, B], 0.01, lambda: world.seconds)
    assert words_of(found)[A] == UNCHANGED and B in words_of(found)
    assert sum(B in logs_of(replicate) for replicate in found) == 2
    assert not any(B in asked for asked in world.asked[3:])


def test_a_comparison_ends_when_all_open_cells_were_lost() -> None:
    left = iter(range(40, 0, -1))
    assert len(until_settled(lambda cells, rounds: replicate_of({}), [A], 0.01, lambda: next(left))) == 1


# What is there, and what is right


class FakePeer(Answering):
    """Client of a process that checks given implementations; those called `wrong`, `dead` and `impossible` fail so."""

    threads = 1

    def __init__(self, variant: Variant, setting: Setting):
        self.variant, self.closed = variant, False

    def ask(self, do: str, timeout: float | None = None, **details: Any) -> dict[str, Any]:
        if do == "facts":
            return {
                "fingerprint": {"cpu": "x", "threads": self.threads, "torch": self.variant.python},
                "controls": {"product": self.variant.python, "python": "3.11.7"},
            }
        if do == "cells":
            have = self.variant.label.split()
            ids = [Case(**case).id for case in details["cases"]]
            known = {name: dict.fromkeys(ids) for name in details["names"] or have if name in have}
            return {
                "cells": known,
                "unknown": {name: f"unknown {name}" for name in details["names"] if name not in have},
            }
        assert do != "drop" or details["outputs"]  # nothing is built again in a process that checks
        if do in ("time", "caching", "drop"):
            return {"seconds": 1.0}
        if do == "probe":
            self.probed = details["impl"]
            return {}
        assert do == "check"
        name = self.probed
        if name == f"wrong-{self.variant.impls}" or name == "wrong":
            raise Skip("error 1.0", "wrong")
        if name == "dead":
            raise Lost("ended its process (SIGKILL)")
        if name == f"raises-{self.variant.impls}":
            raise Skip("ValueError: no")
        if name == "impossible":
            raise Skip("torch has no such kernel", "unsupported")
        kernel = "math" if name == "falls" and self.variant.impls == Path("head") else "flash"
        columns = {"error": 1e-7, "error_bound": 1e-6, "peak_bytes": 100, "kernel": kernel}
        return {"columns": columns, "seconds": 1.0}

    def close(self) -> None:
        self.closed = True


def plan_of(base: str, head: str, *names: str, **changes: Any) -> Plan:
    variants = Variant(base, Path("base"), python="p"), Variant(head, Path("head"), python="p")
    plan = Plan(variants, (Case.of(T=16, H=2, D_h=8),), names, False, Setting("."), 0.01, 100.0, 0)
    return replace(plan, **changes)


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Callable[[Plan], dict[str, Record]]:
    """Run `comparison.compare` on simulated processes; returns the cells by implementation."""
    fresh = lambda plan, variants: Two(Fake(0, []), Fake(1, [], {("slow", plan.cases[0].id): 1.2}))  # noqa: E731
    monkeypatch.setattr(comparison, "WorkerClient", FakePeer)
    monkeypatch.setattr(comparison, "_start_replicate", fresh)
    return lambda plan: {cell["impl"]: cell for cell in comparison.compare(plan, lambda text: None)["cells"]}


def test_new_gone_wrong_and_dead(compare: Callable[[Plan], dict[str, Record]]) -> None:
    both = "same wrong-head dead impossible falls slow"
    lines = compare(plan_of(f"{both} old", f"{both} young"))
    words = {name: line["word"] for name, line in lines.items()}
    assert words == {"same": UNCHANGED, "old": "BROKEN", "wrong-head": "WRONG", "dead": INCONCLUSIVE, "falls": UNCHANGED,
                     "impossible": INCONCLUSIVE, "slow": REGRESSED, "young": "NEW"}  # fmt: skip
    assert [lines["falls"][variant]["kernel"] for variant in ("base", "head")] == ["flash", "math"]
    assert lines["wrong-head"]["failed"] == ["head"]
    assert lines["dead"]["failed"] == ["base", "head"]
    assert lines["dead"]["reason"] == "base and head: error: ended its process (SIGKILL)"
    for cells, code in ((("dead",), 2), (("dead", "same"), 0), (("wrong-head", "same"), 1), (("same", "slow"), 1)):
        assert shown(comparison_of(*(lines[name] for name in cells))).code == code
    assert lines["young"]["reason"] == "base: there is no young"


def test_a_cell_that_only_base_can_run_is_broken_unless_that_is_allowed(
    compare: Callable[[Plan], dict[str, Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("same", "raises-head", "raises-base", "gone", "old")
    plan = plan_of(" ".join(names), "same raises-head raises-base", *names, allow_gone=("old", "raises-head"))
    lines = compare(plan)
    assert {name: (line["word"], line["reason"]) for name, line in lines.items() if name != "same"} == {
        "raises-head": ("BROKEN", "head: error: ValueError: no"),
        "raises-base": ("WRONG", "base: error: ValueError: no"),
        "gone": ("BROKEN", "head: unknown gone (--allow-gone gone where that is meant)"),
        "old": ("GONE", "head: unknown old"),
    }
    two = plan_of("same", "impossible")
    two = replace(two, variants=tuple(replace(variant, impl=variant.label) for variant in two.variants))
    for names, word in (((), "BROKEN"), (("same",), "BROKEN"), (("impossible",), "GONE")):
        assert compare(replace(two, allow_gone=names))["impossible against same"]["word"] == word
    codes = [shown(comparison_of(lines[name])).code for name in ("raises-head", "raises-base", "gone", "old")]
    assert codes == [1, 0, 1, 0]


def test_a_head_that_cannot_begin_is_broken_and_a_base_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying(FakePeer):
        at, side_that_dies = "facts", "base"

        def ask(self, do: str, timeout: float | None = None, **details: Any) -> dict[str, Any]:
            if do == self.at and self.variant.impls == Path(self.side_that_dies):
                raise Lost("ended its process (exit code 1): SyntaxError: invalid syntax")
            return super().ask(do, timeout, **details)

    monkeypatch.setattr(comparison, "WorkerClient", Dying)
    for Dying.at in ("facts", "cells"):
        Dying.side_that_dies = "base"
        with pytest.raises(Unjudgeable, match="SyntaxError"):
            comparison.compare(plan_of("same", "same"), lambda text: None)
        Dying.side_that_dies = "head"
        found = comparison.compare(plan_of("same", "same"), lambda text: None)
        assert shown(found).code == 1
        assert found["cells"][0]["word"] == "BROKEN" and "SyntaxError" in found["cells"][0]["reason"]
        assert "SyntaxError" in as_markdown(shown(found))


def test_an_implementation_that_no_variant_can_have_is_a_usage_error(
    compare: Callable[[Plan], dict[str, Record]],
) -> None:
    with pytest.raises(comparison.UsageError, match="unknown nobody"):
        compare(plan_of("a", "a", "nobody"))
    base, head = plan_of("a", "a").variants
    with pytest.raises(comparison.UsageError, match="unknown nobody"):
        compare(replace(plan_of("a", "a"), variants=(replace(base, impl="a"), replace(head, impl="nobody"))))


def test_variants_under_other_conditions_are_not_compared(
    compare: Callable[[Plan], dict[str, Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = plan_of("same", "same")
    base, head = two.variants
    assert compare(replace(two, variants=(base, replace(head, python="q"))))  # another torch is what is compared
    counts = iter((1, 2))
    monkeypatch.setattr(FakePeer, "threads", property(lambda self: next(counts)))
    with pytest.raises(Unjudgeable, match="threads: 1 and 2"):
        compare(two)


def test_another_version_of_a_reference_workload_is_ignored(compare: Callable[[Plan], dict[str, Record]]) -> None:
    same = plan_of("same", "same")
    other = replace(same, variants=(same.variants[0], replace(same.variants[1], python="q")))
    found = [comparison.compare(plan, lambda text: None) for plan in (same, other)]
    assert [{*of_saved(it["pairs"])[1]} for it in found] == [{"product", "python"}, {"python"}]


def comparison_of(*cells: Record, moved: str = "") -> Record:
    """Return a comparison whose replicates lead to the cells' verdicts: those of inconclusive cells scatter."""
    logs = [
        {
            (it["impl"], it["id"]): math.log(it["ratio"]) + sign * 0.1 * (it["word"] == INCONCLUSIVE)
            for it in cells
            if (it["ratio"] or math.nan) > 0
        }
        for sign in (-1, 1) * 4
    ]
    replicates = [replicate_of(it | dict.fromkeys(WORKLOADS, 0.0)) for it in logs]
    return comparison.record(plan_of("a", "b"), cells, replicates, moved, ({"cpu": "x"}, {"cpu": "x"}), 1.0)


def shown(found: Record) -> Shown:
    """Return the output of `python -m reports compare` for the file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "0001_x.json"
        file.write_text(json.dumps(found | {"command": "python -m bench ab --base main"}, allow_nan=False))
        return ab_file.comparison(file)


Inside = Callable[..., tuple[int, str, str]]


@pytest.fixture
def inside(repository: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Inside:
    """`inside("--base", "HEAD")` is `python -m bench ab --base HEAD` of a checkout, in this process: its exit code, and what it
    prints on stdout and stderr.
    """
    monkeypatch.chdir(repository)
    for module in (sources, planning):
        monkeypatch.setattr(module, "CHECKOUT", repository)
    monkeypatch.setattr(tempfile, "tempdir", str(repository.parent))
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(*options: str) -> tuple[int, str, str]:
        try:
            code = main(("ab", *options))
        except SystemExit as end:  # argparse's own
            code = int(end.code or 0)
        return code, *capfd.readouterr()

    return run


def edited(repository: Path) -> None:
    """Return the code with a comment added, which changes no behaviour."""
    with (repository / "impls" / "sdpa.py").open("a") as source:
        source.write("# more\n")


@pytest.fixture
def command(inside: Inside, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`command({"sdpa T16": 1.1})` is `python -m bench ab ...` on simulated processes, head's as many times slower; its
    exit code, output and saved file. Its budget is in simulated seconds too: about fifteen replicates.
    """
    ids = {f"T{T}": Case.of(T=T, H=2, D_h=8, dtype="float32").id for T in (16, 32)}

    class Knowing(FakePeer):
        def ask(self, do: str, timeout: float | None = None, **details: Any) -> dict[str, Any]:
            self.variant = replace(self.variant, label=" ".join(details.get("names", ())))
            return super().ask(do, timeout, **details)

    def run(slower: dict[str, float], *options: str) -> tuple[int, str, dict[str, Any]]:
        keys = {tuple(name.split()): 1e-3 * ratio for name, ratio in slower.items()}
        seconds = {(impl, ids.get(of, of)): taken for (impl, of), taken in keys.items()}
        monkeypatch.setattr(
            comparison, "_start_replicate", lambda plan, variants: Two(Fake(0, []), Fake(1, [], seconds))
        )
        code, text, _ = inside(*TINY[2:], "--T", "16,32", "--impl", "fused,sdpa", "--base", "HEAD", *options)
        (*_, newest) = sorted(repository.glob("results/*/ab/*.json"))
        return code, text, json.loads(newest.read_text())

    monkeypatch.setattr(comparison, "WorkerClient", Knowing)
    monkeypatch.setattr(comparison, "monotonic", partial(next, count(step=0.02)))
    edited(repository)
    return run


EVERYWHERE = {"fused T16": 1.03, "fused T32": 1.03, "sdpa T16": 1.032, "sdpa T32": 1.032}


def test_a_change_of_all_cells_without_drift_is_attributed_to_the_code(command: Any) -> None:
    code, text, saved = command(EVERYWHERE)
    assert code == 1
    assert text.startswith(
        "sdpa is 3.2 % slower (3.2 to 3.2) in 2 of 2 cells\nfused is 3.0 % slower (3.0 to 3.0) in 2 of 2 cells\n"
    )
    assert {cell["word"] for cell in saved["cells"]} == {REGRESSED} and not saved["moved"]


def test_only_drift_of_the_reference_workload_voids_a_comparison(command: Any) -> None:
    code, text, saved = command(EVERYWHERE | {"control python": 1.1})
    assert code == 2
    assert "machine drift: the time of the reference workload 'python' changed by +10.0 %" in " ".join(text.split())
    assert " is " not in text.splitlines()[0] and {cell["word"] for cell in saved["cells"]} == {INCONCLUSIVE}


def line(word: str, ratio: float = 1.0) -> Record:
    return comparison.cell_of(("sdpa", f"T{ratio}"), Verdict(word, "because", ratio, ratio, ratio, 0.01))


def test_more_minutes_for_a_saved_comparison(
    command: Any, repository: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command({"sdpa T16": 1.007}, "--save", "x", "--allow-gone", "a")
    (file,) = repository.glob("results/*/ab/0001_x.json")
    *_, saved = command({}, "--margin", "0.02")
    assert saved["margin"] == 0.02
    monkeypatch.setattr(comparison, "until_settled", lambda *given: [*given[5], given[5][-1]])
    assert main(("ab", "--continue", str(file), "--budget", "0.01")) == 0
    more = json.loads(sorted(repository.glob("results/*/ab/*.json"))[-1].read_text())
    before = json.loads(file.read_text())
    assert more["continues"] == str(file) and (more["command"], more["seed"]) == (before["command"], before["seed"])
    assert more["seconds"] > before["seconds"]
    assert more["pairs"][:-1] == before["pairs"] and more["asked"] == before["asked"]
    assert more["command"].startswith("python -m bench ab --base HEAD --impl fused,sdpa ")
    assert more["command"].endswith(" --allow-gone a")
    elsewhere = repository / "elsewhere.json"
    elsewhere.write_text(json.dumps(before | {"fingerprints": {"base": {"torch": "1"}, "head": {"torch": "1"}}}))
    capfd.readouterr()
    assert main(("ab", "--continue", str(elsewhere))) == 3
    assert "the machine or its software is not what it was" in capfd.readouterr().err
    elsewhere.write_text(json.dumps(before | {"fingerprints": {"base": {}, "head": {}}}))  # as of a broken head
    assert main(("ab", "--continue", str(elsewhere), "--budget", "0.01")) == 0
    (repository / "impls" / "sdpa.py").write_text("changed = True\n")
    assert main(("ab", "--continue", str(file))) == 3
    assert "head (the working tree) is other code or another torch than it was" in capfd.readouterr().err
    assert main(("ab", "--continue", str(repository / "pyproject.toml"))) == 3
    assert "not a comparison that this `python -m bench ab` saved" in capfd.readouterr().err
    assert main(("ab", "--continue", str(file), "--T", "16", "--base-impl", "fused")) == 3
    assert "leave out --base-impl, --T" in capfd.readouterr().err


def test_folders_change_places_at_random_so_that_what_they_do_to_time_is_noise(tmp_path: Path) -> None:
    for name in ("base", "head"):
        (tmp_path / name / "impls").mkdir(parents=True)
        (tmp_path / name / "impls" / "x.py").write_text(name)
    folders = tmp_path / "base", tmp_path / "head"
    exchanged = sources.twins(*folders, tmp_path)
    assert [exchanged[folder].name for folder in folders] == ["head", "base"]
    assert [sources.digest(exchanged[folder]) for folder in folders] == [sources.digest(folder) for folder in folders]
    assert sources.twins(folders[0], folders[0], tmp_path) == {}
    plan = plan_of(
        "a", "b", variants=(Variant("a", folders[0]), Variant("b", folders[1], slower={"sdpa": 0.1})), twins=exchanged
    )
    rng = random.Random(1)
    placed = [comparison._placed(plan, rng) for _ in range(40)]
    assert {tuple(variant.impls for variant in variants) for variants in placed} == {folders, tuple(exchanged.values())}
    assert all(variants[1].slower == {"sdpa": 0.1} for variants in placed)


# A user's repository


def test_a_variant_imports_the_modules_of_its_own_tree_also_if_installed_as_editable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, tree = tmp_path / "repository", tmp_path / "tree"
    for root, source in (
        (repository, "raise RuntimeError('of the working tree')\n"),
        (tree, "from torch.nn.functional import scaled_dot_product_attention as mine\n"),
    ):
        (root / "src" / "pkg").mkdir(parents=True)
        (root / "src" / "pkg" / "kern.py").write_text(source)
        (root / "flat.py").write_text(source)
        (root / "a folder").mkdir()
        (root / "a folder" / "neighbour.py").write_text(source)
        (root / "a folder" / "file.py").write_text("from neighbour import mine\n")
        (root / "colorsys.py").write_text("raise RuntimeError('of the user, and not meant')\n")
    (repository / "started here").mkdir()
    (repository / "new.py").write_text("mine = abs\n")
    sources.copy_of_impls(tree)
    (tree / "stats").mkdir()
    (tree / "stats" / "__init__.py").write_text("raise RuntimeError('of a revision of the suite')\n")
    monkeypatch.setenv("PYTHONPATH", str(repository / "src"))
    setting = Setting(str(repository / "started here"), repository=repository)
    client = WorkerClient(Variant("x", impls=tree, tree=tree), setting)
    names = [f"{name}={path}" for name, path in
             (("deep", "pkg.kern:mine"), ("flat", "flat:mine"), ("new", "new:mine"), ("yaml", "yaml:load"),
              ("hsv", "colorsys:rgb_to_hsv"), ("file", "a folder/file.py:mine"))]  # fmt: skip
    answer = client.ask("cells", names=names, whole_registry=False, cases=[CASE])
    client.close()
    assert {*answer["cells"]} == {"deep", "flat", "file"} and "colorsys is imported from " in answer["unknown"]["hsv"]
    assert "can't import new: ModuleNotFoundError" in answer["unknown"]["new"]
    assert (
        "yaml is imported from " in answer["unknown"]["yaml"]
        and "the repository that you are in" in answer["unknown"]["yaml"]
    )


def test_a_kernel_that_lies_in_the_checkout_is_that_of_each_revision(
    inside: Inside, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(folder: str) -> Plan:
        options = parser().parse_args(["--base", "HEAD", "--impl", "mine=mine:mine"])
        with sources.temporary_worktrees(repository) as place:
            monkeypatch.chdir(repository / folder)
            plan = planning.plan_of(options, place)
            assert all((it.impls / "impls").is_dir() for it in plan.variants)
            return replace(plan, names=tuple((it.tree / "mine.py").read_text() for it in plan.variants if it.tree))

    (repository / "mine.py").write_text("first")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run([*git, "add", "mine.py"], cwd=repository, check=True, env=quiet_git())
    subprocess.run([*git, "commit", "-qm", "x"], cwd=repository, check=True, env=quiet_git())
    (repository / "mine.py").write_text("second")
    plan = planned(".")
    assert plan.names == ("first", "second") and plan.code[0] != plan.code[1]
    edited(repository)
    assert planned("..").names == ()  # started elsewhere, with a module that no revision has


def test_a_working_tree_is_copied_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(root)], check=True, env=quiet_git())
    odd = os.fsdecode(b"caf\xe9.py")  # no UTF-8
    for name in ("kept.py", "gone.py", "sub/changed.py", odd):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("first\n")
    (root / ".gitignore").write_text("ignored.py\n")
    subprocess.run(["git", "add", "."], cwd=root, check=True, env=quiet_git())
    (root / "gone.py").unlink()
    for name in ("sub/changed.py", "sub/new.py", "ignored.py", "sub/results/x/0001_x.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("now\n")
    monkeypatch.chdir(root / "sub")
    assert sources.repository() == root
    copy = sources.copy_of_working_tree(tmp_path / "copy", root)
    files = {str(path.relative_to(copy)): path.read_text() for path in copy.rglob("*") if path.is_file()}
    assert files == {
        "kept.py": "first\n",
        odd: "first\n",
        ".gitignore": "ignored.py\n",
        "sub/changed.py": "now\n",
        "sub/new.py": "now\n",
    }
    before = sources.digest(copy)
    (copy / "notes.txt").write_text("no code")
    assert sources.digest(copy) == before
    (copy / odd).write_text("now\n")
    assert sources.digest(copy) != before


@pytest.mark.parametrize(
    ("options", "name", "other"),
    [
        (["--base-impl", "sdpa", "--head-impl", "x=mine:f"], "mine.py", "helper.py"),
        (["--base-python", sys.executable, "--impl", "x=mine:f"], "mine.py", "mine.cu"),
        (["--base-impl", "sdpa", "--head-impl", "x=kernels:build#f"], "build/a/__init__.py", "build/a/mine.so"),
    ],
)
def test_another_kernel_of_the_users_is_another_comparison(
    options: list[str], name: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "build" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bench.ab.planning.interpreter", lambda path: (path, "3.11 2.13"))

    def code(mine: str, beside: str) -> tuple[str, str]:
        (tmp_path / name).write_text(mine)
        (tmp_path / other).write_text(beside)
        (tmp_path / ".#mine.py").unlink(missing_ok=True)
        (tmp_path / ".#mine.py").symlink_to("nowhere")  # as an editor leaves one
        with tempfile.TemporaryDirectory() as folder:
            return planning.plan_of(parser().parse_args(options), Path(folder)).code

    plan = planning.plan_of(parser().parse_args(options), tmp_path / "copies")
    with pytest.raises(Unjudgeable, match="code of yours has changed meanwhile"):
        measuring._keep(None, replace(plan, code=("of", "before")), {})  # type: ignore[arg-type]
    assert code("a", "b") == code("a", "b")
    assert len({*code("a", "b"), *code("c", "b"), *code("a", "c")}) == 3  # the same of both variants


def test_a_step_of_history_is_compared_by_its_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def measured(*given: Any) -> Path:
        asked.append(given)
        raise SameCode(Variant("a"), Variant("b"))

    monkeypatch.setattr(measuring, "measure", measured)
    given = {"base": "a", "head": "b", "threads": 2, "device": "cpu", "impl": ["mine=mine:mine", "sdpa"]}
    step = confirmations.Unconfirmed(given, [{"T": 64}])
    assert confirm(step, tmp_path) == "no difference in code between a and b"
    ((options, results),) = asked
    assert {name: getattr(options, name) for name in given} == given and results == tmp_path
    assert json.loads(Path(options.cases).read_text(encoding="utf-8")) == [{"T": 64}]


@pytest.mark.parametrize("sweep", SWEEPS.values(), ids=SWEEPS)
def test_history_compares_each_case_as_it_was_measured(sweep: Sweep, tmp_path: Path) -> None:
    """Values of several cases, in all combinations, would be other cases, or none that can be measured."""
    add_axes(axis.described() for axis in AXES.values())
    cases, file = sweep.cases("cpu"), tmp_path / "cases.json"
    file.write_text(json.dumps([without_defaults(case.columns()) for case in cases]))
    assert cases_of(*sweep_of({"cases": str(file), "device": "cpu"})) == cases


# Self-test


def test_a_self_test_goes_on_where_it_was_stopped(
    inside: Inside, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[dict[str, float]] = []

    def compare(plan: Plan, tell: Any) -> Record:
        ran.append(dict(plan.variants[1].slower))
        if len(ran) == 3:
            raise KeyboardInterrupt
        return comparison_of(line(REGRESSED if plan.variants[1].slower else UNCHANGED))

    def tested(*options: str) -> tuple[int, list[str], str]:
        code, text, errors = inside(*TINY[:-1], "2", "--impl", "sdpa,fused", "--self-test", "3", *options)
        return code, text.splitlines(), errors

    monkeypatch.setattr(measuring, "compare", compare)
    assert schedule(3, ["sdpa", "fused"]) == [None] * 3 + [
        ("sdpa", share) for share in (0.01, 0.02, 0.05, 0.1, -0.02, -0.05)
    ]
    code, text, errors = tested()
    assert code == 2 and not text and "interrupted" in errors
    assert "self-test: about 18 min; finished comparisons are kept, and the same command continues" in errors
    code, text, errors = tested()
    assert code == 0 and "self-test: run 3 of 9, unchanged code" in errors and nothing_is_left(repository, [])
    assert ran == [{}] * 4 + [{"sdpa": share} for share in (0.01, 0.02, 0.05, 0.1)] + [{}] * 2
    assert len([*repository.glob("results/*/ab/*_self-test*.json")]) == 9
    assert text[0] == "self-test of this machine: 0 of 3 runs of unchanged code raised a false alarm (0 of 3 cells)"
    assert text[3] == "self-test, +1 % injected: 1 of 1 cells found, 0 of 0 others flagged"
    assert tested()[1] == text and len(ran) == 10
    tested("--margin", "0.02")
    assert len(ran) == 19  # another margin is another test
    monkeypatch.setattr("bench.ab.selftest.PROCEDURE", ("bench/ab/replicates.py",))
    (folder,) = repository.glob("results/*/ab")
    assert kept(folder) == []


def test_a_speed_up_is_injected_by_slowing_base_down() -> None:
    base, head = injected(plan_of("a", "a"), ("sdpa", -0.05)).variants
    assert base.slower["sdpa"] == pytest.approx(1 / 0.95 - 1)
    assert not head.slower


# The worker


@pytest.fixture
def worker(tmp_path: Path) -> Any:
    (tmp_path / "own.py").write_text(
        "import os, sys\n"
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "def loud(q, k, v, **options):\n    print('{\"seconds\": 0}'); sys.stdin.read(); return sdpa(q, k, v, **options)\n"
        "def dies(q, k, v, **_):\n    print('last words', file=sys.stderr, flush=True); os._exit(3)\n"
        "class Mute(Exception):\n    def __str__(self): raise ValueError\n"
        "def mute(q, k, v, **_): raise Mute\n"
        "def doubles(q, k, v, forked=[], **options):\n"
        "    if not forked: forked.append(os.fork())\n"
        "    return sdpa(q, k, v, **options)\n"
    )
    client = WorkerClient(Variant("here", CHECKOUT), Setting(str(tmp_path), timeout=60.0))
    names = [f"{name}=own:{name}" for name in ("loud", "dies", "mute", "doubles")]
    client.ask("cells", names=names, whole_registry=False, cases=[])
    yield client
    client.close()


CASE = Case.of(T=16, H=2, D_h=8).columns()


def test_output_of_an_implementation_does_not_reach_the_pipe(worker: WorkerClient) -> None:
    assert ask_check(worker.ask, "loud", CASE)["columns"]["kernel"] == "flash"
    worker.ask("prepare", what="x", impl="loud", case=CASE)
    assert worker.ask("time", timeout=1e300, what="x", calls=2, warm=1)["seconds"] > 0
    worker.ask("workload", what="y", name="python")
    assert worker.ask("time", what="y", calls=1, warm=0)["seconds"] > 0
    with pytest.raises(Skip, match="KeyError"):
        ask_check(worker.ask, "nobody", CASE)
    ask_check(worker.ask, "doubles", CASE)
    (other,) = psutil.Process(worker._process.pid).children()
    while other.status() != psutil.STATUS_ZOMBIE and not select.select([worker], [], [], 0.01)[0]:
        pass
    assert not select.select([worker], [], [], 0)[0]  # a forked process that continues sends no reply
    with pytest.raises(Skip, match=r"Mute: no message \(own\.py:"):
        ask_check(worker.ask, "mute", CASE)
    with pytest.raises(Lost, match=r"exit code 3\): last words"):
        ask_check(worker.ask, "dies", CASE)
    with pytest.raises(Lost, match="exit code 3"):
        worker.ask("facts")


def checked(tasks: Tasks, impl: str) -> dict[str, Any]:
    tasks.probe("x", impl, CASE)
    return tasks.check("x")


def test_a_refused_cell_holds_no_memory(tasks: Tasks) -> None:
    refusing: list[str] = []

    @impls.register("refuses")
    def refuses(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False) -> Tensor:
        if refusing:
            raise ValueError("no")
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    tasks.probe("x", "refuses", CASE)
    refusing.append("the case itself")
    with pytest.raises(ValueError, match="no"):
        tasks.check("x")
    assert not tasks._ready


def test_a_worker_needs_torch_numpy_and_psutil_only_and_no_compiler_for_an_eager_call() -> None:
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
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True)


# Whole comparisons


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A separate checkout with one commit."""
    return committed(tmp_path_factory.mktemp("committed") / "checkout")


@pytest.fixture
def repository(checkout: Path, tmp_path: Path) -> Path:
    """Return a copy of the checkout that the test may change."""
    return shutil.copytree(checkout, tmp_path / "checkout")


def quiet_git() -> dict[str, str]:
    return {name: value for name, value in environment().items() if not name.startswith("GIT_")}


def ab(folder: Path, *options: str, **more: Any) -> subprocess.Popen[str]:
    """`python -m bench ab ...` of a checkout, with temporary files beside it."""
    env = quiet_git() | {"TMPDIR": str(folder.parent)}
    command = [sys.executable, "-m", "bench", "ab", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=env, text=True, stdout=pipe, stderr=pipe, **more)


def nothing_is_left(folder: Path, workers: list[psutil.Process]) -> bool:
    trees = subprocess.run(["git", "worktree", "list"], cwd=folder, capture_output=True, text=True).stdout
    gone = not any(it.is_running() and it.status() != psutil.STATUS_ZOMBIE for it in workers)
    return gone and len(trees.splitlines()) == 1 and not [*folder.parent.glob(f"{PREFIX}*")]


def test_two_implementations_in_cells_of_several_lengths_and_dtypes(inside: Inside, repository: Path) -> None:
    """The second implementation is a module in the user's folder."""
    out = repository.parent / "out.json"
    (repository / "mine.py").write_text("from torch.nn.functional import scaled_dot_product_attention as mine\n")
    cells = (*TINY[2:6], "--T", "16,32", "--dtype", "float32,bfloat16", "--budget", "0.01")
    code, text, errors = inside(*cells, "--base-impl", "fused", "--head-impl", "mine=mine:mine", "--json", str(out))
    assert code in (0, 1, 2), errors
    assert "kernel gemm → flash" in text
    assert "left] checking 4 cells " in errors
    assert json.loads(out.read_text())["exit_code"] == code
    (saved,) = repository.glob("results/*/ab/0001_*.json")
    data = json.loads(saved.read_text())
    assert [(cell["impl"], cell["failed"]) for cell in data["cells"]] == [("mine against fused", [])] * 4
    blocks = data["pairs"][0]["blocks"]
    assert len({len(column) for column in blocks.values()}) == 1 and len(blocks["seconds"]) > 2
    assert f"saved: {saved}" in text
    assert nothing_is_left(repository, [])


def test_a_revision_against_a_changed_working_tree(inside: Inside, repository: Path) -> None:
    """`sdpa` falls back from flash to math, and `packed` is gone."""
    fall(repository)
    registry = repository / "impls" / "__init__.py"
    registry.write_text(registry.read_text().replace("    packed,\n", ""))
    out, report = repository.parent / "out.json", repository.parent / "out.md"
    options = (*TINY[2:], "--T", "256", "--base", "HEAD", "--impl", "sdpa,packed")
    code, text, errors = inside(*options, "--json", str(out), "--markdown", str(report))
    assert code == 1, errors
    cells = {cell["impl"]: cell for cell in json.loads(out.read_text())["cells"]}
    sdpa, packed = cells["sdpa"], cells["packed"]
    assert packed["word"] == "BROKEN" and "unknown implementation 'packed'" in packed["reason"]
    fell = {change["what"]: (change["base"], change["head"]) for change in sdpa["changes"]}
    assert fell["kernel"] == ("flash", "math"), sdpa["reason"]
    scores = 2 * 256 * 256 * 4  # heads, queries, keys, bytes: flash never holds them
    assert fell["peak_bytes"][0] < scores < fell["peak_bytes"][1]
    assert "\n    python -m bench ab --base HEAD --impl sdpa,packed " in report.read_text()
    ratio = sdpa["ratio"]
    said = f"{ratio:.1f}x as slow" if ratio >= 1.5 else f"{abs(ratio - 1) * 100:.1f} %"
    for form in (text, report.read_text()):
        assert "kernel flash → math" in form and said in form
    assert nothing_is_left(repository, [])


@pytest.mark.parametrize(
    ("ending", "while_"),
    [
        (signal.SIGINT, "checking"),
        pytest.param(signal.SIGTERM, "timing", marks=pytest.mark.slow),
        (signal.SIGKILL, "timing"),
    ],
)
def test_nothing_is_left_behind(repository: Path, ending: signal.Signals, while_: str) -> None:
    def listen() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which what was started with `&` by a shell ignores

    edited(repository)
    options = (*TINY[:-1], "5", "--base", "HEAD", "--impl", "fused")
    with ab(repository, *options, start_new_session=True, preexec_fn=listen) as running:
        assert running.stderr
        for text in running.stderr:
            if while_ in text:
                break
        else:
            pytest.fail("it never came to timing")
        until = time.monotonic() + 60
        workers: list[psutil.Process] = []
        while not workers and time.monotonic() < until:
            found = psutil.Process(running.pid).children()
            workers = [it for it in found if any("bench.workers.worker" in word for word in it.cmdline())]
        assert [*repository.parent.glob(f"{PREFIX}*")]
        if ending == signal.SIGINT:
            os.killpg(running.pid, ending)  # as a terminal does
        else:
            running.send_signal(ending)
        running.communicate(timeout=60)
    assert running.returncode == (-signal.SIGKILL if ending == signal.SIGKILL else 2)
    while not nothing_is_left(repository, workers) and time.monotonic() < until:
        time.sleep(0.1)
    assert nothing_is_left(repository, workers)


def test_the_same_command_continues_with_the_replicates_of_an_interrupted_one(
    command: Any, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, replicates = Replication.replicate, list[Replicate]()

    def interrupted(self: Replication, *given: Any) -> Replicate:
        if len(replicates) == 2:
            raise KeyboardInterrupt
        replicates.append(measure(self, *given))
        return replicates[-1]

    monkeypatch.setattr(Replication, "replicate", interrupted)
    with pytest.raises(ValueError, match="not enough values"):  # nothing is saved
        command({}, "--seed", "1")
    (kept,) = repository.glob("results/*/ab/*.journal")
    with kept.open("a") as file:
        file.write('{"pair": {"logs": [["sd')  # as after `kill -9`
    replicates_before = list(replicates)
    monkeypatch.setattr(Replication, "replicate", lambda *given: replicates.append(measure(*given)) or replicates[-1])
    command({}, "--seed", "2")
    assert kept.exists()  # of another comparison
    del replicates[2:]
    _, _, saved = command({}, "--seed", "1")
    assert len(saved["pairs"]) == len(replicates) > 2 and replicates[:2] == replicates_before
    assert saved["pairs"] == replicates
    assert not [*repository.glob("results/*/ab/*.journal")]


def test_replicates_outlive_a_file_that_cannot_be_saved(
    command: Any, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(measuring, "save", full)
    with pytest.raises(OSError, match="No space left"):
        command({})
    (kept,) = repository.glob("results/*/ab/*.journal")
    assert kept.read_text().count('{"pair": ') > 2


def test_no_difference_in_code_is_no_regression(inside: Inside, repository: Path) -> None:
    out = repository.parent / "out.json"
    code, text, _ = inside(*TINY, "--base", "HEAD", "--impl", "fused", "--json", str(out))
    assert code == 0 and "the working tree\nNothing regressed: no cell " in text
    assert "no difference in code between HEAD (" in text and json.loads(out.read_text())["cells"] == []
    assert not [*repository.glob("results/*/ab/*.json")]


def test_a_shallow_clone_says_how_to_complete_it(repository: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{repository}", str(tmp_path / "clone")], check=True)
    with pytest.raises(UsageError, match=r"unknown revision 'HEAD~1': `git fetch --unshallow` completes .*clone"):
        sources.commit_of("HEAD~1", tmp_path / "clone")


PYTHON = tempfile.gettempdir() + "/no/such/python"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "one comparison at a time: give either --base REF"),
        (("--base", "nowhere", "--json", "left.json"), "unknown revision 'nowhere': give a branch"),
        (("--head", "HEAD"), "--base, which is missing"),
        (("--base", "HEAD", "--head", "HEAD"), "are the same commit"),
        (("--base", "HEAD", "--base-impl", "fused"), "one comparison at a time"),
        (("--base-impl", "fused"), "with --head-impl NAME, which is missing"),
        (("--base-impl", "fused", "--head-impl", "fused"), "both are called fused"),
        (("--base-impl", "a=x:f", "--head-impl", "a=y:f"), "both are called a"),
        (("--base-impl", "fused", "--head-impl", "sdpa", "--impl", "packed"), "--impl chooses among many"),
        (("--base-python", PYTHON), f"there is no interpreter {PYTHON}"),
        (("--head-python", sys.executable), "--base-python, which is missing"),
        (("--base", "HEAD", "--sweep", "quik"), "did you mean quick?"),
        (("--base", "HEAD", "--margin", "1"), "from 0 to below 0.5"),
        (("--base", "HEAD", "--budget", "0"), "not a positive number"),
        (("--base", "HEAD", "--json", "/dev/null/x"), "can't be written"),
        (("--base", "HEAD", "--save", "a/b"), "--save 'a/b'"),
        (("--nothing",), "unrecognized arguments"),
    ],
)
def test_usage_errors(inside: Inside, repository: Path, options: tuple[str, ...], says: str) -> None:
    code, _, errors = inside(*options)
    assert code == 3, errors
    assert says in errors
    assert errors.count("bench: error") == 1
    assert nothing_is_left(repository, []) and not (repository / "left.json").exists()


def test_an_interpreter_without_torch(inside: Inside, repository: Path) -> None:
    bare = repository.parent / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    code, _, errors = inside("--base-python", str(bare))
    assert code == 3
    assert "No module named 'torch'" in errors
    assert "pip install torch numpy psutil" in errors
