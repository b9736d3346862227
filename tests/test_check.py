"""`python -m bench check`: results for right and wrong kernels, without timing."""

import json
import re

import pytest

from bench.runs import check

from .conftest import CHECKOUT, python

MINE = """\
import os
import sys
import time
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
def right(q, k, v, **options): return sdpa(q, k, v, **options)
def no_mask(q, k, v, *, is_causal=False, attn_mask=None, **options): return sdpa(q, k, v, **options)
def few(q, k, v, scale=None, is_causal=False): return sdpa(q, k, v, scale=scale, is_causal=is_causal)
def large(q, k, v, **options): return torch.empty(1 << 60)
def sleeps(q, k, v, **options): return time.sleep(99 * (q.dtype == torch.bfloat16)) or sdpa(q, k, v, **options)
def exits(q, k, v, **options):
    sys.stderr.close()
    return os._exit(3) if q.dtype == torch.bfloat16 else sdpa(q, k, v, **options)
"""

MINE += """
def by_repeat(q, k, v, enable_gqa=False): return sdpa(q, *(x.repeat(1, q.shape[1] // k.shape[1], 1, 1) for x in (k, v)))
by_repeat.limits = {
    "dtypes": ("bfloat16",),
    "masks": ("none",),
    "unless": lambda case: "needs T % 128 = 0" if case.T % 128 or case.T_kv % 128 else None,
}
"""

# right in the calls of a check, which record no gradients otherwise, and wrong in a timed one
MINE += """
def off_in_inference(q, k, v, **options):
    return sdpa(q, k, v, **options) * (1 + torch.is_inference_mode_enabled())
"""

ALWAYS_BIASED = """\
from tests.wrong_kernels import as_layer
class Biased(as_layer()):
    def forward(self, x, *, cache=None):
        return super().forward(x, cache=cache and tuple(it.clone() for it in cache))
Biased.limits = {"unless": lambda case: None if case.qkv_bias and not case.out_bias else "as in Qwen2"}
"""

# right but for dropout or float16 under a mask, dropout of grouped heads in bfloat16, gradients with more keys than queries,
# and a cap in decode
OFF_IN_PAIRS = """\
from mine import sdpa, torch
from tests import wrong_kernels, wrong_rules
def off(q, k, v, *, is_causal=False, attn_mask=None, dropout_p=0.0, softcap=None, enable_gqa=False):
    if dropout_p or enable_gqa:
        p = 0.2 if q.dtype == torch.bfloat16 else dropout_p
        return sdpa(q, k, v, is_causal=is_causal, dropout_p=p, enable_gqa=enable_gqa)
    cap = softcap if q.shape[-2] > 1 else None
    if attn_mask is not None and q.dtype == torch.float16: q = q.bfloat16().half()
    seen = wrong_kernels.visible(q, k, is_causal, attn_mask)
    o = wrong_rules.plain(q, k, v, seen, bent=lambda it: wrong_rules.capped(it, cap) if cap else it)
    return wrong_kernels.with_gradient_of(sdpa(q, k, v), o) if is_causal and k.shape[-2] > q.shape[-2] else o
off.limits = {"beyond": ("softcap",)}
"""
PAIRS = (
    "mode=forward mask=padding B=3 dropout=0.1",
    "mode=forward H=6 H_kv=2 D_h=128 dtype=bfloat16 dropout=0.1",
    "mode=forward mask=causal+padding B=3 dtype=float16",
    "mode=backward source=cross T_kv=100",
    "mode=decode T=1 T_kv=64 mask=none softcap=20",
)

# right but for short prompts, many query heads of a key head, narrow dtypes with heads of 128 features, several new tokens of
# grouped heads, and gradients of wide heads
OFF_IN_MODELS = """\
from mine import sdpa, torch
def off(q, k, v, *, attn_mask=None, **options):
    (_, H, T, D_h), (_, H_kv, T_kv, _) = q.shape, k.shape
    narrow = D_h == 128 and q.dtype != torch.float32 and attn_mask is None
    if T == T_kv and (1 < T < 16 or narrow) or H > 8 * H_kv: v = v.roll(1, -2)
    if H > H_kv and 1 < T < T_kv: attn_mask = None
    return sdpa(q.detach() if D_h > 128 else q, k, v, attn_mask=attn_mask, **options)
"""
MODELS = (
    "mode=forward H=13 H_kv=1",
    "mode=forward T=5",
    "mode=forward D_h=128 dtype=float16",
    "mode=forward H=6 H_kv=2 D_h=128 dtype=bfloat16",
    "mode=backward H=6 H_kv=2 D_h=128 dtype=bfloat16",
    "mode=backward H=6 H_kv=2 D_h=192 D_v=128",
    "mode=backward D_h=256",
    "mode=decode T=1 T_kv=4097 mask=none H=32 H_kv=2",
    "mode=decode T=8 T_kv=64 mask=causal_br H=6 H_kv=2 D_h=128 dtype=bfloat16",
)

