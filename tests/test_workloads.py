"""`--cases FILE`: each format, read from a small file, and the cases that follow from it."""

import json
from contextlib import chdir

import numpy as np
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
    table = "T,H,sinks,window\n64,4,on,none\n128,4,on,none\n"
    assert cases(tmp_path, "own.csv", table) == cases(tmp_path, "own.json", content)[:2]
    assert [it.T for it in cases(tmp_path, "one.csv", "T\n64\n128\n")] == [64, 128]


def test_a_record_that_names_a_model_has_its_heads(tmp_path):
    content = json.dumps([{"model": "gpt2", "T": 64}, {"model": ["qwen3-0.6b", "gpt2"], "scope": "core", "T": 32}])
    found = cases(tmp_path, "own.json", content, dtype="float32")
    assert [(it.H, it.H_kv, it.D_h, it.T, it.scope) for it in found] == [
        (12, 12, 64, 64, "layer"), (16, 8, 128, 32, "core"), (12, 12, 64, 32, "core"),
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"^--model gpt3: unknown; known: .*; did you mean gpt2"):
        cases(tmp_path, "own.json", '[{"model": "gpt3"}]')


def test_batches_of_vllm(tmp_path, capsys):
    content = 'batch_specs:  # decode, prefill\n  - "q2k"  # a prompt\n  - "2q1k_32q1s1k"\n8q1kv4k\n16q4s1k\n'
    content += "model:\n  num_q_heads: 32\n  num_kv_heads: 8\n  head_dim: 128\nbackends:\n  - FLASH_ATTN\n"
    found = cases(tmp_path, "batches.yaml", content)
    assert [it.requests for it in found] == ["1x2048:2048", "2x1024:1024+32x1:1024", "8x1:4096", "16x4:1024"]
    assert {(it.H, it.H_kv, it.D_h) for it in found} == {(32, 8, 128)}
    assert "1 × a line that is not a batch" in capsys.readouterr().err
    assert {it.H for it in cases(tmp_path, "batches.yaml", content, H="16")} == {16}
    with pytest.raises(UsageError, match="1 × a line that is not a batch"):
        cases(tmp_path, "batches.yaml", 'batch_specs: ["q2k"]\n')


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


def safetensors(path, **tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        begin, data = len(data), data + np.array(values, np.int32).tobytes()
        header[name] = {"dtype": "I32", "shape": [len(values)], "data_offsets": [begin, len(data)]}
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)


def workload(definition, *keys, **axes):
    inputs = {key: {"type": "safetensors", "path": "./blob/x.safetensors", "tensor_key": key} for key in keys}
    return {"definition": definition, "workload": {"axes": axes, "inputs": inputs}}


def test_workloads_of_flashinfer_bench(tmp_path, capsys):
    (tmp_path / "blob").mkdir()
    (tmp_path / "deep").mkdir()
    safetensors(tmp_path / "blob" / "x.safetensors", qo_indptr=[0, 4, 5], kv_indptr=[0, 6, 9])
    content = jsonl(
        workload("gqa_paged_decode_h32_kv8_d128_ps16", batch_size=4, len_indptr=5, num_kv_indices=32),
        workload("gqa_paged_prefill_causal_h32_kv8_d128_ps2", "qo_indptr", "kv_indptr", len_indptr=3),
        workload("gqa_ragged_prefill_causal_h8_kv4_d64", "qo_indptr", "kv_indptr", len_indptr=3),
        workload("mla_paged_decode_h16_ckv512_kpe64_ps1", "kv_indptr", batch_size=2),
        workload("mla_ragged_prefill_causal_h16_qk192_vo128", total_tokens=20, len_indptr=3),
        workload("gqa_paged_prefill_causal_h32_kv8_d128_ps1", len_indptr=2, total_q=34, num_kv_indices=1),
        workload("gemm_n128_k2048", M=3),
    )
    assert [it.id for it in cases(tmp_path, "deep/w.jsonl", content)] == [
        "B4-T1-H32-D_h128-bfloat16-cpu-T_kv=128-H_kv=8-mask=none-mode=decode-page=16",
        "B1-T5-H32-D_h128-bfloat16-cpu-T_kv=18-H_kv=8-mask=causal_br-source=cross-scope=core-requests=1x4:12+1x1:6",
        "B1-T5-H8-D_h64-bfloat16-cpu-T_kv=9-H_kv=4-mask=causal_br-source=cross-scope=core-requests=1x4:6+1x1:3",
        "B2-T1-H16-D_h192-bfloat16-cpu-T_kv=4-D_v=128-mask=none-mode=decode-latent=512-rope=64-page=1",
        "B1-T20-H16-D_h192-bfloat16-cpu-D_v=128-mask=causal_br-source=cross-scope=core-requests=2x10:10",
    ]
    said = capsys.readouterr().err
    for what in ("3 × a workload whose file of lengths", "1 × a workload of gemm_n128_k2048", "1 × a paged batch of unequal",
                 "1 × a latent batch of unequal", "1 × a workload with fewer keys"):  # fmt: skip
        assert what in said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('[{"heads": 4}]', "no case has an axis 'heads'; did you mean H?"),
        ('[{"xyz": 4}]', "no case has an axis 'xyz'; axes: B, H, H_kv, "),
        ('[{"device": "cpu"}]', "cases of a file are for any device: leave it out, and give --device"),
        ('[{"T": -4}]', "T: '-4' is not a positive whole number"),
        ('[{"T": []}]', "T has no value"),
        ("[4]", "expected objects of axes"),
        ('{"definition": "gqa_paged_decode_h1_kv1_d8_ps1"}', "a record has no 'workload'"),
        ('[{"T": 4', "not JSON: "),
        ("T,H\n16,2,3\n", "a line has more values than columns"),
        *[(nothing, "contains no case$") for nothing in ("", "[]", "T,H\n", "input_length,output_length\n")],
        ("nothing\n", "contains no case that can be measured; .*1 × a line that is not a batch"),
        (jsonl(workload("gqa_paged_decode_h1_kv1_d8_ps1", len_indptr=1, num_kv_indices=4)), "integer division"),
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
