"""`--cases FILE`: each format, read from a small file, and the cases that follow from it."""

import json
from contextlib import chdir

import pytest

from bench.selection.errors import UsageError
from bench.selection.options import cases_of, sweep_of
from impls.rules import requests_of
from reports.__main__ import main

from .conftest import run_files


def cases(folder, name, content, **options):
    (folder / name).write_text(content)
    with chdir(folder):
        sweep, device, overrides = sweep_of({"cases": name, "device": "cpu", **options})
        return [*cases_of(sweep, device, overrides)]


def jsonl(*records):
    return "".join(f"{json.dumps(record)}\n" for record in records)


def test_our_own_format_has_axes_each_with_a_value_or_several(tmp_path):
    content = json.dumps([{"T": [64, 128], "H": 4, "sinks": True, "window": None}, {"T": 32, "mask": "none"}])
    assert [it.id for it in cases(tmp_path, "own.json", content)] == [
        "B1-T64-H4-D_h64-float32-cpu-sinks=True",
        "B1-T128-H4-D_h64-float32-cpu-sinks=True",
        "B1-T32-H8-D_h64-float32-cpu-mask=none",
    ]
    assert {it.dtype for it in cases(tmp_path, "own.json", content, dtype="bfloat16")} == {"bfloat16"}


def test_a_record_that_names_a_model_has_its_heads(tmp_path):
    content = json.dumps([{"model": "gpt2", "T": 64}, {"model": ["qwen3-0.6b", "gpt2"], "scope": "core", "T": 32}])
    found = cases(tmp_path, "own.json", content, dtype="float32")
    assert [(it.H, it.H_kv, it.D_h, it.T, it.scope) for it in found] == [
        (12, 12, 64, 64, "layer"), (16, 8, 128, 32, "core"), (12, 12, 64, 32, "core"),
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"^--model gpt3: unknown; known: .*; did you mean gpt2"):
        cases(tmp_path, "own.json", '[{"model": "gpt3"}]')


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mooncake.jsonl", jsonl(*({"timestamp": i, "input_length": 100, "output_length": 50, "hash_ids": [i]} for i in (0, 7)),
                                 {"timestamp": 9, "input_length": 0, "output_length": 5, "hash_ids": []})),
        ("azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,100,50\n2023-11-16 18:15:47.1,0,5\n"),
    ],
)  # fmt: skip
def test_batches_are_drawn_from_lengths_of_requests(name, content, tmp_path, capsys):
    found = cases(tmp_path, name, content)
    assert found == cases(tmp_path, name, content)
    steps = [step for case in found for step in requests_of(case.requests)]
    assert len(steps) == 4 * 8 and len({*steps}) > 16
    assert all(step == (100, 100) or (step[0] == 1 and 100 < step[1] <= 150) for step in steps)
    said = capsys.readouterr().err
    assert "1 × a request without a prompt" in said and ("shared blocks" in said) == (name == "mooncake.jsonl")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('[{"heads": 4}]', "no case has an axis 'heads'; did you mean H?"),
        ('[{"device": "cpu"}]', "cases of a file are for any device: leave it out, and give --device"),
        ('[{"T": -4}]', "T: -4 is not a positive whole number"),
        ('[{"T": []}]', "T has no value"),
        ("[4]", "expected objects of axes"),
        ('[{"T": 4', "not JSON: "),
        ("T,H\n16,2,3\n", "a line has more values than columns"),
        ("nothing\n", "no case that can be measured"),
        ("2q1k\n32q1s1k\n", "no case has an axis '2q1k'"),
        ("input_length\nmany\n", "could not convert string to float: 'many'"),
        ("input_length\n1e400\n", "cannot convert float infinity to integer"),
        (jsonl({"input_length": [4]}, {}), "float"),
        (jsonl({"input_length": 4}, 7), "'int' object has no"),
    ],
)
def test_a_file_without_cases(content, says, tmp_path):
    with pytest.raises(UsageError, match=f"--cases .*: {says}"):
        cases(tmp_path, "x.json", content)
    with pytest.raises(UsageError, match="No such file"):
        sweep_of({"cases": str(tmp_path / "none.json")})


def test_a_run_is_exported_as_the_cases_that_it_was_made_from(in_process, suite, tmp_path):
    pages = {"T": [8, 9], "mode": "decode", "B": 2, "page": 4}
    content = json.dumps([of | {"H": 2, "D_h": 8} for of in (pages, {"requests": "2x3:3+1x1:4"})])
    (tmp_path / "own.json").write_text(content)
    done = suite("--cases", "own.json", "--impl", "fused", "--precision", "0.5", "--benchmark-save=x")
    assert done.returncode == 0, done.stdout
    [file] = run_files(tmp_path)
    assert main(["export", str(file), "--as", "cases", "-o", str(tmp_path / "out.json")]) == 0
    again = (tmp_path / "out.json").read_text()
    assert cases(tmp_path, "again.json", again) == cases(tmp_path, "own.json", content)
