"""`python -m reports compare`: verdicts on two saved runs, what must be equal to the byte, and what it refuses."""

import json
import math

import pytest
import synthetic_runs as synthetic
import tracked_runs as tracked

from reports.judging.comparison import ALL_CHANGED, Change, compare
from reports.pages import compare as compare_command
from reports.pages import comparison_page
from reports.pages.comparison_text import changed, headline, sentences, summary
from reports.reading import runs
from reports.reading.fingerprint import KEEP
from stats.arguments import without_padding

UNTOUCHED = {("fused", "UNCHANGED"), ("einsum", "UNCHANGED")}


@pytest.fixture
def compared(results):
    """Saves two documents and compares them."""

    def of(base, head, **options):
        paths = synthetic.save(base, results, "0001_base"), synthetic.save(head, results, "0002_head")
        return compare(runs.read(paths[0]), runs.read(paths[1]), **options)

    return of


@pytest.fixture
def command(results, printed, monkeypatch):
    """Saves two documents and runs the command on them: what it printed, with a line for each sentence."""
    monkeypatch.setattr(compare_command, "WIDTH", 1000)

    def of(base, head, *options, code):
        synthetic.save(base, results, "0001_base")
        synthetic.save(head, results, "0002_head")
        return printed("compare", "base", "head", "--results", results, *options, code=code)

    return of


def words(this):
    return {(cell.impl, cell.verdict.word) for cell in this.cells}


def first(this, impl):
    return next(cell for cell in this.cells if cell.impl == impl)


@pytest.mark.parametrize("impls", [tracked.IMPLS, ("sdpa",)])
def test_where_all_code_changed_no_time_is_judged_and_the_command_that_can_is_named(impls, command):
    ran = {"impls": impls, "asked": {"sweep": "smoke", "impl": ["sdpa=mine:mine"]}}
    head = tracked.run(2, slower=dict.fromkeys(impls, 2.0), **ran, commit_info={"id": "b" * 40, "dirty": False})
    out = command(tracked.run(1, **ran), head, code=2)
    assert f"It could not be judged: {ALL_CHANGED}; {4 * len(impls)} INCONCLUSIVE (0001_base" in out
    assert out.count(ALL_CHANGED) == 1 and "REGRESSED" not in out and "2.0× as slow" in out
    names = ",".join("sdpa=mine:mine" if name == "sdpa" else name for name in impls)
    code = f"`python -m bench ab --base 0123abc --head {'b' * 10} --impl {names} --sweep smoke`"
    assert code in out


def test_the_printed_ab_command_can_be_run(compared):
    asked = {"cases": "my cases.json", "threads": "1,2", "case": "B1-T16-threads=2"}
    head = tracked.run(2, slower=dict.fromkeys(tracked.IMPLS, 2.0), asked=asked)
    [note] = [note for note in compared(tracked.run(1), head).notes if "bench ab" in note]
    assert "--cases 'my cases.json' --threads 1 --case B1-T16`" in note
    head["machine_info"] = {**synthetic.MACHINE, "driver": "580.65"}
    assert "compared across versions: driver (none, then 580.65)" in compared(tracked.run(1), head).notes
    head["machine_info"]["torch"] = "2.14.0"
    [note] = [note for note in compared(tracked.run(1), head).notes if "bench ab" in note]
    assert "bench ab --base-python PYTHON_WITH_TORCH_2.13.0+cpu --impl" in note