# right but for one or two queries, which see later keys
OFF_IN_FEW_QUERIES = """\
from mine import sdpa
def off(q, k, v, *, is_causal=False, **options):
    return sdpa(q, k, v, is_causal=is_causal and q.shape[-2] > 2, **options)
"""
FEW_QUERIES = ("mode=forward T=2", "mode=forward T=1 source=cross T_kv=40")

# right but for queries whose place holds padding in another sequence
OFF_IN_ANOTHER_SEQUENCE = "from tests.reported_kernels import leaves_out_queries_where_keys_are_padding as off"
ANOTHER_SEQUENCE = ("mode=forward mask=padding B=3 source=cross T_kv=100",)

# right but for keys that a window holds, a cap beside sinks or a bias, and a cap and sinks of several new tokens
OFF_IN_RULES = """\
from mine import torch
from tests import wrong_kernels, wrong_rules
def off(q, k, v, *, is_causal=False, attn_mask=None, softcap=None, sinks=None):
    T, T_kv = q.shape[-2], k.shape[-2]
    cap = softcap if attn_mask is sinks is None else None
    if 1 < T < T_kv: sinks = None
    if T_kv < 8: attn_mask = attn_mask & (torch.arange(T_kv) > 0)
    biased = attn_mask is not None and attn_mask.is_floating_point()
    seen, bias = wrong_kernels.visible(q, k, is_causal, None if biased else attn_mask), attn_mask if biased else 0.0
    return wrong_rules.plain(q, k, v, seen, bias, sinks, lambda it: wrong_rules.capped(it, cap) if cap else it)
off.limits = {"beyond": ("bias", "softcap", "sinks")}
"""
RULES = (
    "mode=forward T=5 window=8",
    "mode=forward softcap=20 sinks=True",
    "mode=forward softcap=20 bias=dense",
    "mode=decode T=1 T_kv=5 mask=causal_br window=8",
    "mode=decode T=8 T_kv=64 mask=causal_br softcap=20",
    "mode=decode T=8 T_kv=64 mask=causal_br sinks=True",
)

# right but for grouped heads without a mask, which are causal
OFF_WITHOUT_A_MASK = """\
from mine import sdpa
def off(q, k, v, *, is_causal=False, attn_mask=None, enable_gqa=False):
    is_causal |= enable_gqa and attn_mask is None and q.shape[-2] > 1
    return sdpa(q, k, v, is_causal=is_causal, attn_mask=attn_mask, enable_gqa=enable_gqa)
"""
NO_MASK = tuple(f"mode={mode} H=6 H_kv=2 D_h=128 dtype=bfloat16 mask=none" for mode in ("forward", "backward"))

# right but for dropout of grouped heads, and of float32 alone
OFF_IN_DROPOUT = """\
from mine import sdpa
def off(q, k, v, *, is_causal=False, attn_mask=None, dropout_p=0.0, enable_gqa=False):
    p = 0.2 if dropout_p and enable_gqa else dropout_p
    return sdpa(q, k, v, is_causal=is_causal, attn_mask=attn_mask, dropout_p=p, enable_gqa=enable_gqa)
off.limits = {"dtypes": ("float32",)}
"""
DROPOUT = tuple(f"mode={mode} H=6 H_kv=2 dropout=0.1" for mode in ("forward", "backward"))

# right but for slopes of ALiBi in groups
OFF_IN_GROUPS = """\
from mine import sdpa, torch
from impls.rules import alibi_slopes
def off(q, k, v, *, attn_mask, **options):
    H, H_kv = q.shape[1], k.shape[1]
    slopes, place = alibi_slopes(H_kv).repeat_interleave(H // H_kv).to(q.dtype), torch.arange(q.shape[-2])
    bias = slopes[:, None, None] * (place - place[:, None])
    return sdpa(q, k, v, attn_mask=bias.masked_fill(bias > 0, -torch.inf), **options)
off.limits = {"beyond": ("bias",), "masks": ("causal",), "unless": lambda case: "dense" if case.bias != "alibi" else None}
"""
SLOPES = ("mode=forward H=6 H_kv=2 bias=alibi",)

