"""Panels of a figure, one a setting: lines or names down, what is named beside them, and what is said of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..judging import frame as fr
from ..reading import units, words
from . import anatomy
from .canvas import (
    ALONE,
    LABEL_SIZE,
    MOST_PANELS,
    MOST_PANELS_NARROW,
    NARROW,
    WIDE,
    Panel,
    Sheet,
    inches,
    label_width,
    sheet,
    spread,
    thinned,
)
from .chart import Source
from .palette import INK, MUTED, SURFACE

AXIS_WORDS = {
    "T_kv": ("number of keys", "keys T_kv"),
    "T": ("sequence length", "tokens T"),
    "H": ("heads", "heads H"),
    "threads": ("threads", "threads"),
}


#: An implementation's name, and where its line ends in data coordinates.
End = tuple[str, float, float]


@dataclass(frozen=True)
class Measure:
    """A column as it is drawn: its band, how its values are written, and the base of its ticks."""

    column: str
    title: str
    note: str
    text: Callable[..., str]
    base: int
    band: tuple[str, ...] = ()

    def tick(self, value: float) -> str:
        return units.tick(self.text(value, 4))

    def known(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Rows with a value that a logarithmic axis can show."""
        return frame[frame[self.column] > 0]


LATENCY = Measure("median", "Latency", "median, band from q1 to q3", units.seconds, 10, ("q1", "q3"))


MEMORY = Measure("peak_bytes", "Peak memory", "peak of newly allocated tensors in one call", units.memory, 2)


def panels_of(
    rows: pd.DataFrame,
    narrow: bool,
    without: tuple[str, ...] = (),
    last: str = "dtype",
    needs: Callable[[pd.DataFrame], bool] = lambda part: True,
) -> tuple[list[Panel], str]:
    """A panel for each combination of the axes that vary, less `without`, `last` changing fastest; and a word on
    those left out."""
    axes = sorted((axis for axis in fr.varying(rows) if axis not in without), key=lambda axis: axis == last)
    panels = [Panel(words.title(values), part) for values, part in fr.groups(rows, axes) if needs(part)]
    shown = thinned(panels, MOST_PANELS_NARROW if narrow else MOST_PANELS)
    return shown, f" · {len(shown)} of {len(panels)} settings" if len(shown) < len(panels) else ""


def line_sheet(panels: list[Panel], rows: pd.DataFrame, title: str, note: str, narrow: bool) -> Sheet:
    columns, right = 1 if narrow else 2, label_width(list(rows["impl"])) + 0.37
    height = 2.9 if rows["impl"].nunique() > 6 else 2.3
    width = NARROW if narrow else WIDE if len(panels) > 1 else ALONE
    return sheet(panels, title, note, width=width, columns=columns, height=height, left=0.78, right=right)


