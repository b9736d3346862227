"""`python -m reports export [RUN...] -o FILE`: measured rows for other tools, as Parquet or CSV."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..judging import frame as fr
from ..reading import command
from ..reading.runs import Run, RunError


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 written; 3 a mistake of the user's, reported in one line on stderr."""
    return command.answered(_answer, _parser().parse_args(arguments))


def _answer(options: argparse.Namespace) -> int:
    write = FORMS.get(options.output.suffix.lower())
    if write is None:
        raise RunError(f"{options.output}: its ending should be one of {', '.join(FORMS)}")
    write(rows(list(command.several(options.runs, command.results(options)))), options.output)
    print(options.output)
    return command.FINE


def rows(chosen: Sequence[Run]) -> pd.DataFrame:
    """The rows of several runs, each with its `run`, `date`, `commit`, and the machine's `cpu`, `gpu` and `torch`."""
    return pd.concat(
        [
            fr.exported(fr.tidy(run)).assign(
                run=run.name, date=run.date, commit=run.commit_id, **{key: run.machine.get(key) for key in _MACHINE}
            )
            for run in chosen
        ],
        ignore_index=True,
    )


_MACHINE = ("cpu", "gpu", "torch")

FORMS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
}
"""By the ending of the file."""


def _parser() -> command.Parser:
    parser = command.Parser(
        prog="python -m reports export",
        description="Measured rows for other tools; docs/columns.md of the sources says what they hold.",
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="which runs (default: the newest)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=f"ends in {', '.join(FORMS)}")
    command.add_results(parser)
    return parser
