"""Timing interleaved: blocks, rounds, visits; and runs in simulated processes, some of which end, cache or throttle."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

import impls
from bench.cases import models
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.counting import held_bytes, least_memory
from bench.cases.outcome import Skip
from bench.runs.measuring import PREPARATIONS, PROCESS, Measuring
from bench.runs.run import FirstFailure
from bench.runs.saving import Journal
from bench.selection import options
from bench.selection.errors import UsageError
from bench.timing.malloc import MAPPED
from bench.timing.reference_workload import ReferenceWorkload
from bench.timing.schedule import (
    BLOCK,
    COMMON_ROUNDS,
    LONG_VISITS,
    MIN_VISIT_ROUNDS,
    NEED,
    VISITS,
    block_of,
    counts,
    need,
)
from bench.workers import client
from bench.workers.client import Lost, Variant, WorkerClient, WorkerSettings
from stats.estimate import grouped

from .conftest import LocalWorker, run_of


def test_a_block_is_long_enough_for_the_clock_and_warmed_up_where_it_has_several_calls():
    short = block_of(1e-5)
    assert (short.calls, short.slices, short.warm) == (25, 8, 25)  # slices of 0.25 ms, behind an eighth
    assert short.calls * short.slices * 1e-5 >= BLOCK
    assert (block_of(3e-3).calls, block_of(3e-3).slices, block_of(3e-3).warm) == (1, 1, 0)
    assert block_of(0.0).calls > 0


@pytest.mark.parametrize("processes", [1, 2, 5, 8])
def test_all_members_take_part_in_the_same_rounds_however_long_their_calls(processes):
    plan = partial(counts, need={}, seconds=0.25, processes=processes)
    blocks = {seconds: block_of(seconds) for seconds in (1e-4, 0.02, 0.1, 1.0)}
    of_visits = [plan(blocks, visit) for visit in range(VISITS)]
    assert sum(1.0 in it for it in of_visits) == LONG_VISITS and 1.0 in of_visits[-1]
    for it in of_visits:
        assert it.get(1.0) == it.get(0.1) and min(it.values()) >= it.get(1.0, MIN_VISIT_ROUNDS)
    assert processes * sum(it.get(1.0, 0) for it in of_visits) in range(COMMON_ROUNDS, COMMON_ROUNDS + 2 * processes)
    alone = sum(plan({"": blocks[0.02]}, visit)[""] for visit in range(VISITS))
    assert alone == pytest.approx(0.25 / 0.02, abs=2)  # as many as fit into the time
    longest = sum(plan({"": block_of(100.0)}, visit).get("", 0) for visit in range(VISITS))
    assert longest == (LONG_VISITS if processes == 1 else 1)  # above `COMMON_SECONDS`


def test_cells_with_wider_intervals_get_more_time():
    blocks = {"base": block_of(1e-4), "known": block_of(1e-4), "long": block_of(1.0)}
    plan = partial(counts, visit=5, seconds=0.4, processes=1)
    usual, needy = plan(blocks, need={}), plan(blocks, need={"base": 2.0, "known": 0.25, "long": 2.0})
    assert needy["base"] == pytest.approx(2 * usual["base"], abs=1) and needy["long"] == usual["long"]
    assert usual["known"] > needy["known"] >= MIN_VISIT_ROUNDS
    assert need({"known": 0.001, "wide": 0.3}, 0.02) == dict(zip(("known", "wide"), NEED, strict=True))
    assert need({"wide": 0.03}, 0.02) == pytest.approx({"wide": 0.75})  # twice the visits halve it
    known = need({"base": 0.001, "known": 0.02, "long": 0.0}, 0.02)  # all of the case: only long calls are timed
    assert plan(blocks | {"long": block_of(1e-4)}, need=known) == {}
    assert {*plan(blocks, need=known).values()} == {-(-COMMON_ROUNDS // LONG_VISITS)}


# Runs in simulated processes


@dataclass
class Simulated:
    """Worker processes of a run: how long calls take, what fails, and what was asked."""

    seconds: dict[str, float]
    """Of a call, by implementation."""
    noise: float = 0.0
    """Share of its time by which a call varies."""
    fails: dict[str, tuple[int, Skip]] = field(default_factory=dict)
    """By request and implementation: which of these requests fails, counted from 1, and how."""
    replies: dict[str, Any] = field(default_factory=dict)
    """Replies other than the usual ones, by request."""
    asked: list[tuple[str, str, int, dict[str, Any]]] = field(default_factory=list)
    """Request, implementation, number of the process, and details."""
    sensors: Callable[[int], dict[str, Any]] = lambda block: {}
    """Columns of a GPU's sensors, by the number of the block."""
    timed: int = 0
    told: list[str] = field(default_factory=list)
    started: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def start(self):
        self.started += 1
        return Process(self, self.started - 1)

    def of(self, do):
        """The implementations of all requests of this kind."""
        return [name for it, name, *_ in self.asked if it == do]


