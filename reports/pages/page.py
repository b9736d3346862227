"""A run's report on disk: tidy tables, figures, and one page that holds everything and loads nothing."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from ..drawing import anatomy, inside, interactive
from ..drawing.canvas import style
from ..drawing.chart import FIRST, NUMBERS, Chart, Source, Spec
from ..drawing.charts import CHARTS
from ..drawing.interactive import Control
from ..drawing.palette import Palette, foremost, themed
from ..judging import advice, answer, controls, findings, processes, published, roofline, scaling
from ..judging import frame as fr
from ..judging.answer import Trust
from ..reading import units, words
from ..reading.command import as_typed
from ..reading.runs import Run, RunError
from . import tables

DPI = 144

#: Nothing about when or by what: the same run gives the same bytes, and the page names no outside address.
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass(frozen=True)
class Report:
    """Everything that is known about a run, computed once and written in several forms."""

    run: Run
    source: Source
    skipped: pd.DataFrame
    findings: list[str]
    advice: dict[str, Any] | None
    """None where nothing can be advised."""
    headline: str
    trust: Trust

    @property
    def frame(self) -> pd.DataFrame:
        return self.source.frame

    @property
    def palette(self) -> Palette:
        return self.source.palette


def report(run: Run) -> Report:
    frame, skipped = fr.tidy(run), fr.skipped(run)
    palette = Palette(run.registry, [*frame["impl"], *skipped["impl"]], foremost(frame, run.baseline_impl))
    found = findings.findings(frame, run.baseline_impl, skipped)
    table: dict[str, Any] | None = None
    try:
        table = advice.advise(frame)
        headline = answer.headline(table["cells"], table["axes"])
    except RunError as error:
        headline = found[0] if frame["median"].isna().all() else f"No answer: {error}."
    trust = answer.trust(run, frame, table["cells"] if table else [])
    source = Source(frame, palette, run.baseline_impl, run)
    return Report(run, source, skipped, [it for it in found if it != headline], table, headline, trust)


def write(run: Run, folder: Path) -> Path:
    """Writes tables, figures and page of one run into `folder`; returns the page's path.

    Raises:
        OSError: the folder can't be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    this = report(run)
    fr.exported(this.frame).to_csv(folder / "rows.csv", index=False)
    this.skipped.to_csv(folder / "skipped.csv", index=False)
    (folder / "summary.md").write_text(_summary(this), encoding="utf-8")
    page = folder / "index.html"
    page.write_text(html(this, list(_figures(this, folder))), encoding="utf-8")
    return page


def html(this: Report, figures: Sequence[Chart] = ()) -> str:
    """The page. Whatever came from the run is escaped; only our own SVG, CSS and JavaScript are not. `figures`: those that
    lie beside it as files."""
    charts = _charts(this.source)
    return rendered(
        "page.html.j2",
        this.run.wrong,
        run=this.run,
        report=this,
        charts={section: [one for one, _ in those] for section, those in charts.items()},
        caption={one.name: one.caption(this.source) for those in charts.values() for one, _ in those},
        **embedded(this.source, {one.name: spec for those in charts.values() for one, spec in those}),
        controls=controls_of(this.source, [one for one, _ in charts[NUMBERS]]),
        columns=advice.COLUMNS,
        cases=_answers(this.advice) if this.advice else [],
        crossings=_crossings(this.advice) if this.advice else [],
        figures=[(chart.name, chart.title) for chart in figures],
        tables=tables.case_tables(this.frame),
        headings=tables.headings(this.frame, this.run.baseline_impl),
        legend=tables.legend(this.frame, this.run.baseline_impl),
        scalings=_scalings(this),
        power=tables.power,
        length=tables.length,
        parts=_parts(this.frame),
        inside=_inside(this),
        calls_compared=findings.calls(this.frame),
        between=processes.between(this.frame) if processes.several(this.frame) else "",
        machine_line=machine_line(this.run.machine),
        looks=controls.looks(this.run.controls),
        skipped=tables.skipped_groups(this.skipped),
        palette=this.palette,
        colours=list(themed().values()),
        cells=len(this.frame),
        machine=dict(flat(this.run.machine)),
        state=dict(flat({**this.run.state, "commit": this.run.commit} if this.run.commit else this.run.state)),
        roofs=roofline.table(this.run.roofs),
        published=published.table(this.frame, this.run.published),
        published_columns=published.COLUMNS,
        published_sources=published.sources(this.frame, this.run.published),
        published_orders=list(published.orders(this.frame, this.run.published)),
        wrong_mark=words.WRONG,
    )


def embedded(
    source: Source, specs: dict[str, Spec], runs: Sequence[str] = (), more: pd.DataFrame | None = None
) -> dict[str, Any]:
    """What the page's own script reads."""
    rows = fr.exported(source.frame) if more is None else more
    return {
        "specs": script(specs),
        "rows": script(interactive.rows(rows)),
        "pair_rows": script(interactive.pairs(source) if not runs else {"over": [], "rows": []}),
        "colour_pairs": script({light: dark for _, light, dark in themed().values()}),
        "vega": vega() if specs else "",
    }


