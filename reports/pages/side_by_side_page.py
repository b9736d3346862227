"""Page of several runs side by side: changes from the first to each other, and a table with a column per run."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from stats.estimate import grouped

from ..drawing.palette import Palette
from ..judging.comparison import Comparison, compare
from ..judging.rows import key_of
from ..reading import fingerprint, units, words
from ..reading.command import NOT_JUDGED
from ..reading.runs import Object, Run
from . import comparison_page, export, page
from .comparison_text import headline, sentences
from .tables import Table, flat

MOST_NAMES, LONGEST_NAME = 3, 120
"""Most runs in the headline, and the longest name of a folder, in bytes."""

SEPARATE = (
    "Two runs of unchanged code, made hours apart or on two machines, often differ by 5 to 50 %. Verdicts are those of "
    "`python -m reports compare`; they need one machine, and implementations whose code is the same in both runs"
)


def write(runs: Sequence[Run], folder: Path) -> Path:
    """Write page and `rows.csv` of several runs into `folder`; returns the page's path.

    Raises:
        OSError: the folder can't be made or written to.
    """
    return page.save_page(folder, html(runs), rows=export.rows(runs))


def folder_name(runs: Sequence[Run]) -> str:
    """Return '0001_a+0002_b'; if that is long, the first with a hash of the runs."""
    whole = "+".join(label.replace(" ", "-") for label in export.labels_of(runs))
    if len(whole.encode()) <= LONGEST_NAME:
        return whole
    digest = hashlib.sha256("\n".join(str(run.path.resolve()) for run in runs).encode()).hexdigest()[:8]
    return f"{runs[0].name[:40]}+{len(runs) - 1}-{digest}"


def html(runs: Sequence[Run]) -> str:
    """Return the page. All texts from runs are escaped; only our own SVG, CSS and JavaScript are not."""
    labels, (first, *others) = export.labels_of(runs), _matched(runs)
    found = {label: compare(first, run) for label, run in zip(labels[1:], others, strict=True)}
    wrong = sorted({name for run in runs for name in run.wrong})
    machines = [dict(flat(run.machine)) for run in runs]
    shared = {key: text for key, text in machines[0].items() if all(it.get(key) == text for it in machines)}
    notes = grouped((note, label) for label, one in found.items() for note in one.notes)
    summaries = {label: _summary(one) for label, one in found.items()}
    headlines = [f"{label}: {first}" for label, (first, _) in summaries.items()]
    names = {cell.impl for one in found.values() for cell in one.cells}
    return page.render(
        "changes.html.j2",
        wrong,
        title=" + ".join(labels),
        kicker=labels,
        headline=f"{labels[0]} → {'; → '.join(headlines[:MOST_NAMES])}{'; …' if len(headlines) > MOST_NAMES else ''}",
        lead=[f"→ {label}: {'; '.join(more)}." for label, (_, more) in summaries.items() if more],
        notices=[
            *["Measured on different machines: no verdicts."] * any(fingerprint.differing(first, run) for run in others),
            *[f"{words.WRONG} wrong in at least one cell of these runs: {words.listing(wrong)}."] * bool(wrong),
        ],
        lists=[(f"{labels[0]} → {label}", comparison_page.of_cells(one.cells)) for label, one in found.items()],
        more=[_numbers([first, *others], labels), _facts(runs, labels, shared)],
        notes=[
            SEPARATE,
            *(
                note if len(of) == len(found) or note.startswith(f"{of[0]}: ") else f"→ {words.listing(of)}: {note}"
                for note, of in notes.items()
            ),
        ],
        machine=shared,
        commands=[run.command for run in runs if run.command],
        styles=Palette(words.own(names, {name for run in runs for name in run.registry}), names),
    )  # fmt: skip


def _matched(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, with cases named without the device if each run has its own."""
    devices = [{row["extra_info"].get("device") for row in run.rows} for run in runs]
    if any(len(of) != 1 for of in devices) or len(set.union(*devices)) == 1:
        return list(runs)
    return [_without(run, str(device)) for run, [device] in zip(runs, devices, strict=True)]


def _without(run: Run, device: str) -> Run:
    def renamed(cell: Object) -> Object:
        return {**cell, "id": str(cell["id"]).replace(f"-{device}", "", 1)}

    rows = [{**row, "extra_info": renamed(row["extra_info"])} for row in run.rows]
    return replace(run, rows=rows, skipped=list(map(renamed, run.skipped)))


def _summary(this: Comparison) -> tuple[str, list[str]]:
    """Return the headline, 'Something regressed: sdpa is 5.0 % slower' or the median change, and the other sentences."""
    if this.exit_code != NOT_JUDGED:
        return headline(this)
    ratios = [ratio for cell in this.cells if math.isfinite(ratio := cell.head / cell.base)]
    if not ratios:
        return "no cell in common", list(sentences(this))
    many = f"in the median of {words.plural(len(ratios), 'cell')}, not judged"
    return f"seconds {units.change(median(ratios))} {many}", list(sentences(this))


def _numbers(runs: Sequence[Run], labels: Sequence[str]) -> Table:
    timed = [{key_of(row["extra_info"]): _number(row) for row in run.rows} for run in runs]
    why = [{key_of(cell): cell["reason"].replace("_", " ") for cell in run.skipped} for run in runs]
    keys = {key for of in timed for key in of}
    found = [of | {key: reasons[key] for key in reasons if key in keys} for of, reasons in zip(timed, why, strict=True)]
    return Table("All numbers", ("implementation", "case", *labels), _beside(found), "Median and peak memory.")


def _number(row: Mapping[str, Any]) -> str:
    peak = row["extra_info"].get("peak_bytes")
    return f"{units.seconds(row['stats']['median'])}, {units.MISSING if peak is None else units.memory(peak)}"


def _facts(runs: Sequence[Run], labels: Sequence[str], shared: Container[str]) -> Table:
    """Return date and commands of each run, and the parts of machine and software that are not shared."""
    facts = [
        {"made": run.when, "commit": run.commit_id, "sweep": run.sweep, "command": run.command,
         "notes": "; ".join(run.notes), **run.machine}
        for run in runs
    ]  # fmt: skip
    found = [{(key,): text for key, text in flat(of) if key not in shared} for of in facts]
    return Table("Runs, and what differs", ("what", *labels), _beside(found), left=labels)


def _beside(found: Sequence[Mapping[Any, str]]) -> list[tuple[str, ...]]:
    """Return a row for each key, with a column per run."""
    return [
        (*key, *(of.get(key, units.MISSING) for of in found))
        for key in dict.fromkeys(key for of in found for key in of)
    ]
