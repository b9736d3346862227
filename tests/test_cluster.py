"""A sweep on a simulated cluster: lost nodes and drivers, no job repeated, one run per type."""

import json
import shutil
import zipfile
from collections import defaultdict
from io import BytesIO
from pathlib import Path
from unittest import mock

import pytest
from pytest_benchmark.utils import get_machine_id

from bench import sweep
from bench.cluster.sweep import MOST_LOSSES, disagreements, measure, pack
from bench.runs.saving import Journal
from bench.selection.errors import UsageError

from .conftest import CHECKOUT
from .simulated_cluster import SimulatedCluster, Task, cases_of, job, published

CASES = ("B1-T64-H1-D_h64-float32-cpu", "B1-T64-H8-D_h64-float32-cpu")
NODES = {"a1": "a", "a2": "a", "b1": "b"}


@pytest.fixture(autouse=True)
def no_rest(monkeypatch):
    monkeypatch.setattr("bench.cluster.sweep.POLL", 0.0)


def swept(folder, cluster, code=0, journal=None, arguments=(), **kinds):
    """The sweep to its end, from where its journal is: the run files by type of node."""
    asked = {
        "arguments": [*arguments],
        "kinds": kinds,
        "command": "python -m bench sweep",
        "resume": "sweep --resume x",
    }
    assert measure(cluster, folder, "x", asked, journal and Journal(journal)) == code
    found = sorted(folder.glob("*/*_x.json"))
    return {file.parent.name: json.loads(file.read_text(), parse_constant=pytest.fail) for file in found}


def nodes_of(run):
    return {node for row in run["benchmarks"] for node in row["extra_info"]["process_nodes"]}


def names_of(runs):
    return {kind: [row["name"] for row in run["benchmarks"]] for kind, run in runs.items()}


def test_rows_of_many_nodes_are_those_of_one_run(tmp_path):
    """A short one has no sample of its GPU."""
    longer = job(CASES[0])
    longer["controls"]["looks"]["gpu copy"] = [{"seconds": 1e-3}]
    cluster = SimulatedCluster(
        {"n1": "a/1", "n2": "a/1"}, CASES, lambda node, case: {"run": longer} if case == CASES[0] else None
    )
    data, whole = swept(tmp_path, cluster)["a_1"], published()
    assert data["skipped"] == [it for it in whole["skipped"] if it["id"] in CASES] and data["complete"]
    assert nodes_of(data) == {"n1", "n2"} and "case" not in data["asked"]
    samples = data["controls"]["looks"]
    assert (len(samples["gpu copy"]), len(samples["product"])) == (1, 2 * len(whole["controls"]["looks"]["product"]))
    processes = defaultdict(set)
    for row, of_one in zip(data["benchmarks"], (row for case in CASES for row in job(case)["benchmarks"]), strict=True):
        processes[row["group"]] |= {*row["extra_info"]["sample_processes"]}
        for name in ("sample_processes", "process_nodes"):
            of_one["extra_info"][name] = row["extra_info"][name]
        assert row == of_one
    assert not set.intersection(*processes.values())  # a ratio between two cases would be one between two nodes


def test_types_whose_folder_has_the_same_name_have_a_run_each(tmp_path):
    swept(tmp_path, SimulatedCluster({"n1": "a/1", "n2": "a_1"}, CASES))
    assert sorted(file.name for file in tmp_path.glob("a_1/*.json")) == ["0001_x.json", "0002_x.json"]


def test_the_case_of_a_sweep_is_in_its_run_file(tmp_path):
    cases = ",".join(CASES)
    runs = swept(tmp_path, SimulatedCluster({"a1": "a"}, CASES), arguments=["--T=64", f"--case={cases}"])
    assert runs["a"]["asked"]["case"] == cases


def test_a_node_that_dies_costs_one_job_which_another_of_its_type_does(tmp_path):
    lost = []

    def dies(node, case):
        if node == "a1" and case:
            del cluster.there[node]
            lost.append(case)
            raise RuntimeError("its cable")

    cluster = SimulatedCluster(NODES, CASES, dies)
    runs = swept(tmp_path, cluster)
    assert {kind: nodes_of(data) for kind, data in runs.items()} == {"a": {"a2"}, "b": {"b1"}}
    assert sorted(case for _, case in cluster.asked if case) == sorted([*CASES, *CASES, *lost])


