"""A comparison of two saved runs (`compare`), or of two interleaved variants by the file that `python -m bench ab` saved
(`of_file`): cells, implementations, exit code.

Cells of two runs are matched by implementation and case; their times are tested statistically, other facts compared
exactly. A time is judged relative to the implementations of its case with the same code in both runs (`stats.saved`),
so that machine changes common to all of them cancel.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from stats import conditions, effects, saved, shares, verdict
from stats.effects import Key
from stats.estimate import grouped
from stats.saved import Changes
from stats.verdict import BROKEN, INCONCLUSIVE, REGRESSED, WORDS, Verdict

from ..reading import command, fingerprint, run_format, words
from ..reading.runs import Object, Run, RunError, parse
from .rows import Row, Rows, key_of, samples_of

EXACT = ("peak_bytes", "kernel", "operators", "error")
"""Facts that are equal in every call of a cell, so that any difference is reported."""

FAILED = ("wrong", "error", "timeout", "out_of_memory")
"""Outcomes of a cell without numbers that count as faults of the implementation."""

NOTHING_BESIDE = (
    f"not timed in {saved.FEWEST_VISITS} visits of both runs beside another implementation whose code is unchanged"
)

ALL_CHANGED = (
    "all code that both runs timed has changed, so a change of the code can't be distinguished from one of the machine"
)

VARIANTS = ("base", "head")


@dataclass(frozen=True)
class Change:
    """A fact that should be equal and isn't. `worse` if it counts as a regression: memory beyond the margin."""

    column: str
    base: Any
    head: Any
    worse: bool


@dataclass(frozen=True)
class Cell:
    """One implementation in one case. Seconds are the median of all blocks; NaN if there are none.

    The ratio of interleaved variants; of two runs, relative to the implementations of the case with unchanged code.
    """

    impl: str
    id: str
    verdict: Verdict
    base: float
    head: float
    changes: tuple[Change, ...] = ()
    broken: bool = False
    """Whether head is wrong where base is not, or fails or hangs where base does not."""

    @property
    def regressed(self) -> bool:
        """Whether it is broken, slower, or needs more memory."""
        return self.broken or self.verdict.word == REGRESSED or any(change.worse for change in self.changes)


@dataclass(frozen=True)
class Comparison:
    """Cells, worst first, with caveats."""

    base: str
    head: str
    margin: float
    cells: list[Cell]
    notes: list[str]
    machine: Object
    commands: Sequence[str]
    """Commands that repeat the comparison."""
    implementations: Mapping[str, Verdict]
    """Verdicts on the mean over the cells of each implementation."""
    own: Collection[str] = ()
    """The user's own implementations."""
    of_interest: Sequence[str] = ()
    """Implementations whose code changed; if empty, all are of interest."""
    unjudged: str = ""
    """Why no verdict on the code is possible; or ''."""
    interleaved: tuple[Any, ...] = ()
    """Commits of two interleaved variants, None for code that was not committed, and their threads."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of cells by verdict, in the verdicts' order, zeros omitted."""
        return Counter(sorted((cell.verdict.word for cell in self.cells), key=WORDS.index))

    @property
    def verdicts(self) -> list[tuple[str, Verdict]]:
        """All verdicts, on cells and on implementations, each with the implementation."""
        return [*((cell.impl, cell.verdict) for cell in self.cells), *self.implementations.items()]

    @property
    def slower(self) -> set[str]:
        """Implementations that regressed in time, in the mean or in a cell."""
        return {name for name, it in self.verdicts if it.word == REGRESSED}

    @property
    def exit_code(self) -> int:
        """0 without regressions, 1 with some, 2 if nothing could be judged."""
        if any(cell.regressed for cell in self.cells) or self.slower:
            return command.REGRESSED
        found = {it.word for name, it in self.verdicts if name in (self.of_interest or [name])}
        open_ = INCONCLUSIVE in found and found.isdisjoint(verdict.SETTLED)
        return command.NOT_JUDGED if self.unjudged or open_ else command.FINE


