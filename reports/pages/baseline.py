"""`python -m reports baseline set RUN` and `baseline show`: the run with which later runs are compared."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from stats import conditions
from stats.arguments import as_typed, wrapped

from ..judging.comparison import compare
from ..reading import baseline_file, command, runs
from ..reading.baseline_file import Baseline, Entry
from ..reading.runs import Run, RunError
from .comparison_text import counted, result, sentences

_EPILOG = """\
Only this command changes a baseline. It refuses a run that regressed against
the current one, or can't be compared with it, unless --accept gives a reason,
which history shows.

Exit code: 0 set (or shown); 1 refused; 3 a usage error.
"""

REFUSED = 1


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    return _set(options) if options.what == "set" else _show(options)


def _set(options: argparse.Namespace) -> int:
    """Set the baseline.

    Raises:
        RunError: the run can't be found or read, or is no run of one's own.
        OSError: the results folder can't be written to.
    """
    run = runs.one(options.run, command.results(options))
    folder = run.path.parent
    if not runs.is_numbered(run.path):
        raise RunError(f"{run.path}: a baseline is a saved run, MACHINE/NNNN_NAME.json")
    before = baseline_file.read(folder)
    if before and before.current.run == run.path.name:
        print(f"{run.name} is the baseline already")
        return command.FINE
    objections = list(_objections(run, before))
    if objections and not options.accept:
        refusal = f"{run.name} can't become the baseline: {'; '.join(objections)}"
        return command.complain(f'{refusal}; to accept it: --accept "reason"', REFUSED)
    entry = Entry(run.path.name, datetime.now(UTC).isoformat(timespec="seconds"), tuple(objections), options.accept)
    written = baseline_file.write(Baseline(folder, (*(before.history if before else ()), entry)))
    print(f"{run.name} is the baseline now ({written})")
    if why := conditions.disturbed(run.rows, run.controls):
        print(wrapped(f"note: {why}"))
    return command.FINE


def _objections(run: Run, before: Baseline | None) -> Iterator[str]:
    """Yield objections to a run as the next baseline."""
    if not run.complete:
        yield "it is not complete"
    if before is None:
        return
    try:
        current = runs.read(before.path)
    except RunError:
        yield f"the current one, {before.current.run}, can't be read, so nothing can be compared"
        return
    this = compare(current, run)
    if this.exit_code != command.FINE:
        conclusion, first = result(this), next(sentences(this), "")
        regressed = this.exit_code == command.REGRESSED
        why = [first, counted(this)] if regressed else [this.unjudged or first or counted(this)]
        yield "; ".join(filter(None, [f"{conclusion[:1].lower()}{conclusion[1:]}", *why]))


def _show(options: argparse.Namespace) -> int:
    """Show the baselines.

    Raises:
        RunError: a baseline file can't be read.
    """
    results = command.results(options)
    found = [*filter(None, map(baseline_file.read, sorted(results.glob("*/"))))]
    for baseline in found:
        _print(baseline)
    if not found:
        print(as_typed(f"no baseline in {results} yet; {baseline_file.HOW_TO_SET_ONE}"))
    return command.FINE


def _print(baseline: Baseline) -> None:
    print(baseline.folder.name)
    for entry in reversed(baseline.history):
        mark = "*" if entry is baseline.current else " "
        print(f"  {mark} {entry.at}  {entry.run.removesuffix('.json')}")
        for what in entry.accepted:
            print(f"      accepted: {what}")
        if entry.reason:
            print(f"      because: {entry.reason}")


def _parser() -> argparse.ArgumentParser:
    description = "Set or show the run that later runs are compared with, one per machine."
    parser = command.parser("baseline", description, _EPILOG)
    commands = parser.add_subparsers(prog="python -m reports baseline", dest="what", metavar="set|show", required=True)
    setting = commands.add_parser("set", help="make a saved run the baseline of its machine")
    setting.add_argument("run", metavar="RUN", help="named as for `python -m reports`")
    setting.add_argument("--accept", type=_reason, metavar="REASON", help="why its regressions are accepted")
    showing = commands.add_parser("show", help="print the baselines, the newest first; * is the current one")
    for each in (setting, showing):
        command.add_results(each)
    return parser


def _reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("give a reason in words")
    return " ".join(text.split())
