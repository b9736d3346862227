"""Comparisons that `python -m bench ab` saved: what `reports compare FILE` makes of them, in every form."""

import json
import math
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from reports.judging.comparison import Cell, of_file
from reports.pages import comparison_page
from reports.pages.comparison_text import as_markdown, columns, sentences, shared_reasons, summary
from stats import verdict
from stats.estimate import Estimate

HOSTILE = "no [/x] [red] in | <img src=x> `a` @you \x1b[31m\nnext"
FACTS = {"kernel": "flash", "peak_bytes": 1000, "error": 1e-7}


def document(logs, without=None, drift=0.0, **more):
    """A comparison with these log ratios, by replicate; `without` numbers: word and reason of a cell; `drift`: the log
    ratio of the reference workload."""
    count = len(next(iter(logs.values()), []))
    rng = random.Random(0)
    known = logs | {("control", "python"): [rng.gauss(drift, 1e-4) for _ in range(count)]}
    judged = verdict.of_replicates(logs, {})[0]
    said = {**judged, **{key: verdict.Verdict(*told) for key, told in (without or {}).items()}}
    cells = [
        {"impl": impl, "id": id_, "base": FACTS, "head": FACTS, "failed": [], **vars(it)}
        for (impl, id_), it in said.items()
    ]
    sides = {side: {"label": label, "impl": None} for side, label in (("base", "main (0123456789)"), ("head", "x"))}
    pairs = [{"seconds": 4.0, "logs": [[*key, log[i]] for key, log in known.items()],
              "blocks": {"cell": [0, 0], "side": [0, 1], "seconds": [1e-3, 2e-3]}} for i in range(count)]  # fmt: skip
    return {
        "kind": "ab", "command": "python -m bench ab --base main", "sides": sides, "margin": 0.01, "alarm": 0.005,
        "threads": 1, "seed": 7, "seconds": 4.0 * count, "neither": [], "self_test": ["0 of 12 runs" + " in words" * 8],
        "fingerprints": {"base": {"cpu": "x", "torch": "2.12"}, "head": {"cpu": "x", "torch": "2.13"}},
        "cells": cells, "pairs": pairs,
    } | more  # fmt: skip


@pytest.fixture
def saved(tmp_path):
    """Where a document was saved to."""

    def of(data):
        path = tmp_path / "results" / "machine" / "ab" / "0001_x.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        strict = json.loads(json.dumps(data), parse_constant=lambda name: None)
        path.write_text(json.dumps(strict))
        return path

    return of


def of(saved, logs, **more):
    return of_file(saved(document(logs, **more)))


def noisy(mean, spread, pairs=8, seed=3):
    rng = random.Random(f"{mean} {spread} {seed}")
    return [rng.gauss(mean, spread) for _ in range(pairs)]


SLOW = {("sdpa", "T16"): noisy(0.1, 0.002), ("sdpa", "T32"): noisy(0.3, 0.002), ("fused", "T16"): noisy(0, 0.002)}


@pytest.mark.parametrize(
    ("asked", "name"), [({"impl": ["sdpa,mine=a:b"]}, "mine"), ({"head_impl": "mine=a:b"}, "mine against sdpa")]
)
def test_the_readers_own_kernel_is_known(asked, name, saved):
    assert of(saved, {(name, "T16"): [0.0] * 3, ("sdpa", "T16"): [0.0] * 3}, asked=asked).own == [name]


@pytest.mark.parametrize(("device", "notes"), [("cpu", 0), ("cuda", 1)])
def test_times_on_a_gpu_are_called_unverified(saved, device, notes):
    this = of_file(saved(document({("sdpa", f"B1-T64-H1-D_h64-float32-{device}"): [0.0] * 6})))
    assert sum("unverified" in note for note in this.notes) == notes


