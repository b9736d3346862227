"""A run's report on disk: tidy tables, figures, and one page that holds everything and loads nothing."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from matplotlib.figure import Figure

from ..drawing import anatomy, charts, inside, interactive
from ..drawing.canvas import style
from ..drawing.palette import Palette, foremost, themed
from ..judging import advice, findings, processes, proofs, roofline, scaling, verdict
from ..judging import frame as fr
from ..reading import units, words
from ..reading.runs import Run, RunError
from . import tables

DPI = 144
PIXELS_PER_INCH = 120  # in the page: a figure of nine inches fills it

#: Figures that the page has as charts to turn; beside it they lie as files.
TURNED = ("latency", "memory", "keys", "keys-memory", "heads", "threads")

#: Figures that stand in the section on what a layer is made of.
OF_PARTS = ("core", "passes", "compiling")

#: Nothing about when or by what: the same run gives the same bytes, and the page names no outside address.
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass(frozen=True)
class Picture:
    """A drawn chart in the page: SVG for wide and for narrow screens, and the finding it shows."""

    name: str
    title: str
    finding: str
    wide: Markup
    narrow: Markup
    width: int  # CSS pixels that the wide one may fill


@dataclass(frozen=True)
class Report:
    """Everything that is known about a run, computed once and written in several forms."""

    run: Run
    frame: pd.DataFrame
    skipped: pd.DataFrame
    palette: Palette
    findings: list[str]


def report(run: Run) -> Report:
    frame, skipped = fr.tidy(run), fr.skipped(run)
    palette = Palette(run.registry, [*frame["impl"], *skipped["impl"]], foremost(frame, run.baseline_impl))
    return Report(run, frame, skipped, palette, findings.findings(frame, run.baseline_impl, skipped))


def write(run: Run, folder: Path) -> Path:
    """Writes tables, figures and page of one run into `folder`; returns the page's path.

    Raises:
        OSError: the folder can't be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    this = report(run)
    fr.exported(this.frame).to_csv(folder / "rows.csv", index=False)
    this.skipped.to_csv(folder / "skipped.csv", index=False)
    summary = tables.summary(this.findings, this.frame, this.skipped, run.name, run.baseline_impl)
    (folder / "summary.md").write_text(summary, encoding="utf-8")
    page = folder / "index.html"
    page.write_text(html(this, list(_pictures(this, folder))), encoding="utf-8")
    return page


def html(this: Report, pictures: list[Picture]) -> str:
    """The page. Whatever came from the run is escaped; only our own SVG, CSS and JavaScript are not."""
    drawn = _interactive(this)
    return template("page.html.j2", this.run.wrong).render(
        run=this.run,
        findings=this.findings,
        finding={name: _finding(name, this) for name in ("latency", "memory") if name in drawn},
        advice=_advice(this),
        charts=drawn,
        specs=script(drawn),
        rows=script(interactive.rows(fr.exported(this.frame))),
        colour_pairs=script({light: dark for _, light, dark in themed().values()}),
        vega=vega() if drawn else "",
        pictures=[picture for picture in pictures if picture.name not in (*TURNED, *OF_PARTS)],
        of_parts=[picture for picture in pictures if picture.name in OF_PARTS],
        files=[(picture.name, picture.title) for picture in pictures],
        cases=tables.case_tables(this.frame),
        headings=tables.headings(this.frame, this.run.baseline_impl),
        legend=tables.legend(this.frame, this.run.baseline_impl),
        scalings=_scalings(this),
        power=tables.power,
        made_of=tables.made_of,
        length=tables.length,
        parts=_parts(this.frame),
        inside=_inside(this),
        calls_compared=proofs.calls(this.frame),
        nearest_roof=findings.roof(this.frame),
        claim=verdict.CLAIM,
        between=processes.several(this.frame),
        machine_line=_machine_line(this.run.machine),
        looks=tables.looks(this.run.controls),
        drift=this.run.controls.get("drift"),
        skipped=tables.skipped_groups(this.skipped),
        palette=this.palette,
        colours=list(themed().values()),
        cells=len(this.frame),
        machine=dict(flat(this.run.machine)),
        state=dict(flat({**this.run.state, "commit": this.run.commit} if this.run.commit else this.run.state)),
        roofs=roofline.table(this.run.roofs),
        wrong_mark=words.WRONG,
        any_wrong=bool(this.run.wrong),
    )


