"""`python -m reports figure NAME --run RUN -o FILE`: draws one static figure, for a paper or a README."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from ..drawing import figure
from ..drawing.measures import MEASURES
from ..reading import command
from ..reading.runs import Run, RunError
from . import page
from .report import report


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    print(draw(options.name, command.chosen(options.run, options.results), options.output, options.narrow))
    return command.FINE


def draw(name: str, run: Run, path: Path, narrow: bool = False) -> Path:
    """Draw one of MEASURES into `path`, PNG, SVG or PDF by its ending; returns it.

    Raises:
        RunError: it has another ending, or the run has nothing to show in it.
        OSError: `path` can't be written.
    """
    if path.suffix.lower() not in page.METADATA:
        raise RunError(f"{path}: its ending should be one of {', '.join(page.METADATA)}")
    this = report(run)
    with figure.style():
        drawn = figure.draw(name, this.grid, this.palette, run.baseline_impl, narrow)
        if drawn is None:
            of_baseline = name == "speedup" and this.grid.length
            lacks = f"of {run.baseline_impl}" if of_baseline else "at several sizes, as with --T 256,1024"
            raise RunError(f"{run.name} has nothing to draw in {name!r}: it needs correct times {lacks}")
        page.save(drawn, path, source=f"{run.name} {sha256(run.path.read_bytes()).hexdigest()}")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = command.parser("figure", "Draw one figure of a saved run, as PNG, SVG or PDF.")
    parser.add_argument("name", metavar="NAME", choices=MEASURES, help=", ".join(MEASURES))
    command.add_run(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="FILE.png, .svg or .pdf")
    parser.add_argument("--narrow", action="store_true", help="make it as wide as a phone or a column")
    return parser