@dataclass
class Process(LocalWorker):
    """One of them, as a client sees it."""

    of: Simulated
    number: int
    kept: set[str] = field(default_factory=set)
    """Cells that can be timed."""

    def ask(self, do, what="", **details):
        it, name = self.of, what.partition(" ")[0]
        it.asked.append((do, name, self.number, details | {"what": what}))
        at, outcome = it.fails.get(f"{do} {name}", (0, None))
        if outcome and it.of(do).count(name) == at:
            self.lost = isinstance(outcome, Lost)
            raise outcome
        seconds = it.seconds.get(name, 0.0) * (1 + it.noise * it.rng.uniform(-1, 1))
        if do == "prepare" or details.get("keep"):
            self.kept.add(what)
        elif do not in ("cells", "probe", "check", "settle", "gpu_workloads"):
            assert what in self.kept, f"{what} is not ready in this process"
        if do == "drop":
            self.kept.remove(what)
        if do == "time":
            it.timed += 1
            return {"seconds": seconds, "fastest": seconds, "page_faults": 2.0, "voluntary": 0.0, "involuntary": 1.0,
                    "columns": it.sensors(it.timed)}  # fmt: skip
        columns = {"kernel": "x", "peak_bytes": 0, "operators": 1}
        usual = {"cells": {"unknown": {}}, "check": {"columns": columns, "seconds": seconds},
                 "renew": {"compared": 5, "fastest": seconds}, "prepare": {"seconds": seconds},
                 "probe": {"passed": [f"{name} in {self.number}"]}, "trace": {"trace": details.get("path")}}  # fmt: skip
        return (usual | it.replies).get(do, {})


SECONDS = {"fused": 1e-3, "packed": 9e-4, "sdpa": 1e-4}
CASE = Case.of(T=16, H=2, D_h=8)
CELLS = tuple(Cell(impls.get(name), CASE) for name in SECONDS)
TOO_LITTLE = PROCESS + max(least_memory(cell.impl, CASE) for cell in CELLS) + 3 * len(CELLS) * held_bytes(CASE)
"""Bytes for the cells of one case at a time."""

LOST, WRONG = Lost("ended its process (SIGSEGV)"), Skip("error 1.0", "wrong")


@pytest.fixture
def measured(monkeypatch):
    """`measured(processes)` is a run of three cells, or of those that are given, in such processes; in `count` of them.

    `left`: those of its cells that pytest selects, if not all.
    """

    def measure(
        processes,
        *cells,
        left=(),
        free=1 << 40,
        folder=None,
        journal=None,
        traced=False,
        seed=0,
        fail_fast=False,
        count=1,
    ):
        cells = cells or CELLS
        monkeypatch.setattr("bench.runs.measuring.free_bytes_elsewhere", lambda device: free)
        run = run_of(*cells, folder=folder or Path(), name="x" if folder else None)
        monkeypatch.setattr("bench.timing.reference_workload.WORK", {})
        run.traced, run.timing["processes"] = traced, count
        run.seed = seed
        if journal:
            run.restore(Journal(journal))
        run.plan(cell.key for cell in cells)
        run.tell = processes.told.append
        run.fail_fast = fail_fast
        with suppress(FirstFailure):
            Measuring(run, left or cells, processes.start).measure()
        if run.journal:
            run.journal.close()
        return run

    return measure


def samples(run, name="fused"):
    return run.samples((name, CASE.id))


def test_the_order_of_timing_follows_from_the_seed(measured):
    def order(seed):
        measured(processes := Simulated(SECONDS), seed=seed)
        return processes.of("time")

    assert order(1) == order(1) != order(2)


