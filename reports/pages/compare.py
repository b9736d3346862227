"""`python -m reports compare [BASE] HEAD`: what became slower, larger, or wrong between two saved runs?

`python -m reports compare FILE` shows a comparison saved by `python -m bench ab`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson
from rich.console import Console

from stats.arguments import without_padding
from stats.verdict import as_margin

from ..judging.comparison import Comparison, compare, of_file
from ..reading import baseline_file, command, fingerprint, runs
from ..reading.runs import Run, RunError
from . import comparison_text
from .tables import WIDTH

_EPILOG = """\
BASE and HEAD are named as for `python -m reports`; FILE is a comparison
that `python -m bench ab` saved.

Exit code: 0 nothing regressed; 1 something did (a time that is REGRESSED,
memory beyond the margin, a wrong output, a failure); 2 nothing could be judged
(another machine, machine drift, too few visits); 3 a usage error in the
command. A time is REGRESSED if it is shown to be slower by more than a fifth of
the margin (for runs at least 1 %, for a FILE 0.2 %), and not shown to be within
the margin; SLIGHT if slower and within.
"""


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_intermixed_args(list(arguments))
    this = _comparison(options)
    more = [f"--{name}={it}" for name in ("margin", "results") if (it := getattr(options, name)) is not None]
    named = shlex.join([*filter(None, (options.base, options.head)), *more, *["--force"] * options.force])
    return tell(this, named, options.all, options.json, options.markdown, options.html)


def tell(
    this: Comparison,
    named: str = "",
    whole: bool = False,
    json_file: Path | None = None,
    markdown: Path | None = None,
    html: Path | None = None,
) -> int:
    """Print a comparison, and write the requested files; returns the exit code.

    `named` is the argument of `python -m reports compare` that shows it.

    Raises:
        OSError: a file can't be written.
    """
    if html:
        from . import comparison_page  # matplotlib takes a second to import

        command.write(html, comparison_page.html(this))
    if json_file:
        form = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY  # NaN is null
        command.write(json_file, orjson.dumps(comparison_text.as_data(this), option=form).decode())
    if markdown:
        command.write(markdown, comparison_text.as_markdown(this))
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    with console.capture() as shown:
        console.print(comparison_text.terminal(this, named, whole), crop=False)
    print(without_padding(shown.get()), end="", flush=True)
    return this.exit_code


def _comparison(options: argparse.Namespace) -> Comparison:
    """Return the comparison, without cells if two runs are of different machines; raises `RunError`."""
    if options.base is None:
        try:
            saved = of_file(file := Path(options.head), options.margin)
        except RunError:  # it is a run, unless it lies among the comparisons
            if file.is_file() and file.resolve().parent.name == runs.COMPARISONS:
                raise
        else:
            if given := [f"--{name}" for name in ("force", "results") if getattr(options, name)]:
                raise RunError(f"{options.head} is a comparison, not a run: leave out {given[0]}")
            return saved
    base, head = _base_and_head(options)
    if base.path.resolve() == head.path.resolve():
        raise RunError(f"BASE and HEAD are both {head.name}: name another run")
    found = compare(base, head, *[] if options.margin is None else [options.margin])
    if fingerprint.differing(base, head) and not options.force:
        return replace(found, cells=[], notes=["`--force` shows the numbers, without verdicts"])
    return found


def _base_and_head(options: argparse.Namespace) -> tuple[Run, Run]:
    results = command.results(options)
    head = runs.one(options.head, results)
    if options.base is not None:
        return runs.one(options.base, results), head
    current = baseline_file.read(head.path.parent)
    if current is None:
        raise RunError(f"no BASE given, and {head.path.parent} has no baseline; {baseline_file.HOW_TO_SET_ONE}")
    return runs.read(current.path), head


def _parser() -> argparse.ArgumentParser:
    parser = command.parser("compare", "Compare two saved runs, cell by cell.", _EPILOG)
    parser.add_argument(
        "base", nargs="?", metavar="BASE", help="the older run (default: the baseline of HEAD's machine)"
    )
    parser.add_argument("head", metavar="HEAD", help="the newer run, or a FILE of `python -m bench ab`")
    parser.add_argument(
        "--margin",
        type=as_margin,
        metavar="SHARE",
        help="equivalence margin: smaller changes are UNCHANGED or SLIGHT (default: 0.05; for a FILE its own)",
    )
    parser.add_argument("--all", action="store_true", help="list cells that did not change, too")
    parser.add_argument("--force", action="store_true", help="show runs of different machines too, without verdicts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write a short report as Markdown")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page, which needs no network")
    command.add_results(parser)
    return parser
