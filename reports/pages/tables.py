"""Tables: the tidy frame as CSV, and for every case its implementations, in the order of time, as text for people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from stats import ratios

from ..judging import advice, findings, processes, published, scaling
from ..judging import frame as fr
from ..reading import units, words

REASONS = ("wrong", "error", "timeout", "out_of_memory", "unsupported")
HEADINGS = (
    "implementation", "rank", "median", "{}", "speed-up over {}", "peak memory", "kernel", "error", "of its bound",
)  # fmt: skip
WITHIN = "within process"


@dataclass(frozen=True)
class Line:
    """One implementation in one case, ready to be shown. `share`, 0 to 1, is its median over the slowest one's that
    is still on the chart."""

    impl: str
    name: str
    rank: str
    """'1', '1–4' where several ranks are possible, a dash where nothing is shown."""
    median: str
    spread: str
    """The 95 % interval between processes; of one process, half its interquartile range, as in the terminal."""
    peak: str
    kernel: str
    """What was dispatched."""
    error: str
    of_bound: str
    ratio: str
    """Speed-up over the baseline implementation, with its 95 % interval where there is one."""
    share: float
    best: bool
    row: int
    """Its place in the frame."""

    def cells(self) -> tuple[str, ...]:
        """In the order of `HEADINGS`."""
        times = self.median, self.spread, self.ratio
        return self.name, self.rank, *times, self.peak, self.kernel, self.error, self.of_bound


@dataclass(frozen=True)
class CaseTable:
    """One case: what it is, in words and as its id, and its lines in the order of time."""

    id: str
    title: str
    at: dict[str, Any]
    """Where it stands on the axes that vary."""
    lines: list[Line]


@dataclass(frozen=True)
class Skipped:
    """Cells of one implementation without numbers, for one reason."""

    impl: str
    reason: str
    detail: str
    """Of the first cell, where they differ in numbers alone."""
    cases: list[str]


def case_tables(frame: pd.DataFrame) -> list[CaseTable]:
    """A table per case, in the order of its axes."""
    said = fr.varying(frame)
    tables = []
    for _, rows in fr.groups(frame, said):
        for case, part in rows.groupby("id", sort=False):
            title = words.place(fr.settings(part), always=[*said, "B", "H", "D_h", "T"])
            at = {axis: fr.plain(part[axis].iloc[0]) for axis in said}
            tables.append(CaseTable(str(case), title or str(case), at, _lines(part)))
    return tables


def headings(frame: pd.DataFrame, baseline_impl: str | None) -> tuple[str, ...]:
    """Of the tables of a run: its spread is named after what it is, as in the terminal."""
    said = {
        "{}": processes.between(frame) if processes.several(frame) else WITHIN,
        "speed-up over {}": f"speed-up over {baseline_impl or 'the baseline implementation'}",
    }
    return tuple(said.get(heading, heading) for heading in HEADINGS)


def legend(frame: pd.DataFrame, baseline_impl: str | None) -> str:
    """What ranks are, and what an interval of a ratio is."""
    if frame["rank_low"].isna().all():
        return f"Sorted by median. There are no ranks, since {processes.NO_INTERVAL}."
    name = processes.interval_name(frame)
    over = f" Speed-ups: above 1 is faster; with the interval, {name}." if baseline_impl else ""
    return f"Sorted by median. Rank: those that are possible; all ranks and intervals of a case hold together with 95 %.{over}"


def skipped_groups(skipped: pd.DataFrame) -> list[Skipped]:
    """Skipped cells with the same implementation, reason and detail but for its numbers once; the worst reasons first."""
    known = skipped.fillna({"detail": ""})
    parts = known.groupby(["reason", "impl", known["detail"].map(_without_numbers)], sort=False)
    grouped = [
        Skipped(str(impl), str(reason), str(part["detail"].iloc[0]), [str(case) for case in part["id"]])
        for (reason, impl, _), part in parts
    ]
    return sorted(grouped, key=lambda one: REASONS.index(one.reason) if one.reason in REASONS else len(REASONS))


def summary(
    headline: Sequence[str], answers: Sequence[Sequence[str]], frame: pd.DataFrame, skipped: pd.DataFrame, title: str,
    baseline_impl: str | None = None, beside: str = "",
) -> str:  # fmt: skip
    """The findings, what to use in each case, every case's table, published times beside ours (`beside`) and the skipped
    cells, as Markdown for an issue."""
    parts = [f"# {escape(title)}", "\n".join(f"- {escape(sentence)}" for sentence in headline)]
    if answers:
        parts.append(markdown(advice.COLUMNS, [[*map(escape, line)] for line in answers]))
    if len(frame):
        parts.append(escape(legend(frame, baseline_impl)))
    for table in case_tables(frame):
        cells = [[f"**{c}**" if line.best and i == 0 else c for i, c in enumerate(map(escape, line.cells()))]
                 for line in table.lines]  # fmt: skip
        parts.append(f"## {escape(table.title)}\n\n{markdown(headings(frame, baseline_impl), cells)}")
    if beside:
        parts.append(f"## Published times beside ours\n\n{beside}")
    if len(skipped):
        lines = [[escape(g.impl), g.reason, str(len(g.cases)), escape(g.detail)] for g in skipped_groups(skipped)]
        parts.append(f"## Skipped\n\n{markdown(('implementation', 'reason', 'cells', 'detail'), lines)}")
    return "\n\n".join(parts) + "\n"


def beside(frame: pd.DataFrame, figures: Sequence[dict[str, Any]]) -> str:
    """Published times beside ours as Markdown, and below them where they are from; '' without any."""
    lines = [[*map(escape, line)] for line in published.table(frame, figures)]
    listed = [f"{i}. {escape(source)}" for i, source in enumerate(published.sources(frame, figures), 1)]
    return "\n\n".join([markdown(published.COLUMNS, lines), "\n".join(listed)]) if lines else ""


def power(fit: scaling.Power | None) -> str:
    """'1.98 (1.90 to 2.06)', or a dash where it can't be said."""
    return f"{fit.exponent:.2f} ({fit.low:.2f} to {fit.high:.2f})" if fit else units.MISSING


