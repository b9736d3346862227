"""The timing schedule: blocks, rounds, visits. Visits of simulated processes, some of which end, cache or throttle."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell, Key
from bench.cases.counting import held_bytes
from bench.cases.outcome import Skip
from bench.cases.sweep import SWEEPS
from bench.runs import visit as visits
from bench.runs.measuring import PREPARATIONS, Measuring, shared_probes
from bench.runs.run import Run
from bench.runs.visit import Visit
from bench.selection.options import Selection
from bench.timing.devices.nvml import words
from bench.timing.engine import (
    BLOCK,
    EVEN,
    LONG_ROUNDS,
    MIN_ROUNDS,
    NEED,
    VISITS,
    Visits,
    block_of,
    need,
)
from bench.timing.malloc import MAPPED
from bench.workers.client import Lost

POWER, HOT, SLOW = 0x4, 0x20, 0x8


def test_a_block_is_long_enough_for_the_clock_and_warmed_up_where_it_has_several_calls() -> None:
    short = block_of(1e-5)
    assert (short.calls, short.slices, short.warm) == (25, 8, 25)  # slices of 0.25 ms, behind an eighth
    assert short.calls * short.slices * 1e-5 >= BLOCK
    assert (block_of(3e-3).calls, block_of(3e-3).slices, block_of(3e-3).warm) == (1, 1, 0)
    assert block_of(0.0).calls > 0


@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_all_members_take_part_in_the_same_rounds_however_long_their_calls(processes: int) -> None:
    plan = Visits(0.25, processes)
    seconds = {"short": 1e-4, "20 ms": 0.02, "100 ms": 0.1, "1 s": 1.0}
    blocks = {name: block_of(each) for name, each in seconds.items()}
    assert blocks["100 ms"].seconds > EVEN > blocks["20 ms"].seconds
    counts = [plan.counts(blocks, visit, {}) for visit in range(VISITS)]
    assert sum("1 s" in it for it in counts) == plan.long and "1 s" in counts[-1]
    for it in counts:
        assert it.get("1 s") == it.get("100 ms") and min(it.values()) >= it.get("1 s", MIN_ROUNDS)
    assert processes * sum(it.get("1 s", 0) for it in counts) in range(LONG_ROUNDS, LONG_ROUNDS + 2 * processes)
    assert (
        sum(plan.counts({"1 min": block_of(60.0)}, visit, {}).get("1 min", 0) for visit in range(VISITS)) == plan.long
    )
    alone = [plan.counts({"20 ms": blocks["20 ms"]}, visit, {}) for visit in range(VISITS)]
    assert sum(it.get("20 ms", 0) for it in alone) == pytest.approx(0.25 / 0.02, abs=2)  # as many as fit into the time


def test_cells_with_wider_intervals_get_more_time() -> None:
    plan, blocks = Visits(0.4), {"base": block_of(1e-4), "known": block_of(1e-4), "long": block_of(1.0)}
    usual, needy = plan.counts(blocks, 5, {}), plan.counts(blocks, 5, {"base": 2.0, "known": 0.25, "long": 2.0})
    assert needy["base"] == pytest.approx(2 * usual["base"], abs=1) and needy["long"] == usual["long"]
    assert usual["known"] > needy["known"] >= MIN_ROUNDS
    assert need({"known": 0.001, "wide": 0.3}, 0.02) == dict(zip(("known", "wide"), NEED, strict=True))


def test_a_case_that_is_known_is_timed_no_more_once_all_have_had_their_rounds() -> None:
    plan, known = Visits(0.4), need({"a": 0.001, "b": 0.02}, 0.02)
    short = {"a": block_of(1e-4), "b": block_of(1e-4)}
    assert plan.counts(short, 5, known) == {}
    assert set(plan.counts(short | {"b": block_of(1.0)}, 5, known).values()) == {-(-LONG_ROUNDS // plan.long)}


# Visits


@dataclass
class FakePool:
    """A `WorkerPool` without processes: its calls take given times, and fail on request."""

    run: Run
    seconds_of: dict[str, float]
    process: int = 0
    number: int = 0
    fails: dict[str, Callable[[], Skip]] = field(default_factory=dict)
    """By request and implementation: raised at the third block."""
    reasons: list[int] = field(default_factory=list)
    """What throttles the GPU at each block, the last for ever; none for a device without sensors."""
    seconds: dict[Key, float] = field(default_factory=dict)
    renewed: set[Key] = field(default_factory=set)
    grown: set[Key] = field(default_factory=set)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    pages: dict[str, float] = field(default_factory=dict)
    """Reply to `other_pages`."""

    def prepare(self, cells: list[Cell]) -> None:
        for cell in cells:
            if cell.key not in self.run.skipped:
                self.seconds.setdefault(cell.key, self.seconds_of[cell.impl.name])

    def ask(self, do: str, cell: Cell, **details: Any) -> dict[str, Any]:
        self.asked.append((do, cell.impl.name, self.number, details))
        times = sum(it[:2] == (do, cell.impl.name) for it in self.asked)
        if (fail := self.fails.get(f"{do} {cell.impl.name}")) and times >= 3:
            raise fail()
        if do == "other_pages":
            return self.pages
        if do != "time":
            return {"compared": 5, "seconds": self.seconds_of[cell.impl.name]} if do == "renew" else {}
        reasons = self.reasons.pop(0) if len(self.reasons) > 1 else (self.reasons or [None])[0]
        sensed = {} if reasons is None else {
            "sm_mhz": 1755, "power_w": 612.5, "temperature_c": 61,
            "throttled": words(reasons), "held_back": bool(reasons & (HOT | SLOW)),
        }  # fmt: skip
        return {
            "seconds": self.seconds_of[cell.impl.name],
            "fastest": 0.9 * self.seconds_of[cell.impl.name],
            "page_faults": 2.0,
            "voluntary": 0.0,
            "involuntary": 1.0,
        } | sensed

    def skip(self, cell: Cell, outcome: Skip) -> None:
        self.run.add_skipped(cell, outcome)
        if isinstance(outcome, Lost):
            self.number, self.seconds = self.run.next_number("process"), {}

    def drop(self, cells: list[Cell]) -> None:
        pass


SECONDS = {"fused": 1e-3, "sdpa": 1e-4, "packed": 9e-4}


def run_of(tmp_path: Path, *names: str, T: int = 16) -> Run:
    case = Case.of(T=T, H=2, D_h=8)
    cells = tuple(Cell(impls.get(name), case) for name in names)
    run = Run({}, Selection(SWEEPS["quick"], "cpu", tuple(cell.impl for cell in cells), cells), tmp_path)
    run.timing = {"cell_time": 0.25, "processes": 1, "precision": 0.02, "cell_timeout": 60.0}
    for cell in cells:
        run.checked[cell.key] = {"columns": {"kernel": "x"}, "seconds": 1e-3}
    run.plan(cell.key for cell in cells)
    run.next_number("process")
    return run


def visited(run: Run, pool: FakePool, visit: int = 0) -> Visit:
    cells = list(run.selection.cells)
    it = Visit(run, pool, cells[0].case.id, visit, random.Random(0))  # type: ignore[arg-type]
    it.time(cells, Visits(0.25), {})
    it.check_caching(cells)
    it.write()
    return it


def test_members_are_interleaved_and_share_their_rounds(tmp_path: Path) -> None:
    run = run_of(tmp_path, *SECONDS)
    visited(run, FakePool(run, SECONDS))
    found = {impl: it.samples for (impl, _), it in run.timed.items()}
    assert {impl: {it.seconds for it in samples} for impl, samples in found.items()} == {
        impl: {seconds} for impl, seconds in SECONDS.items()
    }
    numbers = [[it.round for it in samples] for samples in found.values()]
    assert numbers[0] == numbers[1] == numbers[2] == list(range(len(numbers[0])))
    assert {(it.page_faults, it.involuntary, it.process, it.visit) for it in found["sdpa"]} == {(2.0, 1.0, 0, 0)}


def test_every_other_visit_begins_elsewhere_in_memory_and_on_fresh_inputs(tmp_path: Path) -> None:
    run = run_of(tmp_path, *SECONDS)
    pool = FakePool(run, SECONDS)
    for visit, count in ((0, 1), (1, 1), (2, 2)):
        visited(run, pool, visit)
        assert Counter(name for do, name, *_ in pool.asked if do == "renew") == dict.fromkeys(SECONDS, count)
    assert sum(do == "time" for do, *_ in pool.asked) == sum(len(it.samples) for it in run.timed.values())
    assert {it.compared for it in run.timed.values()} == {2 * 5}


def test_a_call_that_was_slow_while_others_were_checked_is_timed_in_whole_blocks(tmp_path: Path) -> None:
    run = run_of(tmp_path, *SECONDS)
    pool = FakePool(run, SECONDS)
    pool.seconds = dict.fromkeys(run.checked, 0.1)  # as if it were long
    visited(run, pool, 1)
    assert {it.calls for it in run.samples(("sdpa", run.selection.cells[0].case.id))} == {21}


def untimed(run: Run, seconds: float, **pages: float) -> list[bool]:
    """Whether the first block of each of three visits, and no other, follows an untimed call of this many seconds."""
    pool, found = FakePool(run, dict.fromkeys(SECONDS, seconds), pages=pages), list[bool]()
    for visit in range(3):
        pool.asked = [it for it in pool.asked if it[0] == "caching"]
        visited(run, pool, visit)
        first, *others = (details["warm"] for do, it, _, details in pool.asked if (do, it) == ("time", "sdpa"))
        assert not any(others)
        found.append(first == 1)
    return found


def test_an_untimed_call_begins_each_visit_and_of_long_calls_the_first_with_an_empty_heap(tmp_path: Path) -> None:
    """A long call grows the heap where its outputs are compared, before the first visit's blocks."""

    def mapped() -> Run:
        run = run_of(tmp_path, *SECONDS)
        for checked in run.checked.values():
            checked["columns"]["peak_bytes"] = MAPPED  # has other settings of malloc after the first visit
        return run

    assert untimed(run_of(tmp_path, *SECONDS), 5e-3) == [True, True, True]
    assert untimed(run_of(tmp_path, *SECONDS), 0.03) == [False, False, False]
    assert untimed(mapped(), 0.03, fresh_pages_s=0.06) == [False, True, False]
    assert untimed(mapped(), 0.03, kept_pages_s=0.02) == [False, False, False]
    run = mapped()
    seconds = next(iter(run.checked.values()))["seconds"]
    assert untimed(run, 0.03, fresh_pages_s=seconds) == [False, False, False]  # the checked call, so memory was kept


