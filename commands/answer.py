"""What a run prints at its end: its table and its answer, as `python -m reports` prints them of the saved run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reports.pages import more
from reports.pages.report import report
from reports.reading import runs


def of_run(data: dict[str, Any], every: bool) -> tuple[str, str]:
    """Table and headline of what a run file holds; with `every`, all cases' tables as well."""
    this = report(runs.checked(json.loads(json.dumps(data)), Path("this run")))
    return more.printed(this, every), this.headline
