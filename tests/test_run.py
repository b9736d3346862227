"""A run from the command to the file: rows, skips, names, resuming, and usage errors."""

import json
import re
import shutil
import subprocess
import sys
import time
from itertools import product
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from bench.cases.case import Case
from bench.cases.sweep import SWEEPS
from bench.checks import impl_hash
from bench.runs.measuring import Measuring
from bench.runs.saving import Journal, newest_journal, results_root
from bench.selection.errors import UsageError

from .conftest import CHECKOUT, environment, only_run, run_files, started, suite_arguments

SMALL = ("--T", "16,32", "--H", "2", "--dtype", "float32", "--impl", "sdpa,fused,linear")
ONE = ("--T", "16", "--H", "2", "--dtype", "float32", "--impl")

COLUMNS = (CHECKOUT / "docs" / "columns.md").read_text()
DOCUMENTED = {
    name for row in re.findall(r"^\|([^|]+)\|", COLUMNS, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
}
IN_FRAMES = {
    "spread", "tflops_per_s", "of_peak", "launch_share", "ratio_low", "ratio_high", "speedup", "rank_low", "rank_high",
    "leads", "standing", "tied", "wrong", "mask_efficiency", "mask_efficiency_low", "mask_efficiency_high", "work_share",
    "layer", "baseline",
}  # fmt: skip
OF_OTHER_RUNS = {"parts_s", "core_shares", "blocks", "windows", "depth", "process_nodes", "trace"}
"""Of blocks and models, of sweeps on many machines, and with `--save-traces`."""


def cells(file):
    data = json.loads(file.read_text())
    return [(b["extra_info"]["impl"], b["extra_info"]["id"]) for b in data["benchmarks"]]


def refusal(suite, *options):
    """Return the single line of a usage error."""
    done = suite(*options, fine=(4,))
    (line,) = filter(str.strip, (done.stderr + done.stdout).splitlines())
    return line


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder with the run `x` of `SMALL`, and what the command printed."""
    folder = tmp_path_factory.mktemp("small")
    return folder, started(folder, "-m", "pytest", *suite_arguments("--benchmark-save=x", *SMALL))


def test_rows_and_skips(small):
    folder, printed = small
    data = only_run(folder)
    assert data["complete"] and data["baseline_impl"] == "fused" and data["registry"][0] == "loop"
    skipped = {"impl": "linear", "reason": "unsupported", "detail": "linear supports 1 head, not 2"}
    assert len(data["skipped"]) == 2 and all(entry.items() >= skipped.items() for entry in data["skipped"])
    assert len(data["benchmarks"]) == 4
    assert all(len(samples) >= 2 for samples in data["controls"]["looks"].values())  # at the start and at the end
    assert {"flops_per_s", "bytes_per_s"} <= {key for roof in data["roofs"] for key in roof}
    for benchmark in data["benchmarks"]:
        row, stats = benchmark["extra_info"], benchmark["stats"]
        assert Case.__dataclass_fields__.keys() < row.keys() <= DOCUMENTED
        assert row.keys() | stats.keys() >= DOCUMENTED - IN_FRAMES - OF_OTHER_RUNS
        assert 0 <= row["error"] <= row["error_bound"] and row["peak_bytes"] > 0 and 0 < row["roof"] <= 1
        assert stats["rounds"] == len(stats["data"]) >= 2 and min(stats["data"]) > 0
        assert {len(row[f"sample_{name}"]) for name in ("rounds", "visits", "processes", "times")} == {stats["rounds"]}
        assert benchmark["group"] == row["id"] and row["processes"] == 1 and len(set(row["sample_visits"])) >= 2
    assert not list(folder.glob("results/*/*.journal"))
    assert "saved: " in printed and "\nSlowdown over the fastest" in printed


@pytest.mark.slow
def test_a_killed_run_is_resumed_and_checks_nothing_twice(tmp_path):
    options = ("--benchmark-save=x", *SMALL[:-1], "sdpa,fused", "--cell-time=1", "--precision=1e-9")
    command = [sys.executable, "-m", "pytest", *suite_arguments(*options)]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as run:
        while not any('{"visit"' in it.read_text() for it in tmp_path.glob("results/*/*.journal")):
            assert run.poll() is None
            time.sleep(0.02)
        run.kill()
    (journal,) = tmp_path.glob("results/*/*.journal")
    (kept := tmp_path / "kept").hardlink_to(journal)  # a run that ends deletes its own
    started(tmp_path, "-m", "pytest", *suite_arguments("--resume", "x", "--cell-time=1"))
    lines = map(json.loads, kept.read_text().splitlines())
    (file,) = run_files(tmp_path)
    assert sorted(tuple(line["key"]) for line in lines if "found" in line) == sorted(cells(file))
    assert len(cells(file)) == 4 and not journal.exists()


def test_the_newest_journal_of_a_name_is_opened_once_at_a_time(tmp_path):
    (tmp_path / "x.20990101T000000000000-1.journal").write_text('{"header"\n')  # of a bad disk
    assert newest_journal(tmp_path, "x") is None
    mine = Journal.start(tmp_path, "x", {"asked": {}})
    Journal.start(tmp_path, "x.y", {"asked": {}})
    assert newest_journal(tmp_path, "x") == mine.path
    with pytest.raises(UsageError, match="x is being measured right now"):
        Journal(mine.path)
    mine.add({"visit": 1})
    (copy := tmp_path / "copy").write_bytes(mine.path.read_bytes())  # what `kill -9` leaves
    assert (Journal(copy).header, Journal(copy).lines) == ({"asked": {}}, [{"visit": 1}])
    mine.close()
    Journal(mine.path)


@pytest.mark.parametrize("first", ['{"visit": [0, 0, "a"]}', '{"header": 1}', "[]", "1"])
def test_a_journal_without_a_header_is_one_line(tmp_path, first):
    (path := tmp_path / "x.20990101T000000000000-1.journal").write_text(f'{first}\n{{"seconds": {{}}}}\n')
    with pytest.raises(UsageError, match=f"^{path} is no journal: .*; move it elsewhere$"):
        Journal(path)


OWN = """
import torch

def plain(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)
"""


def test_a_second_run_is_begun_by_resume_and_compared(in_process, suite, small, tmp_path, monkeypatch):
    shutil.copytree(small[0] / "results", tmp_path / "results")
    monkeypatch.setitem(sys.modules, "commands.summary", None)  # a node of a cluster has neither it nor pandas
    second = suite("--resume", "y", "--no-summary", *SMALL)
    assert "4 passed" in second.stdout
    assert "warning" not in (second.stdout + second.stderr).lower()
    files = run_files(tmp_path)
    assert [file.name for file in files] == ["0001_x.json", "0002_y.json"]
    assert started(tmp_path, "-m", "pytest_benchmark", "compare", *files).count("sdpa-B1-T16") == 2
    again = suite("--resume", "y", "--benchmark-save=y")
    assert run_files(tmp_path) == files
    assert again.stdout.strip() == "run y is finished: nothing is left to measure"
    for other in ("--T=8", "--cell-time=9", "--shuffle=1"):
        assert "started with other options" in refusal(suite, "--resume", "y", other)


def test_runs_are_stored_in_the_checkout_from_anywhere_inside_it(tmp_path):
    assert results_root(CHECKOUT, None) == results_root(CHECKOUT / "tests" / "data", None) == CHECKOUT / "results"
    assert results_root(tmp_path, None) == tmp_path / "results"
    assert results_root(tmp_path, f"file://{tmp_path}/elsewhere") == tmp_path / "elsewhere"


@pytest.mark.parametrize(("more", "threads"), [((), 998), (("--threads", "1,999"), 999)])
def test_more_threads_than_cores_are_warned_of(suite, monkeypatch, more, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 998)
    assert f"more threads ({threads}) than cores" in suite("--dry-run", *SMALL, *more).stderr


def test_list_and_dry_run_measure_nothing(suite, tmp_path):
    listed = suite("--list").stdout
    assert all(name in listed for name in ("mask_after_softmax", "max_T=256", *SWEEPS))
    assert "4 cells to measure, 2 unsupported, about" in suite("--dry-run", *SMALL).stdout
    one_case = suite("--dry-run", *SMALL, "--case", "B1-T32-H2-D_h64-float32-cpu")
    assert "2 cells to measure, 1 unsupported, about" in one_case.stdout and "T16" not in one_case.stdout
    assert not (tmp_path / "results").exists()


BROKEN = """
import gc, os, signal, time
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

def raises(q, k, v, **options):
    if q.shape[-2] == 32:
        raise ValueError("\\x1b[31mno 32")
    return sdpa(q, k, v, **options)

def wrong(q, k, v, **options):
    return sdpa(q, k, v)

def hungry(q, k, v, **options):
    if q.shape[-2] == 32:
        raise torch.OutOfMemoryError("tried to allocate 1 TiB")
    return sdpa(q, k, v, **options)

def dies(q, k, v, **options):
    if not gc.isenabled() and q.shape[-2] == 16:  # while blocks are timed
        os.kill(os.getpid(), signal.SIGSEGV)
    return sdpa(q, k, v, **options)

def hangs(q, k, v, **options):
    while q.shape[-2] == 32:
        try:
            time.sleep(100)
        except Exception:
            pass
    return sdpa(q, k, v, **options)

def alone(q, k, v, **options):
    return sdpa(q, k, v, **options)

alone.limits = {"alone": True, "own_memory": True}

def stops(q, k, v, **_):
    raise SystemExit(5)

def interrupts(q, k, v, **_):
    raise KeyboardInterrupt

def two(q, k, v, window):
    return q
"""

BAD = {
    "raises": ("error", r"ValueError: \x1b[31mno 32"),
    "wrong": ("wrong", "error"),
    "hungry": ("out_of_memory", "1 TiB"),
    "dies": ("error", "ended its process (SIGSEGV)"),
    "hangs": ("timeout", "took longer than 5 s"),
    "stops": ("error", "SystemExit"),
    "interrupts": ("error", "KeyboardInterrupt"),
    "two": ("error", "TypeError: two() "),
}


def test_a_bad_cell_is_skipped_with_its_reason_and_costs_no_other(suite, tmp_path):
    """One ends its process during its rounds; one is in a process of its own, with memory that can't be measured."""
    (tmp_path / "broken.py").write_text(BROKEN)
    own = ",".join(f"{name}=broken:{name}" for name in (*BAD, "alone"))
    done = suite("--benchmark-save=x", "--cell-timeout=5", *SMALL[:-1], f"fused,{own},sdpa", fine=(1,))
    assert "11 failed, 10 passed, 1 skipped" in done.stdout  # what doesn't fit into memory is no failure
    data = only_run(tmp_path)
    skipped = {entry["impl"]: (entry["reason"], entry["detail"]) for entry in data["skipped"]}
    assert skipped.keys() == BAD.keys()
    for name, (reason, detail) in BAD.items():
        assert skipped[name][0] == reason and detail in skipped[name][1], skipped
    assert data["complete"] and not set(BAD) & set(data["registry"])  # those are the suite's own
    rows = {(b["extra_info"]["impl"], b["extra_info"]["T"]): b["extra_info"] for b in data["benchmarks"]}
    both, some = product(("fused", "alone", "sdpa"), (16, 32)), product(("raises", "hungry", "hangs"), (16,))
    assert rows.keys() == {*both, *some, ("dies", 32)}
    assert {name for (name, _), row in rows.items() if row["peak_bytes"] is None} == {"alone"}
    others = [rows[name, 16] for name in ("fused", "alone", "sdpa")]
    assert len(set.intersection(*({*row["sample_rounds"]} for row in others))) >= 4
    assert len(set.union(*({*row["sample_processes"]} for row in others))) <= 2
    suite("--resume", "x", fine=(1,))
    assert only_run(tmp_path) == data


def test_a_run_is_resumed_by_the_same_code_with_its_options_and_refused_by_other(
    in_process, suite, tmp_path, monkeypatch
):
    own = tmp_path / "own.py"
    own.write_text(OWN)
    monkeypatch.setattr("fcntl.flock", lambda *_: None)  # locks end with their process
    with monkeypatch.context() as patch:
        patch.setattr(Measuring, "measure", mock.Mock(side_effect=KeyboardInterrupt))
        timing = "--precision", "0.5", "--shuffle", "7"
        suite("--benchmark-save=x", *timing, "--mask", "none", *ONE, "mine=own:plain,sdpa", fine=(2,))
    with monkeypatch.context() as patch:
        patch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=2**50, available=2**40))
        refused = refusal(suite, "--resume", "x")
        assert "run x was started with memory_gib" in refused and "same --quiet-machine, or start another" in refused
    for variable in ("OMP_DYNAMIC", "THP_MEM_ALLOC_ENABLE", "ONEDNN_MAX_CPU_ISA"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "1")
            assert f"run x was started with {variable} unset: continue it" in refusal(suite, "--resume", "x")
    changed = "code or cases have changed since run x was started; start another one: --benchmark-save=NAME"
    own.write_text(OWN + "# another state\n")
    assert changed in refusal(suite, "--resume", "x")
    own.write_text(OWN)
    suite("--resume", "x", "--dry-run")
    assert list(tmp_path.glob("results/*/*.journal"))  # which loses nothing
    suite("--resume", "x", "--cell-timeout=100")
    data = only_run(tmp_path)
    timing = {"cell_time": 0.01, "processes": 1, "precision": 0.5, "cell_timeout": 100}
    assert data["complete"] and data["timing"] == timing and "--precision 0.5" in data["command"] and data["seed"] == 7
    assert [row["extra_info"]["impl"] for row in data["benchmarks"]] == ["mine", "sdpa"]
    assert not list(tmp_path.glob("results/*/*.journal"))
    own.write_text(OWN + "# another state\n")
    assert changed in refusal(suite, "--resume", "x")


def test_a_run_is_resumed_where_only_code_changed_that_decides_no_result(tmp_path, monkeypatch):
    assert all(any(CHECKOUT.glob(pattern)) for pattern in impl_hash.DECIDING)
    shutil.copytree(CHECKOUT / "bench", tmp_path / "bench")
    monkeypatch.setattr(impl_hash, "CHECKOUT", tmp_path)
    found = [impl_hash.sources_hash([], [])]
    for file in ("runs/doctor", "ab/replicates", "timing/schedule", "checks/gate", "runs/pool"):
        with (tmp_path / "bench" / f"{file}.py").open("a") as source:
            source.write("# more\n")
        found.append(impl_hash.sources_hash([], []))
    assert len({*found[:3]}) == 1 and len({*found[2:]}) == 4
    assert impl_hash.sources_hash([], [Case.of(T=16, H=2, D_h=8)]) != found[-1]  # other cases
