"""`python -m reports [RUN...]`: writes a page for one saved run, or for several side by side, and prints its path."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

if not __package__:  # started by path: a package `reports` of the user's must not replace this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    __package__, __spec__ = "reports", find_spec("reports.__main__")

from stats import interrupts
from stats.arguments import as_typed, has_one_command, why, wrapped

from .reading import command, runs
from .reading.command import complain
from .reading.runs import Run, RunError

COMMANDS = {
    "advise": ("commands.advise", "print the fastest implementation of each case of a saved run"),
    "figure": ("reports.pages.figure", "draw one figure for a paper or a README"),
    "export": ("reports.pages.export", "write rows for other tools: Parquet or CSV"),
    "conformance": ("reports.pages.conformance", "print a table of what is correct, from output of check --json"),
    "compare": ("reports.pages.compare", "compare two saved runs: did it get slower?"),
    "baseline": ("reports.pages.baseline", "set or show the run that later runs are compared with"),
    "history": ("commands.history", "find when it got slower, over all runs of this machine"),
    "publish": ("reports.pages.publish", "write docs/results.md and README's figure"),
}
"""Further commands, each with the module whose `main(arguments)` implements it, and its description."""

_EPILOG = """\
RUN is a file; or a name, as pytest-benchmark saves it: x, 0001, 0001_x or
MACHINE/0001_x (the newest where several match); or a glob in quotes ('*_x': all
that match).

One run gets a folder of its own, OUT/<run>/, with index.html (everything, opens
from disk), rows.csv, skipped.csv, summary.md and the figures as PNG and SVG.
Several get one page, OUT/<run>+<run>/, on which they are side by side,
compared with the first.
"""


def main(arguments: Sequence[str]) -> int:
    """Run a command, by default the one that writes a page; returns its exit code, or 3 for a run that can't be read, and a
    file that can't be written, which are one line on stderr.
    """
    given, execute = [*arguments], _report
    if given[:1] == ["report"]:  # its name as an installed command
        del given[0]
    elif given and given[0] in COMMANDS:
        execute = import_module(COMMANDS[given.pop(0)][0]).main
    interrupts.raise_from_now_on()
    try:
        return execute(given)
    except RunError as error:
        return complain(str(error))
    except OSError as error:
        return complain(why(error))


def _report(given: list[str]) -> int:
    options = _parser().parse_intermixed_args(given)
    results = command.results(options)
    chosen = [_compared(run, options.baseline) for run in command.several(options.runs, results)]
    if given := ["-v"] * options.verbose + ["--baseline"] * bool(options.baseline) if len(chosen) > 1 else []:
        raise RunError(f"{given[0]} is for the page of one run: leave it out, or name one")
    _write(chosen, options.out or runs.default_out(chosen[0].path), options)
    return command.FINE


def _compared(run: Run, baseline: str | None) -> Run:
    """Return the run with another baseline implementation. Raises `RunError` if it has no times of that one."""
    measured = dict.fromkeys(row["extra_info"]["impl"] for row in run.rows)
    if baseline and baseline not in measured:
        raise RunError(f"--baseline {baseline}: {run.name} has times of {', '.join(measured) or 'nothing'}")
    return replace(run, baseline_impl=baseline or run.baseline_impl)


def _write(chosen: Sequence[Run], out: Path, options: argparse.Namespace) -> None:
    """Write one page, of a run or of several side by side; print its path, and for one run its text, headline last. Raises
    OSError if the folder can't be written to.
    """
    # pandas takes a second to import: not before names are checked
    from .pages import more, page, side_by_side_page
    from .pages.report import report

    folder = out / (chosen[0].name if len(chosen) == 1 else side_by_side_page.folder_name(chosen))
    if len(chosen) > 1:
        print(side_by_side_page.write(chosen, folder))
        return
    this = report(chosen[0])
    path = page.write(this, folder)
    if options.quiet:
        print(path)
        return
    if this.grid.cases:
        print(f"{more.printed(this, options.verbose)}\n")
    said = [wrapped(as_typed(it)) for it in (*page.notices(this), this.headline)]
    print(*said[:-1], path, said[-1], sep="\n")


def _parser() -> argparse.ArgumentParser:
    others = [f"  {name:<12} {about}" for name, (_, about) in COMMANDS.items()]
    named = [] if has_one_command() else ["Other commands, as `python -m reports NAME --help`:", *others]
    parser = command.parser("", "Make pages, tables and charts of saved runs.", "\n".join([_EPILOG, *named]))
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="runs to report, several on one page (default: the newest)"
    )
    command.add_results(parser)
    parser.add_argument(
        "--baseline", metavar="NAME", help="implementation that speedups are relative to (default: the run's)"
    )
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("-v", "--verbose", action="store_true", help="print every case's table, too")
    printed.add_argument("-q", "--quiet", action="store_true", help="print only the page's path")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where pages go (default: reports/out)")
    return parser


if __name__ == "__main__":
    sys.exit(import_module("commands.shell").run(main, "reports"))
