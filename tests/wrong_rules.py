"""Cores that must be refused: each breaks one rule beyond plain attention by a plausible mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from impls.layer import KernelCore, KernelLayer, LayerShape
from impls.rules import alibi_slopes, bias_of, document_lengths, requests_of

from .wrong_kernels import scaled, scores_of

Attend = Callable[..., Tensor]
"""f(q, k, v, shape, sinks) -> o; i and j are positions of queries and keys among the keys: (T, 1), (T_kv,)."""

CHUNK: dict[str, Any] = {"mode": "decode", "mask": "causal_br", "T": 24, "T_kv": 60}


@dataclass(frozen=True)
class Wrong:
    family: str
    module: type[nn.Module]
    case: dict[str, Any]


def core_of(attend: Attend) -> type[KernelCore]:
    """A core that attends so."""

    class Core(KernelCore):
        def __init__(self, shape: LayerShape):
            super().__init__(shape, attend, owns_mask=False)

        def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
            return attend(q, k, v, self.shape, self.sinks)

    return Core


CORES: dict[str, Wrong] = {}


def wrong(family: str, **case: Any) -> Callable[[Any], Any]:
    """Keeps a core or a layer, or what a core attends by."""

    def keep(it: Any) -> Any:
        CORES[it.__name__] = Wrong(family, it if isinstance(it, type) else core_of(it), case)
        return it

    return keep


def places(q: Tensor, k: Tensor, shape: LayerShape) -> tuple[Tensor, Tensor]:
    """(T, 1), (T_kv,)"""
    T, T_kv = q.shape[-2], k.shape[-2]
    return torch.arange(T)[:, None] + (T_kv - T if shape.mask == "causal_br" else 0), torch.arange(T_kv)


def causal_scores(q: Tensor, k: Tensor, shape: LayerShape) -> Tensor:
    i, j = places(q, k, shape)
    return scores_of(q, k, j <= i)


def plain(q, k, v, visible=None, bias=0.0, sinks=None, bent=lambda scores: scores):
    scores = bent(scaled(q, k)) + bias
    scores = scores.to(q.dtype)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    return (torch.softmax(scores, -1)[..., : k.shape[-2]] @ v).to(q.dtype)


def seeing(visible: Callable[..., Tensor]) -> Attend:
    """Plain attention to the keys that visible(i, j, shape) shows."""

    @wraps(visible)
    def attend(q, k, v, shape, sinks):
        return plain(q, k, v, visible(*places(q, k, shape), shape))

    return attend


def biased(bias: Callable[..., Tensor]) -> Attend:
    """Causal attention with bias(i, j, shape) added to the scores."""

    @wraps(bias)
    def attend(q, k, v, shape, sinks):
        i, j = places(q, k, shape)
        return plain(q, k, v, j <= i, bias(i, j, shape))

    return attend


def right(q, k, v, shape, sinks):
    """Every rule as it is meant."""
    i, j = places(q, k, shape)
    visible = (
        (j <= i) | (j < (shape.prefix or 0)) if shape.mask != "none" else torch.ones(len(i), len(j), dtype=torch.bool)
    )
    behind = shape.window if shape.window_right is None else shape.window_right
    if shape.window is not None:
        visible = visible & (i - j <= shape.window)
    if behind is not None and shape.mask == "none":
        visible = visible & (j - i <= behind)
    if shape.documents is not None:
        number = numbers(shape, len(j))
        visible = visible & (number[i] == number[j])
    bias = {None: lambda: 0.0, "dense": lambda: dense(i, j, shape),
            "alibi": lambda: alibi(i, j, alibi_slopes(shape.H))}[shape.bias]()  # fmt: skip
    cap = shape.softcap
    return plain(
        q, k, v, visible, bias, sinks, lambda scores: scores if cap is None else cap * torch.tanh(scores / cap)
    )


def bending(bent: Callable[..., Tensor]) -> Attend:
    """Causal attention by bent(scores, softcap)."""

    @wraps(bent)
    def attend(q, k, v, shape, sinks):
        i, j = places(q, k, shape)
        return plain(q, k, v, j <= i, bent=lambda scores: bent(scores, shape.softcap))

    return attend


def sinking(changed: Callable[..., Tensor]) -> Attend:
    """Causal attention with the sinks changed(sinks, shape)."""

    @wraps(changed)
    def attend(q, k, v, shape, sinks):
        i, j = places(q, k, shape)
        return plain(q, k, v, j <= i, sinks=changed(sinks, shape))

    return attend


def ignoring(family: str, **case: Any) -> None:
    """Causal attention, as if there were no such rule."""

    def attend(i, j, shape):
        return j <= i

    attend.__name__ = f"no_{family}"
    wrong(family, **case)(seeing(attend))


ignoring("window", window=8)
ignoring("prefix", prefix=8)
ignoring("documents", documents="lognormal")
ignoring("bias", bias="dense")
ignoring("softcap", softcap=1000, dtype="bfloat16")
ignoring("sinks", sinks=True)

# window


@wrong("window", window=8)
@seeing
def one_key_too_many(i, j, shape):
    return (j <= i) & (i - j <= shape.window + 1)


@wrong("window", window=8)
@seeing
def counts_the_querys_own_key(i, j, shape):
    return (j <= i) & (i - j < shape.window)


@wrong("window", window=8)
@seeing
def blocks_instead_of_a_window(i, j, shape):
    return (j <= i) & (i // shape.window == j // shape.window)


@wrong("window", window=8)
@seeing
def by_the_precedence_of_operators(i, j, shape):
    return (i - j <= shape.window & (j <= i)) & (j <= i)


@wrong("window", window=8, mask="none")
@seeing
def window_on_one_side(i, j, shape):
    return i - j <= shape.window


@wrong("window", window=8, window_right=2, mask="none")
@seeing
def the_same_window_on_both_sides(i, j, shape):
    return (i - j).abs() <= shape.window


@wrong("window", window=8, **CHUNK)
@seeing
def window_from_the_chunks_first_token(i, j, shape):
    return (j <= i) & (i - i[0] - j <= shape.window)


ALONE: dict[str, Any] = {"mode": "decode", "mask": "causal_br", "T": 1, "T_kv": 64}


@wrong("window", window=8, **ALONE)
def hidden_keys_at_minus_10000(q, k, v, shape, sinks):
    i, j = places(q, k, shape)
    scores = scaled(q, k).masked_fill((j > i) | (i - j > shape.window), -1e4)
    return torch.softmax(scores, -1) @ v


@wrong("window", window=8, **ALONE)
def maximum_from_zero_up(q, k, v, shape, sinks):
    i, j = places(q, k, shape)
    scores = scores_of(q, k, (j <= i) & (i - j <= shape.window))
    exps = torch.exp(scores - scores.amax(-1, keepdim=True).clamp_min(0))
    return exps / exps.sum(-1, keepdim=True) @ v


# causal, bottom right


@wrong("causal_br", **CHUNK)
def aligned_top_left(q, k, v, shape, sinks):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@wrong("causal_br", **CHUNK)
def the_whole_cache_is_visible(q, k, v, shape, sinks):
    return plain(q, k, v)


@wrong("causal_br", **CHUNK)
@seeing
def a_query_does_not_see_itself(i, j, shape):
    return j < i


@wrong("causal_br", mask="causal_br", source="cross", T=40, T_kv=64)
@seeing
def sees_one_key_ahead(i, j, shape):
    return j <= i + 1


# prefix


@wrong("prefix", prefix=8)
@seeing
def prefix_one_too_long(i, j, shape):
    return (j <= i) | (j <= shape.prefix)


@wrong("prefix", prefix=8)
@seeing
def what_is_in_the_prefix_sees_all(i, j, shape):
    return (j <= i) | (i < shape.prefix)


@wrong("prefix", prefix=8)
@seeing
def nothing_behind_the_prefix(i, j, shape):
    return (j < shape.prefix) | (i == j)


@wrong("prefix", prefix=8, mask="causal+padding", B=2, T=256, dtype="bfloat16")
class PaddingInThePrefixIsSeen(KernelCore):
    """Rarely there to be seen: a prefix is shorter than most sequences."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape, plain, owns_mask=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        i, j = places(q, k, self.shape)
        causal = j <= i if padding is None else (j <= i) & padding[:, None, None]
        return plain(q, k, v, causal | (j < self.shape.prefix))


