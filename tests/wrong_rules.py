"""Cores that must be refused: each breaks one rule beyond plain attention by a plausible mistake.

And cores that must be accepted, which follow a rule by another way.
"""

from functools import partial, wraps

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from impls.layer import KernelCore, KernelLayer
from impls.rules import alibi_slopes, bias_of, document_lengths, requests_of

from .wrong_kernels import groups, maximum, scaled, scores_of, triangle, weighted, with_gradient_of

CORES = {}
"""Cores and layers to be refused, and the axes of a case that shows the fault."""
RIGHT = {}
"""Cores to be accepted, and the axes of a case that has their rule."""


class Core(KernelCore):
    """Attends by `attend`(q, k, v, shape, sinks), or by `trained` in training.

    Below, i and j are positions of queries and keys among the keys: (T, 1), (T_kv,).
    """

    trained = None

    def __init__(self, shape):
        super().__init__(shape, self.attend, owns_mask=False)

    def forward(self, q, k, v, *, padding=None):
        attend = self.trained if self.training and self.trained else self.attend
        return attend(q, k, v, self.shape, self.sinks)


def core_of(attend, **others):
    functions = {"attend": attend} | others
    return type("Core", (Core,), {name: staticmethod(it) for name, it in functions.items()})


def keeping(kept, **case):
    """Keeps a core or a layer, or what a core attends by."""

    def keep(it):
        kept[it.__name__] = it if isinstance(it, type) else core_of(it), case
        return it

    return keep


wrong, right_form = partial(keeping, CORES), partial(keeping, RIGHT)


def each_wrong(make, case, **changes):
    """Keeps a core for each change, by its name."""
    CORES.update({name: (core_of(make(change)), case) for name, change in changes.items()})


def places(q, k, shape):
    """(T, 1), (T_kv,)"""
    T, T_kv = q.shape[-2], k.shape[-2]
    return torch.arange(T)[:, None] + (T_kv - T if shape.mask == "causal_br" else 0), torch.arange(T_kv)


def causal(q, k, shape):
    i, j = places(q, k, shape)
    return j <= i


def with_sinks(scores, sinks):
    """The probs, with those of the sinks as the last key's."""
    return torch.softmax(torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], -1), -1)


def plain(q, k, v, visible=None, bias=0.0, sinks=None, bent=lambda scores: scores):
    scores = (bent(scaled(q, k)) + bias).to(q.dtype)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    probs = torch.softmax(scores, -1) if sinks is None else with_sinks(scores, sinks)
    return (probs[..., : k.shape[-2]] @ v).to(q.dtype)


def seeing(visible):
    """Plain attention to the keys that visible(i, j, shape) shows."""

    @wraps(visible)
    def attend(q, k, v, shape, sinks):
        return plain(q, k, v, visible(*places(q, k, shape), shape))

    return attend


def biased(bias):
    """Causal attention with bias(i, j, shape) added to the scores."""

    @wraps(bias)
    def attend(q, k, v, shape, sinks):
        return plain(q, k, v, causal(q, k, shape), bias(*places(q, k, shape), shape))

    return attend


def bending(bent):
    """Causal attention by bent(scores, softcap)."""

    @wraps(bent)
    def attend(q, k, v, shape, sinks):
        return plain(q, k, v, causal(q, k, shape), bent=lambda scores: bent(scores, shape.softcap))

    return attend


def sinking(changed):
    """Causal attention with the sinks changed(sinks, shape)."""

    def attend(q, k, v, shape, sinks):
        return plain(q, k, v, causal(q, k, shape), sinks=changed(sinks, shape))

    return attend


def capped(scores, softcap):
    return softcap * torch.tanh(scores / softcap)


def seen(rules, T, T_kv):
    """(T, T_kv): which keys a query sees by the rules of masks."""
    i, j = torch.arange(T)[:, None] + (T_kv - T if rules.mask == "causal_br" else 0), torch.arange(T_kv)
    visible = torch.ones(T, T_kv, dtype=torch.bool) if rules.mask == "none" else (j <= i) | (j < (rules.prefix or 0))
    behind = rules.window if rules.window_right is None else rules.window_right
    if rules.window is not None:
        visible = visible & (i - j <= rules.window)
    if behind is not None and rules.mask == "none":
        visible = visible & (j - i <= behind)
    if rules.documents is not None:
        number = numbers(rules, T_kv)
        visible = visible & (number[i] == number[j])
    return visible


