"""Summary of a run, printed at its end: table and headline, as `python -m reports` prints them for a saved run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reports.pages import more
from reports.pages.report import report
from reports.reading import runs


def of_run(data: dict[str, Any], every: bool) -> tuple[str, str]:
    """Return table and headline of a run file's contents; with `every`, all cases' tables as well."""
    this = report(runs.checked(json.loads(json.dumps(data)), Path("this run")))
    return more.printed(this, every), this.headline
