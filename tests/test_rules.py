"""The rules beyond plain attention: windows, prefixes, documents, chunks, biases, soft caps, sinks."""

from dataclasses import fields, replace

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import impls
from bench.cases import counting
from bench.cases.case import Case
from bench.cases.outcome import Wrong
from bench.checks.module_checks import check_case
from bench.checks.probes import probes
from impls import flex
from impls.masks import mask_of
from impls.rules import EVERY_RULE, Rules, alibi_slopes, document_lengths

from . import wrong_rules
from .conftest import gated
from .wrong_rules import core_of

CHUNK = wrong_rules.CHUNK
RULES = [
    {"window": 5},
    {"mask": "none", "window": 5, "window_right": 2},
    {"mask": "none", "window_right": 3},
    {"prefix": 9},
    {"window": 5, "prefix": 9},
    {"documents": "lognormal", "B": 2},
    {"documents": "one_long", "mask": "none"},
    {"documents": "equal", "window": 3},
    {"mask": "causal_br", "source": "cross", "T_kv": 50},
    CHUNK,
    CHUNK | {"window": 7, "T": 1},
    {"bias": "alibi", "mask": "padding", "B": 3},
    {"bias": "dense"},
    {"bias": "dense", "mask": "none", "source": "cross", "T_kv": 28},
    {"bias": "learned", "mask": "causal+padding", "B": 2},
    {"softcap": 20, "sinks": True, "bias": "alibi", "window": 9},
    {"sinks": True, "mask": "causal+padding", "B": 2},
    {"documents": "lognormal"},
]


def held_to(core, axes):
    impl = impls.make("mine", core, limits=impls.Limits(beyond=EVERY_RULE))
    gated(impl, Case.of(**({"T": 48, "H": 2, "D_h": 16} | axes)))


@pytest.mark.parametrize("name", wrong_rules.CORES)
def test_a_core_that_breaks_a_rule_is_refused(short_probes, name):
    with pytest.raises(Wrong, match=r"error|no gradient|NaN or Inf"):
        held_to(*wrong_rules.CORES[name])


@pytest.mark.parametrize("axes", [axes for axes in RULES if "padding" not in axes.get("mask", "")], ids=str)
def test_an_independent_core_with_all_rules_passes(short_probes, axes):
    """It shares no code with the implementations or the reference."""
    held_to(core_of(wrong_rules.right), axes)


@pytest.mark.parametrize("name", wrong_rules.RIGHT)
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_other_correct_forms_of_a_rule_pass(short_probes, name, mode):
    core, axes = wrong_rules.RIGHT[name]
    held_to(core, axes | {"mode": mode})


@pytest.mark.parametrize("axes", RULES, ids=str)
def test_every_implementation_that_can_follows_the_rules(axes):
    passed = set()
    for impl in impls.registered():
        case = Case.of(**({"T": 33, "H": impl.limits.heads or 3, "D_h": 16} | axes))
        if impl.refusal(case) is None and impl.name != "flex":
            check_case(impl, case)
            passed.add(impl.name)
    assert {"fused", "einsum", "packed"} <= passed


PAGED = {"B": 3, "T": 1, "T_kv": 50, "mode": "decode", "mask": "none", "page": 8}


@pytest.mark.parametrize(
    "axes",
    [
        RULES[7],
        CHUNK | {"window": 7, "latent": 24, "rope": 8},
        RULES[15],
        wrong_rules.REQUESTS,
        PAGED,
        PAGED | CHUNK | {"window": 9},
    ],
    ids=str,
)
def test_flex_attention_follows_the_rules(axes):
    """Only in the case itself: each call is traced anew, which takes seconds."""
    check_case(impls.get("flex_paged" if "page" in axes else "flex"), Case.of(**({"T": 33, "H": 3, "D_h": 16} | axes)))


