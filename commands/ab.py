"""`python -m bench ab`: compares two variants, interleaved, saves the measurements, and prints the verdicts."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.ab import ab
from bench.ab.comparison import Unjudgeable
from bench.ab.options import asked, command, parser, spelt
from bench.ab.planning import SameCode
from bench.cases.outcome import Skip
from bench.runs.saving import valid_name
from bench.selection.command import complain
from bench.selection.errors import UsageError
from bench.terminal import warn
from reports.judging import ab_file
from reports.judging.comparison import Comparison
from reports.pages import compare
from reports.reading.runs import RunError

UNJUDGED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 nothing regressed, or both variants have the same code; 1 something regressed in time or
    memory, is broken, or now fails the correctness check; 2 it could not be judged; 3 a usage error.
    """
    options = parser().parse_args(arguments)
    return answered(lambda: _answer(options))


def answered(answer: Callable[[], int]) -> int:
    """Return the exit code of a measuring command; its errors are one line on stderr."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNJUDGED))
    try:
        return answer()
    except (UsageError, RunError) as error:
        return complain(error)
    except (Unjudgeable, Skip) as why:
        warn(f"it could not be judged: {why}")
    except KeyboardInterrupt:
        warn("interrupted; the same command continues")
    return UNJUDGED


def _answer(options: argparse.Namespace) -> int:
    _refuse_ignored(options)
    for path in (options.json, options.markdown):
        _writable(path)
    if options.save is not None:
        options.save = valid_name(options.save, "--save")
    if options.self_test:
        ab.self_test(options)
        return 0
    try:
        saved = ab.measure(options)
    except SameCode as same:
        return compare.tell(unmeasured(same, options), json_file=options.json, markdown=options.markdown)
    code = compare.tell(
        ab_file.comparison(saved), shlex.quote(str(saved)), json_file=options.json, markdown=options.markdown
    )
    print(f"saved: {saved}", flush=True)
    return code


def _refuse_ignored(options: argparse.Namespace) -> None:
    """Raise `UsageError` for options without effect beside --continue or --self-test."""
    if options.to_continue and (given := ", ".join(map(spelt, asked(options)))):
        raise UsageError(f"--continue uses the options of its file: leave out {given}")
    for name in ("save", "json", "markdown"):
        if options.self_test and getattr(options, name):
            raise UsageError(f"--self-test writes its own files: leave out --{name}")


def unmeasured(same: SameCode, options: argparse.Namespace) -> Comparison:
    """Return the comparison of two variants with the same code."""
    return Comparison(
        *same.variants, options.margin, cells=[], notes=[str(same)], machine={}, commands=[command(asked(options))]
    )


def _writable(path: Path | None) -> None:
    """Raise `UsageError` before measuring if a file can't be written."""
    if path is None:
        return
    is_new = not os.path.lexists(path)
    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}") from None
    if is_new:
        path.unlink()