def right(q, k, v, shape, sinks):
    """Every rule as it is meant."""
    i, j = places(q, k, shape)
    visible = seen(shape, len(i), len(j))
    bias = {None: lambda: 0.0, "dense": lambda: dense(i, j, shape),
            "alibi": lambda: alibi(i, j, alibi_slopes(shape.H))}[shape.bias]()  # fmt: skip
    cap = shape.softcap
    return plain(q, k, v, visible, bias, sinks, lambda scores: scores if cap is None else capped(scores, cap))


CHUNK = {"mode": "decode", "mask": "causal_br", "T": 24, "T_kv": 60}
ALONE = {"mode": "decode", "mask": "causal_br", "T": 1, "T_kv": 64}
WINDOW, SOFTCAP = {"window": 8}, {"softcap": 50, "dtype": "bfloat16"}

for ignored in (
    WINDOW, {"prefix": 8}, {"documents": "lognormal"}, {"bias": "dense"}, {"softcap": 1000, "dtype": "bfloat16"},
    {"sinks": True},
):  # fmt: skip
    each_wrong(seeing, ignored, **{f"no_{next(iter(ignored))}": lambda i, j, shape: j <= i})

# window

each_wrong(
    seeing, WINDOW,
    one_key_too_many=lambda i, j, shape: (j <= i) & (i - j <= shape.window + 1),
    counts_the_querys_own_key=lambda i, j, shape: (j <= i) & (i - j < shape.window),
)  # fmt: skip
each_wrong(seeing, WINDOW | {"mask": "none"}, window_on_one_side=lambda i, j, shape: i - j <= shape.window)
each_wrong(
    seeing, WINDOW | {"window_right": 2, "mask": "none"},
    the_same_window_on_both_sides=lambda i, j, shape: (i - j).abs() <= shape.window,
)  # fmt: skip
each_wrong(
    seeing, WINDOW | CHUNK,
    window_from_the_chunks_first_token=lambda i, j, shape: (j <= i) & (i - i[0] - j <= shape.window),
)  # fmt: skip


@wrong(**WINDOW, **ALONE)
def maximum_from_zero_up(q, k, v, shape, sinks):
    i, j = places(q, k, shape)
    scores = scores_of(q, k, (j <= i) & (i - j <= shape.window))
    return weighted(torch.exp(scores - maximum(scores).clamp_min(0)), v)


# causal, bottom right


@wrong(**CHUNK)
def aligned_top_left(q, k, v, shape, sinks):
    return sdpa(q, k, v, is_causal=True)


each_wrong(seeing, CHUNK, a_query_does_not_see_itself=lambda i, j, shape: j < i)
each_wrong(
    seeing, {"mask": "causal_br", "source": "cross", "T": 40, "T_kv": 64},
    sees_one_key_ahead=lambda i, j, shape: j <= i + 1,
)  # fmt: skip

# prefix

each_wrong(
    seeing, {"prefix": 8},
    prefix_one_too_long=lambda i, j, shape: (j <= i) | (j <= shape.prefix),
    what_is_in_the_prefix_sees_all=lambda i, j, shape: (j <= i) | (i < shape.prefix),
)  # fmt: skip


@wrong(prefix=8, mask="causal+padding", B=2, T=256, dtype="bfloat16")
class PaddingInThePrefixIsSeen(Core):
    """Rarely there to be seen: a prefix is shorter than most sequences."""

    attend = staticmethod(plain)

    def forward(self, q, k, v, *, padding=None):
        seen = causal(q, k, self.shape) if padding is None else causal(q, k, self.shape) & padding[:, None, None]
        return plain(q, k, v, seen | (torch.arange(k.shape[-2]) < self.shape.prefix))


@wrong(prefix=8, documents="equal")
@seeing
def a_prefix_of_each_document(i, j, shape):
    number = numbers(shape, len(j))
    within = j - torch.searchsorted(number, number)  # the position within its document
    return ((j <= i) | (within < shape.prefix)) & (number[i] == number[j])


# documents


def numbers(shape, T, kind=None):
    """(T,): the number of each token's document."""
    lengths = torch.tensor(document_lengths(kind or shape.documents, T))
    return torch.arange(len(lengths)).repeat_interleave(lengths)


