"""`python -m reports history`, with measurements for `--confirm`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from reports.judging.series import Options
from reports.pages import history


def main(arguments: Sequence[str]) -> int:
    return history.main(arguments, confirm)


def confirm(step: Options, results: Path) -> str:
    """Compare the commits around a step, and save the comparison; returns why it can't be done, or ''."""
    from bench.ab import ab  # imports torch, on which reports does not depend
    from bench.cases.outcome import Skip
    from bench.selection.errors import UsageError

    try:
        cases = ab.comparisons(results) / f"cases-{ab.digest(step['cases'])}.json"
        cases.write_text(json.dumps(step["cases"]), encoding="utf-8")  # kept, for --continue
        ab.measure({**step, "cases": str(cases.resolve())}, results)
    except (UsageError, Skip) as why:
        return str(why)
    return ""
