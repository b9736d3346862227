"""A sweep on a simulated cluster: lost nodes and drivers, no job repeated, one run per type."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import archive, command
from bench.cluster.driver import TRIES, Driver, Reply
from bench.cluster.sweep import disagreements, measure, merged
from bench.runs.journal import Journal
from bench.selection.errors import UsageError

from .simulated_cluster import SimulatedCluster, cases_of, job, published

CASES = ("B1-T64-H1-D_h64-float32-cpu", "B1-T64-H8-D_h64-float32-cpu")
THIRD = "B1-T256-H8-D_h64-float32-cpu"
NODES = {"a1": "a", "a2": "a", "b1": "b"}


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.cluster.driver.POLL", 0.0)


def driven(cluster: SimulatedCluster, journal: Journal, **kinds: int | None) -> Driver:
    """Run the sweep from the state of its journal to its end."""
    driver = Driver(cluster, journal, [], kinds or dict.fromkeys(cluster.there.values()))
    driver.run()
    return driver


def test_rows_of_many_nodes_are_those_of_one_run(tmp_path: Path) -> None:
    data = merged(driven(SimulatedCluster({"n1": "a", "n2": "a"}, CASES), Journal.start(tmp_path, "x", {})), "a")
    whole = {tuple(row["params"].values()): row for row in published()["benchmarks"] if row["group"] in CASES}
    assert [tuple(row["params"].values()) for row in data["benchmarks"]] == [*whole] and data["complete"]
    assert data["skipped"] == [it for it in published()["skipped"] if it["id"] in CASES]
    assert {*data["nodes"]} == {"n1", "n2"} and "case" not in data["asked"]
    assert len(data["roofs"]) == len(published()["roofs"])
    assert len(data["controls"]["looks"]["product"]) == 2 * len(published()["controls"]["looks"]["product"])
    processes: dict[str, set[int]] = {}
    for row in data["benchmarks"]:
        now, was = row["extra_info"], whole[tuple(row["params"].values())]["extra_info"]
        assert row["stats"] == whole[tuple(row["params"].values())]["stats"]
        moved = {"sample_processes", "process_nodes"}
        assert {name: now[name] for name in now.keys() - moved} == {name: was[name] for name in was.keys() - moved}
        processes.setdefault(row["group"], set()).update(now["sample_processes"])
    assert not set.intersection(*processes.values())  # a ratio between two cases would be one between two nodes


def test_a_job_without_a_sample_of_a_gpu_is_merged_with_one_that_has_some(tmp_path: Path) -> None:
    def longer(node: str, case: str | None) -> Reply | None:
        if case != CASES[0]:
            return None
        run = job(case)
        looks = run["controls"]["looks"] | {"gpu copy": [{"at": 0.0, "seconds": 1e-3}]}
        return {"run": run | {"controls": run["controls"] | {"looks": looks}}}

    data = merged(driven(SimulatedCluster({"n1": "a"}, CASES, longer), Journal.start(tmp_path, "x", {})), "a")
    assert len(data["controls"]["looks"]["gpu copy"]) == 1 and len(data["benchmarks"]) > 1


def test_a_node_that_dies_costs_one_job_which_another_of_its_type_does(tmp_path: Path) -> None:
    def dies(node: str, case: str | None) -> None:
        if node == "a1" and case:
            del cluster.there[node]
            raise RuntimeError("its cable")

    cluster = SimulatedCluster(NODES, CASES, dies)
    state = driven(cluster, Journal.start(tmp_path, "x", {}))
    ((_, lost),) = [(node, case) for node, case in cluster.asked if node == "a1" and case]
    assert state.replies["a", lost]["node"] == "a2" and not state.given_up  # type: ignore[index]
    assert {it["node"] for (_, case), it in state.replies.items() if case} == {"a2", "b1"}
    asked = Counter(case for _, case in cluster.asked if case)
    assert asked == {case: 2 + (case == lost) for case in CASES}


def test_a_sweep_resumes_after_any_line_of_its_journal_and_measures_nothing_twice(tmp_path: Path) -> None:
    first = Journal.start(tmp_path / "first", "x", {})
    whole = driven(SimulatedCluster(NODES, CASES), first)
    lines = first.path.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 2 + 4  # a header, the cells of two types, and the jobs
    for kept in range(1, len(lines)):
        killed = tmp_path / str(kept) / "x.0-0.journal"
        killed.parent.mkdir()
        killed.write_text("".join(lines[:kept]) + lines[kept][:50])
        cluster = SimulatedCluster(NODES, CASES)
        state = driven(cluster, Journal(killed))
        assert state.replies.keys() == whole.replies.keys()
        assert len(cluster.asked) == 6 - (kept - 1)


def test_a_node_that_is_another_machine_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def other(node: str, case: str | None) -> Reply | None:
        if node != "a2" or not case:
            return None
        run = job(case)
        return {"run": run | {"machine_info": run["machine_info"] | {"cores": 4}}}

    cluster = SimulatedCluster(NODES, (*CASES, THIRD), other)
    state = driven(cluster, Journal.start(tmp_path, "x", {}))
    assert "a2 is refused: a has cores 2, not 4" in capsys.readouterr().out
    assert [node for node, case in cluster.asked if case].count("a2") == 1
    assert [it["node"] for (_, case), it in state.replies.items() if case].count("a1") == 3


def test_a_usage_error_ends_the_sweep(tmp_path: Path) -> None:
    cluster = SimulatedCluster(NODES, CASES, lambda node, case: {"failed": "--T x: no number"})
    with pytest.raises(UsageError, match="a1: --T x: no number"):
        driven(cluster, Journal.start(tmp_path, "x", {}))


def test_a_job_that_every_node_fails_is_given_up(tmp_path: Path) -> None:
    def lost(node: str, case: str | None) -> Reply | None:
        return {"failed": "out of memory"} if case == CASES[1] else None

    cluster = SimulatedCluster(NODES, CASES, lost)
    data = merged(driven(cluster, Journal.start(tmp_path, "x", {}), a=None), "a")
    assert [case for _, case in cluster.asked].count(CASES[1]) == TRIES
    assert {row["group"] for row in data["benchmarks"]} == {CASES[0]} and data["complete"]
    failed = [it for it in data["skipped"] if it["reason"] == "error"]
    assert {it["id"]: [it["impl"] for it in failed] for it in failed} == cases_of(CASES[1])
    assert failed[0]["detail"] == "failed 3 times, lastly: out of memory"


def test_as_many_nodes_measure_as_requested(tmp_path: Path) -> None:
    cluster = SimulatedCluster(NODES, CASES)
    driven(cluster, Journal.start(tmp_path, "x", {}), a=1)
    assert {node for node, _ in cluster.asked} == {"a1"}


def test_nodes_whose_reference_workloads_differ_are_named() -> None:
    def reply(name: str, *seconds: float) -> Reply:
        samples = [{"at": 0.0, "seconds": s} for s in seconds]
        return {"node": name, "run": {"controls": {"looks": {"product": samples}}}}

    alike = reply("n1", 1.0, 1.01, 0.99), reply("n2", 1.02, 1.0, 1.03)
    assert not [*disagreements(alike)]
    (said,) = disagreements([*alike, reply("n3", 1.10, 1.11, 1.09)])
    assert said == "nodes differ: n3 takes +7.8% for the reference workload 'product', beside the median node"
    assert not [*disagreements([*alike, reply("n3", 0.9, 1.10, 1.3)])]  # its own spread is as large


def test_the_run_files_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"arguments": ["--T", "64"], "kinds": {}, "command": "python -m bench sweep"}
    assert measure(SimulatedCluster(NODES | {"b1": "b/1"}, CASES), tmp_path, "x", asked) == 0
    files = sorted(tmp_path.glob("*/*.json"))
    assert [file.relative_to(tmp_path).as_posix() for file in files] == ["a/0001_x.json", "b_1/0001_x.json"]
    said = capsys.readouterr().out
    assert f"a: saved: {files[0]}" in said and f"python -m reports {files[0]} {files[1]}" in said
    assert not [*tmp_path.glob("cluster/*")]
    for file in files:
        data = json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert data["command"] == "python -m bench sweep" and data["complete"]
        assert len(data["benchmarks"]) + len(data["skipped"]) == sum(map(len, cases_of(*CASES).values()))


def test_a_driver_killed_after_it_saved_the_run_files_writes_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"arguments": [], "kinds": {}, "command": ""}
    with monkeypatch.context() as killed:
        killed.setattr(Journal, "delete", Journal.close)
        measure(SimulatedCluster(NODES, CASES), tmp_path, "x", asked)
    files = sorted(tmp_path.glob("*/*.json"))
    (path,) = tmp_path.glob("cluster/*")
    (tmp_path / "b" / "0001_x.json").unlink()
    cluster = SimulatedCluster(NODES, CASES)
    assert measure(cluster, tmp_path, "x", asked, Journal(path)) == 0
    assert sorted(tmp_path.glob("*/*.json")) == files and not cluster.asked and not path.exists()


def test_a_sweep_without_nodes_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def vanishes(node: str, case: str | None) -> None:
        if case:
            cluster.there.clear()

    asked = {"arguments": [], "kinds": {"a": None}, "command": ""}
    cluster = SimulatedCluster({"a1": "a"}, CASES, vanishes)
    assert measure(cluster, tmp_path, "x", asked) == 2
    assert "no node of type a is left; `--resume x` continues" in capsys.readouterr().err
    assert [*tmp_path.glob("cluster/x.*.journal")] and not [*tmp_path.glob("*/*.json")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "--save NAME is missing"),
        (("--save", "x", "--processes", "0"), "'0' is not a positive whole number"),
        (("--save", "x", "--benchmark-autosave"), "the run is named by --save"),
        (("--resume", "x"), "no run x was begun in "),
        (("--save", "x", "--address", "h:1"), "--address goes with --cluster ray or slurm"),
        (("--cluster", "ray", "--save", "a/b"), "--save 'a/b': must not contain"),
        (("--cluster", "ray", "--save", "x", "--dry-run"), "--dry-run does not go with --cluster"),
        (("--cluster", "ray", "--save", "x", "--node-types", "a:0"), "'0' is not a positive whole number"),
        (("--cluster", "ray", "--save", "x", "--node-types", "a,,b"), "expected TYPE or TYPE:N"),
        (("--cluster", "slurm", "--save", "x", "--slurm-option", "account"), "expected KEY=VALUE"),
        (("--cluster", "ray", "--resume", "x", "--T", "64"), "--resume x continues with its original options"),
    ],
)
def test_usage_errors(
    options: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code: object = command.main(options)
    except SystemExit as end:
        code = end.code
    assert code == 4
    assert says in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_sweep_that_differs_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    header = {"arguments": [], "kinds": {}, "command": "", "digest": "another"}
    begun = Journal.start(tmp_path / "results" / "cluster", "x", header)
    for says in ("x is being measured right now", "the code has changed since run x was begun"):
        assert command.main(("--cluster", "ray", "--resume", "x")) == 4
        assert says in capsys.readouterr().err and begun.path.exists()
        begun.close()
    assert command.main(("--cluster", "ray", "--save", "x")) == 4
    assert "run x was begun and not finished: `--resume x` continues" in capsys.readouterr().err


def test_the_archive_holds_the_modules_that_impl_names(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import helper")
    (tmp_path / "helper.py").write_text("")
    plain, own = archive.pack(tmp_path, []), archive.pack(tmp_path, ["--impl=sdpa,mine=mine:mine,x=torch:add"])
    assert plain == archive.pack(tmp_path, ["--impl", "fused"]) != own
    packed, more = ({*zipfile.ZipFile(BytesIO(it)).namelist()} for it in (plain, own))
    assert {"bench/__main__.py", "impls/sdpa.py", "pyproject.toml", "attention_bench.py"} <= packed
    assert more - packed == {"user/mine.py", "user/helper.py"}
