"""Advice, against the raw rows it is made from."""

import json

import pytest
import synthetic_runs as synthetic

from reports.judging import advice
from reports.judging.rows import rows_of
from reports.reading.axes import AXIS_NAMES


def advised(run, asked=None):
    rows, asked = rows_of(run), asked or {}
    return advice.advise(rows, advice.narrowed(rows, asked), asked, run)


def test_without_significant_differences_the_smallest_median_is_chosen(as_run):
    """Where cells were timed one after the other, in one process."""
    data = synthetic.by_length({"sdpa": 1e-3, "fused": 2e-3})
    for row in data["benchmarks"]:
        synthetic.sampled(row, [row["stats"]["median"]], 1)
    told = advised(as_run(data))["cells"]
    assert [(it["fastest"], it["median"], it["standing"], it["ties"]) for it in told] == [
        ("sdpa", 64e-3, None, []), ("sdpa", 256e-3, None, []),
    ]  # fmt: skip


def test_decode_at_a_length_is_one_token_against_a_cache_of_that_length(as_run):
    """As measured by `pytest bench/ --mode decode --T 64`, not several tokens with a cache of that length."""
    cases = [synthetic.case(T=T, T_kv=T_kv, mode="decode") for T, T_kv in ((1, 64), (1, 256), (4, 256))]
    cases.append(synthetic.case(T=64))
    rows = [synthetic.row("a", case, [1e-3]) for case in cases]
    run = as_run(synthetic.document(rows, registry=["a"]))
    for asked, found in (({"T": 64}, (1, 64)), ({"T": 4, "T_kv": 256}, (4, 256))):
        told = advised(run, advice.with_cache_length({"mode": "decode", **asked}))
        assert [(cell["T"], cell["T_kv"]) for cell in told["cells"]] == [found]


def test_a_kernel_that_was_wrong_is_named_and_never_advised(as_run, tiny_data):
    """Wrong in some of its cases, then in all."""
    packed = [row for row in tiny_data["benchmarks"] if row["extra_info"]["impl"] == "packed"]
    for gone in ([], packed):
        tiny_data["benchmarks"] = [row for row in tiny_data["benchmarks"] if row not in gone]
        table = advised(as_run(tiny_data))
        assert table["left_out"] == ["packed"] and "packed" not in str(table["cells"])


def test_an_older_run_is_used_for_cases_missing_in_the_newest(tmp_path, printed):
    for name, T in (("0001_long", 512), ("0002_short", 64), ("0003_cut", 512)):
        synthetic.save(synthetic.by_length({"sdpa": 1e-3, "fused": 2e-3}, (T,)), tmp_path, name)
    next(tmp_path.glob("*/0003_cut.json")).write_text("{")
    for T, run in ((512, "0001_long"), (64, "0002_short")):
        assert printed("advise", "--results", tmp_path, "--T", T).startswith(f"from run {run} of 2026-11-20\n")


LLAMA = {"H": 32, "H_kv": 8, "D_h": 128, "D_v": 128, "d_model": 4096, "dtype": "bfloat16"}
GEMMA = {"H": 8, "H_kv": 4, "D_h": 256, "D_v": 256, "d_model": 2560, "dtype": "bfloat16"}


def of_models(as_run, *cases):
    """A run in which `fused` is the fastest of llama's cases, `sdpa` of the others."""
    rows = [
        synthetic.row(name, synthetic.case(**axes), [time])
        for axes in cases
        for name, time in (("fused", 1e-3), ("sdpa", 2e-3 if axes["H"] == 32 else 5e-4))
    ]
    models = {row["extra_info"]["id"]: "Gemma für alle" for row in rows}
    return str(as_run(synthetic.document(rows, models=models)).path)