def test_more_memory_is_reported_though_no_time_can_be_judged(compared):
    head = tracked.run(2, slower=dict.fromkeys(tracked.IMPLS, 1.1))
    tracked.cells(head, "sdpa")[0]["extra_info"]["peak_bytes"] = 2**21
    this = compared(tracked.run(1), head)
    assert this.exit_code == 1 and summary(this).startswith(f"Memory regressed: {ALL_CHANGED}; 12 INCONCLUSIVE")
    assert headline(this)[0] == "Memory regressed: sdpa needs more memory in 1 of 4 cells"
    assert 'data-label="verdict">INCONCLUSIVE · <b>memory 1.00' in comparison_page.html(this)  # not the word is red


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [(2**20, 2**21, "1.00 MiB → 2.00 MiB (2.0×)"), (0, 2**20, "0 B → 1.00 MiB"), (2**20, 0, "1.00 MiB → 0 B")],
)
def test_memory_is_compared_with_none_of_an_earlier_file(before, after, said):
    assert changed(Change("peak_bytes", before, after, worse=False)) == f"memory {said}"


def test_a_wrong_output_is_never_a_speed_up(compared):
    """Nor is its correction one."""
    wrong = tracked.without(tracked.run(1), "sdpa", "wrong", "row 3 off by 0.5")
    for head, where in ((tracked.run(2, slower={"sdpa": 0.5}), "base"), (wrong, "base and head")):
        this = compared(wrong, head)
        assert words(this) == {*UNTOUCHED, ("sdpa", "WRONG")} and this.exit_code == 0
        assert first(this, "sdpa").verdict.reason == f"wrong in {where}: row 3 off by 0.5"


def test_cells_of_one_variant_only_are_new_or_gone(compared):
    fewer, all_three = tracked.run(1, impls=["fused", "einsum"]), tracked.run(2)
    for base, head, word in ((fewer, all_three, "NEW"), (all_three, fewer, "GONE")):
        this = compared(base, head)
        assert ("sdpa", word) in words(this) and this.exit_code == 0
    interrupted = compared(all_three, {**fewer, "complete": False})
    assert interrupted.unjudged == "0002_head is not complete, and lacks cells of 0001_base"
    assert interrupted.exit_code == 2
    nothing_in_common = compared(tracked.run(1, impls=["sdpa"]), fewer)
    assert nothing_in_common.counts == {"GONE": 4, "NEW": 8} and nothing_in_common.exit_code == 2


def test_runs_without_a_common_cell_are_described_by_one_of_each(command):
    out = command(tracked.run(1, impls=["sdpa"]), tracked.run(2, impls=["fused", "einsum"]), code=2)
    assert "3 GONE, 7 NEW more:" in out and "no cell in common" in out


def test_neither_times_nor_memory_of_another_benchmark_or_machine_are_judged(compared):
    for other, why in (
        ({"extra": {"case_hash": "b"}}, "the benchmark itself was changed"),
        ({"machine_info": {**synthetic.MACHINE, "threads": 4}}, "another machine"),
    ):
        head = tracked.run(2, **other)
        tracked.cells(head, "sdpa")[0]["extra_info"]["peak_bytes"] = 2**21
        this = compared(tracked.run(1, extra={"case_hash": "a"} if "extra" in other else None), head)
        [change] = [change for cell in this.cells for change in cell.changes]
        assert this.exit_code == 2 and change.column == "peak_bytes" and not change.worse
        assert this.counts == {"INCONCLUSIVE": 12} and why in this.cells[0].verdict.reason


def test_cells_of_another_benchmark_are_not_counted_among_the_judged_ones(compared):
    head = tracked.run(2, slower={"sdpa": 1.5})
    for row in head["benchmarks"][:3]:  # those of one case
        row["extra_info"]["case_hash"] = "b"
    assert next(sentences(compared(tracked.run(1), head))).endswith("in 3 of 3 cells")