def changed_facts(margin: float, base: Row, head: Row) -> Iterator[Change]:
    """Yield the changes of a cell's exact facts."""
    for column in EXACT:
        before, after = base.get(column), head.get(column)
        if before is not None and after is not None and before != after:
            yield Change(column, before, after, worse=column == "peak_bytes" and after > before * (1 + margin))


def worst_first(cell: Cell) -> tuple[bool, int, float]:
    """Return a sort key, worst first."""
    size = abs(math.log(cell.verdict.ratio)) if cell.verdict.ratio > 0 else 0.0
    return not cell.regressed, WORDS.index(cell.verdict.word), -size


def compare(base: Run, head: Run, margin: float = verdict.MARGIN_OF_RUNS) -> Comparison:
    """Compare all cells of either run. Runs of different machines get ratios, and no verdict."""
    machines = fingerprint.differing(base, head)
    other = machines and f"another machine or other settings: {machines}"
    runs = _cells(base), _cells(head)
    cells = {key: [run[key] for run in runs] for key in {**runs[0], **runs[1]}}
    alike = {
        key: variants
        for key, variants in cells.items()
        if not other and all("samples" in it for it in variants) and not _differs("case_hash", variants)
    }
    changed = dict.fromkeys(impl for (impl, _), variants in alike.items() if _differs("impl_hash", variants))
    disturbed = [f"{run.name}: {why}" for run in (base, head) if (why := conditions.disturbed(run.rows, run.controls))]
    samples = {key: [it["samples"] for it in variants] for key, variants in alike.items()}
    found = saved.changes(samples, changed, bool(disturbed))
    judged, implementations = verdict.of_effects(
        found.cells, found.implementations, margin, verdict.MARGIN_OF_RUNS, changed
    )
    why = ALL_CHANGED if alike and all(impl in changed for impl, _ in alike) else other
    shown = [
        _cell(key, variants, judged.get(key), why, margin if key in alike else math.inf)
        for key, variants in cells.items()
        if any("samples" in it or it["reason"] == "wrong" for it in variants) or variants[1]["reason"] in FAILED
    ]
    if other:  # what fails in head alone may be the machine's
        unclear = {it: replace(it.verdict, word=INCONCLUSIVE) for it in shown if it.verdict.word == BROKEN}
        shown = [replace(it, verdict=unclear[it], broken=False) if it in unclear else it for it in shown]
    notes = dict.fromkeys([*disturbed, *_notes(base, head, found)])  # the runs may have one name
    reasons = {cell.verdict.reason for cell in shown if cell.verdict.word == INCONCLUSIVE}
    unjudged = "" if implementations else other or words.listing(sorted(reasons)) or "no cell in common"
    if not head.complete and any(cell.verdict.word == verdict.GONE for cell in shown):
        unjudged = unjudged or f"{head.name} is not complete, and lacks cells of {base.name}"
    return Comparison(
        base.name,
        head.name,
        margin,
        sorted(shown, key=worst_first),
        [*notes, *_unverified(shown), *_notes_on_code(base, head, implementations, changed)],
        machine=head.machine,
        commands=[
            *(f"{run.command}  # {run.name}, at {run.commit_id or 'an unknown commit'}" for run in (base, head)),
            f"python -m reports compare {shlex.join([base.name, head.name])} --margin {margin:g}",
        ],
        implementations=implementations,
        own=words.own((cell.impl for cell in shown), (*base.registry, *head.registry)),
        of_interest=tuple(changed),
        unjudged=unjudged,
    )


def _cells(run: Run) -> Mapping[Key, Row]:
    """Return what is known of each cell: a row's metadata with `samples` and `seconds`, or `reason` and `detail` of a skip. A
    cell that the run lacks has an empty reason.
    """
    found: dict[Key, Object] = defaultdict(lambda: {"reason": "", "detail": "", "seconds": math.nan})
    for cell in run.skipped:
        found[key_of(cell)] |= cell
    for row in run.rows:
        facts = row["extra_info"]
        timed = {"samples": samples_of(row), "seconds": row["stats"]["median"]}
        found[key_of(facts)] |= facts | timed
    return found


def _differs(what: str, variants: Rows) -> bool:
    """Whether a fact differs between the variants."""
    return len({facts.get(what) for facts in variants}) > 1


