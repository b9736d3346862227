"""What is right where, by what `check --json` prints."""

import json

import pytest


def found(torch, impl, problem, outcome, detail=None, device="cpu"):
    case = f"B1-T64-H2-D_h64-float32-{device}"
    return {"torch": torch, "impl": impl, "problem": problem, "id": case, "outcome": outcome, "detail": detail}


def test_versions_that_differ_have_a_mark_each(tmp_path, printed):
    old = [
        found("2.11", "a", "x", "passed"),
        found("2.11", "a", "y", "wrong", "off"),
        found("2.11", "b", "y", "error", "no"),
    ]
    new = [found("2.13", "a", "x", "passed"), found("2.13", "a", "y", "passed"), found("2.13", "b", "y", "error", "no")]
    files = [tmp_path / "old.json", tmp_path / "new.json"]
    for file, of_file in zip(files, (old, [*new, found("2.13", "b", "x", "unsupported")]), strict=True):
        file.write_text(json.dumps(of_file))
    *introduction, empty = (lines := printed("conformance", *files).splitlines())[:3]
    assert max(map(len, introduction)) <= 100 and not empty
    assert lines[3:] == [
        "| test problem |  a |  b |",
        "|--------------|---:|---:|",
        "| x            |  ✓ | -· |",
        "| y            | ✗✓ |  ✗ |",
        "",
        "- `a`, y, torch 2.11: wrong: off",
        "- `b`, y, torch 2.11, 2.13: error: no",
    ]


def test_a_gpu_is_beside_the_cpu(tmp_path, printed):
    for device, outcome in (("cpu", "passed"), ("cuda", "error")):
        (tmp_path / f"{device}.json").write_text(json.dumps([found("2.13", "a", "x", outcome, device=device)]))
    lines = printed("conformance", tmp_path / "cpu.json", tmp_path / "cuda.json").splitlines()
    assert lines[0].startswith("torch 2.13, 2.13 on a GPU. ") and lines[5] == "| x            | ✓✗ |"


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"benchmarks": []}',
        '[{"torch": "2.13", "impl": "a", "problem": "x", "outcome": "wrong"}]',
        json.dumps([found(2.13, "a", "x", "passed")]),
    ],
)
def test_a_file_of_another_kind_is_a_one_line_error(text, tmp_path, refusal):
    (tmp_path / "x.json").write_text(text)
    assert "no output of `python -m bench check --json`" in refusal("conformance", tmp_path / "x.json")
