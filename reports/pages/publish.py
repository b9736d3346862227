"""`python -m reports publish [RUN...]`: keeps runs in results/published/, updates docs/results.md and a figure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from .. import CHECKOUT
from ..reading import command, runs
from ..reading.runs import Run
from . import figure, more, page, tables
from .report import report
from .tables import escape, paragraph

PUBLISHED = CHECKOUT / "results" / runs.PUBLISHED
PAGE = CHECKOUT / "docs" / "results.md"
FIGURE = CHECKOUT / "docs" / "latency.png"
"""Figure of the newest run of `length`."""

UNREAD = ("sample_times", "sample_fastest")
"""Columns that no page uses, half of a file's size."""

INTRODUCTION = """\
# Results

`python -m reports publish` writes this page from the runs in `results/published/`; a test compares
them. These are ranks on one machine: yours will rank implementations differently. Tables show the
slowdown over the fastest: 1 is the fastest; \\* fastest or tied; ~ not resolved; – unsupported,
(n/m) mean over n of m cases."""


def main(arguments: Sequence[str]) -> int:
    parser = command.parser("publish", "Write docs/results.md and README's figure from results/published/.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="which runs to keep there first (default: none)")
    command.add_results(parser)
    options = parser.parse_args(arguments)
    for name in options.runs:
        print(_keep(runs.one(name, command.results(options))))
    command.write(PAGE, text(PUBLISHED))
    print(PAGE)
    for newest in sorted(PUBLISHED.glob("*_length.json"))[-1:]:
        print(figure.draw("latency", runs.read(newest), FIGURE, narrow=True))
    return command.FINE


def _keep(run: Run) -> Path:
    """Copy a run under the next number, without `UNREAD`, and with six digits of every number."""
    numbers = [int(path.name[:4]) for path in PUBLISHED.glob("[0-9][0-9][0-9][0-9]_*.json")]
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    path = PUBLISHED / f"{max(numbers, default=0) + 1:04}_{run.name.partition('_')[2]}.json"
    data = json.loads(run.path.read_bytes(), object_hook=_shortened, parse_float=lambda it: float(f"{float(it):.6g}"))
    data["command"] = re.sub(r"\S+/bench(?=\s|$)", "bench/", data["command"])  # independent of the checkout's location
    with command.written(path):
        path.write_bytes(orjson.dumps(data) + b"\n")
    return path


def _shortened(values: dict[str, Any]) -> dict[str, Any]:
    return {key: it for key, it in values.items() if key not in UNREAD}


def text(folder: Path) -> str:
    """Return the page as Markdown: headline, confidence and tables of every run."""
    found = map(runs.read, sorted(folder.glob("*.json")))
    return "\n\n".join([INTRODUCTION, *(part for run in found for part in _section(run))]) + "\n"


def _section(run: Run) -> Iterator[str]:
    this = report(run)
    yield f"## {escape(run.sweep or run.name)}"
    yield paragraph(f"**{escape(this.headline)}**")
    yield from (paragraph(escape(notice)) for notice in page.notices(this))
    yield paragraph(escape(this.trust))
    yield paragraph(page.origin(run))
    yield tables.of_runs(this.grid)
    if (beside := more.published(this)).rows:
        yield f"### {beside.title}"
        yield tables.in_markdown(beside)