def test_a_sweep_resumes_after_any_line_of_its_journal_and_measures_nothing_twice(tmp_path, monkeypatch):
    """Behind its last line it has saved some run files, and replaces them."""
    with monkeypatch.context() as killed:
        killed.setattr(Journal, "delete", Journal.close)
        whole = swept(tmp_path / "first", SimulatedCluster(NODES, CASES))
    (path,) = tmp_path.glob("first/cluster/*")
    lines = path.read_text().splitlines(keepends=True)
    for kept in range(1, len(lines) + 1):
        folder = tmp_path / str(kept)
        (journal := folder / "cluster" / path.name).parent.mkdir(parents=True)
        journal.write_text("".join(lines[:kept]) + "".join(lines[kept:])[:50])
        if kept == len(lines):
            shutil.copytree(tmp_path / "first" / "a", folder / "a")
        cluster = SimulatedCluster(NODES, CASES)
        runs = swept(folder, cluster, journal=journal)
        assert names_of(runs) == names_of(whole)
        assert len(cluster.asked) == 6 - (kept - 1) and not journal.exists()
        assert len([*folder.glob("?/*.json")]) == 2


def test_a_node_that_is_another_machine_is_refused(tmp_path, capsys):
    def other(node, case):
        if node != "a2" or not case:
            return None
        run = job(case)
        run["machine_info"]["cores"] = 4
        return {"run": run}

    cluster = SimulatedCluster(NODES, (*CASES, "B1-T256-H8-D_h64-float32-cpu"), other)
    assert nodes_of(swept(tmp_path, cluster)["a"]) == {"a1"}
    assert "a2 is refused: a has cores 2, not 4" in capsys.readouterr().out
    assert [node for node, case in cluster.asked if case].count("a2") == 1


def test_a_usage_error_ends_the_sweep(tmp_path):
    cluster = SimulatedCluster(NODES, CASES, lambda node, case: {"failed": "--T x: no number"})
    with pytest.raises(UsageError, match="a1: --T x: no number"):
        swept(tmp_path, cluster)


def test_a_job_that_every_node_fails_is_given_up(tmp_path):
    """The exit code is 1, though another type measured it."""
    cluster = SimulatedCluster(
        NODES, CASES, lambda node, case: {"failed": "no"} if case == CASES[1] and node != "b1" else None
    )
    data = swept(tmp_path, cluster, 1)["a"]
    assert [case for node, case in cluster.asked if node != "b1"].count(CASES[1]) == MOST_LOSSES
    assert {row["group"] for row in data["benchmarks"]} == {CASES[0]} and data["complete"]
    failed = [(it["impl"], it["id"]) for it in data["skipped"] if it["detail"] == "failed 3 times; last: no"]
    assert failed == [(impl, CASES[1]) for impl in cases_of(*CASES)[CASES[1]]]


@pytest.mark.parametrize("also", [0, 1])
def test_a_node_that_fails_every_job_at_once_costs_no_case(tmp_path, monkeypatch, also):
    """As one that has lost its GPU; `also`: jobs that another node of its type fails at first."""

    def result(task):
        task._cluster.running.remove(task)
        return task._cluster.reply(task)

    def done(task):
        return task.node == "a1" or "a1" not in (it.node for it in task._cluster.running)

    def fate(node, case):
        jobs = [case for its, case in cluster.asked if case and its == node]
        return case and len(jobs) <= {"a1": 99, "a2": also}.get(node, 0) and {"failed": "no GPU"}

    monkeypatch.setattr(Task, "done", done)
    monkeypatch.setattr(Task, "result", result)
    cluster = SimulatedCluster(NODES, (*CASES, "B1-T256-H8-D_h64-float32-cpu"), fate)
    runs = swept(tmp_path, cluster)
    assert nodes_of(runs["a"]) == {"a2"} and not any("no GPU" in entry["detail"] for entry in runs["a"]["skipped"])


def test_nodes_that_all_failed_once_work_again_at_the_same_time(tmp_path):
    failed = set()

    def fate(node, case):
        first = case and node not in failed
        return first and (failed.add(node) or {"failed": "no network"})

    cluster = SimulatedCluster({"a1": "a", "a2": "a"}, (*CASES, "B1-T256-H8-D_h64-float32-cpu"), fate)
    assert nodes_of(swept(tmp_path, cluster)["a"]) == {"a1", "a2"}


def test_a_lost_job_comes_after_the_others(tmp_path):
    cluster = SimulatedCluster({"a1": "a"}, CASES, lambda node, case: {"failed": "no"} if case == CASES[0] else None)
    swept(tmp_path, cluster, 1)
    assert [case for _, case in cluster.asked if case] == [CASES[0], CASES[1], CASES[0], CASES[0]]


def test_as_many_nodes_measure_as_requested(tmp_path):
    cluster = SimulatedCluster(NODES, CASES)
    swept(tmp_path, cluster, a=1)
    assert {node for node, _ in cluster.asked} == {"a1"}


