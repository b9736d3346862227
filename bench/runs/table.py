"""The table at the end of a run: a group for each case, in the order of time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from stats import ratios

from ..cases.units import bytes_text, time_text

Row = dict[str, Any]
"""A benchmark as pytest-benchmark writes it."""


LEGEND = {
    "over": "speed-up over {}; 95 % for all of a case at once",
    "memory": "the most that one call holds at once, in bytes that it allocated",
    "tokens/s": "new tokens, without what pads them",
    "padding": "share of the tokens computed that only pad",
    "kernel": "what ran: gemm, plain matrix products; inductor, a compiled graph",
    "error": "the largest difference to a float64 reference",
}
"""What a column says, for those that don't say it by themselves."""

PLAIN = {"fused": "fused (plain formula)"}
"""What a name means that others use otherwise."""

DISPENSABLE = ("kernel", "memory", "error")
"""Columns that are left out where a terminal is narrow, the least needed first."""


def rankings(
    rows: list[Row], skipped: list[dict[str, str]], baseline: str | None, width: int
) -> Iterator[RenderableType]:
    """A table for each case: rank, median, speed-up over the baseline implementation, peak memory, kernel and error.

    All of them have the columns for which `width` is enough; then a legend, and what was left out.
    """
    if not rows:
        return
    console, tables = Console(width=10_000), []
    groups = dict(_groups(rows))
    samples = {case: {row["extra_info"]["impl"]: _samples(row) for row in group} for case, group in groups.items()}
    pairs = ratios.compared(samples)
    for kept in range(len(DISPENSABLE), -1, -1):
        left_out = DISPENSABLE[: len(DISPENSABLE) - kept]
        tables = [_table(group, pairs[case], skipped, baseline, left_out) for case, group in groups.items()]
        if max(console.measure(table).maximum for table in tables) <= width:
            break
    for case, table in zip(groups, tables, strict=True):
        yield Text(case, style="bold", no_wrap=True, overflow="ignore")
        yield table
    yield _legend({str(column.header) for table in tables for column in table.columns}, baseline)
    if left_out:
        yield Text(f"left out, since the terminal has {width} columns: {', '.join(left_out)}")


def _legend(shown: Collection[str], baseline: str | None) -> Text:
    """A line for each column that needs one."""
    over = PLAIN.get(str(baseline), baseline)
    named = {f"over {baseline}" if name == "over" else name: about.format(over) for name, about in LEGEND.items()}
    lines = [f"{'#':<12} rank, or those possible; 95 % for all of a case at once"]
    lines += [f"{name:<12} {about}" for name, about in named.items() if name in shown]
    if f"over {baseline}" not in shown:
        lines.append(f"no speed-ups: {baseline} was not measured; --baseline NAME takes another")
    return Text("\n".join(lines), style="dim")


def _table(
    group: list[Row],
    pairs: Mapping[tuple[str, str], ratios.Ratio],
    skipped: list[dict[str, str]],
    baseline: str | None,
    left_out: Sequence[str],
) -> Table:
    wrong = {entry["impl"] for entry in skipped if entry["reason"] == "wrong"}
    ranks = ratios.ranks([name for row in group if (name := row["extra_info"]["impl"]) not in wrong], pairs)
    order = sorted(group, key=lambda row: (row["extra_info"]["impl"] in wrong, row["stats"]["median"]))
    of_rows = [row["extra_info"] for row in order]
    columns = {"median": [time_text(row["stats"]["median"]) for row in order]}
    if any(it["impl"] == baseline for it in of_rows):
        columns[f"over {baseline}"] = [_speed_up(pairs.get((str(baseline), it["impl"]))) for it in of_rows]
    columns |= {
        "memory": ["–" if it["peak_bytes"] is None else bytes_text(it["peak_bytes"]) for it in of_rows],
    }
    if any(it.get("documents") or it.get("requests") for it in of_rows):
        columns["tokens/s"] = [f"{it['tokens_per_s']:,.0f}" for it in of_rows]
        columns["padding"] = [f"{it['padding_share']:.0%}" for it in of_rows]
    columns |= {
        "kernel": [str(it["kernel"]) for it in of_rows],
        "error": [f"{it['error']:.1e}" for it in of_rows],
    }
    shown = [name for name in columns if name not in left_out]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("#", justify="right")
    table.add_column("implementation", overflow="fold", min_width=18)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for i, it in enumerate(of_rows):
        name = it["impl"] + (" (wrong elsewhere)" if it["impl"] in wrong else "")
        rank = ratios.rank_text(*ranks[it["impl"]]) if it["impl"] in ranks else "–"
        table.add_row(rank, Text(name), *(Text(columns[column][i]) for column in shown))
    return table


def _speed_up(over: ratios.Ratio | None) -> str:
    """`4.41 (4.32–4.50)`: how many times as fast as the baseline implementation, and the interval; 1 for itself.

    Of a wide interval one end where it excludes 1: `> 3.6`, or `< 0.28`.
    """
    if over is None:
        return "1"
    if math.isnan(over.low):
        return f"{over.value:.2g}" if math.isfinite(over.value) else ""
    if over.wide:
        return f"> {over.low:.2g}" if over.slower else f"< {over.high:.2g}" if over.faster else ratios.NOT_RESOLVED
    digits = _digits((over.high - over.low) / 2)
    return f"{over.value:.{digits}f} ({over.low:.{digits}f}–{over.high:.{digits}f})"


def _digits(half_width: float) -> int:
    """Digits behind the point that say something: up to the first of the half-width, and one more where that is a 1."""
    first = -math.floor(math.log10(half_width)) if half_width > 0 else 3
    wanted = first + 1 if half_width * 10.0**first < 2 else first
    return min(4, max(0, wanted))


def _samples(row: Row) -> ratios.Samples:
    columns = row["extra_info"]
    found = [columns.get(f"sample_{name}") or [] for name in ("rounds", "visits", "processes")]
    data = row["stats"]["data"] if found[0] else []
    return ratios.Samples(data, *found)


def _groups(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["extra_info"]["id"], []).append(row)
    yield from groups.items()