def test_regressions_come_first_in_every_format(saved, tmp_path, printed):
    file = saved(document(SLOW, {("mine", "T16"): ("NEW", "base: there is no mine")}))
    out = printed("compare", file, f"--json={tmp_path / 'x.json'}", f"--markdown={tmp_path / 'x.md'}", code=1)
    first = out.splitlines()[0]
    assert re.fullmatch(r"sdpa is 22\.\d % slower \(.*\) in 2 of 2 cells", first)
    answer = "1 REGRESSED, 1 UNCHANGED; of 4 cells 2 REGRESSED, 1 UNCHANGED within 1 %, 1 NEW (main (0123456789) → x)"
    assert " ".join(out.split()).endswith(f"Something regressed: of 2 timed implementations {answer}")
    assert re.search(r"REGRESSED +sdpa T32\n +\+35\.\d % \(.*\)", out)
    assert "1.00 ms → 2.00 ms" in out and "note: 0 of 12 runs" in out and "note: torch: 2.12 → 2.13" in out
    assert all(len(line) <= 80 for line in out.splitlines() if "`" not in line)
    assert (
        "fused T16" not in out and f"1 UNCHANGED more:\n`python -m reports compare {file} --all`\nlists them\n" in out
    )
    data = json.loads((tmp_path / "x.json").read_text())
    assert (data["exit_code"], data["sentences"][0], data["cells"][0]["id"]) == (1, first, "T32")
    text, _, folded = (tmp_path / "x.md").read_text().partition("<details>")
    assert "| REGRESSED |" in text and "UNCHANGED |" not in text and folded.startswith("<summary>1 UNCHANGED</summary>")
    assert "    python -m bench ab --base main\n" in folded and "torch 2.13" in folded
    assert "UNCHANGED    fused T16" in printed("compare", file, "--all", code=1)


def test_cells_without_two_times_come_last_in_every_format(saved, tmp_path, printed):
    means = {"slow": (0.3, 0.002), "fast": (-0.3, 0.002), "loud": (0.0, 0.1), "same": (0.0, 0.002)}
    logs = {(name, "T16"): noisy(*it) for name, it in means.items()}
    file = saved(document(logs, {("old", "T16"): ("GONE", ""), ("mine", "T16"): ("NEW", "")}))
    page, markdown = tmp_path / "x.html", tmp_path / "x.md"
    out = printed("compare", file, "--all", f"--html={page}", f"--markdown={markdown}", code=1)
    order = ["REGRESSED", "IMPROVED", "INCONCLUSIVE", "UNCHANGED", "GONE", "NEW"]
    assert re.findall(r"^([A-Z]+) +\w+ T16$", out, re.MULTILINE) == order
    assert re.findall(r"<b>([A-Z]+)</b>", page.read_text()) == order
    news, _, folded = markdown.read_text().partition("<details>")
    found = [re.findall(r"^\| ([A-Z]+) ", part, re.MULTILINE) for part in (news, folded)]
    assert found == [["REGRESSED", "IMPROVED", "GONE", "NEW"], ["INCONCLUSIVE", "UNCHANGED"]]


@pytest.mark.parametrize(("mean", "error", "change", "why"), [
    (0.01, 0.1, "+1 % (−20 to +27 %)", ""),
    (0.01, 9.0, "not resolved", ""),
    (0.30, 0.1, "+35 % (+7 to +70 %)", "not significant at 1 % over all comparisons"),
])  # fmt: skip
def test_the_interval_of_an_inconclusive_cell_is_printed_once(mean, error, change, why):
    judged, _ = verdict.of_effects({("sdpa", f"T{i}"): Estimate(mean, error, 8) for i in range(9)})
    cells = [Cell(*key, it, 1e-3, 2e-3) for key, it in judged.items()]
    line = columns(cells[0])
    assert (line["verdict"], line["change"], line["why"]) == ("INCONCLUSIVE", change, why)
    assert shared_reasons(cells) == {}  # each is told in its row