def test_a_failing_cell_is_the_only_one_skipped(tmp_path: Path) -> None:
    run = run_of(tmp_path, *SECONDS)
    visited(run, FakePool(run, SECONDS, fails={"time sdpa": lambda: Skip("error 1.0", "wrong")}))
    assert [(key[0], entry["reason"]) for key, entry in run.skipped.items()] == [("sdpa", "wrong")]
    run.finish()
    assert {key[0] for key in run.finished} == {"fused", "packed"}


def test_a_cell_that_fails_on_fresh_inputs_in_a_later_visit_is_the_only_one_skipped(tmp_path: Path) -> None:
    run = run_of(tmp_path, *SECONDS)
    pool = FakePool(run, SECONDS, fails={"renew sdpa": lambda: Skip("error 1.0", "wrong")})
    for visit in range(5):
        visited(run, pool, visit)
    assert [key[0] for key in run.skipped] == ["sdpa"]
    assert len({it.visit for it in run.samples(("fused", run.selection.cells[0].case.id))}) == 5


def test_a_cell_that_ends_the_process_leaves_the_others_their_samples(tmp_path: Path) -> None:
    run = run_of(tmp_path, *SECONDS)
    visited(run, FakePool(run, SECONDS, fails={"time sdpa": lambda: Lost("ended its process (SIGSEGV)")}))
    assert [key[0] for key in run.skipped] == ["sdpa"]
    of_fused = run.samples(("fused", run.selection.cells[0].case.id))
    assert {it.process for it in of_fused} == {0, 1}
    assert len({(it.process, it.visit) for it in of_fused}) == 2  # a visit lies within a process
    assert [it.round for it in of_fused] == list(range(len(of_fused)))