@pytest.mark.parametrize(
    ("noise", "count", "ended"),
    [(0.0, VISITS // 2, "precise: packed ± 0 %"), (0.5, VISITS, "time limit: sdpa ± ")],
)
def test_a_case_is_visited_until_its_ratios_are_known(measured, noise, count, ended):
    """Every other visit begins elsewhere in memory, and with calls on fresh inputs."""
    processes = Simulated(SECONDS, noise)
    run = measured(processes)
    assert len({it.visit for it in samples(run, "sdpa")}) == count and ended in processes.told[-1]
    assert run.visited == {(0, CASE.id): VISITS}
    renewed = -(-count // 2)
    assert Counter(processes.of("renew")) == dict.fromkeys(SECONDS, renewed)
    assert {it.compared for it in run.found.values()} == {renewed * 5}
    assert len(processes.of("time")) == sum(len(it.samples) for it in run.found.values())


def test_a_half_width_above_100_percent_has_no_number(measured, monkeypatch):
    monkeypatch.setattr("bench.runs.measuring.half_width", lambda _: 1.27)
    measured(processes := Simulated(SECONDS))
    assert processes.told[-1].endswith("time limit: packed ± > 100 %")


def test_blocks_are_long_enough_once_a_call_was_timed_and_every_compared_call_counts(measured, monkeypatch):
    """The check's calls, and those on fresh inputs, take longer than others."""
    monkeypatch.setattr("bench.runs.run.Rooflines.share", lambda *_: 0.5)
    slow = {"renew": {"compared": 5, "fastest": 2e-3}, "check": {"columns": {}, "seconds": 8e-3}}
    run = measured(Simulated(SECONDS, replies=slow))
    run.finish()
    for key, row in run.finished.items():
        first, *others = (it.calls for it in run.samples(key))
        assert first == 1 and min(others) * SECONDS[key[0]] >= BLOCK
        assert {row["extra_info"]["calls"], row["stats"]["iterations"]} == {*others}
        fresh = run.found[key].compared  # calls on fresh inputs; beside them the last one of each block
        assert fresh and row["extra_info"]["calls_compared"] == len(run.samples(key)) + fresh


def test_tensors_of_long_calls_are_moved_once(measured):
    measured(processes := Simulated(dict.fromkeys(SECONDS, 0.02), noise=0.5))
    assert Counter(processes.of("renew")) == dict.fromkeys(SECONDS, 1)


def test_several_processes_end_early_beside_long_calls(measured):
    """The scatter of the long ones is known from two visits in each process."""
    run = measured(simulated := Simulated(SECONDS | {"fused": 0.3}), count=3)
    visits = Counter(process for process, _ in {(it.process, it.visit) for it in samples(run, "sdpa")})
    assert "precise: packed ± 0 %" in simulated.told[-1]
    assert visits == {0: VISITS, 1: VISITS, 2: VISITS // 2 + 1}


def test_a_visit_ends_early_if_calls_take_far_longer_than_planned(measured, monkeypatch):
    clock = count(step=1000)
    monkeypatch.setattr("bench.runs.run.Run.elapsed", lambda _: next(clock))
    visits = Counter(it.visit for it in samples(measured(Simulated(SECONDS, noise=0.5))))
    assert [*visits.values()] == [MIN_VISIT_ROUNDS] * VISITS


@pytest.mark.parametrize(("seconds", "begins"), [(5e-3, 1), (0.03, 0)])
def test_an_untimed_call_begins_each_visit_unless_calls_are_long(measured, seconds, begins):
    """Workers time a long call again if it grew the heap."""
    found = samples(measured(processes := Simulated(dict.fromkeys(SECONDS, seconds))), "sdpa")
    warm = [details["warm"] for do, name, _, details in processes.asked if (do, name) == ("time", "sdpa")]
    by_visit = grouped((sample.visit, calls) for sample, calls in zip(found, warm, strict=True))
    assert len(by_visit) == 3
    assert all(calls == [begins, *[0] * (len(calls) - 1)] for calls in by_visit.values())


@pytest.mark.parametrize("peak_bytes", [MAPPED - 1, MAPPED])
def test_a_call_that_may_fault_pages_is_timed_once_with_other_settings_of_malloc(measured, peak_bytes):
    check = {"columns": {"peak_bytes": peak_bytes}, "seconds": 1e-3}
    processes = Simulated(SECONDS, 0.5, replies={"check": check, "other_pages": {"fresh_pages_s": 0.06}})
    run, may_fault = measured(processes, count=2), peak_bytes == MAPPED
    assert Counter(processes.of("other_pages")) == (dict.fromkeys(SECONDS, 1) if may_fault else {})
    done = [do for do, _, number, _ in processes.asked if number == 0]
    assert not may_fault or done.index("other_pages") > max(at for at, do in enumerate(done) if do == "time")
    assert all(("fresh_pages_s" in it.columns) == may_fault for it in run.found.values())


def test_a_timed_cell_keeps_its_row_if_it_fails_with_other_settings_of_malloc(measured):
    """As where memory is too small for them."""
    check = {"columns": {"peak_bytes": MAPPED}, "seconds": 1e-3}
    fails = {"other_pages fused": (1, LOST), "other_pages sdpa": (1, WRONG)}
    run = measured(processes := Simulated(SECONDS, replies={"check": check}, fails=fails))
    assert [key[0] for key in run.skipped] == ["sdpa"] and len(processes.of("other_pages")) == 3
    assert any(line.endswith(f"no time with other pages: {LOST}") for line in processes.told)


def test_a_row_names_everything_that_throttled_the_gpu_and_its_last_clock(measured):
    """In any block, also in earlier visits; and that outputs of some block differed."""

    def sensors(block):
        throttled = {1: "power cap", 4: "power cap, sync boost"}.get(block)
        return {"sm_mhz": block, "throttled": throttled} | ({"repeats": False} if block == 2 else {})

    processes = Simulated({"sdpa": 1e-3}, sensors=sensors)
    (found,) = measured(processes, CELLS[2]).found.values()
    clock = {"sm_mhz": processes.timed, "throttled": "power cap, sync boost", "repeats": False}
    assert found.columns.items() >= clock.items() and processes.timed > 4


def test_two_pools_tell_each_other_what_an_implementation_has_passed(measured):
    cells = [Cell(impls.get(name), replace(CASE, T=T, T_kv=T)) for name in SECONDS for T in (16, 24, 32)]
    measured(processes := Simulated(SECONDS), *cells)
    last = {name: {*details["passed"]} for do, name, _, details in processes.asked if do == "probe"}
    assert last == {name: {f"{name} in 0", f"{name} in 1"} for name in SECONDS}


def test_one_that_ends_the_process_leaves_the_others_their_samples(measured):
    processes = Simulated(SECONDS, fails={"time packed": (3, LOST)})
    run = measured(processes)
    assert [key[0] for key in run.skipped] == ["packed"] and sorted(processes.of("prepare")) == ["fused", "sdpa"]
    found = samples(run)
    assert {(it.seconds, it.page_faults, it.involuntary) for it in found} == {(SECONDS["fused"], 2.0, 1.0)}
    assert {it.process for it in found} == {0, 1}
    assert len({(it.process, it.visit) for it in found}) == len({it.visit for it in found})  # a visit is of one process
    assert len({it.visit for it in found}) == VISITS // 2 + 1  # no more are made for the interval of the lost one
    assert [it.round for it in found] == [*range(len(found))]


@pytest.mark.parametrize(
    ("world", "says"),
    [
        ({"fails": {"cells ": (1, LOST)}}, "a worker process can't begin: "),
        ({"replies": {"cells": {"unknown": {"packed": "no packed here"}}}}, "no packed here"),
        ({"replies": {"cells": {"unknown": {}, "unusable": "no GPU any more"}}}, "no GPU any more"),
    ],
)
def test_a_run_ends_if_a_process_cannot_start_use_the_device_or_import_an_implementation(measured, world, says):
    with pytest.raises(UsageError, match=f"^{says}"):
        measured(Simulated(SECONDS, **world))


def test_a_run_ends_before_a_new_process_imports_changed_code(measured, monkeypatch):
    """As of a user who edits a kernel during a run."""
    processes = Simulated(SECONDS, fails={"time packed": (3, LOST)})
    monkeypatch.setattr(options, "sources_hash", lambda *_: str(processes.of("time").count("packed") == 3))
    with pytest.raises(UsageError, match="code has changed since the run began: restore it"):
        measured(processes)


def test_a_configuration_is_read_once_and_not_changed_by_a_new_process(measured, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "_read", {})
    path = tmp_path / "config.json"
    for text in ('{"a": 1}', '{"a": 2}'):
        path.write_text(text)
        assert models.config_of(str(path)) == {"a": 1}
    with pytest.raises(UsageError, match=r"config\.json has changed since the run began: restore it"):
        measured(Simulated(SECONDS))


def test_an_isolated_process_spares_the_others_and_each_comes_to_rest_before_the_next(measured):
    own = replace(CELLS[1].impl, limits=replace(CELLS[1].impl.limits, alone=True))
    processes = Simulated(SECONDS, fails={"renew packed": (2, LOST)})
    run = measured(processes, CELLS[0], Cell(own, CASE), CELLS[2])
    assert [key[0] for key in run.skipped] == ["packed"] and not processes.of("prepare") and processes.started == 2
    assert {it.process for name in SECONDS for it in samples(run, name)} == {0}
    assert all(number == (name == "packed") for do, name, number, _ in processes.asked if do == "time")
    for (did, _, last, _), (do, _, number, how) in pairwise(processes.asked):
        if do == "time":  # a block that follows one of another process follows as many untimed calls
            assert (did == "settle") == (last != number) == (how["warm"] == how["calls"] * how["slices"])


def test_implementations_that_are_all_isolated_share_no_process(measured, tmp_path, monkeypatch):
    """Nor does the GPU's workload need one, of a resumed run whose others were refused."""
    monkeypatch.setattr(ReferenceWorkload, "due", lambda self, at: True)
    case = replace(CASE, device="cuda")
    own = [replace(cell.impl, limits=replace(cell.impl.limits, alone=cell is not CELLS[0])) for cell in CELLS]
    cells = [Cell(impl, case) for impl in own]
    measured(processes := Simulated(SECONDS), *cells[1:])
    assert processes.started == 2
    refused = Simulated(SECONDS, fails={"check fused": (1, WRONG)})
    first = measured(refused, *cells, folder=tmp_path, fail_fast=True)
    measured(processes := Simulated(SECONDS), *cells, journal=first.journal.path)
    assert processes.started == 2 and processes.of("gpu_workloads")


@pytest.mark.parametrize(
    ("when", "outcome", "said"),
    [
        ("more packed", Skip("tried to allocate 1 TiB", "out_of_memory"), "no extra calls: "),
        ("trace packed", LOST, "no trace: "),
        ("more packed", WRONG, "wrong: "),
    ],
)
def test_a_timed_cell_keeps_its_row_if_further_calls_fail_but_are_not_wrong(measured, tmp_path, when, outcome, said):
    """On a GPU, whose roofline is not measured by the process of the rows."""
    cells = [Cell(cell.impl, replace(CASE, device="cuda")) for cell in CELLS]
    processes = Simulated(SECONDS, fails={when: (1, outcome)})
    run = measured(processes, *cells, folder=tmp_path, traced=True)
    run.finish()
    assert {name for name, _ in run.finished} == {"fused", "sdpa", *["packed"] * (outcome is not WRONG)}
    assert any(line.endswith(f"packed               {said}{outcome}") for line in processes.told)
    assert len(processes.of("trace")) == 3 - (outcome is WRONG)
    extra = [do for do, *_ in processes.asked if do in ("more", "trace")]
    assert extra == sorted(extra)  # a profiler on the device would slow down what is timed after it


def test_a_run_is_resumed_behind_any_line_of_its_journal_and_measures_nothing_twice(measured, tmp_path):
    """As after `kill -9`, which leaves a part of a line, or where a bad disk has corrupted a line, behind which all is measured
    again.
    """
    journal = measured(Simulated(SECONDS, 0.5), folder=tmp_path, traced=True).journal
    lines = journal.path.read_text().splitlines(keepends=True)
    for kept in range(1, len(lines)):
        before = "".join(lines[:kept])
        lost = "\0" + "".join(lines[kept:]) if kept % 2 else lines[kept][:-9]
        (part := tmp_path / f"{kept}.journal").write_text(before + lost)
        run = measured(Simulated(SECONDS, 0.5), journal=part, traced=True)
        text = part.read_text()
        found = [json.loads(line) for line in text.splitlines()[1:]]
        visits = [tuple(line["visit"]) for line in found if "visit" in line]
        checked = [line["key"][0] for line in found if line.get("found", {}).get("seconds")]
        assert text.startswith(before) and sorted(checked) == sorted(SECONDS)
        assert len({*visits}) == len(visits) == VISITS
        assert [it.round for it in samples(run)] == [*range(len(samples(run)))]
        assert all("trace" in it.columns for it in run.found.values())


def test_a_resumed_run_measures_further_conditions_of_the_selected_cells_alone(measured, tmp_path):
    cells = CELLS[0], Cell(CELLS[0].impl, Case.of(T=32, H=2, D_h=8))
    path = measured(Simulated(SECONDS), *cells, folder=tmp_path).journal.path
    run = measured(Simulated(SECONDS), *cells, left=cells[1:], journal=path, traced=True)
    assert [key for key, it in run.found.items() if "trace" in it.columns] == [cells[1].key]


def test_a_resumed_run_accounts_for_the_seconds_before_it_was_killed(measured, tmp_path):
    path = measured(Simulated(SECONDS), folder=tmp_path).journal.path
    *lines, _last_sample = path.read_text().splitlines()
    looks = {"fixed": [{"at": 0, "seconds": 1.0}]}
    roof = {"device": "cpu", "footprint": 64, "threads": 1, "bytes_per_s": 2.0}
    machine = {"machine": {"roofs": [roof], "controls": {"looks": looks}}, "seconds": {}}
    path.write_text("\n".join([*lines, json.dumps(machine), ""]))
    run = run_of(*CELLS)
    run.restore(Journal(path))
    assert run.workload.seen == looks and run.rooflines.table() == [roof]
    assert run.spent == json.loads(lines[-1])["seconds"]
    assert run.elapsed() > run.spent["check"] + run.spent["timing"] > 0


def test_a_run_ends_at_its_first_failure_if_asked_to_and_is_resumed(measured, tmp_path):
    processes = Simulated(SECONDS, fails={"check fused": (1, WRONG)})
    first = measured(processes, folder=tmp_path, fail_fast=True)
    assert not first.ended and processes.of("probe") == ["fused"] and not processes.of("time")
    run = measured(Simulated(SECONDS), journal=first.journal.path)
    assert run.ended and [key[0] for key in run.skipped] == ["fused"] and samples(run, "packed")


def test_a_baseline_that_is_refused_later_is_not_used_for_ratios(measured, monkeypatch):
    monkeypatch.setattr("bench.runs.run.Rooflines.share", lambda *_: 0.5)
    run = measured(Simulated(SECONDS, fails={"caching fused": (1, Skip("it caches results"))}))
    run.finish()
    assert samples(run) and {key[0] for key in run.finished} == {"sdpa", "packed"}
    assert all(row["extra_info"]["ratio"] is None for row in run.finished.values())


def test_a_process_that_closes_its_pipe_and_does_not_end_is_lost_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "STARTING", 1.0)
    (script := tmp_path / "python").write_text(
        f"#!{sys.executable}\nimport os, time\nos.closerange(3, 256)\ntime.sleep(60)\n"
    )
    script.chmod(0o755)
    worker = WorkerClient(Variant(python=str(script)), WorkerSettings(str(tmp_path), timeout=1.0))
    with closing(worker), pytest.raises(Lost, match="took longer than 1 s to start"):
        worker.ask("cells")


def test_cells_that_do_not_fit_into_memory_are_split_with_the_baseline_in_every_part(measured):
    cells = [Cell(impls.get(name), CASE) for name in ("sdpa", "packed", "fused", "einsum")]
    run = measured(processes := Simulated(SECONDS | {"einsum": 1e-3}), *cells, free=0)
    assert processes.of("prepare") == ["fused", "sdpa", "fused", "packed", "fused", "einsum"]
    compared = {impl: it.compared for (impl, _), it in run.found.items()}
    assert compared == {"fused": 30, "sdpa": 10, "packed": 10, "einsum": 10}  # of all parts


def test_a_process_that_ends_between_two_visits_is_replaced(measured):
    """As by the kernel's out-of-memory killer."""
    processes = Simulated(dict.fromkeys(SECONDS, 0.3), fails={"drop packed": (1, LOST)})
    run = measured(processes, free=TOO_LITTLE)
    assert not run.skipped and processes.started == 2 and run.visited[0, CASE.id] == VISITS


@pytest.mark.parametrize(("seconds", "times"), [(1e-3, 1), (0.3, PREPARATIONS)])
def test_a_case_that_cannot_stay_ready_is_made_ready_for_several_visits_at_a_time(measured, seconds, times):
    """Unless nothing is left to time; and is tested for cached results once."""
    run = measured(processes := Simulated(dict.fromkeys(SECONDS, seconds)), free=TOO_LITTLE)
    counts = [Counter(processes.of(do)) for do in ("prepare", "drop", "caching")]
    assert counts == [dict.fromkeys(SECONDS, count) for count in (times, times, 1)]
    assert run.visited[0, CASE.id] == VISITS
