"""The table at the end of a run: a group for each case, best first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from reports.judging import verdict

from ..cases.units import bytes_text, time_text

Row = dict[str, Any]
"""A benchmark as pytest-benchmark writes it."""


WIDE = 90
"""Columns of a terminal that has room for errors too."""


def rankings(
    rows: list[Row], skipped: list[dict[str, str]], baseline: str | None, width: int = WIDE
) -> Iterator[Table]:
    """A table for each case: place, median, speed-up over the baseline implementation, peak memory, kernel and error."""
    wrong = {entry["impl"] for entry in skipped if entry["reason"] == "wrong"}
    for case, group in _groups(rows):
        based = any(row["extra_info"]["impl"] == baseline for row in group)
        packed = group[0]["extra_info"].get("documents") is not None
        places = verdict.places({row["extra_info"]["impl"]: _samples(row) for row in group})
        table = Table(
            title=Text(case),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        table.add_column("", justify="right")
        table.add_column("implementation", overflow="fold", min_width=18)
        for name in (
            "median",
            *([f"over {baseline}"] if based else []),
            "peak memory",
            *(["tokens/s", "padding"] if packed else []),
            *(["kernel"] if width >= WIDE or not packed else []),
            *(["error"] if width >= WIDE else []),
        ):
            table.add_column(name, justify="right", no_wrap=True)
        order = sorted(group, key=lambda row: (places[row["extra_info"]["impl"]], row["stats"]["median"]))
        for row in order:
            columns = row["extra_info"]
            table.add_row(
                str(places[columns["impl"]]),
                Text(columns["impl"] + (" (wrong elsewhere)" if columns["impl"] in wrong else "")),
                time_text(row["stats"]["median"]),
                *([_speed_up(columns, baseline)] if based else []),
                bytes_text(columns["peak_bytes"]),
                *([f"{columns['tokens_per_s']:,.0f}", f"{columns['padding_share']:.0%}"] if packed else []),
                *([Text(columns["kernel"])] if width >= WIDE or not packed else []),
                *([f"{columns['error']:.1e}"] if width >= WIDE else []),
            )
        yield table


def _speed_up(columns: dict[str, Any], baseline: str | None) -> str:
    """`4.41 (4.32–4.50)`: how many times as fast as the baseline implementation, with the 95 % interval."""
    ratio, low, high = (columns.get(name) for name in ("ratio", "ratio_low", "ratio_high"))
    if ratio is None:
        return ""
    if columns["impl"] == baseline:
        return "1"
    if low is None or high is None:
        return f"{1 / ratio:.2g}"
    digits = _digits((1 / low - 1 / high) / 2)
    return f"{1 / ratio:.{digits}f} ({1 / high:.{digits}f}–{1 / low:.{digits}f})"


def _digits(half_width: float) -> int:
    """Digits behind the point that say something: up to the first of the half-width, and one more where that is a 1."""
    first = -math.floor(math.log10(half_width)) if half_width > 0 else 3
    wanted = first + 1 if half_width * 10.0**first < 2 else first
    return min(4, max(0, wanted))


def _samples(row: Row) -> verdict.Samples:
    columns = row["extra_info"]
    found = [columns.get(f"sample_{name}") or [] for name in ("rounds", "visits", "processes")]
    data = row["stats"]["data"] if found[0] else []
    return verdict.Samples(data, *found)


def _groups(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["extra_info"]["id"], []).append(row)
    yield from groups.items()