def test_another_machine_is_not_compared_and_force_shows_numbers_without_verdicts(command, results, printed, tmp_path):
    allocator = {**KEEP, "MALLOC_ARENA_MAX": "1", "THP_MEM_ALLOC_ENABLE": "1"}
    machine = {**synthetic.MACHINE, "threads": 4, "torch": "2.14.0", "allocator": allocator}
    out = command(tracked.run(1), tracked.run(2, slower={"sdpa": 2}, machine_info=machine), "--force", code=2)
    assert "2.0× as slow" in out and "REGRESSED" not in out and "12 INCONCLUSIVE" in out
    assert out.count("another machine or other settings: threads") == 1 and "2 INCONCLUSIVE more" in out
    assert "--force --all`" in " ".join(out.split())
    (file := tmp_path / "compared.json").write_text("an earlier one")
    asked = f"--json={file}", f"--html={(page := tmp_path / 'compared.html')}"
    out = " ".join(printed("compare", "base", "head", "--results", results, *asked, code=2).split())
    settings = "threads (2, then 4) and allocator (system, then keep MALLOC_ARENA_MAX=1 THP_MEM_ALLOC_ENABLE=1)"
    assert f"settings: {settings}; no cell to compare" in out
    assert (
        "`--force` shows the numbers" in out
        and "<table" not in page.read_text()
        and "torch 2" not in out
        and "INCONCLUSIVE" not in out
    )
    saved = json.loads(file.read_text())
    assert saved["exit_code"] == 2 and saved["cells"] == [] and "threads (2, then 4)" in saved["unjudged"]


def test_what_does_not_fit_another_machine_is_not_broken(command):
    head = tracked.without(tracked.run(2), "sdpa", "out_of_memory", "so")
    head["machine_info"] = {**synthetic.MACHINE, "memory_gib": 2}
    out = command(tracked.run(1), head, "--force", code=2)
    assert "broken" not in out.lower() and "12 INCONCLUSIVE" in out and "out of memory in head: so" in out


def test_json_is_strict(command, tmp_path):
    head = tracked.without(tracked.run(2, slower={"sdpa": 1.2}), "fused", "unsupported", "no")
    command(tracked.run(1), head, "--json", tmp_path / "x.json", code=1)
    data = json.loads((tmp_path / "x.json").read_text(), parse_constant=pytest.fail)
    assert data["counts"] == {"REGRESSED": 4, "GONE": 4, "INCONCLUSIVE": 4}
    assert next(cell for cell in data["cells"] if cell["verdict"] == "GONE")["ratio"] is None


def test_keys_of_json_are_documented(command, documented, tmp_path):
    base = tracked.run(1)
    tracked.cells(base, "sdpa")[0]["extra_info"]["kernel"] = "another"
    command(base, tracked.run(2), "--json", tmp_path / "x.json", code=0)
    found = json.loads((tmp_path / "x.json").read_text())
    assert found.keys() == documented["`compare`, `ab`"]
    assert [it.keys() for it in found["implementations"].values()] == 3 * [documented["`implementations`"]]
    (cell,) = (it for it in found["cells"] if it["changes"])
    assert cell.keys() == documented["`cells`"] | documented["`implementations`"]
    assert cell["changes"][0].keys() == documented["`changes`"]


def test_no_printed_line_ends_in_spaces(command, monkeypatch):
    """Neither wrapped lines, nor those of a cell, which have a margin."""
    monkeypatch.setattr(compare_command, "WIDTH", 50)
    machine = {**synthetic.MACHINE, "threads": 4}
    out = command(tracked.run(1), tracked.run(2, machine_info=machine), "--force", "--all", code=2)
    assert [line for line in out.splitlines() if line.endswith(" ")] == []
    assert without_padding("\x1b[1ma b \x1b[0m \n c  \n") == "\x1b[1ma b\x1b[0m\n c\n"


def test_the_commands_that_repeat_a_comparison_name_runs_and_code(results):
    made = {"0001_a b": {"commit_info": {"id": "c" * 40, "dirty": True}}, "0002_x": {"commit_info": {}}}
    base, head = (runs.read(synthetic.save(tracked.run(1, **of), results, name)) for name, of in made.items())
    assert compare(base, head).commands == [
        f"{base.command}  # 0001_a b, at {'c' * 10}-dirty",
        f"{head.command}  # 0002_x, at an unknown commit",
        "python -m reports compare '0001_a b' 0002_x --margin 0.05",
    ]


