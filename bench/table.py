"""The table at the end of a run: a group for each case, best first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.table import Table

from .units import bytes_text, time_text

Row = dict[str, Any]
"""A benchmark as pytest-benchmark writes it."""


def rankings(rows: list[Row], skipped: list[dict[str, str]], yardstick: str | None) -> Iterator[Table]:
    """A table for each case: median, spread, peak memory, error and speed-up over the yardstick of every row."""
    wrong = {entry["impl"] for entry in skipped if entry["reason"] == "wrong"}
    for case, group in _groups(rows):
        base = next((row["stats"]["median"] for row in group if row["extra_info"]["impl"] == yardstick), None)
        several = any(row["extra_info"].get("processes", 1) > 1 for row in group)
        table = Table(title=case, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("implementation", min_width=20, overflow="fold")
        for name in (
            "median",
            "between processes" if several else "within process",
            "peak memory",
            "kernel",
            "error",
            *([f"over {yardstick}"] if base else []),
        ):
            table.add_column(name, justify="right", no_wrap=True)
        for row in sorted(group, key=lambda row: row["stats"]["median"]):
            stats, columns = row["stats"], row["extra_info"]
            table.add_row(
                columns["impl"] + (" (wrong elsewhere)" if columns["impl"] in wrong else ""),
                time_text(stats["median"]),
                _spread(row),
                bytes_text(columns["peak_bytes"]),
                columns["kernel"],
                f"{columns['error']:.1e}",
                *([f"{base / stats['median']:.2f} x"] if base else []),
            )
        yield table


def _spread(row: Row) -> str:
    """The 95 % interval between processes; of one process, half the interquartile range of its samples."""
    stats, medians = row["stats"], row["extra_info"].get("process_medians", [])
    if len(medians) > 1:
        from reports.verdict import (
            interval,
        )  # scipy takes a second to import, which a run of one process needn't wait for

        if between := interval(medians):
            return " to ".join(map(time_text, between))
    return f"± {stats['iqr'] / 2 / stats['median']:.1%}"


def _groups(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["extra_info"]["id"], []).append(row)
    yield from groups.items()