def length(T: float) -> str:
    """About how many tokens: two digits are as many as a prediction has."""
    if T > 1e9:
        return "over 10⁹"
    return f"{float(f'{T:.1e}'):,.0f}"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table, first column to the left and the others to the right, padded so that it reads as plain text too."""
    widths = [max(len(row[i]) for row in (headings, *rows)) for i in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return f"| {' | '.join(padded)} |"

    rule = f"|{'|'.join('-' * (w + 2) if i == 0 else '-' * (w + 1) + ':' for i, w in enumerate(widths))}|"
    return "\n".join([line(headings), rule, *map(line, rows)])


def _without_numbers(text: str) -> str:
    return re.sub(r"\d[\d.,]*(e[+-]?\d+)?", "0", text)


def _lines(part: pd.DataFrame) -> list[Line]:
    rows = part.sort_values(["wrong", "median"], na_position="last")
    slowest = fr.within(rows["median"].dropna())[-1:]
    found = zip(rows.index.tolist(), fr.records(rows), strict=True)
    return [_line(at, row, slowest[0] if slowest else 0.0) for at, row in found]


def _line(at: int, row: dict[str, Any], slowest: float) -> Line:
    middle, error, bound = row["median"], row["error"], row["error_bound"]
    return Line(
        impl=row["impl"],
        name=words.marked(row["impl"], [row["impl"]] if row["wrong"] else []),
        median=units.seconds(middle, _digits(row)),
        spread=_spread(row),
        peak=units.memory(row["peak_bytes"]),
        kernel=row["kernel"] if isinstance(row["kernel"], str) else units.MISSING,
        error=f"{error:.1e}" if error == error else units.MISSING,
        of_bound=units.percent(error / bound) if bound > 0 else units.MISSING,
        rank=rank(row),
        ratio=findings.speedup(row),
        share=min(1.0, middle / slowest) if middle == middle and slowest > 0 else 0.0,
        best=bool(row["tied"]),
        row=at,
    )


def rank(row: Mapping[str, Any]) -> str:
    """'1', '1–4', or a dash where nothing is shown."""
    return ratios.rank_text(row["rank_low"], row["rank_high"]) if row["rank_low"] > 0 else units.MISSING


def _digits(row: dict[str, Any]) -> int:
    """Of a median: as many as its interval or, of one process, its spread warrants."""
    between = processes.interval(row.get("process_medians"))
    return processes.digits(between or (1, 1 + row["spread"]))


def _spread(row: dict[str, Any]) -> str:
    if processes.interval(row.get("process_medians")):
        return processes.said(row["process_medians"])
    half = units.percent(row["spread"] / 2)
    return half if half == units.MISSING else f"± {half}"


def escape(text: str) -> str:
    """Text as Markdown shows it: no markup, no new lines, no new columns."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_|\[\]])", r"\\\1", flat).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