def test_a_models_table_has_its_layers_and_the_lengths_that_are_asked_for(as_run, printed):
    llama = [{"T": T, **LLAMA} for T in (64, 512, 2048, 8192)]
    decode = {"T": 1, "T_kv": 512, "mode": "decode", "mask": "none", **LLAMA}
    core = {"T": 1024, "scope": "core", **LLAMA, "d_model": 32 * 128}
    others = [{"T": 512, **LLAMA, **other} for other in ({"H_kv": 32}, {"window": 128}, {"dtype": "float32"})]
    gemma = [{"T": 2048, **GEMMA, "window": 1023}, {"T": 1024, **GEMMA}]
    tf32 = {"T": 64, **LLAMA, "dtype": "float32", "tf32": True}
    run = of_models(as_run, *llama, decode, core, *others, *gemma, tf32)

    def told(*arguments):
        layers = json.loads(printed("advise", "--run", run, "--json", *arguments))["layers"]
        return {kind: sorted(cell["T"] for cell in it["cells"]) for kind, it in layers.items()}

    assert told("--model", "llama3-8b", "--T", "512..8192") == {"global": [512, 1024, 2048, 8192]}
    assert told("--model", "llama3-8b", "--T", "512", "--mode", "decode") == {"global": [1]}
    assert told("--model", "llama3-8b", "--dtype", "float32") == {"global": [64, 512]}
    assert told("--model", "gemma3-4b") == {"local": [1024, 2048], "global": [1024]}


def test_keys_of_json_are_documented(as_run, printed, documented):
    run = of_models(as_run, {"T": 64, **LLAMA})
    texts = [printed("advise", "--run", run, "--json", *more) for more in ((), ("--model", "llama3-8b"))]
    assert all(map(str.isascii, texts))  # for terminals of any encoding
    found, of_model = map(json.loads, texts)
    keys = documented["`advise`"] - {"model", "layers"}
    assert found.keys() == keys and found["cells"][0].keys() == documented["`cells` of `advise`"] | {*AXIS_NAMES}
    assert of_model.keys() | of_model["layers"]["global"].keys() == documented["`advise`"]
    assert of_model["layers"]["global"].keys() == keys - {"run", "date", "commit"} and "cells" not in of_model


def test_a_models_layer_in_another_dtype_is_named_and_its_case_not_again_by_the_model(as_run, printed, refusal):
    run = of_models(as_run, {"T": 512, **LLAMA, "dtype": "float32"})
    asked = "advise", "--run", run, "--model", "llama3-8b"
    assert refusal(*asked).endswith("was measured here; in float32 it was: --dtype float32\n")
    assert "\nT=512 fp32  fused " in printed(*asked, "--dtype", "float32")


def test_on_the_command_line(as_run, printed, monkeypatch):
    seconds = {64: {"a": 1e-3, "b": 2e-3}, 1024: {"a": 4e-3, "b": 2e-3}}
    rows = [synthetic.row(name, synthetic.case(T=T), [s]) for T, of in seconds.items() for name, s in of.items()]
    run = as_run(synthetic.document(rows)).path
    out = printed("advise", "--run", run, "--T", 1024, "--H", 8, "--dtype", "float32")
    assert " ".join(out.splitlines()[2].split()) == "T=1024 b 2.00 ms 1.00 MiB a 2.0 to 2.0"
    assert {cell["T"] for cell in json.loads(printed("advise", "--run", run, "--json", "--T", 64))["cells"]} == {64}
    monkeypatch.setenv("COLUMNS", "40")  # where the columns don't fit, others follow below
    narrow = printed("advise", "--run", run, "--T", 1024).splitlines()
    assert max(map(len, narrow)) <= 40 and " ".join(narrow[-1].split()) == "T=1024 a 2.0 to 2.0"


def test_ties_beyond_the_next_best_and_unknown_memory_on_the_command_line(as_run, printed):
    data = synthetic.by_length(dict.fromkeys("abc", 1e-5), (100,), peaks={"a": None})
    said = " ".join(printed("advise", "--run", as_run(data).path).split())
    assert " a 1.00 ms – b " in said and said.endswith(" tied, like c")


@pytest.mark.parametrize(
    ("apart", "said"),
    [((0.9, 1.0, 1.1), "0.72 to 1.43 tied with b; not resolved: c"), ((0.3, 1.0, 3.0), "not resolved: b and c")],
)
def test_an_interval_that_is_not_resolved_is_said_once(apart, said, as_run, printed):
    rows = [
        synthetic.row(name, synthetic.case(T=64), [factor * 1e-3] * 3, apart if name != "a" else (1, 1, 1))
        for name, factor in (("a", 1), ("b", 1.02), ("c", 1.3))
    ]
    out = printed("advise", "--run", as_run(synthetic.document(rows)).path)
    assert out.endswith(f" {said}\n") and out.count("not resolved") == 1