@wrong("prefix", prefix=8, documents="equal")
@seeing
def a_prefix_of_each_document(i, j, shape):
    number = numbers(shape, len(j))
    within = j - torch.searchsorted(number, number)  # the position within its document
    return ((j <= i) | (within < shape.prefix)) & (number[i] == number[j])


# documents


def numbers(shape: LayerShape, T: int, kind: str | None = None) -> Tensor:
    """(T,): the number of each token's document."""
    lengths = torch.tensor(document_lengths(kind or shape.documents, T))  # type: ignore[arg-type]
    return torch.arange(len(lengths)).repeat_interleave(lengths)


@wrong("documents", documents="lognormal")
@seeing
def leaks_over_a_border(i, j, shape):
    number = numbers(shape, len(j))
    before = torch.cat([number[:1], number[:-1]])  # the first token of a document belongs to the one before
    return (j <= i) & (before[i] == before[j])


@wrong("documents", documents="lognormal")
@seeing
def not_causal_within_a_document(i, j, shape):
    number = numbers(shape, len(j))
    return number[i] == number[j]


@wrong("documents", documents="lognormal")
@seeing
def documents_of_equal_length(i, j, shape):
    number = numbers(shape, len(j), "equal")
    return (j <= i) & (number[i] == number[j])


@wrong("documents", documents="one_long", mask="none")
def padding_is_not_masked(q, k, v, shape, sinks):
    lengths = document_lengths(shape.documents, k.shape[-2])
    found = []
    for each in zip(*(x.split(lengths, -2) for x in (q, k, v)), strict=True):
        missing = max(lengths) - each[0].shape[-2]
        padded = [torch.nn.functional.pad(x, (0, 0, 0, missing)) for x in each]
        found.append(plain(*padded)[..., : each[0].shape[-2], :])
    return torch.cat(found, -2)


