"""`python -m bench ab`: compares two variants, interleaved, saves the measurements, and prints the verdicts."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence, Set
from functools import partial
from pathlib import Path

from bench.ab import ab
from bench.ab.options import EACH_TIME, command, parser
from bench.ab.plan import SameCode
from bench.cases.outcome import Skip
from bench.runs.saving import valid_name
from bench.selection.errors import UsageError
from bench.selection.options import spelt
from bench.terminal import complain, warn
from reports.judging.comparison import Comparison, of_file
from reports.pages import compare
from reports.reading.command import NOT_JUDGED
from reports.reading.runs import RunError


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0 nothing regressed, or both variants have the same code; 1 something regressed in time or
    memory, is broken, or now fails the correctness check; 2 it could not be judged; 3 a usage error.
    """
    typed = {word.partition("=")[0] for word in arguments}
    return exit_code_of(partial(_execute, typed=typed), parser().parse_args(arguments))


def exit_code_of(execute: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Return the exit code of a measuring command; its errors are one line on stderr. Ctrl-C and SIGTERM raise
    KeyboardInterrupt with a sentence for the user.
    """
    try:
        return execute(options)
    except (UsageError, RunError) as error:
        return complain(error)
    except OSError as error:
        if error.filename is None:  # of standard output
            raise
        return complain(f"{error.filename2 or error.filename}: {error.strerror}")  # of a copy, the new file
    except Skip as why:
        warn(f"it could not be judged: {why}")
        return NOT_JUDGED
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; the same command continues") from None


def _execute(options: argparse.Namespace, typed: Set[str]) -> int:
    _refuse_ignored(options, typed)
    if options.to_continue:
        of_file(options.to_continue)  # raises RunError for a file that was edited
    for path in filter(None, (options.json, options.markdown)):
        _refuse_unwritable(path)
    if options.save is not None:
        options.save = valid_name(options.save, "--save")
    if options.self_test:
        ab.self_test(options)
        return 0
    tell = partial(compare.tell, json_file=options.json, markdown=options.markdown)
    try:
        saved = ab.measure(vars(options))
    except SameCode as same:
        notes, commands = [str(same)], [command(options)]
        empty = Comparison(*same.labels, options.margin, [], notes, machine={}, commands=commands, implementations={})
        return tell(empty)
    code = tell(of_file(saved), shlex.quote(str(saved)))
    print(f"saved: {saved}", flush=True)
    return code


def _refuse_ignored(options: argparse.Namespace, typed: Set[str]) -> None:
    """Raise `UsageError` for options without effect beside --continue or --self-test."""
    given = [option for name in vars(options) if name not in EACH_TIME and (option := spelt(name)) in typed]
    if options.to_continue and given:
        raise UsageError(f"--continue uses the options of its file: leave out {', '.join(given)}")
    for name in ("save", "json", "markdown"):
        if options.self_test and getattr(options, name):
            raise UsageError(f"--self-test writes its own files: leave out --{name}")


def _refuse_unwritable(path: Path) -> None:
    """Raise `UsageError` before measuring if a file can't be written."""
    is_new = not os.path.lexists(path)
    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}") from None
    if is_new:
        path.unlink()