def test_a_cell_that_caches_results_is_skipped(tmp_path: Path) -> None:
    run = run_of(tmp_path, *SECONDS)
    pool = FakePool(run, SECONDS, fails={})
    pool.asked += [("caching", "packed", 0, {})] * 2
    pool.fails["caching packed"] = lambda: Skip("caches results", "wrong")
    visited(run, pool)
    assert [key[0] for key in run.skipped] == ["packed"]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(visits, "sleep", found.append)
    return found


def test_a_gpu_that_is_held_back_cools_down_once_and_the_block_is_timed_again(
    tmp_path: Path, pauses: list[float]
) -> None:
    run = run_of(tmp_path, "fused")
    visited(run, FakePool(run, SECONDS, reasons=[0, HOT, POWER, 0]))
    (columns,) = (it.columns for it in run.timed.values())
    assert pauses == [visits.COOLING]
    assert (columns["sm_mhz"], columns["throttled"]) == (1755, "power cap")  # of the blocks that were kept


def test_a_gpu_that_stays_throttled_is_reported(tmp_path: Path, pauses: list[float]) -> None:
    run = run_of(tmp_path, "fused")
    visited(run, FakePool(run, SECONDS, reasons=[0, HOT, SLOW, HOT]))
    (columns,) = (it.columns for it in run.timed.values())
    assert len(pauses) == 1
    assert columns["throttled"] == "hardware slowdown, software thermal slowdown"


