"""A sweep on many machines, by a cluster that is made up: nodes and drivers that die, nothing twice, one run a type."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import archive, command, node
from bench.cluster.driver import TRIES, Driver, Job
from bench.cluster.engine import Result, Task
from bench.cluster.merging import disagreements, merged
from bench.cluster.sweep import Sweep
from bench.runs.journal import Journal
from bench.selection.mistake import Mistake
from reports.judging import processes
from stats import ratios

from .made_up_cluster import MadeUpCluster, cells, job, published

CASES = ("B1-T64-H1-D_h64-float32-cpu", "B1-T64-H8-D_h64-float32-cpu")
NODES = {"a1": "a", "a2": "a", "b1": "b"}
TASK = {"arguments": [], "digest": "", "environment": {}}


def driven(cluster: MadeUpCluster, journal: Journal, processes: int = 2, **kinds: int | None) -> Driver:
    """The sweep to its end, from where its journal is."""
    driver = Driver(cluster, journal, processes, TASK, kinds or dict.fromkeys(cluster.there.values()), rest=0.0)
    driver.run()
    return driver


def rows_of(state: Driver, kind: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["extra_info"]["impl"], row["group"]): row for row in merged(state, kind)["benchmarks"]}


def test_processes_on_many_nodes_are_those_of_one_run(tmp_path: Path) -> None:
    state = driven(MadeUpCluster({f"n{i}": "a" for i in range(5)}, CASES), Journal.start(tmp_path, "x", {}), 5)
    data = merged(state, "a")
    whole = {
        (row["extra_info"]["impl"], row["group"]): row for row in published()["benchmarks"] if row["group"] in CASES
    }
    found = rows_of(state, "a")
    assert found.keys() == whole.keys() and data["complete"]
    for key, row in whole.items():
        was, now = row["extra_info"], found[key]["extra_info"]
        assert sorted(found[key]["stats"]["data"]) == sorted(row["stats"]["data"])
        assert now["process_medians"] == pytest.approx(was["process_medians"], rel=1e-4)
        assert now["processes"] == len(set(now["process_nodes"])) == 5
        for name in ("ratio", "roof", "tokens_per_s", "page_faults"):
            assert now[name] == pytest.approx(was[name], rel=1e-3), (key, name)
        if key[0] == data["baseline_impl"]:
            continue
        ratio = ratios.ratio(*(processes.samples(it) for it in (row, whole[data["baseline_impl"], key[1]])))
        assert (now["ratio_low"], now["ratio_high"]) == pytest.approx((ratio.low, ratio.high), rel=1e-3), key
    assert data["skipped"] == [it for it in published()["skipped"] if it["id"] in CASES]
    assert data["timing"]["processes"] == 5 and "case" not in data["asked"]


def test_columns_of_several_jobs_become_one_by_what_they_are(tmp_path: Path) -> None:
    """Columns that nobody has heard of, too."""
    columns = {"one_s": [3.0, 1.0, 8.0], "one_bytes": [3, 1, 8], "holds": [True, False, True], "word": [*"abc"],
               "error_one": [0.2, 0.3, 0.1], "calls_compared": [4, 5, 6], "repeats": [None, None, True]}  # fmt: skip

    def fate(of: str, task: Task) -> Result | None:
        if not task["case"]:
            return None
        n = len(cluster.asked) - 2
        run = job(task["case"], n)
        for row in run["benchmarks"]:
            row["extra_info"] |= {name: values[n] for name, values in columns.items()}
        return {"node": of, "began": float(n), "run": run}

    cluster = MadeUpCluster({"a1": "a"}, CASES[:1], fate)
    state = driven(cluster, Journal.start(tmp_path, "x", {}), 3)
    for row in rows_of(state, "a").values():
        found = {name: row["extra_info"][name] for name in columns}
        assert found == {"one_s": 3.0, "one_bytes": 8, "holds": False, "word": "a", "error_one": 0.3,
                         "calls_compared": 15, "repeats": True}  # fmt: skip


def test_a_node_that_dies_costs_one_job_which_another_of_its_type_does(tmp_path: Path) -> None:
    def dies(of: str, task: Task) -> Result | None:
        if of == "a1" and task["case"]:
            cluster.there.pop("a1", None)
            return {"lost": "its cable"}
        return None

    cluster = MadeUpCluster(NODES, CASES, dies)
    state = driven(cluster, Journal.start(tmp_path, "x", {}))
    (lost,) = state.losses
    assert state.losses[lost] == ["its cable"] and state.answers[lost]["node"] == "a2"
    assert len(state.answers) == 8 and {it["node"] for it in state.answers.values()} == {"a2", "b1"}
    asked = Counter(case for _, case in cluster.asked if case)
    assert asked == {case: 4 + (case == lost.case) for case in CASES}
    assert rows_of(state, "a").keys() == rows_of(state, "b").keys()


def test_a_driver_that_dies_behind_any_line_goes_on_and_measures_nothing_twice(tmp_path: Path) -> None:
    first = Journal.start(tmp_path / "first", "x", {})
    whole = driven(MadeUpCluster(NODES, CASES), first)
    lines = first.path.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 2 + 8  # a header, two plans, and the jobs
    for kept in range(1, len(lines)):
        killed = tmp_path / str(kept) / "x.0-0.journal"
        killed.parent.mkdir()
        killed.write_text("".join(lines[:kept]) + lines[kept][:50])
        known = [Job(*line["job"]) for line in map(json.loads, lines[1:kept]) if "run" in line["answer"]]
        cluster = MadeUpCluster(NODES, CASES, measured=Counter((it.kind, str(it.case)) for it in known))
        state = driven(cluster, Journal.reopen(killed))
        assert state.answers.keys() == whole.answers.keys()
        assert sum(case is not None for _, case in cluster.asked) == 8 - len(known)
        for kind in ("a", "b"):
            now, was = rows_of(state, kind), rows_of(whole, kind)
            assert {key: sorted(row["stats"]["data"]) for key, row in now.items()} == {
                key: sorted(row["stats"]["data"]) for key, row in was.items()
            }


@pytest.mark.parametrize(("nodes", "most"), [(5, 1), (2, 3), (1, 5)])
def test_the_processes_of_a_case_are_spread_over_the_nodes(nodes: int, most: int, tmp_path: Path) -> None:
    state = driven(MadeUpCluster({f"n{i}": "a" for i in range(nodes)}, CASES), Journal.start(tmp_path, "x", {}), 5)
    assert max(state.held.values()) == most
    assert all(len(row["extra_info"]["process_nodes"]) == 5 for row in rows_of(state, "a").values())


def test_a_node_that_is_another_machine_is_refused(tmp_path: Path) -> None:
    def other(of: str, task: Task) -> Result | None:
        if of != "a2" or not task["case"]:
            return None
        run = job(task["case"], 0)
        return {"node": of, "began": 0.0, "run": run | {"machine_info": run["machine_info"] | {"cores": 4}}}

    state = driven(MadeUpCluster(NODES, CASES, other), Journal.start(tmp_path, "x", {}))
    assert state.refused == {"a2": "a has cores 2, not 4"}
    assert {it["node"] for it in state.answers.values()} == {"a1", "b1"} and len(state.answers) == 8


def test_nodes_with_another_torch_are_refused(tmp_path: Path) -> None:
    why = node.other_environment(node.environment() | {"torch": "1.0"})
    assert why.startswith("torch ") and why.endswith(", not 1.0")
    assert not node.other_environment(node.environment())
    cluster = MadeUpCluster(NODES, CASES, lambda of, task: {"node": of, "began": 0.0, "refused": why})
    with pytest.raises(Mistake, match=r"no node of type a or b is left; a1: torch .*, not 1\.0"):
        driven(cluster, Journal.start(tmp_path, "x", {}))


def test_what_no_node_survives_is_given_up(tmp_path: Path) -> None:
    cluster = MadeUpCluster(
        NODES, CASES, lambda of, task: {"lost": "out of memory"} if task["case"] == CASES[1] else None
    )
    state = driven(cluster, Journal.start(tmp_path, "x", {}), 1, a=None)
    assert [case for _, case in cluster.asked].count(CASES[1]) == TRIES
    data = merged(state, "a")
    assert {row["group"] for row in data["benchmarks"]} == {CASES[0]} and data["complete"]
    failed = [it for it in data["skipped"] if it["reason"] == "error"]
    assert [(it["impl"], it["id"]) for it in failed] == cells(CASES[1])
    assert failed[0]["detail"] == "its node was lost 3 times: out of memory"
    assert data["notes"] == [f"{CASES[1]}: process 1 was given up after 3 tries: out of memory"]


def test_as_many_nodes_measure_as_are_asked_for(tmp_path: Path) -> None:
    cluster = MadeUpCluster(NODES, CASES)
    driven(cluster, Journal.start(tmp_path, "x", {}), a=1)
    assert {of for of, _ in cluster.asked} == {"a1"}


def test_nodes_whose_controls_disagree_are_named() -> None:
    def answer(name: str, *seconds: float) -> Result:
        looks = [{"at": 0.0, "seconds": s} for s in seconds]
        return {"node": name, "run": {"controls": {"looks": {"product": looks}}}}

    alike = answer("n1", 1.0, 1.01, 0.99), answer("n2", 1.02, 1.0, 1.03)
    assert not [*disagreements(alike)]
    (said,) = disagreements([*alike, answer("n3", 1.10, 1.11, 1.09)])
    assert said == "nodes differ: the control workload 'product' takes 7.8% longer on n3 than on n2"
    assert not [*disagreements([*alike, answer("n3", 0.9, 1.10, 1.3)])]  # its own spread is as large


def test_the_run_files_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"arguments": ["--T", "64"], "processes": 2, "kinds": {}, "command": "python -m bench sweep"}
    sweep = Sweep.new(tmp_path, "x", asked)
    assert sweep.measure(MadeUpCluster(NODES | {"b1": "b/1"}, CASES)) == 0
    files = sorted(tmp_path.glob("*/*.json"))
    assert [file.relative_to(tmp_path).as_posix() for file in files] == ["a/0001_x.json", "b_1/0001_x.json"]
    said = capsys.readouterr().out
    assert f"a: saved: {files[0]}" in said and f"python -m reports {files[0]} {files[1]}" in said
    assert not [*tmp_path.glob("cluster/*")]
    for file in files:
        data = json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert data["command"] == "python -m bench sweep" and data["complete"]
        assert len(data["benchmarks"]) + len(data["skipped"]) == len(cells(*CASES))


def test_a_sweep_without_nodes_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def vanishes(of: str, task: Task) -> None:
        if len(cluster.asked) > 2:
            cluster.there.clear()

    asked = {"arguments": [], "processes": 2, "kinds": {"a": None}, "command": ""}
    cluster = MadeUpCluster({"a1": "a"}, CASES, vanishes)
    assert Sweep.new(tmp_path, "x", asked).measure(cluster) == 2
    assert "`--resume x` goes on" in capsys.readouterr().err
    assert [*tmp_path.glob("cluster/x.*.journal")] and not [*tmp_path.glob("*/*.json")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--cluster", "ray"), "--save NAME is missing"),
        (("--save", "x", "--address", "h:1"), "--address goes with --cluster ray or slurm"),
        (("--cluster", "ray", "--save", "a/b"), "--save 'a/b': must not contain"),
        (("--cluster", "ray", "--save", "x", "--dry-run"), "--dry-run does not go with --cluster"),
        (("--cluster", "ray", "--save", "x", "--node-types", "a:0"), "'0' is not a positive whole number"),
        (("--cluster", "ray", "--save", "x", "--node-types", "a,,b"), "expected TYPE or TYPE:N"),
        (("--cluster", "slurm", "--save", "x", "--slurm-option", "account"), "expected KEY=VALUE"),
        (("--cluster", "ray", "--resume", "x"), "no sweep x was begun in "),
        (("--cluster", "ray", "--resume", "x", "--T", "64"), "--resume x goes on as it was begun"),
    ],
)
def test_mistakes(
    options: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(options) == 4
    assert says in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_the_code_travels_with_the_users_own_and_is_named_by_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import helper")
    (tmp_path / "helper.py").write_text("")
    plain, own = archive.pack(tmp_path, ["sdpa"]), archive.pack(tmp_path, ["sdpa", "mine=mine:mine", "x=torch:add"])
    assert plain == archive.pack(tmp_path, ["fused"]) != own
    packed, more = ({*zipfile.ZipFile(BytesIO(it)).namelist()} for it in (plain, own))
    assert {"bench/__main__.py", "impls/sdpa.py", "pyproject.toml", "attention_bench.py"} <= packed
    assert more - packed == {"user/mine.py", "user/helper.py"}
