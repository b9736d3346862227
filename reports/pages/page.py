"""Writes a run's report: tidy tables, figures, and one self-contained page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from stats import ratios
from stats.arguments import as_typed

from ..drawing import figure, svg, views
from ..drawing.measures import MEASURES
from ..drawing.palette import PATHS, THEME
from ..judging import findings
from ..judging.rows import tidy, to_csv
from ..reading import command, fingerprint, words
from ..reading.axes import labelled
from ..reading.runs import Run
from . import more, tables
from .report import Report
from .tables import escape

METADATA: Mapping[str, Mapping[str, str | None]] = {
    ".png": {},
    ".svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    ".pdf": {"CreationDate": None},
}
"""Metadata of a figure, by its file's ending. No date: equal runs give equal files; and a page has no external address."""


def write(this: Report, folder: Path) -> Path:
    """Write tables, figures and page of one run into `folder`; returns the page's path.

    Raises:
        OSError: the folder can't be made or written to.
    """
    skipped = pd.DataFrame(this.run.skipped, columns=["impl", "id", "reason", "detail"])
    page = save_page(folder, html(this, list(_figures(this, folder))), rows=tidy(this.rows), skipped=skipped)
    command.write(folder / "summary.md", summary(this))
    return page


def save_page(folder: Path, text: str, **frames: pd.DataFrame) -> Path:
    """Write a page and the frames beside it, NAME.csv; returns the page's path. Raises as `write`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        file = folder / f"{name}.csv"
        with command.written(file):
            to_csv(frame, file)
    page = folder / "index.html"
    command.write(page, text)
    return page


def html(this: Report, figures: Sequence[str] = ()) -> str:
    """Return the page. All texts from the run are escaped; only our own SVG, CSS and JavaScript are not. `figures`:
    names of figure files beside it.
    """
    run, keys = this.run, {case.id: f"c{i}" for i, case in enumerate(this.grid.cases)}
    timed = [case for case in this.grid.cases if case.ranked]
    return render(
        "page.html.j2",
        run.wrong,
        title=run.name,
        kicker=[
            run.name,
            run.sweep and f"{run.sweep} sweep",
            run.when,
            fingerprint.line(run.machine),
        ],
        headline=this.headline,
        lead=_lead(this),
        notices=list(notices(this)),
        report=this,
        heat_maps=list(views.heat_maps(this.grid, keys)) if min(len(keys), len(this.grid.impls)) > 1 else [],
        ratios=ratios,
        cases=this.grid.cases,
        keys=keys,
        headings=tables.headings(this.grid)[1:],
        views=views,
        tables=tables,
        first=max(timed, key=lambda case: case.ranked[0].row["median"], default=None),
        lines=list(views.lines(this.grid, this.palette, keys)),
        along=labelled(this.grid.length) if this.grid.length else "",
        inside=more.of_steps(this),
        more=more.tables_of(this),
        styles=this.palette,
        between_processes=findings.between_processes(this.rows),
        skipped=tables.skipped_table(run.skipped),
        machine=run.machine,
        state={**run.state, "commit": run.commit},
        figures=figures,
    )


def _lead(this: Report) -> list[str]:
    """Return how fast the user's own implementations are, and what limits confidence."""
    return [
        *findings.own_results(this.grid, this.run.wrong),
        *[this.trust] * any(case.ranked for case in this.grid.cases),
    ]


def notices(this: Report) -> Iterator[str]:
    """Yield what a reader must know beside the headline."""
    if not this.run.complete:
        resume = f"`pytest bench/ --resume {shlex.quote(this.run.given_name)}` finishes it"
        yield f"This run is not complete: it was stopped before its last cell. {resume}."
    yield from findings.unsteady(this.run)
    yield from findings.faults(this.rows, this.run.skipped)
    yield from (f"{note}." for note in this.run.notes)


def summary(this: Report) -> str:
    """Return headline, grid and all tables as Markdown."""
    run, grid, heads = this.run, this.grid, tables.headings(this.grid)
    lines = filter(None, [this.headline, *_lead(this), *notices(this), this.page_faults])
    parts = [f"# {escape(run.name)}", *map(escape, lines), origin(run)]
    parts += [escape(tables.key(grid)), tables.of_runs(grid)] if len(grid.impls) > 1 else []
    of_cases = (tables.of_case(case, heads) for case in grid.cases)
    every = *of_cases, *more.of_steps(this), *more.tables_of(this), tables.skipped_table(run.skipped)
    parts += [f"## {escape(it.title)}\n\n{tables.in_markdown(it)}" for it in every if it.rows]
    return as_typed("\n\n".join(parts) + "\n", here=False)


def origin(run: Run) -> str:
    """Return a run's machine, date, commit and command as Markdown."""
    commit = f"commit {run.commit_id or 'unknown'}"
    return f"{escape(fingerprint.line(run.machine))} · {run.date[:10]} · {commit} · `{run.command}`"


def render(template: str, wrong: Collection[str] = (), **values: Any) -> str:
    """Render one of our templates, whose commands have no path of this machine; values are escaped, and names of
    `wrong` implementations can be marked.
    """
    return as_typed(_environment().get_template(template).render(wrong=wrong, **values), here=False)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("reports", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "coded": _coded,
        "flat": tables.flat,
        "marked": words.marked,
        "sentence": words.sentence,
        "unbroken": _unbroken,
    }
    environment.globals |= {"kind": svg.kind, "colours": THEME, "paths": PATHS.values()}
    return environment


def _coded(text: str) -> Markup:
    """Escape a text, and mark what is between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(Markup.escape(text))))


def _unbroken(text: str) -> str:
    """Keep numbers on one line with their units, and equations unbroken."""
    found = re.sub(r"(?<=\d) (?=(%|[nµm]?s|[KMGT]?i?B)(?!\w))|(?<=\w) (?==)|(?<==) (?=\w)", "\N{NO-BREAK SPACE}", text)
    return type(text)(found)


def save(drawn: Figure, path: Path, source: str | None = None) -> None:
    """Write one file, of a kind in `METADATA` by its ending; a PNG records the source of its data.

    Raises:
        OSError: it can't be written.
    """
    kind = path.suffix.lower()
    of_png = {"Source": source} if source and kind == ".png" else {}
    with command.written(path):
        drawn.savefig(path, metadata={**METADATA[kind], **of_png})


def _figures(this: Report, folder: Path) -> Iterator[str]:
    """Draw every non-empty figure as PNG and SVG; yields its name."""
    folder.mkdir(parents=True, exist_ok=True)
    with figure.style():
        for name in MEASURES:
            if (drawn := figure.draw(name, this.grid, this.palette, this.run.baseline_impl)) is not None:
                for kind in (".png", ".svg"):
                    save(drawn, folder / f"{name}{kind}")
                yield name
