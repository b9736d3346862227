"""How a comparison is told: a table for the terminal, Markdown for a pull request, JSON for programs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from reports.judging.verdict import CHANGED, IMPROVED, REGRESSED, UNCHANGED, WORDS, Verdict, bound

from ..runs.run import finite
from .comparison import ALL, Comparison, Line
from .pairing import SIDES

MUCH = 10.0
"""A ratio from which on digits behind the point say nothing."""

STYLES = {
    "REGRESSED": "red",
    "BROKEN": "red",
    "WRONG": "red",
    "GONE": "yellow",
    "IMPROVED": "green",
    "INCONCLUSIVE": "yellow",
}

DETECTABLE = "minimum detectable change"
"""The smallest change that had an 80 % chance of being found."""

COLUMNS: dict[str, Callable[[Line], str]] = {
    "verdict": lambda line: line.verdict.word,
    "cell": lambda line: f"{line.impl} {line.case_id}",
    "ratio": lambda line: _number(line.verdict.ratio),
    "95 % interval": lambda line: interval(line.verdict),
    DETECTABLE: lambda line: _share(line.verdict.detectable),
    "why": lambda line: line.verdict.reason + _needed(line.verdict),
}
"""Of the table."""


def in_order(lines: tuple[Line, ...]) -> list[Line]:
    """What matters most first; within a verdict the slowest first."""

    def rank(line: Line) -> tuple[int, float]:
        ratio = line.verdict.ratio
        return WORDS.index(line.verdict.word), -ratio if math.isfinite(ratio) else 0.0

    return sorted(lines, key=rank)


def table(found: Comparison) -> Table:
    """For the terminal. Texts of implementations stand in it, so nothing in them is markup."""
    made = Table(title=Text(_plain(title(found)), "bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        heading = name.replace(" ", "\n") if name == DETECTABLE else name
        made.add_column(heading, overflow="fold", no_wrap=name not in ("cell", "why"))
    for line in in_order(found.lines):
        made.add_row(*(Text(_plain(text(line))) for text in COLUMNS.values()), style=STYLES.get(line.verdict.word))
    return made


def title(found: Comparison) -> str:
    base, head = found.plan.sides
    return f"{head.label} against {base.label}: ratio of times, above 1 is slower"


def sentences(found: Comparison) -> Iterator[str]:
    """What is said of each implementation, before its cells: `sdpa is 2.0 % slower (1.7 to 2.3) in 16 of 16 cells`."""
    if found.shared:
        yield f"{ALL}: {change(found.shared)}, so it is what they share"
    for name, verdict in found.implementations.items():
        yield _sentence(found, name, verdict)


def _sentence(found: Comparison, name: str, verdict: Verdict) -> str:
    head, _, base = name.partition(" against ") if found.plan.rivals else (name, "", "")
    than = f" than {base}" if base else ""
    words = Counter(line.verdict.word for line in found.of(name))
    cells = words.total()
    if verdict.word in CHANGED:
        where = f"in {words[verdict.word]} of {cells} cells" if words[verdict.word] else f"over its {cells} cells"
        said = f"{change(verdict, than)} {where}"
    elif verdict.word == UNCHANGED:
        said = f"as fast as {base or 'before'}, within {_share(found.plan.margin)}"
    else:
        said = (
            f"{bound(verdict.low, verdict.high)}{than}" if math.isfinite(verdict.low) else "measured too rarely to tell"
        )
    others = [
        f"{WAYS[word]} in {words[word]} of {cells} cells" for word in WAYS if word != verdict.word and words[word]
    ]
    return f"{head} is {said}" + (f", but {' and '.join(others)}" if others else "")


WAYS = {REGRESSED: "slower", IMPROVED: "faster"}


def change(verdict: Verdict, than: str = "") -> str:
    """`2.0 % slower (1.7 to 2.3)`"""
    ends = sorted(abs(ratio - 1) for ratio in (verdict.low, verdict.high))
    size, low, high = (_percent(share) for share in (abs(verdict.ratio - 1), *ends))
    return f"{size} % {WAYS[verdict.word]}{than} ({low} to {high})"


def _percent(share: float) -> str:
    return f"{share * 100:.1f}" if share < 1 else f"{share * 100:.0f}"


def notes(found: Comparison, known: list[str]) -> Iterator[str]:
    """What must be read with the table: counts, what else changed, machine drift, and how often such verdicts are right."""
    counts = Counter(line.verdict.word for line in found.lines)
    yield ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
    if heavier := sum(map(found.is_heavier, found.lines)):
        yield f"{heavier} with more memory, by more than {_share(found.plan.margin)}"
    for line in found.lines:
        if line.changes:
            yield f"changed in {line.impl} {line.case_id}: {', '.join(line.changes)}"
    screened, confirmed = len(found.screened), len(found.confirmed)
    pairs = "pair" if screened == 1 else "pairs"
    yield (
        f"{screened} {pairs} of fresh processes screened, {confirmed} more confirmed, in {found.seconds:.0f} s; "
        f"margin {_share(found.plan.margin)}, {found.plan.setting.threads} thread(s), seed {found.plan.seed}"
    )
    base, head = found.fingerprints
    for name in base:
        if base[name] != head[name]:
            yield f"{name}: {base[name]} → {head[name]}"
    drift = ", ".join(f"{name} {_signed(math.expm1(log))}" for name, log in found.drift().items())
    if drift:
        yield f"the control workloads' time changed by: {drift}"
    if found.moved:
        yield found.moved
    yield from (f"on neither side: {text}" for text in found.neither)
    yield from known


def markdown(found: Comparison, known: list[str], command: str) -> str:
    """For a comment: counts, a short table, the machine, and how to see it again. What stands still is folded away."""
    told = in_order(found.lines)
    still = [line for line in told if line.verdict.word == UNCHANGED and not line.changes]
    lines = [f"### {_escaped(title(found))}", ""]
    lines += [f"**{_escaped(sentence)}**  " for sentence in sentences(found)]
    lines += ["", *(f"- {_escaped(note)}" for note in notes(found, known)), ""]
    lines += _rows([line for line in told if line not in still])
    if still:
        lines += [f"<details><summary>{len(still)} {UNCHANGED}</summary>", "", *_rows(still), "</details>", ""]
    machine = ", ".join(f"{name} {value}" for name, value in found.fingerprints[1].items() if _short(value))
    lines += [f"Machine: {_escaped(machine)}", "", "Again:", "", "```", command, "```", ""]
    return "\n".join(lines)


def _rows(lines: list[Line]) -> list[str]:
    """A table in Markdown, with an empty line behind it; nothing for no lines."""
    rows = [[_escaped(text(line)) for text in COLUMNS.values()] for line in lines]
    table = [f"| {' | '.join(cells)} |" for cells in ([*COLUMNS], ["---"] * len(COLUMNS), *rows)]
    return [*table, ""] if rows else []


def _short(value: Any) -> bool:
    return bool(value) and not isinstance(value, dict)


def as_json(found: Comparison, command: str) -> dict[str, Any]:
    """For programs; numbers that are not finite are null."""
    plan = found.plan
    sides = [{"label": side.label, "impl": side.impl, "python": side.python} for side in plan.sides]
    whole: dict[str, Any] = {
        "command": command,
        "sides": dict(zip(SIDES, sides, strict=True)),
        "fingerprints": dict(zip(SIDES, found.fingerprints, strict=True)),
        "margin": plan.margin,
        "threads": plan.setting.threads,
        "seed": plan.seed,
        "seconds": found.seconds,
        "pairs": [
            {"stage": stage, "logs": [[*key, log] for key, log in pair.items()]}
            for stage, pairs in (("screen", found.screened), ("confirm", found.confirmed))
            for pair in pairs
        ],
        "moved": found.moved,
        "exit_code": found.exit_code,
        "sentences": list(sentences(found)),
        "implementations": {name: asdict(verdict) for name, verdict in found.implementations.items()},
        "cells": [_cell(line) for line in in_order(found.lines)],
        "neither": list(found.neither),
    }
    return dict(finite(whole))


def _cell(line: Line) -> dict[str, Any]:
    facts = dict(zip(SIDES, line.facts, strict=True))
    named = {"impl": line.impl, "id": line.case_id}
    return named | asdict(line.verdict) | facts | {"changes": line.changes, "logs": line.logs}


def interval(verdict: Verdict) -> str:
    """`0.998 to 1.004`"""
    if not math.isfinite(verdict.low):
        return ""
    return f"{_number(verdict.low)} to {_number(verdict.high)}"


def _number(ratio: float) -> str:
    return "" if not math.isfinite(ratio) else f"{ratio:.3f}" if ratio < MUCH else f"{ratio:.3g}"


def _escaped(text: str) -> str:
    """Text as Markdown shows it: no markup, no new lines, no new columns, nobody called by name."""
    marked = re.sub(r"([\\`*_|\[\]~#])", r"\\\1", _plain(text))
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@&#8203;")


def _plain(text: str) -> str:
    """One line, without what would steer a terminal."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _share(share: float) -> str:
    if not math.isfinite(share):
        return ""
    if share >= MUCH:
        return f"{share + 1:.2g} x"
    return f"{share * 100:.0f} %" if share >= 1 else f"{share * 100:.2g} %"


def _signed(share: float) -> str:
    return f"{share * 100:+.1f} %"


def _needed(verdict: Verdict) -> str:
    return f" (about {verdict.more_pairs} more pairs would tell)" if verdict.more_pairs else ""