def test_nodes_whose_reference_workloads_differ_are_named():
    def reply(name, *seconds):
        samples = [{"seconds": s} for s in seconds]
        return {"node": name, "run": {"controls": {"looks": {"product": samples}}}}

    alike = reply("n1", 1.0, 1.01, 0.99), reply("n2", 1.02, 1.0, 1.03)
    assert not [*disagreements(alike)]
    (said,) = disagreements([*alike, reply("n3", 1.10, 1.11, 1.09)])
    assert said == "nodes differ: n3 takes +7.8% for the reference workload 'product', compared with the median node"
    assert not [*disagreements([*alike, reply("n3", 0.9, 1.10, 1.3)])]  # its own spread is as large


def test_a_sweep_without_nodes_is_resumed(tmp_path, capsys):
    cluster = SimulatedCluster({"a1": "a"}, CASES, lambda node, case: case and cluster.there.clear())
    assert not swept(tmp_path, cluster, 2)
    assert "no node of type a is left (there is no node); `sweep --resume x` continues" in capsys.readouterr().err
    assert [*tmp_path.glob("cluster/x.*.journal")]


def test_ctrl_c_keeps_the_journal_and_says_how_to_continue(tmp_path):
    fate = mock.Mock(side_effect=[None, KeyboardInterrupt])  # while the first job runs
    with pytest.raises(KeyboardInterrupt, match="interrupted; `sweep --resume x` continues"):
        swept(tmp_path, SimulatedCluster({"a1": "a"}, CASES, fate))
    assert [*tmp_path.glob("cluster/x.*.journal")]


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("", "one of the arguments --save/--benchmark-save --resume is required"),
        ("--cluster ray --resume x", "no run x was started in "),
        ("--save x --address h:1", "--address and --node-types go with --cluster"),
        ("--cluster ray --save x --model ../config.json", "../config.json does not reach the nodes"),
        ("--cluster ray --resume x --T 64", "--resume x continues with its original options"),
        ("--save x --quiet-machine --threads=2", "leave out --threads"),
        ("--save x --quiet-machine --allocator system", "--quiet-machine uses one thread, and keeps freed memory"),
    ],
)
def test_usage_errors(typed, says, tmp_path, monkeypatch, capsys):
    (tmp_path / "config.json").touch()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    try:
        code = sweep.main(typed.split())
    except SystemExit as end:
        code = end.code
    assert code == 4 and says in capsys.readouterr().err
    assert not [*Path().rglob("*")]


def test_a_run_that_was_begun_is_neither_begun_anew_nor_resumed_with_other_code(tmp_path, monkeypatch, capsys):
    """On a cluster, or on this machine."""
    monkeypatch.chdir(tmp_path)
    header = {"arguments": [], "kinds": {}, "command": "", "digest": "another"}
    for folder in ("cluster", str(get_machine_id())):
        Journal.start(tmp_path / "results" / folder, "x", header).close()
    where = "--cluster=slurm --address=local --slurm-option=time=60"
    for typed, says in (
        ("--cluster ray --save x", "bench sweep --cluster=ray --resume x` continues"),
        (
            f"{where} --save x",
            f"run x was started and not finished: `python {CHECKOUT}/bench sweep {where} --resume x` continues",
        ),
        ("--save x --T 64", "bench sweep --resume x` continues"),
        ("--cluster ray --resume x --case a", "continues with its original options"),
        ("--cluster ray --resume x", "the code has changed since run x was started"),
    ):
        assert sweep.main(typed.split()) == 4
        assert says in capsys.readouterr().err and [*tmp_path.glob("results/cluster/x.*.journal")]


def test_the_archive_holds_the_files_that_the_options_name(tmp_path):
    (tmp_path / "mine.py").write_text("import helper")
    (tmp_path / "w.jsonl").write_text('{"path": "x.safetensors"}')
    for name in ("helper.py", "other.py", "a.json"):
        (tmp_path / name).touch()
    plain = pack(tmp_path, [])
    own = pack(tmp_path, ["--impl=sdpa,mine=mine:mine,x=torch:add", "--model", "gpt2,a.json"])
    assert plain == pack(tmp_path, ["--impl", "fused"])
    packed, more = ({*zipfile.ZipFile(BytesIO(it)).namelist()} for it in (plain, own))
    suite = ("bench/__main__.py", "commands/shell.py", "impls/sdpa.py", "pyproject.toml", "attention_bench.py")
    assert {f"attention-bench/{name}" for name in suite} <= packed
    assert more - packed == {"mine.py", "helper.py", "a.json"}
    with pytest.raises(UsageError, match=r"w\.jsonl: the safetensors files that it names do not reach the nodes"):
        pack(tmp_path, ["--cases=w.jsonl"])