def _cell(key: Key, variants: Rows, judged: Verdict | None, other: str, margin: float) -> Cell:
    """Return a cell with the verdict `judged` on its times. Without one it is INCONCLUSIVE with their ratio, by the reason
    `other`; if a variant lacks a time, the reason and the verdict are those of that. With an infinite `margin`, more
    memory is no regression.
    """
    reasons, (base, head) = ([facts[what] for facts in variants] for what in ("reason", "seconds"))
    failed = [reason in FAILED for reason in reasons]
    lost = grouped(
        ((facts["reason"].replace("_", " ") or "not", facts["detail"]), name)
        for name, facts in zip(VARIANTS, variants, strict=True)
        if "samples" not in facts
    )
    if lost:
        word = INCONCLUSIVE if all(failed) else BROKEN if failed[1] else verdict.NEW if head > 0 else verdict.GONE
        whys = (": ".join(filter(None, (f"{what} in {' and '.join(of)}", why))) for (what, why), of in lost.items())
        judged = Verdict(verdict.WRONG if "wrong" in reasons else word, "; ".join(whys))
    elif _differs("case_hash", variants):
        other = "the benchmark itself was changed"
    judged = judged or Verdict(INCONCLUSIVE, other or NOTHING_BESIDE, head / base)
    broken = failed == [False, True] or [reason == "wrong" for reason in reasons] == [False, True]
    return Cell(*key, judged, base, head, tuple(changed_facts(margin, *variants)), broken)


def _notes(base: Run, head: Run, found: Changes) -> Iterator[str]:
    """Yield what differs between two runs besides the code, and how precisely they can be compared."""
    if different := fingerprint.differing(base, head, software=True):
        yield f"compared across versions: {different}"
    if different := fingerprint.environment(base, head):
        yield f"the environment differs: {different}"
    yield from (f"{run.name} is not complete" for run in (base, head) if not run.complete)
    if not found.implementations:
        return
    if abs(math.expm1(found.shift)) > conditions.DRIFT:
        another = (
            ", as on another machine: only large changes can be detected" if abs(found.shift) > saved.STEADY else ""
        )
        yield f"seconds of unchanged code changed by {shares.signed(found.shift)} from base to head{another}"
    cells, impls = (shares.percent(math.expm1(median(of))) for of in zip(*found.spreads.values(), strict=True))
    yield (
        f"changes are relative to {words.plural(len(found.anchors), 'implementation')} whose code is the same in both "
        f"runs. One of their cells changes by {cells}, and all of an implementation by another {impls} (standard deviations)"
    )


def _notes_on_code(base: Run, head: Run, judged: Mapping[str, Verdict], changed: Collection[str]) -> Iterator[str]:
    """Yield which implementations regressed with unchanged code, and the command that settles those with changed code."""
    if same := [name for name, it in judged.items() if it.word == REGRESSED and name not in changed]:
        yield f"the code of {words.listing(same)} is the same in both runs, as is torch: something else slowed it"
    if open_ := [it for it in changed if it not in judged or judged[it].word == INCONCLUSIVE]:
        yield f"`{_interleaved(base, head, open_)}` detects 1 % in a few minutes"


def _unverified(cells: Iterable[Cell]) -> Iterator[str]:
    if any("-cuda" in cell.id for cell in cells):
        yield words.UNVERIFIED


def without_threads(cases: str) -> str:
    """Return ids of cases as a comparison names them, whose threads are an option of its own."""
    return re.sub(r"-threads=\d+", "", cases)


def _interleaved(base: Run, head: Run, names: Collection[str]) -> str:
    """Return the command that compares the code of two runs, interleaved."""
    variants, newer = f"--base {base.committed[:10] or 'REF'}", head.committed[:10]
    if (version := base.machine.get("torch")) != head.machine.get("torch"):
        variants = f"--base-python PYTHON_WITH_TORCH_{version}"
    elif newer and newer != base.committed[:10]:
        variants += f" --head {newer}"
    cells = ["--impl", ",".join(head.own.get(name, name) for name in names)]
    for name, value in head.asked.items():
        if name not in ("impl", "baseline"):
            text = without_threads(str(value))
            cells += [f"--{name}", text.partition(",")[0] if name == "threads" else text]  # ab has one number of them
    return f"python -m bench ab {variants} {shlex.join(cells)}"


