"""Every export is read back by what it is made for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import synthetic_runs as synthetic

from reports.__main__ import main

TINY = Path(__file__).parent / "data" / "tiny.json"


def test_parquet_and_csv_hold_every_row(tmp_path: Path, tiny_data: dict[str, Any]) -> None:
    both = str(TINY), str(synthetic.save(tiny_data, tmp_path, "0001_x"))
    rows = [
        (row["extra_info"]["impl"], row["extra_info"]["id"], row["stats"]["median"]) for row in tiny_data["benchmarks"]
    ]
    for name, read in (("a.parquet", pd.read_parquet), ("a.csv", pd.read_csv)):
        assert main(["export", *both, "-o", str(tmp_path / name)]) == 0
        frame = read(tmp_path / name)
        assert sorted(zip(frame["impl"], frame["id"], frame["median"], strict=True)) == sorted(2 * rows)
        assert {"0001_x", "tiny"} == set(frame["run"])
