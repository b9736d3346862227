"""`python -m reports history`, with measurements for `--confirm`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from reports.judging.confirmations import Asked
from reports.pages import history


def main(arguments: Sequence[str]) -> int:
    return history.main(arguments, confirm)


def confirm(asked: Asked, results: Path) -> str:
    """Compare the commits around a step, and save the comparison; returns why it can't be done, or ''."""
    from bench.ab import ab  # imports torch, on which reports does not depend
    from bench.ab.comparison import Unjudgeable
    from bench.ab.options import defaults
    from bench.ab.planning import SameCode
    from bench.cases.outcome import Skip
    from bench.selection.errors import UsageError

    options = asked.options()
    try:
        options["threads"] = int(options.get("threads", 1))
    except ValueError:
        return f"{options['threads']} threads: a comparison has one number of them"
    try:
        ab.measure(Namespace(**defaults() | options), results)
    except (UsageError, Unjudgeable, Skip, SameCode) as why:
        return str(why)
    return ""