def test_a_headline_names_the_regression_despite_an_unchanged_mean(saved):
    """One cell of many regressed, of an implementation that is unchanged on average."""
    logs = {("fused", f"T{i}"): noisy(-0.1, 0.001, seed=i) for i in range(2)} | {("packed", "T0"): noisy(0, 0.001)}
    logs |= {("sdpa", f"T{i}"): noisy(0.15 * (i == 0), 0.001, seed=i) for i in range(40)}
    found = of(saved, logs)
    regressed = {"sdpa": verdict.Verdict("REGRESSED", "", 1, 0.99, 1.01)}
    html = comparison_page.html(replace(found, implementations=found.implementations | regressed))
    html = html.replace("\N{NO-BREAK SPACE}", " ")
    assert "Something regressed: sdpa is slower in 1 of 40 cells (16 %)</h1>" in html
    assert "30 UNCHANGED more, in “All numbers”" in html
    assert html.partition('aria-label="All numbers"')[2].count("UNCHANGED") == 40  # of 43 cells
    assert re.findall('<p class="lead-in">(.)', html)[-1] == "O"  # of 3 timed implementations ...


@pytest.mark.parametrize(("margin", "word"), [(None, "REGRESSED"), (0.05, "SLIGHT")])
def test_saved_comparisons_are_judged_again(saved, margin, word):
    """The current rules and another margin apply, whatever verdict was saved."""
    data = document({("sdpa", "T16"): noisy(0.02, 0.002)})
    data["cells"][0] |= {"word": "UNCHANGED"}
    found = of_file(saved(data), margin)
    assert found.cells[0].verdict.word == found.implementations["sdpa"].word == word


def test_an_implementation_is_judged_on_all_its_cells_together(saved):
    """No cell is significant alone; the inconclusive implementation has a bound."""
    found = of(saved, {("sdpa", f"T{i}"): noisy(0.03, 0.03, 6, i) for i in range(16)})
    assert not any(cell.verdict.word == "REGRESSED" for cell in found.cells) and found.exit_code == 1
    (sentence,) = sentences(found)
    assert re.fullmatch(r"sdpa is \d\.\d % slower \(\d\.\d to \d\.\d\) over 16 cells", sentence)
    found = of(saved, {("sdpa", f"T{i}"): noisy(0.0, 0.05, 6, i) for i in range(2)})
    (sentence,) = sentences(found)
    assert re.fullmatch(r"sdpa is between [\d.]+ % faster and [\d.]+ % slower", sentence) and found.exit_code == 2


@pytest.mark.parametrize(
    ("ratio", "said", "in_a_cell"),
    [
        (1 / 3.2, "3.2× as fast as fused (3.2 to 3.2)", "3.2× as fast (3.2 to 3.2)"),
        (1.52, "1.52× as slow as fused (1.52 to 1.52)", "1.52× as slow (1.52 to 1.52)"),
        (1.4, "40.0 % slower than fused (40.0 to 40.0)", "+40.0 % (+40.0 to +40.0 %)"),
    ],
)
def test_large_changes_are_printed_as_a_factor(saved, ratio, said, in_a_cell):
    logs = [math.log(ratio) + noise for noise in (1e-5, -1e-5) * 3]
    found = of(saved, {("sdpa against fused", f"T{i}"): logs for i in range(2)})
    assert [*sentences(found)] == [f"sdpa is {said} in 2 of 2 cells"]
    assert columns(found.cells[0])["change"] == in_a_cell


@pytest.mark.parametrize(
    ("word", "interval", "said", "in_a_cell"),
    [
        ("INCONCLUSIVE", (0.76, 0.9993), "perhaps 0 % to 24 % faster", "−12 % (−24 to 0 %)"),
        ("INCONCLUSIVE", (0.9, 1.3), "between 10 % faster and 30 % slower", "+10 % (−10 to +30 %)"),
        ("INCONCLUSIVE", (1.01, 1.0306), "perhaps 1.0 % to 3.1 % slower", "+2.0 % (+1.0 to +3.1 %)"),
        ("REGRESSED", (2.0, 64.0), "33× as slow (over 2.0) in 1 of 1 cell", "33× as slow (over 2.0)"),
    ],
)
def test_a_sentence_has_the_numbers_of_its_cell(saved, word, interval, said, in_a_cell):
    found = of(saved, {("sdpa", "T16"): noisy(0, 0.002)})
    judged = verdict.Verdict(word, "", sum(interval) / 2, *interval)
    found = replace(found, cells=[replace(found.cells[0], verdict=judged)], implementations={"sdpa": judged})
    assert [*sentences(found)] == [f"sdpa is {said}"] and columns(found.cells[0])["change"] == in_a_cell