def template(name: str, wrong: Collection[str] = ()) -> Template:
    """One of our templates; whatever is put into it is escaped, and names of `wrong` implementations can be marked."""
    environment = Environment(
        loader=PackageLoader("reports", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"plural": words.plural, "seconds": units.seconds, "memory": units.memory}
    environment.filters |= {"percent": units.percent, "marked": lambda name: words.marked(name, wrong)}
    return environment.get_template(name)


def save(figure: Figure, path: Path) -> str:
    """Writes `path`.png and `path`.svg; returns the SVG's text."""
    save_as(figure, path.with_suffix(".png"))
    save_as(figure, path.with_suffix(".svg"))
    return path.with_suffix(".svg").read_text(encoding="utf-8")


def save_as(figure: Figure, path: Path) -> None:
    """Writes one file, SVG or PNG by its ending.

    Raises:
        OSError: it can't be written.
    """
    if path.suffix.lower() == ".svg":
        path.write_text(svg(figure), encoding="utf-8")
    else:
        figure.savefig(path, dpi=DPI)


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


def _pictures(this: Report, folder: Path) -> Iterator[Picture]:
    source = charts.Source(this.frame, this.palette, this.run.baseline_impl)
    with style():
        for chart in charts.CHARTS:
            wide = chart.draw(source, False)
            if wide is None:
                continue
            text = save(wide, folder / chart.name)
            narrow = chart.draw(source, True)
            assert narrow is not None, f"{chart.name} is drawn wide but not narrow"
            yield Picture(
                name=chart.name,
                title=chart.title,
                finding=_finding(chart.name, this),
                wide=inlined(text, chart.name),
                narrow=inlined(svg(narrow), f"{chart.name}-narrow"),
                width=round(wide.get_figwidth() * PIXELS_PER_INCH),
            )


def _interactive(this: Report) -> dict[str, interactive.Spec]:
    """The charts that this run has something to show in, by name."""
    frame, palette = this.frame, this.palette
    lines = bool(interactive.along(frame[frame["median"] > 0]))
    draw = interactive.explorer if lines else interactive.dots
    latency = draw(frame, palette, interactive.LATENCY)
    made = {
        "latency": latency,
        "memory": draw(frame, palette, interactive.MEMORY, controls=latency is None),
        "roofline": interactive.roofs(frame, palette, this.run.roofs),
        "drift": interactive.drift(tables.seen(this.run.controls)),
    }
    return {name: spec for name, spec in made.items() if spec is not None}


def _advice(this: Report) -> dict[str, Any] | None:
    """What to use, as grids of T and H; None where nothing can be advised."""
    try:
        table = advice.advise(this.frame)
    except RunError:
        return None
    return {**table, "grids": advice.grids(table), "crossings": [
        (words.place(crossing, always=table["axes"]), advice.sentence(crossing)) for crossing in table["crossovers"]
    ]}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A table with a column for every T: `lines` are (implementation, where, cells)."""

    title: str
    T: list[int]
    lines: list[tuple[str, str, list[str]]]


#: A part of a layer, and what its table says of it: the number, and after ': ' what it is made of.
_Told = tuple[anatomy.Pair | anatomy.Compiling, str]


def _parts(frame: pd.DataFrame) -> list[Grid]:
    """What a layer is made of, in the tables that this run has numbers for."""
    s = units.seconds
    cores: list[_Told] = [
        (pair, f"{units.percent(pair.share)}: {s(pair.one)} of {s(pair.other)}") for pair in anatomy.cores(frame)
    ]
    passes: list[_Told] = [
        (pair, f"{units.times(1 / pair.share)}: {s(pair.other)} over {s(pair.one)}") for pair in anatomy.passes(frame)
    ]
    compilings: list[_Told] = [
        (
            one,
            f"{_calls(one)}: {f'{s(one.compile_s)} {one.cache}'.strip()}, then {s(one.compiled)} for {s(one.eager)}",
        )
        for one in anatomy.compilings(frame)
    ]
    told = {
        "The core as a share of its layer; the rest are the projections": cores,
        "Forward and backward together, over forward": passes,
        "Calls after which compiling has paid, against the eager form": compilings,
    }
    return [_grid(title, cells) for title, cells in told.items() if cells]


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


def _calls(one: anatomy.Compiling) -> str:
    if one.tied:
        return "no difference shown"
    return f"{one.pays_after:,} calls" if one.pays_after else "never"


def _grid(title: str, cells: Sequence[_Told]) -> Grid:
    T = sorted({one.T for one, _ in cells})
    texts = {(one.impl, one.place, one.T): text for one, text in cells}
    lines = dict.fromkeys((impl, place) for impl, place, _ in texts)
    return Grid(title, T, [(i, p, [texts.get((i, p, t), units.MISSING) for t in T]) for i, p in lines])


def _scalings(this: Report) -> list[tuple[str, list[scaling.Growth]]]:
    """Exponents, by setting; none of where nothing can be said of any implementation."""
    settings: dict[str, list[scaling.Growth]] = {}
    for growth in scaling.growths(this.frame, this.skipped, this.run.machine):
        settings.setdefault(words.place(growth.setting, always=growth.setting), []).append(growth)
    return [(setting, growths) for setting, growths in settings.items() if any(it.tells for it in growths)]


def _machine_line(machine: dict[str, Any]) -> str:
    """'AMD EPYC · 2 cores · 24 GiB · torch 2.13.0': what is known of it."""
    told = [machine.get("gpu"), machine.get("cpu"), *(
        text.format(machine[key])
        for key, text in (("cores", "{} cores"), ("memory_gib", "{} GiB"), ("torch", "torch {}"))
        if machine.get(key)
    )]  # fmt: skip
    return " · ".join(str(part) for part in told if part)


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


def _finding(name: str, this: Report) -> str:
    """What a chart shows, for its caption and for those who can't see it; its title where nothing of it is shown to be so."""
    usable = fr.own_keys_unsaid(this.frame.dropna(subset=["median"]))
    sentences: dict[str, Callable[[], str]] = {
        "latency": lambda: findings.growth(usable, "T") or [*findings.places(usable), findings.undecided(usable)][0],
        "memory": lambda: findings.lean(usable) or "Peak memory of each implementation.",
        "speedup": lambda: findings.gain(usable, this.run.baseline_impl),
        "latency-against-memory": lambda: findings.unbeaten(usable),
        "dtype": lambda: findings.dtypes(usable),
        "keys": lambda: findings.growth(usable, "T_kv"),
        "keys-memory": lambda: findings.lean(usable),
        "heads": lambda: findings.growth(usable, "H"),
        "threads": lambda: findings.growth(usable, "threads"),
        "core": lambda: _span(anatomy.cores(this.frame), "The core is", "of its layer"),
        "passes": lambda: _span(anatomy.passes(this.frame), "Forward is", "of both together"),
        "compiling": lambda: _paid(anatomy.compilings(this.frame)),
    }
    return sentences[name]() or f"{next(chart.title for chart in charts.CHARTS if chart.name == name)}, by medians."


def _span(pairs: Sequence[anatomy.Pair], what: str, whole: str) -> str:
    """'The core is 12.0 % to 80.1 % of its layer.', of those shown to be less or more."""
    shares = [pair.share for pair in pairs if pair.shown]
    return f"{what} {units.percent(min(shares))} to {units.percent(max(shares))} {whole}." if shares else ""


def _paid(found: Sequence[anatomy.Compiling]) -> str:
    """How often compiling pays, and how soon."""
    paid = sorted(one.pays_after for one in found if one.pays_after and not one.tied)
    if not paid:
        return ""
    first, last = f"{paid[0]:,}", f"{paid[-1]:,}"
    calls = first if first == last else f"{first} to {last}"
    return f"Compiling pays in {len(paid)} of {words.plural(len(found), 'compiled cell')}, after {calls} calls."


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