def names_down(
    source: Source, panels: list[Panel], rows: pd.DataFrame, title: str, note: str, narrow: bool
) -> tuple[Sheet, list[str]]:
    """A sheet with implementations from top to bottom; returns it and the names, by their y."""
    names = source.palette.sorted(set(rows["impl"]))
    everywhere = constants(rows)
    width = NARROW if narrow else WIDE if len(panels) > 1 else ALONE
    page = sheet(
        panels, title, f"{everywhere} · {note}" if everywhere else note, width=width,
        columns=1 if narrow else _columns(panels), height=0.24 + 0.155 * len(names),
        left=label_width(names) + 0.12, right=0.32,
    )  # fmt: skip
    for index, ax in enumerate(page.axes):
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.set_yticks([])
        for y, name in enumerate(names if page.left(index) else []):
            ax.annotate(
                source.name(name), (0, y), (-5, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                ha="right", va="center", color=INK[0],
            )  # fmt: skip
    return page, names


def _columns(panels: list[Panel]) -> int:
    """As many as T has values, if they fit side by side."""
    points = pd.concat([panel.rows for panel in panels])["T"].nunique()
    return points if 2 <= points <= 4 else min(3, len(panels))


def finish_lines(page: Sheet, index: int, x: str, y: str) -> None:
    ax = page.axes[index]
    ax.grid(True)
    ax.set_xlabel(x if page.bottom(index) else "")
    ax.set_ylabel("")
    if page.left(index):
        ax.set_ylabel(y, labelpad=6)
    else:
        ax.tick_params(labelleft=False)


def finish_names_down(page: Sheet, index: int, x: str) -> None:
    ax = page.axes[index]
    ax.grid(True, axis="x")
    ax.spines["left"].set_visible(False)
    if page.bottom(index):
        ax.set_xlabel(x)


def constants(rows: pd.DataFrame) -> str:
    values = fr.settings(rows)
    said = words.place(values, always=("B", "H", "D_h", "T", "dtype", "mask", "device") if values else ())
    return said


def largest(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["T"] == rows["T"].max()] if rows["T"].notna().any() else rows


def off_the_chart(ax: Axes, y: int, text: str) -> None:
    """The value in words at the right edge, for a point that the axis does not reach."""
    at = ax.get_yaxis_transform()
    ax.text(0.99, y, f"{text} ▸", transform=at, ha="right", va="center", color=INK[0], size=6.5)


def part_panels(
    found: Sequence[anatomy.Pair | anatomy.Compiling], narrow: bool
) -> tuple[list[Panel], pd.DataFrame, str]:
    """A panel for every place and T; all rows; and a word on panels left out."""
    rows = pd.DataFrame([vars(one) for one in found])
    if rows.empty:
        return [], rows, ""
    parts = rows.groupby(["place", "T"], sort=False)
    panels = [Panel(" · ".join(filter(None, (str(place), f"T = {T}"))), part) for (place, T), part in parts]
    shown = thinned(panels, MOST_PANELS_NARROW if narrow else MOST_PANELS)
    return shown, rows, f" · {len(shown)} of {len(panels)} settings" if len(shown) < len(panels) else ""


def name_ends(ax: Axes, ends: list[End], source: Source) -> None:
    """Every name beside the panel behind its marker, level with its line's end or as near as the others allow, tied to it
    by grey dots."""
    width, _ = inches(ax)
    at = _in_panel(ax, ends)
    for (name, _, _), (x, y), level in zip(ends, at, _levels(ax, at), strict=True):
        look = source.palette[name]
        bend, end = 1 + 0.06 / width, 1 + 0.12 / width
        leader = Line2D([x, bend, end], [y, level, level], transform=ax.transAxes, color=MUTED[0], lw=0.7, ls=":")
        leader.set_clip_on(False)
        ax.add_line(leader)
        ax.scatter(
            [1 + 0.19 / width], [level], 22, marker=look.marker, facecolors=look.fill, edgecolors=look.colour,
            linewidths=0.9, transform=ax.transAxes, clip_on=False,
        )  # fmt: skip
        ax.text(
            1 + 0.27 / width, level, source.name(name), transform=ax.transAxes, va="center", color=INK[0],
            size=LABEL_SIZE,
        )  # fmt: skip


def name_stopped(ax: Axes, ends: list[End], source: Source) -> None:
    """The names of lines that end before the others do, each beside its last point."""
    for stop in sorted({x for _, x, _ in ends}):
        here = [end for end in ends if end[1] == stop]
        at = _in_panel(ax, here)
        for (name, _, _), (x, _), level in zip(here, at, _levels(ax, at), strict=True):
            ax.annotate(
                source.name(name), (x, level), (6, 0), xycoords="axes fraction", textcoords="offset points",
                va="center", color=INK[0], bbox={"facecolor": SURFACE[0], "edgecolor": "none", "alpha": 0.8, "pad": 0.6},
                zorder=5,
            )  # fmt: skip


def _in_panel(ax: Axes, ends: list[End]) -> list[tuple[float, float]]:
    """Ends as shares of the panel's width and height."""
    to_panel = ax.transData + ax.transAxes.inverted()
    return [(float(x), float(y)) for x, y in (to_panel.transform((x, y)) for _, x, y in ends)]


def _levels(ax: Axes, at: list[tuple[float, float]]) -> list[float]:
    """Heights for names at these points, none over another."""
    return spread([y for _, y in at], LABEL_SIZE * 1.16 / 72 / inches(ax)[1], 0.0, 1.0)