def test_cells_say_what_a_mean_that_is_perhaps_faster_does_not(saved):
    found = of(saved, {("sdpa", "T16"): noisy(-0.1, 0.002)})
    judged = verdict.Verdict("INCONCLUSIVE", "", 0.9, 0.8, 0.99)
    assert [*sentences(replace(found, implementations={"sdpa": judged}))] == ["sdpa is faster in 1 of 1 cell (9.5 %)"]


def test_what_is_said_of_several_implementations_is_said_once(saved):
    """And what changed, but has no verdict, is named."""
    found = of(saved, {(name, "T16"): noisy(0, 0.001) for name in ("einsum", "fused", "sdpa")})
    assert [*sentences(found)] == ["einsum, fused and sdpa are as fast as before, within 1 %"]
    judged = {name: it for name, it in found.implementations.items() if name != "sdpa"}
    cells = [replace(it, verdict=replace(it.verdict, word="INCONCLUSIVE", reason="why")) for it in found.cells]
    assert [*sentences(replace(found, cells=cells, implementations=judged, of_interest=("sdpa",)))] == [
        "sdpa is not judged, although the code changed: why",
        "einsum and fused are as fast as before, within 1 %",
    ]


def test_machine_drift_voids_the_verdict(saved):
    found = of(saved, SLOW, drift=math.log(1.1))
    assert not [*sentences(found)] and found.exit_code == 2
    assert summary(found).count("machine drift: the time of the reference workload 'python' changed by +10.0 %") == 1


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"peak_bytes": 1009}, 0),
        ({"peak_bytes": 1011}, 1),
        ({"kernel": "math"}, 0),
    ],
)
def test_more_memory_regresses_though_the_time_improved_and_another_kernel_is_reported(saved, changed, code):
    data = document({("fused", "T16"): noisy(-0.1, 0.002)})
    data["cells"][0]["head"] = FACTS | changed
    found = of_file(saved(data))
    assert found.exit_code == code
    assert summary(found).startswith("Memory regressed: 1 IMPROVED; 1 cell with more memory ") == (code == 1)
    [change] = found.cells[0].changes
    assert ({change.column: change.head}, change.worse) == (changed, code == 1)


def test_texts_of_files_are_not_interpreted_as_markup(saved, printed):
    file = saved(document({}, {("my[/kernel]", "T16"): ("BROKEN", HOSTILE)}))
    shown = " ".join(printed("compare", file, code=1).split())
    assert "my[/kernel] T16" in shown
    assert "no [/x] [red] in | <img src=x> `a` @you [31m next" in shown and "\x1b" not in shown
    text = as_markdown(of_file(file))
    assert "| my\\[/kernel\\] " in text
    assert "no \\[/x\\] \\[red\\] in \\| &lt;img src=x&gt; \\`a\\` @&#8203;you \\[31m next |" in text


def test_cells_that_are_broken_for_one_reason_are_shown_once(saved, printed):
    ids = [f"B1-T{T}-H2-D_h64-{dtype}-cpu" for T in (16, 32) for dtype in ("float32", "bfloat16")]
    broken = {("mine", it): ("BROKEN", f"head: error: kernel, {it}: no {i}") for i, it in enumerate(ids)}
    file = saved(document({}, broken | {("mine", "other"): ("BROKEN", "head: error: out of luck")}))
    shown = printed("compare", file, code=1)
    assert shown.startswith("mine is broken in 5 of 5 cells") and shown.count("BROKEN   ") == 2
    assert "3 BROKEN more:\n`python -m reports compare" in shown and "out of luck" in shown


def test_the_page_draws_intervals(saved):
    of_cells = comparison_page.html(of(saved, SLOW)).partition("<tbody>")[2]
    low, high = re.search(r'<line x1="([\d.]+)%" x2="([\d.]+)%"', of_cells).groups()
    assert 50 < float(low) < float(high) <= 100  # slower, as in the row


