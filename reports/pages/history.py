"""`python -m reports history`: finds when implementations became slower; one page for all runs of one machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from stats.arguments import wrapped

from ..judging import series
from ..judging.series import Known, Options, Series
from ..reading import command, runs
from ..reading.runs import Run
from ..reading.words import plural
from . import history_page
from .history_page import History

_EPILOG = """\
Only runs with the machine of the newest run, and with its environment variables
that affect speed, are included; versions of torch and Python may differ. The
page is OUT/history/index.html, which opens from disk and needs no network, with
points.csv in the same folder.

Exit code: 0 written; 3 a usage error.
"""


Confirm = Callable[[Options, Path], str]
"""Compares the commits around a step, and saves the comparison; returns why it can't be done, or ''."""


def main(arguments: Sequence[str], confirm: Confirm) -> int:
    options = _parser().parse_args(arguments)
    results = command.results(options)
    ordered = series.oldest_first(command.newest_first(results))
    same, differs = series.of_one_machine(ordered)
    others = plural(len(ordered) - len(same), "run")
    what = "among these: a step may be the machine's" if options.force else "left out; --force includes them"
    notes = [f"{others} of other machines or environments {what}; the latest differs in {differs}"] * bool(differs)
    for note in notes:
        command.warn(note)
    chosen = ordered if options.force else same
    every, of = series.all_series(chosen), [one.run for one in chosen]
    folder = of[-1].path.parent
    known = series.known_verdicts(folder) if any(one.steps for one in every) else {}
    if options.confirm:
        known = _confirmed(every, of, known, lambda it: confirm(it, results))
    this = History(of, every, notes, known)
    out: Path = options.out or runs.default_out(chosen[-1].run.path)
    written = history_page.write(this, out / "history")
    print(wrapped(" ".join([history_page.headline(this), *history_page.tally(this)])))
    print(written)
    return command.FINE


def _confirmed(every: Sequence[Series], of: Sequence[Run], known: Known, confirm: Callable[[Options], str]) -> Known:
    """Return the known verdicts after confirming every open regression by an interleaved comparison."""
    unconfirmed = list(series.to_confirm(every, of, known))
    if not unconfirmed:
        command.warn("nothing to confirm: no lasting regression between two commits without a conclusive comparison")
    for one in unconfirmed:
        if why := confirm(one):
            base, head = (one[name][:10] for name in ("base", "head"))
            command.warn(f"{base} and {head} can't be compared: {why}")
    return series.known_verdicts(of[-1].path.parent)


def _parser() -> argparse.ArgumentParser:
    description = "Find when cells became slower or faster, over all runs of one machine."
    parser = command.parser("history", description, _EPILOG)
    command.add_results(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the page's folder goes (default: reports/out)")
    parser.add_argument("--force", action="store_true", help="include runs of other machines and environments")
    parser.add_argument("--confirm", action="store_true",
                        help="measure every regression again: `python -m bench ab` on the two commits around it")  # fmt: skip
    return parser