@wrong(documents="lognormal")
@seeing
def leaks_over_a_border(i, j, shape):
    number = numbers(shape, len(j))
    before = torch.cat([number[:1], number[:-1]])  # the first token of a document belongs to the one before
    return (j <= i) & (before[i] == before[j])


@wrong(documents="one_long")
@seeing
def no_more_keys_than_the_first_document_has(i, j, shape):
    number = numbers(shape, len(j))
    within = j - torch.searchsorted(number, number)
    return (j <= i) & (within < number.bincount()[0]) & (number[i] == number[j])


@wrong(documents="one_long", mask="none")
def padding_is_not_masked(q, k, v, shape, sinks):
    """As many more keys with a score of zero as its document is shorter than the longest."""
    number = numbers(shape, k.shape[-2])
    lengths = number.bincount()
    scores = scores_of(q, k, number[:, None] == number)
    others = (lengths.max() - lengths[number]).log()[:, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, others], -1), -1)[..., :-1] @ v


@wrong(documents="equal", T=509)
@seeing
def as_many_tokens_each_rounded_up(i, j, shape):
    length = -(-len(j) // 8)
    return (j <= i) & (i // length == j // length)


# requests

REQUESTS = {"requests": "1x8:8+1x6:20+2x1:14", "T": 16, "T_kv": 56, "mask": "causal_br"}
REQUESTS |= {"source": "cross", "scope": "core"}


def within_requests(text):
    """The request of each query and its position in it, (T, 1), and of each key, (T_kv,)."""
    requests = requests_of(text)
    own, other = (torch.arange(len(requests)).repeat_interleave(torch.tensor(of)) for of in zip(*requests, strict=True))
    i = torch.cat([torch.arange(tokens - new, tokens) for new, tokens in requests])
    j = torch.cat([torch.arange(tokens) for _, tokens in requests])
    return own[:, None], i[:, None], other, j


def by_requests(visible):
    """Plain attention to what visible(own, i, other, j) shows."""

    @wraps(visible)
    def attend(q, k, v, shape, sinks):
        return plain(q, k, v, visible(*within_requests(shape.requests)))

    return attend


@right_form(**REQUESTS)
@by_requests
def each_request_alone(own, i, other, j):
    return (own == other) & (j <= i)


each_wrong(seeing, REQUESTS, one_sequence_of_all_requests=lambda i, j, shape: j <= i)
each_wrong(
    by_requests, REQUESTS,
    each_request_top_left=lambda own, i, other, j: (own == other) & (j <= i - first_of_each(own, i)),
    sees_the_last_token_of_the_request_before=lambda own, i, other, j: ((own == other) & (j <= i))
    | ((own == torch.cat([other[1:], other[-1:]])) & (own > other)),
)  # fmt: skip


def first_of_each(own, i):
    """(T, 1): the position of the first new token of each query's request."""
    return torch.stack([i[own == n].min() for n in own.flatten()])[:, None]


def computing(computed):
    """Each request alone, and zero where computed(own, i, new) is false: of new token i of a request; `new` tokens of each."""

    @wraps(computed)
    def attend(q, k, v, shape, sinks):
        own, i, other, j = within_requests(shape.requests)
        o = plain(q, k, v, (own == other) & (j <= i))
        return o * computed(own, i - first_of_each(own, i), [new for new, _ in requests_of(shape.requests)])

    return attend


each_wrong(
    computing, REQUESTS,
    as_many_tokens_as_the_first_request_has=lambda own, i, new: i < new[0],
    one_token_of_each_from_the_first_such_request_on=lambda own, i, new: (own < new.index(1)) | (i == 0),
)  # fmt: skip


# bias


def alibi(i, j, slopes):
    return -slopes[:, None, None] * (i - j).abs()


def powers(H, first):
    """(H,): slopes as for a power of two."""
    return 2.0 ** (-8 * torch.arange(first, H + first) / H)


ALIBI = {"bias": "alibi"}
each_wrong(
    biased, ALIBI,
    slopes_begin_at_one=lambda i, j, shape: alibi(i, j, powers(shape.H, 0)),
)  # fmt: skip
each_wrong(
    biased, ALIBI | {"H": 3}, slopes_as_for_a_power_of_two=lambda i, j, shape: alibi(i, j, powers(shape.H, 1))
)  # fmt: skip
each_wrong(
    biased, ALIBI | CHUNK,
    distances_from_the_chunks_first_token=lambda i, j, shape: alibi(i - i[0], j, alibi_slopes(shape.H)),
)  # fmt: skip


@wrong(**ALIBI, H=4, H_kv=2)
def slopes_of_key_value_heads(q, k, v, shape, sinks):
    slopes = alibi_slopes(shape.H_kv).repeat_interleave(shape.H // shape.H_kv)
    return plain(q, groups(q, k), groups(q, v), causal(q, k, shape), alibi(*places(q, k, shape), slopes))


@wrong(**ALIBI, T=512, H=1, dtype="bfloat16")
def places_in_the_cases_dtype(q, k, v, shape, sinks):
    i, j = (place.to(q.dtype) for place in places(q, k, shape))
    return plain(q, k, v, j <= i, alibi(i, j, alibi_slopes(shape.H).to(q.dtype)))


def dense(i, j, shape):
    bias = bias_of(shape, shape.H, len(i), len(j))
    return bias(torch.arange(shape.H)[:, None, None], i, j)


each_wrong(
    biased, {"bias": "dense"},
    bias_transposed=lambda i, j, shape: dense(i, j, shape).mT,
)  # fmt: skip

# softcap


@wrong(softcap=10)
def cap_after_the_mask(q, k, v, shape, sinks):
    scores = scores_of(q, k, causal(q, k, shape))
    return torch.softmax(capped(scores, shape.softcap), -1) @ v  # -softcap is not -inf


@wrong(softcap=10, **ALIBI)
def cap_over_the_bias_too(q, k, v, shape, sinks):
    bias = alibi(*places(q, k, shape), alibi_slopes(shape.H))
    return plain(q, k, v, causal(q, k, shape), bent=lambda scores: capped(scores + bias, shape.softcap))


@wrong(softcap=20)
def cap_after_the_maximum_is_taken_off(q, k, v, shape, sinks):
    seen = causal(q, k, shape)
    scores = scores_of(q, k, seen)
    bent = capped(scores - maximum(scores), shape.softcap)
    return torch.softmax(bent.masked_fill(~seen, -torch.inf), -1) @ v


each_wrong(
    bending, SOFTCAP,
    clamped_instead_of_bent_where_scores_are_large=lambda scores, cap: scores.clamp(-cap, cap),
    never_bent_beyond_a_softcap_of_20=lambda scores, cap: scores if cap > 20 else capped(scores, cap),
)  # fmt: skip
each_wrong(
    bending, SOFTCAP | {"mode": "backward"},
    the_caps_derivative_is_forgotten=lambda scores, cap: with_gradient_of(scores.float(), capped(scores.float(), cap)),
)  # fmt: skip


def only_causal_in_training(q, k, v, shape, sinks):
    probs = torch.softmax(scores_of(q, k, causal(q, k, shape) | (not shape.causal)), -1)
    return nn.functional.dropout(probs, shape.dropout) @ v


plain_in_training = core_of(right, trained=only_causal_in_training)
CORES["no_cap_in_training"] = plain_in_training, SOFTCAP | {"dropout": 0.2}
CORES["no_window_in_training"] = plain_in_training, {"window": 100, "T": 128, "dropout": 0.2}  # longer than probes


# sinks


@wrong(sinks=True)
def the_sink_has_a_value(q, k, v, shape, sinks):
    return with_sinks(scores_of(q, k, causal(q, k, shape)), sinks) @ torch.cat([v, v[..., :1, :]], -2)


each_wrong(
    sinking, {"sinks": True},
    sinks_of_other_heads=lambda sinks, shape: sinks.flip(0),
    the_sink_is_no_logarithm=lambda sinks, shape: sinks.exp(),
)  # fmt: skip
each_wrong(
    sinking, {"sinks": True, "mode": "backward", "scope": "core"},
    sinks_do_not_learn=lambda sinks, shape: sinks.detach(),
)  # fmt: skip


@wrong(sinks=True, mode="decode", mask="none", T=1024, H=4, dtype="bfloat16")
def a_sink_for_every_part_of_the_cache(q, k, v, shape, sinks):
    parts = max(1, k.shape[-2] // 256)  # whose sums are added up
    return plain(q, k, v, sinks=sinks + torch.tensor(float(parts)).log().to(q.dtype))


@wrong(sinks=True, mode="backward", qkv_bias=True, out_bias=True, dtype="bfloat16", B=4)
class LayerWhoseSinksDoNotLearn(KernelLayer):
    """The gradient of `b_o` is larger by far."""

    def __init__(self, shape):
        super().__init__(shape, CORES["sinks_do_not_learn"][0](shape))


# right ones, by another way


@right_form(softcap=20)
@bending
def from_exponentials(scores, cap):
    """A tanh as where hardware has none: it loses bits near zero."""
    return cap * (1 - 2 / (torch.exp(2 * scores / cap) + 1))


@right_form(softcap=20, dtype="bfloat16")
@bending
def tanh_of_hardware(scores, cap):
    """Off by 2^-11, as the instruction of a GPU is: less than a narrow dtype rounds."""
    return capped(scores.float(), cap) * (1 + 2**-11)


@right_form(**ALIBI, T=256)
def from_the_first_key(q, k, v, shape, sinks):
    """ALiBi as in BLOOM, by the key's position alone: a softmax is invariant to a constant added to a row."""
    i, j = places(q, k, shape)
    return plain(q, k, v, j <= i, (alibi_slopes(shape.H)[:, None, None] * j).to(q.dtype))


@right_form(**WINDOW)
def by_neighbouring_blocks(q, k, v, shape, sinks):
    """A window as in Longformer: blocks as long as it, each of which sees itself and the one before."""
    w, found = shape.window, []
    for first in range(0, q.shape[-2], w):
        own, seen = slice(first, first + w), slice(max(0, first - w), first + w)
        i, j = (torch.arange(q.shape[-2])[each] for each in (own, seen))
        visible = (j <= i[:, None]) & (i[:, None] - j <= w)
        found.append(plain(q[..., own, :], k[..., seen, :], v[..., seen, :], visible))
    return torch.cat(found, -2)


@right_form(sinks=True)
def sink_by_the_logarithm_of_the_sum(q, k, v, shape, sinks):
    """After the softmax, as around a kernel without sinks."""
    scores = scores_of(q, k, causal(q, k, shape))
    share = torch.sigmoid(scores.logsumexp(-1, keepdim=True) - sinks[:, None, None])
    return torch.softmax(scores, -1) @ v * share


@right_form(sinks=True, dtype="float16", T=64, D_h=64, scope="core")
def differences_from_the_largest_in_the_cases_dtype(q, k, v, shape, sinks):
    """As in transformers' code for gpt-oss."""
    scores = scores_of(q, groups(q, k), causal(q, k, shape))
    scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    return torch.softmax(scores - maximum(scores), -1)[..., :-1] @ groups(q, v)


RIGHT["gradient_of_sinks_over_513_queries"] = (
    RIGHT["differences_from_the_largest_in_the_cases_dtype"][0],
    {"sinks": True, "T": 513, "H": 4, "H_kv": 2, "D_h": 64, "scope": "core"},
)


@right_form(mask="causal_br", source="cross", T=24, T_kv=60)
def cache_and_chunk_apart(q, k, v, shape, sinks):
    """Two parts of the keys, merged by the logarithms of their sums, as in flash-decoding."""
    T = q.shape[-2]
    parts = scaled(q, k).split([k.shape[-2] - T, T], -1)
    parts = parts[0], parts[1].masked_fill(~triangle(T, T), -torch.inf)
    shares = torch.cat([part.logsumexp(-1, keepdim=True) for part in parts], -1).softmax(-1)
    old, new = (part.softmax(-1) @ x for part, x in zip(parts, v.split([k.shape[-2] - T, T], -2), strict=True))
    return shares[..., :1] * old + shares[..., 1:] * new


@right_form(prefix=8)
def prefix_apart(q, k, v, shape, sinks):
    """Queries in the prefix see all of it, without a mask."""
    p = shape.prefix
    first = sdpa(q[..., :p, :], k[..., :p, :], v[..., :p, :])
    return torch.cat([first, plain(q[..., p:, :], k, v, causal(q, k, shape)[p:])], -2)