@wrong("documents", documents="equal", T=509)
@seeing
def as_many_tokens_each_rounded_up(i, j, shape):
    length = -(-len(j) // 8)
    return (j <= i) & (i // length == j // length)


# requests

REQUESTS: dict[str, Any] = {"requests": "1x8:8+1x6:20+2x1:14", "T": 16, "T_kv": 56, "mask": "causal_br"}
REQUESTS |= {"source": "cross", "scope": "core"}


def request_places(shape: LayerShape) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The request of each query and its position in it, (T, 1); the same of each key, (T_kv,)."""
    requests = requests_of(shape.requests)  # type: ignore[arg-type]
    number = [torch.arange(len(requests)).repeat_interleave(torch.tensor(of)) for of in zip(*requests, strict=True)]
    place = torch.cat([torch.arange(tokens - new, tokens) for new, tokens in requests])
    return number[0][:, None], place[:, None], number[1], torch.cat([torch.arange(tokens) for _, tokens in requests])


def by_requests(q, k, v, shape, sinks):
    own, i, other, j = request_places(shape)
    return plain(q, k, v, (own == other) & (j <= i))


@wrong("requests", **REQUESTS)
@seeing
def one_sequence_of_all_requests(i, j, shape):
    return j <= i


@wrong("requests", **REQUESTS)
@seeing
def each_request_top_left(_i, _j, shape):
    own, _, other, j = request_places(shape)
    first = torch.cat([torch.arange(new) for new, _ in requests_of(shape.requests)])[:, None]
    return (own == other) & (j <= first)


@wrong("requests", **REQUESTS)
@seeing
def all_of_ones_own_request(_i, _j, shape):
    own, _, other, _ = request_places(shape)
    return own == other


@wrong("requests", **REQUESTS)
@seeing
def sees_the_last_token_of_the_request_before(_i, _j, shape):
    own, i, other, j = request_places(shape)
    before = torch.cat([other[1:], other[-1:]])
    return ((own == other) & (j <= i)) | ((own == before) & (own > other))


@wrong("requests", **REQUESTS)
@seeing
def keys_of_the_next_request_of_its_kind(_i, _j, shape):
    own, i, other, j = request_places(shape)
    last = len(requests_of(shape.requests)) - 1
    return ((own == other) | ((own == last) & (other == own - 1))) & (j <= i)


# bias


def alibi(i: Tensor, j: Tensor, slopes: Tensor) -> Tensor:
    return -slopes[:, None, None] * (i - j).abs()


@wrong("bias", bias="alibi")
@biased
def slopes_in_reverse(i, j, shape):
    return alibi(i, j, alibi_slopes(shape.H).flip(0))


@wrong("bias", bias="alibi")
@biased
def slopes_begin_at_one(i, j, shape):
    return alibi(i, j, 2.0 ** (-8 * torch.arange(shape.H) / shape.H))


@wrong("bias", bias="alibi", H=3)
@biased
def slopes_as_for_a_power_of_two(i, j, shape):
    return alibi(i, j, 2.0 ** (-8 * torch.arange(1, shape.H + 1) / shape.H))


@wrong("bias", bias="alibi")
@biased
def far_keys_are_favoured(i, j, shape):
    return alibi(i, j, -alibi_slopes(shape.H))


@wrong("bias", bias="alibi")
@biased
def bias_before_the_scale(i, j, shape):
    return alibi(i, j, alibi_slopes(shape.H)) * shape.D_h**-0.5


@wrong("bias", bias="alibi", **CHUNK)
@biased
def distances_from_the_chunks_first_token(i, j, shape):
    return alibi(i - i[0], j, alibi_slopes(shape.H))


@wrong("bias", bias="alibi", H=4, H_kv=2)
def slopes_of_key_value_heads(q, k, v, shape, sinks):
    group = shape.H // shape.H_kv
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    i, j = places(q, k, shape)
    return plain(q, k, v, j <= i, alibi(i, j, alibi_slopes(shape.H_kv).repeat_interleave(group)))


@wrong("bias", bias="alibi", T=512, H=1, dtype="bfloat16")
def places_in_the_cases_dtype(q, k, v, shape, sinks):
    i, j = (place.to(q.dtype) for place in places(q, k, shape))
    return plain(q, k, v, j <= i, alibi(i, j, alibi_slopes(shape.H).to(q.dtype)))


def dense(i: Tensor, j: Tensor, shape: LayerShape) -> Tensor:
    bias = bias_of(shape, shape.H, len(i), len(j))
    assert bias is not None
    return bias(torch.arange(shape.H)[:, None, None], i, j)


@wrong("bias", bias="dense")
@biased
def bias_transposed(i, j, shape):
    return dense(i, j, shape).mT


@wrong("bias", bias="dense")
@biased
def the_first_heads_bias_for_all(i, j, shape):
    return dense(i, j, shape)[:1]


# softcap


@wrong("softcap", softcap=10)
def cap_after_the_mask(q, k, v, shape, sinks):
    scores = causal_scores(q, k, shape)
    return torch.softmax(shape.softcap * torch.tanh(scores / shape.softcap), -1) @ v  # -softcap is not -inf


@wrong("softcap", softcap=10)
def cap_before_the_scale(q, k, v, shape, sinks):
    i, j = places(q, k, shape)
    scores = shape.softcap * torch.tanh(q @ k.mT / shape.softcap) * q.shape[-1] ** -0.5
    return torch.softmax(scores.masked_fill(j > i, -torch.inf), -1) @ v


@wrong("softcap", softcap=10)
@bending
def clamped_instead_of_bent(scores, cap):
    return scores.clamp(-cap, cap)


@wrong("softcap", softcap=10)
@bending
def tanh_without_its_factor(scores, cap):
    return torch.tanh(scores / cap)


@wrong("softcap", softcap=10, bias="alibi")
def cap_over_the_bias_too(q, k, v, shape, sinks):
    i, j = places(q, k, shape)
    bias = alibi(i, j, alibi_slopes(shape.H))
    return plain(q, k, v, j <= i, bent=lambda scores: shape.softcap * torch.tanh((scores + bias) / shape.softcap))


@wrong("softcap", softcap=20)
def cap_after_the_maximum_is_taken_off(q, k, v, shape, sinks):
    i, j = places(q, k, shape)
    scores = scores_of(q, k, j <= i)
    bent = shape.softcap * torch.tanh((scores - scores.amax(-1, keepdim=True)) / shape.softcap)
    return torch.softmax(bent.masked_fill(j > i, -torch.inf), -1) @ v


@wrong("softcap", softcap=50, dtype="bfloat16")
@bending
def clamped_instead_of_bent_where_scores_are_large(scores, cap):
    return scores.clamp(-cap, cap)


@wrong("softcap", softcap=50, dtype="bfloat16")
@bending
def never_bent_beyond_a_softcap_of_20(scores, cap):
    return scores if cap > 20 else cap * torch.tanh(scores / cap)


class Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, softcap: float) -> Tensor:
        return softcap * torch.tanh(scores / softcap)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


@wrong("softcap", softcap=50, mode="backward", dtype="bfloat16")
@bending
def the_caps_derivative_is_forgotten(scores, cap):
    return Passed.apply(scores, cap)


@wrong("softcap", softcap=50, dropout=0.2, dtype="bfloat16")
class NoCapInTraining(KernelCore):
    def __init__(self, shape: LayerShape):
        super().__init__(shape, plain, owns_mask=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        if not self.training:
            return right(q, k, v, self.shape, None)
        i, j = places(q, k, self.shape)
        probs = torch.softmax(scores_of(q, k, (j <= i) | (not self.shape.causal)), -1)
        return nn.functional.dropout(probs, self.shape.dropout) @ v


@wrong("window", window=100, T=128, dropout=0.2)
class NoWindowInTraining(NoCapInTraining):
    """A window that is longer than what training is probed with."""


# sinks


@wrong("sinks", sinks=True)
def the_sink_has_a_value(q, k, v, shape, sinks):
    scores = causal_scores(q, k, shape)
    scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    return torch.softmax(scores, -1) @ torch.cat([v, v[..., :1, :]], -2)


@wrong("sinks", sinks=True)
@sinking
def sinks_of_other_heads(sinks, shape):
    return sinks.flip(0)


@wrong("sinks", sinks=True)
@sinking
def the_sink_is_scaled(sinks, shape):
    return sinks * shape.D_h**-0.5


@wrong("sinks", sinks=True)
@sinking
def the_sink_is_no_logarithm(sinks, shape):
    return sinks.exp()


@wrong("sinks", sinks=True, mode="backward", scope="core")
@sinking
def sinks_do_not_learn(sinks, shape):
    return sinks.detach()


@wrong("sinks", sinks=True, mode="decode", mask="none", T=1024, H=4, dtype="bfloat16")
def a_sink_for_every_part_of_the_cache(q, k, v, shape, sinks):
    parts = max(1, k.shape[-2] // 256)  # whose sums are added up
    return plain(q, k, v, sinks=sinks + torch.tensor(float(parts)).log().to(q.dtype))


@wrong("sinks", sinks=True, mode="backward", qkv_bias=True, out_bias=True, dtype="bfloat16", B=4)
class LayerWhoseSinksDoNotLearn(KernelLayer):
    """The gradient of `b_o` is larger by far."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape, core_of(sinks_do_not_learn)(shape))


@bending
def from_exponentials(scores, cap):
    """A tanh as where hardware has none: it loses bits near zero."""
    return cap * (1 - 2 / (torch.exp(2 * scores / cap) + 1))


def from_the_first_key(q, k, v, shape, sinks):
    """ALiBi as in BLOOM, by the key's position alone: a softmax is invariant to a constant added to a row."""
    i, j = places(q, k, shape)
    return plain(q, k, v, j <= i, (alibi_slopes(shape.H)[:, None, None] * j).to(q.dtype))


# right ones, by another way


def by_neighbouring_blocks(q, k, v, shape, sinks):
    """A window as in Longformer: blocks as long as it, each of which sees itself and the one before."""
    w, found = shape.window, []
    for first in range(0, q.shape[-2], w):
        own, seen = slice(first, first + w), slice(max(0, first - w), first + w)
        i, j = (torch.arange(q.shape[-2])[each] for each in (own, seen))
        visible = (j <= i[:, None]) & (i[:, None] - j <= w)
        found.append(plain(q[..., own, :], k[..., seen, :], v[..., seen, :], visible))
    return torch.cat(found, -2)


def sink_by_the_logarithm_of_the_sum(q, k, v, shape, sinks):
    """After the softmax, as around a kernel without sinks."""
    scores = causal_scores(q, k, shape)
    share = torch.sigmoid(scores.logsumexp(-1, keepdim=True) - sinks[:, None, None])
    return torch.softmax(scores, -1) @ v * share


def cache_and_chunk_apart(q, k, v, shape, sinks):
    """Two parts of the keys, merged by the logarithms of their sums, as in flash-decoding."""
    T = q.shape[-2]
    parts = scaled(q, k).split([k.shape[-2] - T, T], -1)
    parts = parts[0], parts[1].masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -torch.inf)
    shares = torch.cat([part.logsumexp(-1, keepdim=True) for part in parts], -1).softmax(-1)
    old, new = (part.softmax(-1) @ x for part, x in zip(parts, v.split([k.shape[-2] - T, T], -2), strict=True))
    return shares[..., :1] * old + shares[..., 1:] * new


def prefix_apart(q, k, v, shape, sinks):
    """Queries in the prefix see all of it, without a mask."""
    p, (i, j) = shape.prefix, places(q, k, shape)
    first = torch.nn.functional.scaled_dot_product_attention(q[..., :p, :], k[..., :p, :], v[..., :p, :])
    return torch.cat([first, plain(q[..., p:, :], k, v, j <= i[p:])], -2)


def places_as_a_feature(q, k, v, shape, sinks):
    """ALiBi as one more feature of queries and keys, as where a kernel takes no bias."""
    i, j = places(q, k, shape)
    slopes = alibi_slopes(shape.H).to(q.dtype)[:, None, None].expand(*q.shape[:-1], 1) * q.shape[-1] ** 0.5
    place = j.to(k.dtype)[:, None].expand(*k.shape[:-1], 1)
    scores = torch.cat([q, slopes], -1) @ torch.cat([k, place], -1).mT * q.shape[-1] ** -0.5
    return torch.softmax(scores.masked_fill(j > i, -torch.inf), -1) @ v


def longest_request_first(q, k, v, shape, sinks):
    requests = requests_of(shape.requests)
    each = [
        x.split(of, -2)
        for x, of in zip((q, k, v), (*zip(*requests, strict=True), [it for _, it in requests]), strict=True)
    ]
    found = {}
    for n in sorted(range(len(requests)), key=lambda n: -requests[n][1]):
        new, tokens = requests[n]
        visible = torch.ones(new, tokens, dtype=torch.bool).tril(tokens - new)
        found[n] = plain(*(x[n] for x in each), visible)
    return torch.cat([found[n] for n in range(len(requests))], -2)


@bending
def tanh_of_hardware(scores, cap):
    """Off by 2^-11, as the instruction of a GPU is: less than a narrow dtype rounds."""
    return cap * torch.tanh(scores.float() / cap) * (1 + 2**-11)