# right but for keys from another sequence of the same length or beside biases, a prompt that fills its cache, biases in a
# cache, in groups or with dropout, and heads that aren't as wide together as the model
OFF_IN_LAYERS = """\
from tests.wrong_kernels import as_layer, split_heads
class off(as_layer()):
    limits = {"beyond": ("causal_br",)}
    def project(self, x, x_k):
        q, k, v = super().project(x, x if x.shape == x_k.shape else x_k)
        if x is not x_k: q = split_heads(x @ self.W_q.weight.mT, self.shape.H)
        q = q * (self.shape.H * self.shape.D_h / self.shape.d_model) ** 0.5
        return (q, k, v) if self.W_k.bias is None else (q, *(
            split_heads(x_k @ it.weight.mT, self.shape.H_kv) for it in (self.W_k, self.W_v)
        ))
    def forward(self, x, x_k=None, *, cache=None, **options):
        filled = cache is not None and cache[0].shape[-2] == x.shape[-2]
        return super().forward(x, x_k, cache=None if filled else cache, **options)
    def finish(self, o):
        return super().finish(o if self.W_v.bias is None else o + self.W_v.bias.repeat(self.shape.H // self.shape.H_kv))
"""
LAYERS = (
    "mode=forward H=6 H_kv=2 qkv_bias=True out_bias=True",
    "mode=forward qkv_bias=True out_bias=True dropout=0.1 out_dropout=0.1",
    "mode=forward source=cross",
    "mode=forward d_model=96",
    "mode=backward d_model=96",
    "mode=backward qkv_bias=True out_bias=True source=cross",
    "mode=decode T=1 T_kv=64 mask=none qkv_bias=True out_bias=True",
    "mode=decode T=1 T_kv=64 mask=none d_model=96",
    "mode=decode T=64 T_kv=64 mask=causal_br",
)

# right but for several new tokens, and grouped heads in pages
OFF_IN_CACHES = """\
from tests.wrong_kernels import as_layer
from tests.wrong_latent import ChunkHasOnePlace
class Pages(as_layer()):
    def extend_pages(self, pools, newest, pages):
        return super().extend_pages(pools, tuple(it[..., -1:, :].expand_as(it) for it in newest), pages)
    def over_pages(self, q, k, v, pages):
        k, v = self.in_one_piece((k, v), pages)
        return self.core(q, *(it.repeat(1, q.shape[1] // it.shape[1], 1, 1) for it in (k, v)))
class off(Pages):
    limits = {"beyond": ("causal_br", "latent", "page")}
    def __new__(cls, shape):
        return (Pages if shape.latent is None else ChunkHasOnePlace)(shape)
"""
CACHES = (
    "mode=decode T=8 T_kv=64 mask=causal_br latent=64 rope=16",
    "mode=decode T=8 T_kv=64 mask=causal_br page=16",
    "mode=decode T=1 T_kv=64 mask=none H=6 H_kv=2 page=16",
    "mode=decode T=8 T_kv=64 mask=causal_br latent=64 rope=16 page=16 dtype=bfloat16",
)

EVERY_PROBLEM = {check.name_of(axes): axes for axes in (*check.PROBLEMS, *check.AROUND)}

PROBLEMS = ({}, {"dtype": "bfloat16"}, {"mask": "none"}, {"softcap": 20})