@pytest.mark.parametrize("T", [100, 256, 700])
def test_the_block_mask_is_equal_if_built_in_parts(T, monkeypatch):
    """A mask of T times T_kv would be as large as the scores that FlexAttention never stores."""
    asked = []

    def counted(rule, B, H, rows, T_kv, device):
        asked.append(rows)
        return create_block_mask(rule, B, H, rows, T_kv, device=device)

    def rule(b, h, i, j):
        return (i - j).abs() < 40

    monkeypatch.setattr(flex, "create_block_mask", counted)
    monkeypatch.setattr(flex, "QUERIES", 256)
    found = flex.blocks_of(rule, None, T, 900, "cpu")
    whole = create_block_mask(rule, None, None, T, 900, "cpu")
    for a, b in zip(found.as_tuple(), whole.as_tuple(), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b or callable(a)
    assert max(asked) <= 256 and sum(asked) == T


@pytest.mark.parametrize(
    "axes",
    [
        {"window": 5, "bias": "alibi"},
        {"softcap": 20, "sinks": True, "bias": "learned"},
        {"bias": "learned", "source": "cross", "T_kv": 20, "scope": "core"},
        {"bias": "learned", "mask": "none", "latent": 16},
    ],
    ids=str,
)
def test_gradients_follow_the_rules(axes):
    check_case(impls.get("fused"), Case.of(T=33, H=3, D_h=16, mode="backward", **axes))


@pytest.mark.parametrize(
    ("rules", "T", "T_kv"),
    [
        (Rules(), 5, 8),
        (Rules(), 8, 5),
        (Rules(mask="causal_br"), 5, 8),
        (Rules(window=3), 12, 12),
        (Rules(mask="none", window=3), 12, 12),
        (Rules(mask="none", window=3, window_right=1), 12, 12),
        (Rules(mask="none", window_right=2), 12, 12),
        (Rules(mask="causal_br", window=3), 4, 12),
        (Rules(prefix=4), 12, 12),
        (Rules(documents="lognormal"), 30, 30),
        (Rules(mask="none", documents="one_long"), 30, 30),
        (Rules(mask="causal_br", documents="one_long", window=2), 9, 30),
    ],
)
def test_masks_and_counts_are_what_the_rules_say(rules, T, T_kv):
    visible = wrong_rules.seen(rules, T, T_kv)
    assert torch.equal(mask_of(rules, 1, T, T_kv), visible)
    own = {it.name: getattr(rules, it.name) for it in fields(Rules)}
    case = Case.of(T=T, T_kv=T_kv, H=1, D_h=4, source="cross", scope="core", **own)
    assert counting.visible_pairs(case) == int(visible.sum())
    assert counting.seen_keys(case) == int(visible.any(0).sum())


def test_documents_fill_the_sequence():
    for kind in ("equal", "one_long", "lognormal"):
        for T in (1, 3, 37, 1000):
            lengths = document_lengths(kind, T)
            assert sum(lengths) == T and min(lengths) >= 1
    assert document_lengths("equal", 1024) == [128] * 8
    assert max(document_lengths("one_long", 1024)) > 500
    assert max(lengths) > 10 * min(lengths) and max(lengths) > 2 * lengths[0]


def test_slopes_are_those_of_the_paper():
    assert alibi_slopes(8).tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert alibi_slopes(3).tolist() == [1 / 16, 1 / 256, 1 / 4]  # those of two heads, and the first one of four


def test_counts_of_a_chunk_in_a_window():
    case = Case.of(T=4, T_kv=100, H=2, D_h=8, mode="decode", mask="causal_br", window=9, scope="core")
    assert counting.visible_pairs(case) == 4 * 10
    assert counting.flops(case) == 2 * 2 * 40 * 16
    assert counting.least_bytes(case) == 4 * (2 * 4 * 8 + 13 * 2 * 16 + 2 * 4 * 8)  # 13 of 100 keys and values
    assert counting.least_bytes(replace(case, sinks=True)) == counting.least_bytes(case) + 4 * 2
    for bias in ("dense", "learned"):
        assert counting.least_bytes(replace(case, bias=bias)) == counting.least_bytes(case) + 4 * 2 * 40
    trained = Case.of(T=10, H=2, D_h=8, mode="backward")  # a learned bias and its gradient, where a key is visible
    for bias, times in (("dense", 1), ("learned", 2)):  # a dense bias has no gradient
        assert counting.least_bytes(replace(trained, bias=bias)) == counting.least_bytes(trained) + times * 4 * 2 * 55


def test_probes_are_longer_than_their_windows():
    for probe in probes(impls.get("sdpa"), Case.of(T=4096, H=2, D_h=8, window=1024)):
        assert 2 * probe.window < probe.T


def test_an_unsupported_rule_is_a_sentence():
    capped = Case.of(T=64, H=2, D_h=8, softcap=50, sinks=True)
    assert impls.get("sdpa").refusal(capped) == "sdpa does not support softcap or sinks"
    mine = impls.make("mine", torch.nn.Module)
    assert mine.refusal(replace(capped, softcap=None)) == "mine does not support sinks"
    assert "does not support sinks on the CPU" in str(impls.get("flex+compile").refusal(replace(capped, softcap=None)))
    narrow = Case.of(T=16, H=2, D_h=8, device="cuda")
    assert "needs heads of at least 16 features" in str(impls.get("flex+compile").refusal(narrow))
    assert impls.get("flex").refusal(narrow) is None
    narrow = replace(narrow, mode="decode", T=1, T_kv=256, mask="none", page=128)
    assert "needs heads of at least 16 features" in str(impls.get("flex_paged+compile").refusal(narrow))
    assert "computes packed documents only" in str(impls.get("padded").refusal(Case.of(T=64, H=2, D_h=8)))
    grouped = Case.of(T=64, H=4, H_kv=2, D_h=8, documents="equal", device="cuda")
    assert impls.get("nested").refusal(grouped) == "nested needs as many key-value heads as query heads"
