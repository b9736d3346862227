"""`python -m reports export [RUN...] -o FILE`: measured rows in the forms that other tools read."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..judging import frame as fr
from ..reading import command
from ..reading.axes import axis_names
from ..reading.runs import Run, RunError

METRICS = {
    "seconds": ("median", "seconds", "Median time of a call."),
    "ratio": ("ratio", "", "Time over that of the baseline implementation in the same rounds."),
    "ratio_low": ("ratio_low", "", "Lower end of its 95 % interval."),
    "ratio_high": ("ratio_high", "", "Upper end of its 95 % interval."),
    "peak_bytes": ("peak_bytes", "bytes", "Peak of newly allocated tensor memory in a call."),
    "error": ("error", "", "Relative error against the float64 reference."),
}
"""What a monitor gets of a row: a metric's column, unit and help."""


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 written; 3 a mistake of the user's, reported in one line on stderr."""
    return command.answered(_answer, _parser().parse_args(arguments))


def _answer(options: argparse.Namespace) -> int:
    form = options.form or FORM_OF.get(options.output.suffix.lower())
    if form is None:
        raise RunError(f"{options.output}: its ending tells no form ({', '.join(FORM_OF)}); name one by --as")
    chosen = list(command.several(options.runs, command.results(options)))
    options.output.write_bytes(FORMS[form](chosen))
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


def _parquet(chosen: Sequence[Run]) -> bytes:
    return rows(chosen).to_parquet(index=False)


def _csv(chosen: Sequence[Run]) -> bytes:
    return rows(chosen).to_csv(index=False).encode()


def _openmetrics(chosen: Sequence[Run]) -> bytes:
    """Gauges with implementation, case, its axes, run and commit as labels (OpenMetrics 1.0, text)."""
    found = rows(chosen)
    return ("\n".join(line for name in METRICS for line in _metric(name, found)) + "\n# EOF\n").encode()


def _metric(name: str, found: pd.DataFrame) -> Iterator[str]:
    column, unit, help_text = METRICS[name]
    yield f"# TYPE attention_bench_{name} gauge"
    if unit:
        yield f"# UNIT attention_bench_{name} {unit}"
    yield f"# HELP attention_bench_{name} {help_text}"
    for row in found.to_dict("records"):
        if math.isfinite(value := row.get(column, math.nan)):
            yield f"attention_bench_{name}{{{_labels(row)}}} {value!r}"


def _labels(row: dict[Any, Any]) -> str:
    named = {key: row.get(key) for key in ("impl", "id", "run", "commit", "cpu", "gpu", *axis_names())}
    return ",".join(f'{key}="{_escaped(str(value))}"' for key, value in named.items() if not _missing(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _hud(chosen: Sequence[Run]) -> bytes:
    """A record a row and metric, as PyTorch's benchmark database takes them: `benchmark`, `model`, `metric`."""
    records = [
        {
            "benchmark": {
                "name": "attention-bench",
                "mode": row["mode"],
                "dtype": row["dtype"],
                "extra_info": {key: row.get(key) for key in ("run", "date", "commit", *_MACHINE)},
            },
            "model": {"name": row["id"], "type": "attention", "backend": row["impl"]},
            "metric": {"name": name, "benchmark_values": [row[column]]},
        }
        for row in rows(chosen).to_dict("records")
        for name, (column, _, _) in METRICS.items()
        if math.isfinite(row.get(column, math.nan))
    ]
    return json.dumps(records, indent=1).encode()


def _badge(chosen: Sequence[Run]) -> bytes:
    """A badge's endpoint (schema 1 of shields.io): how many implementations were proved, and whether any failed."""
    right = {row["extra_info"]["impl"] for run in chosen for row in run.rows}
    wrong = set().union(*(run.wrong for run in chosen))
    message = f"{len(right - wrong)} implementations proved" + (f", {len(wrong)} wrong" if wrong else "")
    colour = "red" if wrong else "brightgreen"
    return json.dumps({"schemaVersion": 1, "label": "attention-bench", "message": message, "color": colour}).encode()


FORMS: dict[str, Callable[[Sequence[Run]], bytes]] = {
    "parquet": _parquet,
    "csv": _csv,
    "openmetrics": _openmetrics,
    "hud": _hud,
    "badge": _badge,
}

FORM_OF = {".parquet": "parquet", ".csv": "csv", ".prom": "openmetrics"}
"""By the ending of the file; JSON may be either of two."""


def _parser() -> command.Parser:
    parser = command.Parser(
        prog="python -m reports export",
        description="Measured rows for other tools; docs/columns.md of the sources says what they hold.",
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="which runs (default: the newest)")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help=f"ends in {', '.join(FORM_OF)}"
    )
    parser.add_argument(
        "--as", dest="form", choices=FORMS,
        help="the format, where the ending of FILE doesn't tell; hud: records of PyTorch's benchmark database; "
             "badge: what shields.io draws a badge from",
    )  # fmt: skip
    command.add_results(parser)
    return parser