def test_a_baseline_that_is_refused_later_is_not_used_for_ratios(tmp_path: Path) -> None:
    run = run_of(tmp_path, *SECONDS)
    visited(run, FakePool(run, SECONDS))
    run.add_skipped(run.selection.cells[0], Skip("it caches results"))
    run.finish()
    assert {key[0] for key in run.finished} == {"sdpa", "packed"}
    assert all(row["extra_info"]["ratio"] is None for row in run.finished.values())


# Whole runs


class Noisy(FakePool):
    """A pool whose calls vary by a share of their time."""

    noise = 0.0

    def ask(self, do: str, cell: Cell, **details: Any) -> dict[str, Any]:
        answer = super().ask(do, cell, **details)
        if "seconds" in answer:
            answer["seconds"] *= 1 + self.noise * RNG.uniform(-1, 1)
        return answer


RNG = random.Random(0)


@pytest.mark.parametrize(("noise", "count"), [(0.0, VISITS // 2), (0.5, VISITS)])
def test_a_case_is_visited_until_its_ratios_are_known(tmp_path: Path, noise: float, count: int) -> None:
    run = run_of(tmp_path, *SECONDS)
    pool = Noisy(run, SECONDS)
    pool.noise = noise
    measuring = Measuring(run, run.selection.cells, lambda: pytest.fail("no process"), 0, False, lambda text: None)
    measuring._held = {run.selection.cells[0].case.id}
    pool.preparing = lambda cells: (it for it in ())  # type: ignore[attr-defined]
    measuring._time([pool])  # type: ignore[list-item]
    samples = run.samples(("sdpa", run.selection.cells[0].case.id))
    assert len({it.visit for it in samples}) == count
    assert all(run.visited(0, visit, run.selection.cells[0].case.id) for visit in range(VISITS))


def test_nothing_is_made_ready_for_a_visit_that_times_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, *SECONDS)
    pool, cells = FakePool(run, SECONDS), list(run.selection.cells)
    monkeypatch.setattr(pool, "prepare", lambda cells: pytest.fail("made ready"))
    visit = Visit(run, pool, cells[0].case.id, 4, random.Random(0))  # type: ignore[arg-type]
    visit.time(cells, Visits(0.25), dict.fromkeys(run.checked, 0.0))


def test_cells_that_do_not_fit_into_memory_are_split_with_the_baseline_in_every_part(tmp_path: Path) -> None:
    names = ("sdpa", "packed", "fused", "einsum", "wrapper")
    run = run_of(tmp_path, *names)
    measuring = Measuring(run, run.selection.cells, lambda: pytest.fail("no process"), 0, False, lambda text: None)
    (whole,) = measuring._groups(run.selection.cells[0].case.id)
    assert [cell.impl.name for cell in whole] == ["fused", "sdpa", "packed", "einsum", "wrapper"]
    measuring._free = 0
    parts = [[cell.impl.name for cell in group] for group in measuring._groups(whole[0].case.id)]
    assert parts == [["fused", name] for name in ("sdpa", "packed", "einsum", "wrapper")]


def test_checks_that_need_one_core_for_seconds_come_first_so_that_no_worker_waits_for_them() -> None:
    cells = [Cell(impls.get(name), Case.of(T=16, H=2, D_h=8)) for name in ("sdpa", "fused+compile", "loop")]
    assert [[cell.impl.name for cell in group] for group in shared_probes(cells, 1)] == [
        ["loop", "fused+compile", "sdpa"]
    ]


def test_the_smallest_cases_stay_ready_whatever_the_largest_needs(tmp_path: Path) -> None:
    run = run_of(tmp_path, "sdpa", "fused")
    cells = [Cell(impls.get("fused"), Case.of(T=T, H=8, D_h=64)) for T in (4096, 64, 256)]
    measuring = Measuring(run, cells, lambda: pytest.fail("no process"), 0, False, lambda text: None)
    held = {cell.case.T: held_bytes(cell.case) for cell in cells}
    assert measuring._held == {cell.case.id for cell in cells}
    for free, T in ((held[64] + held[256], {64, 256}), (held[256], {64}), (0, set())):
        found = measuring._that_fit(3 * (free + 1))
        assert found == {cell.case.id for cell in cells if cell.case.T in T}


def test_a_case_that_cannot_stay_ready_is_tested_for_cached_results_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, *SECONDS)
    pool = FakePool(run, SECONDS)
    monkeypatch.setattr(pool, "preparing", lambda cells: (it for it in ()), raising=False)
    monkeypatch.setattr(pool, "drop", lambda cells: None)
    measuring = Measuring(run, run.selection.cells, lambda: pytest.fail("no process"), 0, False, lambda text: None)
    measuring._held = set()
    measuring._time([pool])  # type: ignore[list-item]
    assert Counter(name for do, name, *_ in pool.asked if do == "caching") == dict.fromkeys(SECONDS, 1)


def test_a_case_that_cannot_stay_ready_is_made_ready_for_several_visits_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, *SECONDS)
    pool = FakePool(run, dict.fromkeys(SECONDS, 0.3))
    dropped: list[int] = []
    monkeypatch.setattr(pool, "preparing", lambda cells: (it for it in ()), raising=False)
    monkeypatch.setattr(pool, "drop", lambda cells: dropped.append(len(cells)))
    told: list[str] = []
    measuring = Measuring(run, run.selection.cells, lambda: pytest.fail("no process"), 0, False, told.append)
    measuring._held = set()
    measuring._time([pool])  # type: ignore[list-item]
    measuring._tell_precision()
    case = run.selection.cells[0].case.id
    assert re.fullmatch(rf"{case}  ±\d\.\d% from its visits", told[-1])
    run.timing["precision"] = -1.0
    measuring._tell_precision()
    assert told[-1].startswith(f"{case}  out of time: ")
    assert dropped == [len(SECONDS)] * PREPARATIONS
    assert all(len(it.samples) in (LONG_ROUNDS, LONG_ROUNDS + 1) for it in run.timed.values())
    assert run.state_text.endswith("100% of the timing done")
