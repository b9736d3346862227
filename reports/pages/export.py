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
                run=label, date=run.date, commit=run.commit_id, **{key: run.machine.get(key) for key in _MACHINE}
            )
            for run, label in zip(chosen, labels_of(chosen), strict=True)
        ],
        ignore_index=True,
    )


def labels_of(runs: Sequence[Run]) -> list[str]:
    """Each run's name; where several have one name, with the folder that tells them apart: '0001_x (laptop)'."""
    labels = [_label(run, [other for other in runs if other.name == run.name]) for run in runs]
    unique = len(set(labels)) == len(labels)
    return labels if unique else [f"{label} #{i}" for i, label in enumerate(labels, 1)]


def _label(run: Run, namesakes: Sequence[Run]) -> str:
    """The name, and from the file upwards the first folder that no run of the same name has in this place."""
    mine, *others = (other.path.resolve().parts[::-1] for other in (run, *(o for o in namesakes if o is not run)))
    for depth, folder in enumerate(mine[1:-1], 1):
        if others and folder not in [path[depth] for path in others if depth < len(path)]:
            return f"{run.name} ({folder})"
    return run.name


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