def test_caveats_of_a_comparison(compared):
    base = tracked.run(1, complete=False, state={"environment": {"OMP_PROC_BIND": "true"}})
    machine = {**synthetic.MACHINE, "python": "3.14.0"}
    notes = "\n".join(compared(base, tracked.run(2, state={"environment": {}}, machine_info=machine)).notes)
    for said in ("python (none, then 3.14.0)", "OMP_PROC_BIND (true, then none)", "0001_base is not complete",
                 "changes are relative to 3 implementations"):  # fmt: skip
        assert said in notes
    assert "seconds of unchanged code" not in notes


QUIET = synthetic.Noise(process=0.004, block=0.005, run=0.001)
"""A machine that changes by 6 % between days and has little other noise."""


def interleaved(seed, slower=None, **options):
    each = {"linear": 7e-7, "packed": 8e-7, "sdpa": 9e-7, "einsum": 1.2e-6, "wrapper": 1.3e-6}
    return synthetic.timed_interleaved(seed, slower, **{"noise": QUIET, "each": each, **options})


def test_another_machine_under_the_same_name_is_reported_without_a_verdict(compared):
    """As after a virtual machine was moved: all are slower, the fused kernels by less."""
    this = compared(interleaved(1), synthetic.slowed(interleaved(2), {"sdpa": 1.45}, others=1.6))
    assert this.exit_code != 1 and any("as on another machine" in note for note in this.notes)
    slower = compared(interleaved(1), synthetic.slowed(interleaved(2), {"sdpa": 3.2}, others=1.6))
    assert slower.implementations["sdpa"].word == "REGRESSED"
    assert [note for note in slower.notes if note.startswith("the code of sdpa is the same in both runs")]


def test_a_load_may_hide_another_machine(compared):
    """Seconds change by less than from one machine to another, `sdpa`'s by 8 % less than others'."""
    base, head = interleaved(1), synthetic.slowed(interleaved(2), {"sdpa": 1.15 * 0.92}, others=1.15)
    assert compared(base, head).implementations["sdpa"].word == "IMPROVED"
    this = compared(base, synthetic.disturbed(head))
    assert this.implementations["sdpa"].word == "INCONCLUSIVE"
    assert [note for note in this.notes if note.startswith("0002_head: the run was disturbed: timed calls were")]


@pytest.mark.parametrize(
    ("base", "head", "word", "where", "said"),
    [
        ("", "wrong", "WRONG", "in head: so", "sdpa is wrong in 4 of 4 cells"),
        ("", "error", "BROKEN", "in head: so", "sdpa is broken in 4 of 4 cells"),
        ("out_of_memory", "wrong", "WRONG", "in head: so", "sdpa is wrong in 4 of 4 cells"),
        ("error", "error", "INCONCLUSIVE", "error in base and head: so", ""),
    ],
)
def test_a_cell_that_fails_in_head_has_regressed_and_comes_first_unless_base_fails_alike(
    base, head, word, where, said, compared
):
    failing = (
        tracked.without(tracked.run(seed), "sdpa" if why else "", why, "so") for seed, why in enumerate((base, head), 1)
    )
    this = compared(*failing)
    assert this.exit_code == bool(said) and next(sentences(this), "").startswith(said)
    assert {cell.verdict.word for cell in (this.cells[:4] if said else [first(this, "sdpa")])} == {word}
    assert first(this, "sdpa").verdict.reason.endswith(where)


def test_a_change_is_less_certain_where_unchanged_code_changes_as_well(compared):
    def width(others):
        this = compared(interleaved(1), synthetic.slowed(interleaved(2, {"sdpa": 1.1}), others, 1.0))
        return math.log(this.implementations["sdpa"].high / this.implementations["sdpa"].low)

    assert width({"packed": 1.06, "einsum": 0.94}) > 2 * width({})


def test_equal_notes_of_runs_of_one_name_appear_once(as_run):
    run = as_run(tracked.run(1, complete=False))
    assert compare(run, run).notes.count("0001_x is not complete") == 1
