"""`python -m reports export [RUN...] -o FILE`: exports measured rows as Parquet or CSV, or their cases alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from ..judging.rows import rows_of, tidy, to_csv
from ..reading import command
from ..reading.axes import without_defaults
from ..reading.runs import Run, RunError
from .more import PARTS

NESTED = {
    "parts_s": pa.struct(dict.fromkeys(PARTS, pa.float64())),
    "windows": pa.list_(pa.int64()),
    "process_nodes": pa.list_(pa.large_string()),
    **dict.fromkeys(("core_shares", "process_medians"), pa.list_(pa.float64())),
}
"""Types of columns of lists and objects."""


def _to_parquet(frame: pd.DataFrame, file: Path) -> None:
    """Write columns with a type that does not depend on their values (text, if there is none): files of several runs are
    then read as one table.
    """
    found = ((it.name, it.type) for it in pa.Table.from_pandas(frame).schema)
    types = {name: pa.large_string() if pa.types.is_null(of) else of for name, of in found} | NESTED
    parquet.write_table(pa.Table.from_pandas(frame, pa.schema(types)), file)


FORMS: dict[str, Callable[[pd.DataFrame, Path], None]] = {".parquet": _to_parquet, ".csv": to_csv}
"""Functions that write rows, by the file's ending."""


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    suffix = options.output.suffix.lower()
    forms = [*FORMS] if options.kind == "rows" else [".json"]
    if suffix not in forms:
        raise RunError(f"{options.output}: its ending should be one of {', '.join(forms)}")
    chosen = list(command.several(options.runs, command.results(options)))
    if suffix in FORMS:
        try:
            with command.written(options.output):
                FORMS[suffix](rows(chosen), options.output)
        except (ArithmeticError, NotImplementedError, TypeError, ValueError) as error:  # of an edited run file's column
            raise RunError(f"{options.output}: {error.args[-1]}") from None
    else:
        lines = ",\n".join(cases(chosen))
        command.write(options.output, f"[\n{lines}\n]\n")
    print(options.output)
    return command.FINE


def rows(chosen: Sequence[Run]) -> pd.DataFrame:
    """Return rows of several runs, each with `run`, `date`, `commit`, and the machine's `cpu`, `gpu` and `torch`."""
    return pd.concat(
        [
            tidy(rows_of(run)).assign(
                run=label,
                date=run.date or None,
                commit=run.commit_id or None,
                **{key: run.machine.get(key) for key in ("cpu", "gpu", "torch")},
            )
            for run, label in zip(chosen, labels_of(chosen), strict=True)
        ],
        ignore_index=True,
    )


def labels_of(runs: Sequence[Run]) -> list[str]:
    """Return each run's name, with a distinguishing folder if several share it: '0001_x (laptop)'."""
    labels = [_label(run, [it for it in runs if it.name == run.name and it is not run]) for run in runs]
    unique = len(set(labels)) == len(labels)
    return labels if unique else [f"{label} #{i}" for i, label in enumerate(labels, 1)]


def _label(run: Run, namesakes: Sequence[Run]) -> str:
    """Return the name with the first folder, from the file upwards, that differs from those of its namesakes."""
    mine, *others = (it.path.resolve().parts[::-1] for it in (run, *namesakes))
    for depth, folder in enumerate(mine[1:-1], 1):
        if others and folder not in [path[depth] for path in others if depth < len(path)]:
            return f"{run.name} ({folder})"
    return run.name


def cases(chosen: Sequence[Run]) -> Iterable[str]:
    """Return the distinct cases (`without_defaults`) as JSON, for `pytest bench/ --cases FILE`."""
    return dict.fromkeys(json.dumps(without_defaults(row["extra_info"])) for run in chosen for row in run.rows)


def _parser() -> argparse.ArgumentParser:
    description = "Export measured rows for other tools; docs/columns.md of the sources\ndefines the columns."
    parser = command.parser("export", description)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="which runs (default: the newest)")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help=f"file to write: {', '.join(FORMS)} (with --as cases: .json)",
    )
    parser.add_argument(
        "--as",
        dest="kind",
        choices=("rows", "cases"),
        default="rows",
        help="write rows, or the cases of the run in the format of --cases (.json)",
    )
    command.add_results(parser)
    return parser