@pytest.fixture(autouse=True)
def few(monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # which `main` would leave behind
    monkeypatch.setattr(check, "PROBLEMS", PROBLEMS)
    monkeypatch.setattr(check, "AROUND", ())


def test_programs_get_a_list_of_objects(in_process, capsys):
    """Includes a kernel that is wrong only in inference mode."""
    assert check.main(["mine.py:no_mask", "it=mine:off_in_inference", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [it["outcome"] for it in found] == [
        *("wrong", "wrong", "passed", "unsupported"),
        *("wrong", "wrong", "wrong", "unsupported"),
    ]
    first, last = found[0], found[3]
    (keys,) = re.findall(
        r"^\| `check` \| (`impl`.*) \|$", (CHECKOUT / "docs" / "commands.md").read_text(), re.MULTILINE
    )
    assert first.keys() == {*re.findall(r"`(\w+)`", keys)}
    assert (first["impl"], first["problem"]) == ("no_mask", "mode=forward")
    assert "error" in first["detail"] and first["id"] == "B1-T64-H2-D_h64-float32-cpu-scope=core"
    assert last["detail"] == "no_mask does not support softcap"
    assert check.main(["mine:missing"]) == 3
    assert "module mine has no attribute 'missing'" in capsys.readouterr().err


def test_an_interrupted_check_prints_what_it_found(monkeypatch, capsys):
    def check_one(names, device, timeout, report):
        report(check.Result("mine", "mode=forward", "B1"))
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "check", check_one)
    with pytest.raises(KeyboardInterrupt):
        check.main(["mine:right", "--json"])
    assert [it["problem"] for it in json.loads(capsys.readouterr().out)] == ["mode=forward"]


def test_a_kernel_without_keywords_is_told_once_how_to_declare_it(in_process, monkeypatch, tmp_path, capsys):
    """With what is declared, nothing fails."""
    problems = ({"window": 8}, {"window": 9}, {"H": 6, "H_kv": 2}, {"dropout": 0.1})
    monkeypatch.setattr(check, "PROBLEMS", problems)
    assert check.main(["mine:few"]) == 1
    *_, summary, hint = capsys.readouterr().out.splitlines()
    assert summary.startswith("0 passed, 4 failed")
    declared = "mine.limits = {'masks': ('none', 'causal'), 'grouped': False, 'dropout': False}"
    assert f"as in `{declared}`" in hint
    (tmp_path / "limited.py").write_text(f"from mine import few as mine\n{declared}\n")
    assert check.main(["limited:mine"]) == 1  # nothing was checked
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "unsupported   mine does not support window (2)"
    assert last.startswith("0 passed, 0 failed, 4 unsupported")


def test_a_kernel_of_another_length_mask_and_dtype_is_checked_in_these(in_process, monkeypatch, capsys):
    """Its fault is in groups, a problem that names none of them."""
    monkeypatch.setattr(check, "PROBLEMS", ({}, {"mask": "padding", "B": 3}, {"H": 6, "H_kv": 2}))
    assert check.main(["mine:by_repeat"]) == 1
    *lines, _ = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["passed", "wrong", "unsupported"]


def test_a_layer_that_always_has_biases_gets_every_problem_with_them(in_process, monkeypatch, tmp_path, capsys):
    """Its fault is in decode, in which no problem names biases."""
    (tmp_path / "biased.py").write_text(ALWAYS_BIASED)
    monkeypatch.setattr(check, "PROBLEMS", ({}, {"mode": "decode", "T": 1, "T_kv": 64, "mask": "none"}))
    assert check.main(["biased:Biased"]) == 1
    *lines, _ = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["passed", "wrong"]


@pytest.mark.parametrize(
    ("kernel", "problems"),
    [
        (OFF_IN_PAIRS, PAIRS),
        (OFF_IN_MODELS, MODELS),
        (OFF_IN_FEW_QUERIES, FEW_QUERIES),
        (OFF_IN_RULES, RULES),
        (OFF_WITHOUT_A_MASK, NO_MASK),
        (OFF_IN_DROPOUT, DROPOUT),
        (OFF_IN_GROUPS, SLOPES),
        (OFF_IN_LAYERS, LAYERS),
        (OFF_IN_CACHES, CACHES),
        (OFF_IN_ANOTHER_SEQUENCE, ANOTHER_SEQUENCE),
    ],
)
def test_a_fault_in_some_sizes_or_in_two_axes_together_is_found(
    in_process, monkeypatch, tmp_path, capsys, kernel, problems
):
    (tmp_path / "pairs.py").write_text(kernel)
    monkeypatch.setattr(check, "PROBLEMS", [EVERY_PROBLEM[words] for words in problems])
    assert check.main(["pairs:off"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(problems)]] == ["wrong"] * len(problems), lines


def test_memory_that_a_kernel_cannot_get_at_these_sizes_is_a_failure(capsys):
    """In workers: after a failed allocation glibc takes this thread's memory from another arena, which later tests measure."""
    assert check.main(["mine:large"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 passed, 3 failed, 1 unsupported")


def test_a_kernel_that_ends_its_process_or_takes_too_long_costs_one_problem(monkeypatch, capsys):
    monkeypatch.setattr(check, "MOST_WORKERS", 1)
    assert check.main(["mine:exits,mine:sleeps", "--cell-timeout", "10"]) == 1
    *lines, _ = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        *([outcome, "exits:"] for outcome in ("passed", "error", "passed")),
        *([outcome, "sleeps:"] for outcome in ("passed", "timeout", "passed")),
        *(["unsupported", name] for name in ("exits", "sleeps")),
    ]
    assert "-bfloat16-cpu-scope=core: ended its process (exit code 3)" in lines[1]
    assert "-bfloat16-cpu-scope=core: took longer than 10 s (--cell-timeout)" in lines[4]


def test_only_its_worker_imports_torch():
    imported = "import sys, bench.runs.check; sys.exit('torch' in sys.modules)"
    assert python("-c", imported).returncode == 0


def test_the_published_table_has_every_problem():
    table = (CHECKOUT / "docs" / "conformance.md").read_text().splitlines()
    rows = [line.split("|")[1].strip() for line in table if line.startswith("| mode=")]
    assert sorted(rows) == sorted(EVERY_PROBLEM)