def test_a_pipe_closed_early_does_not_change_the_exit_code(saved):
    command = [sys.executable, "-m", "reports", "compare", str(saved(document(SLOW)))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]) as it:
        assert it.stdout and it.stderr
        it.stdout.close()
        errors = it.stderr.read()
    assert (it.returncode, errors) == (1, b"")


def test_a_comparison_names_the_folder_in_which_its_command_works(saved):
    file = saved(document(SLOW) | {"same": {"folder": "own src"}})
    assert "    cd 'own src' && python -m bench ab --base main\n" in as_markdown(of_file(file))


def test_a_record_of_an_earlier_version_is_shown(saved):
    data = document(SLOW)
    found = of_file(saved({key: it for key, it in data.items() if key not in ("kind", "alarm", "self_test")}))
    assert found.exit_code == 1


@pytest.mark.parametrize(
    "data",
    [
        {},
        document(SLOW) | {"cells": 3},
        document(SLOW) | {"pairs": [{"logs": []}]},
        document(SLOW) | {"pairs": [{"logs": [["sdpa", "T16", 1e300]]}]},
        document({}, pairs=[{"logs": [[3, "T16", 0.1]], "blocks": {"cell": [], "side": [], "seconds": []}}]),
        document(SLOW) | {"seconds": -1},
        document(SLOW, sides={name: {"label": "x", "commit": ["0123"]} for name in ("base", "head")}),
        document(SLOW, cells=[document(SLOW)["cells"][0] | {"head": {"error": "x"}}]),
    ],
)
def test_a_file_that_is_no_comparison_is_refused(saved, data, refusal):
    assert "not a comparison that `python -m bench ab` saved" in refusal("compare", saved(data))


def test_the_exit_code_follows_from_what_changed(saved):
    found = of(saved, {("sdpa", "T16"): noisy(0, 0.02), ("fused", "T16"): noisy(0, 0.002)})
    assert (found.exit_code, replace(found, of_interest=("sdpa",)).exit_code) == (0, 2)


def test_nothing_is_judged_without_cells(saved):
    assert of_file(saved(document({("sdpa", "T16"): noisy(0, 1e-4, 8)}) | {"cells": []})).exit_code == 2


def test_inconclusive_cells_name_the_command_that_continues(saved):
    file = saved(document({("sdpa", "T16"): noisy(0, 0.05, 6)}, same={}))
    command, what = f"python -m bench ab --continue {file}", "measures the INCONCLUSIVE cells for longer"
    assert f"`{command}` {what}" in of_file(file).notes
    assert f"<code>{command}</code> {what}" in comparison_page.html(of_file(file))


def test_a_cell_that_fails_in_both_is_shown_with_the_reason(saved, printed):
    why = {("mine", "T16"): ("INCONCLUSIVE", "base and head: wrong: error 1.0")}
    said = printed("compare", saved(document({}, why, same={})), code=2)
    assert "base and head: wrong: error 1.0" in said and "--continue" not in said


@pytest.mark.parametrize(
    "why", [("NEW", "base: there is no mine"), ("WRONG", "base: error: ended its process (SIGKILL)")]
)
def test_nothing_is_judged_if_base_has_no_times(saved, printed, why):
    said = printed("compare", saved(document({}, {("mine", "T16"): why})), code=2)
    assert "Nothing regressed" not in said and "base has no times" in said


def test_an_implementation_that_only_head_has_wrong_is_judged(saved, printed):
    data = document({}, {("mine", "T16"): ("WRONG", "head: wrong: error 1.0")})
    data["cells"][0]["failed"] = ["head"]
    said = printed("compare", saved(data), code=1)
    assert "base has no times" not in said and "error 1.0" in said


def test_times_are_shown_where_both_are_known(saved, printed):
    file = saved(document(SLOW, {("mine", "T16"): ("NEW", "base: there is no mine")}))
    assert "– →" not in printed("compare", file, "--all", code=1)