def of_file(path: Path, margin: float | None = None) -> Comparison:
    """Judge the saved replicates by the current rules.

    Raises:
        RunError: it can't be read, or is no comparison.
    """
    data = parse(path)
    refusal = f"{path}: not a comparison that `python -m bench ab` saved"
    if where := run_format.misfit_of_comparison(data):
        raise RunError(f"{refusal} (invalid value of {where})")
    try:
        return _of_data(data, path, data["margin"] if margin is None else margin)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RunError(refusal) from error


def _of_data(data: Object, path: Path, margin: float) -> Comparison:
    replicates, (before, after) = data["pairs"], (data["sides"][variant] for variant in VARIANTS)
    logs, workloads, ends = effects.of_saved(replicates)
    judged, implementations = verdict.of_replicates(logs, workloads, ends, margin)
    cells = sorted(_cells_of_data(data, judged, margin), key=worst_first)
    base, head = (data["fingerprints"][variant] for variant in VARIANTS)
    drift = ", ".join(f"{name} {shares.signed(median(of))}" for name, of in workloads.items())
    to_continue = "same" in data and any(it.verdict.word == INCONCLUSIVE and it.verdict.ratio > 0 for it in cells)
    asked = data.get("asked", {})
    named = ",".join(map(str, (*asked.get("impl", ()), asked.get("base_impl"), asked.get("head_impl"))))
    given = {name.partition("=")[0].strip() for name in named.split(",") if "=" in name}
    inside = data.get("same", {}).get("folder") or "."
    without_base = all(cell.verdict.word in (verdict.NEW, verdict.WRONG) and not cell.broken for cell in cells)
    notes = [
        f"{words.plural(len(replicates), 'replicate')} of two fresh processes in {data['seconds']:.0f} s, "
        f"{words.plural(data['threads'], 'thread')}, seed {data['seed']}",
        *(f"{name}: {base[name]} → {head[name]}" for name in base if base[name] != head.get(name)),
        *[f"the reference workload's time changed by: {drift}"] * bool(workloads),
        *(f"{name}: {it.reason}" for name, it in implementations.items() if verdict.CONTRADICTED in it.reason),
        *(f"in neither variant: {text}" for text in data["neither"]),
        *map(str, data.get("self_test", ())),
        *_unverified(cells),
        *[f"`python -m bench ab --continue {shlex.quote(str(path))}` measures the INCONCLUSIVE cells for longer"]
        * to_continue,
    ]
    return Comparison(
        before["label"],
        after["label"],
        margin,
        cells,
        notes,
        machine=head,
        commands=[f"cd {shlex.quote(inside)} && " * (inside != ".") + data["command"]],
        implementations=implementations,
        own=[cell.impl for cell in cells if cell.impl.partition(words.AGAINST)[0] in given],
        unjudged="base has no times" if without_base else verdict.drifted(workloads),
        interleaved=(before.get("commit"), after.get("commit"), data["threads"]),
    )


def _cells_of_data(data: Object, judged: Mapping[Key, Verdict], margin: float) -> Iterator[Cell]:
    """Yield the cells of a saved comparison; their seconds are medians over the blocks of all replicates."""
    times = grouped(
        ((*replicate["logs"][cell][:2], variant), seconds)
        for replicate in data["pairs"]
        for cell, variant, seconds in zip(*(replicate["blocks"][it] for it in ("cell", "side", "seconds")), strict=True)
    )
    for cell in data["cells"]:
        key = key_of(cell)
        result = Verdict(cell["word"], cell["reason"]) if cell["ratio"] is None else judged[key]
        base, head = (median(times.get((*key, variant), [math.nan])) for variant in (0, 1))
        facts = (cell.get(variant) or {} for variant in VARIANTS)
        broken = result.word == BROKEN or (result.word == verdict.WRONG and "head" in cell.get("failed", ()))
        yield Cell(*key, result, base, head, tuple(changed_facts(margin, *facts)), broken)
