"""Every export is read back by what it is made for."""

import json
import resource

import pandas as pd
import pytest
import synthetic_runs as synthetic
from conftest import TINY
from pyarrow import parquet

from reports.__main__ import main


def test_parquet_and_csv_hold_every_row(tmp_path, tiny_data):
    both = str(TINY), str(synthetic.save(tiny_data | {"commit_info": {}}, tmp_path, "0001_x"))
    rows = [
        (row["extra_info"]["impl"], row["extra_info"]["id"], row["stats"]["median"]) for row in tiny_data["benchmarks"]
    ]
    for name, read in (("a.parquet", pd.read_parquet), ("a.csv", pd.read_csv)):
        assert main(["export", *both, "-o", str(tmp_path / name)]) == 0
        frame = read(tmp_path / name)
        assert sorted(zip(frame["impl"], frame["id"], frame["median"], strict=True)) == sorted(2 * rows)
        assert frame.groupby("run")["commit"].count().to_dict() == {"0001_x": 0, "tiny": 8}


@pytest.mark.filterwarnings("error")
def test_columns_and_their_types_are_those_of_every_run(tmp_path, results, tiny_data):
    """Whichever values are missing, and without any row."""
    values = {
        "cold_s": 1e-3,
        "operators": 3,
        "window": 8,
        "kernel": "flash",
        "repeats": True,
        "parts_s": {"core": 1e-3},
    }
    for name, found in (("0001_none", dict.fromkeys(values)), ("0002_all", values)):
        for row in tiny_data["benchmarks"]:
            row["extra_info"] |= found
        synthetic.save(tiny_data, results, name)
    tiny_data["benchmarks"][0]["extra_info"] |= dict.fromkeys(values)
    synthetic.save(tiny_data, results, "0003_some")
    synthetic.save(tiny_data | {"benchmarks": []}, results, "0004_empty")
    of_runs = []
    for runs in (["0001"], ["0002"], ["0003"], ["0002", "0004"], ["0004"]):
        file = tmp_path / "x.parquet"
        assert main(["export", *runs, "-o", str(file), "--results", str(results)]) == 0
        of_runs.append({it.name: str(it.type).removeprefix("large_") for it in parquet.read_schema(file)})
    assert of_runs == 5 * of_runs[:1]
    assert [of_runs[0][name] for name in values][:-1] == ["double", "double", "double", "string", "bool"]


@pytest.mark.filterwarnings("error")
def test_lists_and_objects_are_json_in_csv_and_columns_in_parquet(tmp_path, results, tiny_data, printed):
    values = {
        "parts_s": {"core": 1e-3, "around": 2e-3},
        "core_shares": [0.5, 0.25],
        "windows": [None, 7],
        "process_nodes": ["ä"],
    }
    tiny_data["benchmarks"][0]["extra_info"] |= values
    printed(synthetic.save(tiny_data, results, "0001_x"), "--out", tmp_path)
    for file in (tmp_path / "x.csv", tmp_path / "x.parquet"):
        printed("export", "0001_x", "-o", file, "--results", results)
    for file in (tmp_path / "x.csv", tmp_path / "0001_x" / "rows.csv"):
        read = pd.read_csv(file)
        assert {name: json.loads(read[name][0]) for name in values} == values and pd.isna(read["windows"][1])
    (found, *_) = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    parts = {part: seconds for part, seconds in found["parts_s"].items() if seconds is not None}
    assert {name: found[name] for name in values} | {"parts_s": parts} == values


@pytest.mark.parametrize(
    ("values", "why"),
    [(("text", 3), "Conversion failed for column note"), (({}, {}), "Cannot write struct"), ((2**63, -1), "too large")],
)
def test_a_column_that_parquet_cannot_hold_is_one_line(values, why, tmp_path, results, tiny_data, refusal):
    for value, row in zip(values, tiny_data["benchmarks"], strict=False):
        row["extra_info"]["note"] = value
    synthetic.save(tiny_data, results, "0001_x")
    said = refusal("export", "-o", tmp_path / "x.parquet", "--results", results)
    assert "x.parquet: " in said and why in said


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("export -o {}/x.csv", "x.csv"),
        ("export -o {}/x.parquet", "x.parquet"),
        ("history --out {}", "history/points.csv"),
        ("baseline set 0001_x", "baseline.unfinished"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_and_removed(tmp_path, results, tiny_data, refusal, typed, named):
    run = synthetic.save(tiny_data, results, "0001_x")
    arguments = [*typed.format(tmp_path).split(), "--results", results]
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, allowed[1]))  # a file can be made, and nothing written to it
    try:
        said = refusal(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    assert f"/{named}: " in said and "File too large" in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [run]