def controls_of(source: Source, numbers: Sequence[Chart], runs: Sequence[str] = ()) -> list[Control]:
    """All that a reader chooses: what `interactive.picker` has, and which of the charts of numbers is shown."""
    shown = [(chart.name, chart.title) for chart in numbers]
    show = [Control("show", "show", shown, shown[0][0])] if len(shown) > 1 else []
    return [*interactive.picker(source, runs), *show]


def _charts(source: Source) -> dict[str, list[tuple[Chart, Spec]]]:
    """By section, the charts that this run has something to show in."""
    made = [(chart, chart.spec(source)) for chart in CHARTS]
    return {
        section: [(chart, spec) for chart, spec in made if spec is not None and chart.section == section]
        for section in (FIRST, NUMBERS)
    }


def _answers(table: dict[str, Any]) -> list[tuple[dict[str, Any], bool, tuple[str, ...]]]:
    """The lines of the table of cases, each with where it stands and whether it is a claim."""
    at = [_at(cell, table["axes"]) for cell in table["cells"]]
    return list(zip(at, map(advice.claimed, table["cells"]), advice.lines(table), strict=True))


def _crossings(table: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Where one overtakes another, and where that holds."""
    found = table["crossovers"]
    return [
        (_at(it, table["axes"]), ": ".join(filter(None, (words.place(it, always=table["axes"]), advice.sentence(it)))))
        for it in found
    ]


def _at(values: Mapping[str, Any], axes: Sequence[str]) -> dict[str, Any]:
    """Where something stands on the axes that vary, less its length: that is what the lines of a table differ in."""
    return {axis: values[axis] for axis in axes if axis in values and axis not in ("T", "T_kv")}


def _summary(this: Report) -> str:
    trust = f"Confidence: {this.trust.word} ({'; '.join(this.trust.reasons)})."
    settle = f"To settle it: {this.trust.command}" if this.trust.command else ""
    said = [text for text in (this.headline, trust, settle, *this.findings) if text]
    cases = list(advice.lines(this.advice)) if this.advice else []
    beside = tables.beside(this.frame, this.run.published)
    return tables.summary(said, cases, this.frame, this.skipped, this.run.name, this.run.baseline_impl, beside)


def rendered(template: str, wrong: Collection[str] = (), **values: Any) -> str:
    """A page from one of our templates, with commands as they are typed here; what is put into it is escaped, and names of
    `wrong` implementations can be marked."""
    environment = Environment(
        loader=PackageLoader("reports", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "plural": words.plural, "seconds": units.seconds, "memory": units.memory, "percent": units.percent,
        "marked": lambda name: words.marked(name, wrong), "json": lambda value: json.dumps(value, ensure_ascii=False),
        "spoken": _spoken, "unbroken": _unbroken,
        "controls_json": lambda controls: script([vars(control) for control in controls]),
    }  # fmt: skip
    environment.tests["at"] = lambda name: name.startswith("at_")
    return as_typed(environment.get_template(template).render(**values))


def _unbroken(text: str) -> str:
    """A number stays on one line with its unit, and with what is equal to it."""
    return re.sub(r"(?<=\d) (?=(%|[nµm]?s|[KMGT]?i?B)(?!\w))|(?<=\w) (?==)|(?<==) (?=\w)", "\N{NO-BREAK SPACE}", text)


def save(figure: Figure, path: Path) -> None:
    """Writes `path`.png and `path`.svg."""
    save_as(figure, path.with_suffix(".png"))
    save_as(figure, path.with_suffix(".svg"))


def save_as(figure: Figure, path: Path, source: str | None = None) -> None:
    """Writes one file, SVG or PNG by its ending; a PNG says from which data it was drawn.

    Raises:
        OSError: it can't be written.
    """
    if path.suffix.lower() == ".svg":
        path.write_text(svg(figure), encoding="utf-8")
    else:
        figure.savefig(path, dpi=DPI, metadata={"Source": source} if source else None)


def svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    return buffer.getvalue()


def inlined(text: str, prefix: str) -> Markup:
    """An SVG file's text as an element of the page: themed by CSS variables, ids made unique by a prefix."""
    body = text[text.index("<svg") :]
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    variables = {light: name for light, (name, _, _) in themed().items()}

    def theme(tag: re.Match[str]) -> str:
        # Only inside tags: a name that looks like a colour or an id is text, where < and > are escaped.
        inner = re.sub(r"#[0-9a-f]{6}\b", lambda m: f"var(--{variables[m[0]]})" if m[0] in variables else m[0], tag[0])
        inner = re.sub(r'((?:\sid=|href=)"#?|url\(#)', rf"\g<1>{prefix}-", inner)
        return re.sub(r'\sxmlns(:\w+)?="[^"]*"|\s(?<=<svg )(?:width|height)="[^"]*"', "", inner)

    body = re.sub(r"<[^>]+>", theme, body)
    body = re.sub(r'^<svg([^>]*?) (?:width|height)="[^"]*"([^>]*?) (?:width|height)="[^"]*"', r"<svg\1\2", body)
    return Markup(re.sub(r"^<svg", '<svg aria-hidden="true" focusable="false"', body))


def _figures(this: Report, folder: Path) -> Iterator[Chart]:
    """Draws every chart that has something to show into two files; yields it."""
    with style():
        for chart in CHARTS:
            if (figure := chart.draw(this.source, False)) is not None:
                save(figure, folder / chart.name)
                yield chart


@dataclass(frozen=True)
class ByLength:
    """A table: `lines` are (implementation, where, the same as axes, texts by T)."""

    title: str
    lines: list[tuple[str, str, dict[str, Any], dict[int, str]]]


#: A part of a layer, and what its table says of it: the number, and after ': ' what it is made of.
_Found = tuple[anatomy.Pair | anatomy.Compiling, str]


def _parts(frame: pd.DataFrame) -> list[ByLength]:
    """What a layer is made of, in the tables that this run has numbers for."""
    s = units.seconds
    cores: list[_Found] = [
        (pair, f"{units.percent(pair.share)}: {s(pair.one)} of {s(pair.other)}") for pair in anatomy.cores(frame)
    ]
    passes: list[_Found] = [
        (pair, f"{units.times(1 / pair.share)}: {s(pair.other)} over {s(pair.one)}") for pair in anatomy.passes(frame)
    ]
    compilings: list[_Found] = [
        (one, f"{_calls(one)}: {_compiled(one)}, then {s(one.compiled)} a call instead of {s(one.eager)}")
        for one in anatomy.compilings(frame)
    ]
    found = {
        "The core as a share of its layer; the rest are the projections": cores,
        "Forward and backward together, over forward": passes,
        "Calls after which compiling has paid, against the eager form": compilings,
    }
    return [_by_length(title, cells) for title, cells in found.items() if cells]


def _inside(this: Report) -> dict[str, Any]:
    """The traced calls by case, and as pictures those whose memory is drawn."""
    found, unread = inside.cells(this.frame, this.run.path.resolve().parent.parent)
    drawn = inside.drawn(found)
    with style():
        curves = {
            (one.impl, one.case): inlined(svg(inside.curve(one, this.palette)), f"held-{i}")
            for i, one in enumerate(found)
            if (one.impl, one.case) in drawn
        }
    calls = [(case.title, [one for one in found if one.case == case.id]) for case in tables.case_tables(this.frame)]
    cases = [(title, ones) for title, ones in calls if ones]
    return {"cases": cases, "unread": unread, "curves": curves, "undrawn": len(found) > len(curves)}


def _compiled(one: anatomy.Compiling) -> str:
    """'compiled in 146 ms, warm cache'"""
    return f"compiled in {units.seconds(one.compile_s)}" + (f", {one.cache} cache" if one.cache else "")


def _calls(one: anatomy.Compiling) -> str:
    if one.tied:
        return "no difference shown"
    return f"{one.pays_after:,} calls" if one.pays_after else "never"


def _by_length(title: str, cells: Sequence[_Found]) -> ByLength:
    texts: dict[tuple[str, str], dict[int, str]] = {}
    at: dict[tuple[str, str], dict[str, Any]] = {}
    for one, text in sorted(cells, key=lambda cell: cell[0].T):
        texts.setdefault((one.impl, one.place), {})[one.T] = text
        at[one.impl, one.place] = {axis: fr.plain(value) for axis, value in one.at.items()}
    return ByLength(title, [(*key, at[key], found) for key, found in texts.items()])


def _scalings(this: Report) -> list[tuple[str, dict[str, Any], list[scaling.Growth]]]:
    """Exponents, by setting in words and as axes; none of where nothing can be said of any implementation."""
    settings: dict[str, list[scaling.Growth]] = {}
    for growth in scaling.growths(this.frame, this.skipped, this.run.machine):
        settings.setdefault(words.place(growth.setting, always=growth.setting), []).append(growth)
    return [
        (setting, {axis: fr.plain(value) for axis, value in growths[0].setting.items()}, growths)
        for setting, growths in settings.items()
        if any(it.tells for it in growths)
    ]


def machine_line(machine: dict[str, Any]) -> str:
    """'AMD EPYC · 2 cores · 24 GiB · torch 2.13.0': what is known of it."""
    found = [machine.get("gpu"), machine.get("cpu"), *(
        text.format(machine[key])
        for key, text in (("cores", "{} cores"), ("memory_gib", "{} GiB"), ("torch", "torch {}"))
        if machine.get(key)
    )]  # fmt: skip
    return " · ".join(str(part) for part in found if part)


def _spoken(value: Any) -> str:
    """A value as JavaScript says it."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def script(value: Any) -> Markup:
    """JSON that can stand in a script element: it can't end one, nor begin a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(
        text.replace("<", "\\u003c").replace(">", "\\u003e").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )


@cache
def vega() -> Markup:
    """Vega, Vega-Lite and vega-embed as one script that defines vegaEmbed: the page loads nothing."""
    return Markup(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested dictionaries as ('outer inner', text) pairs, in order."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key} ")
        else:
            yield f"{prefix}{key}", _text(value)


def _text(value: Any) -> str:
    if value is None or value == "":
        return units.MISSING
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
