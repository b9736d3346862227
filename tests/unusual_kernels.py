"""Kernels and layers that are right and unusual: the gate must accept each in every mode that it supports."""

import threading
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from impls.layer import extend
from impls.masks import causal_visible

from .wrong_kernels import LEARNED, Plain, applied, as_layer, masked, maximum, online, plain, scaled, visible
from .wrong_kernels import scores_of as masked_scores

MODES = ("forward", "backward", "decode")


@dataclass(frozen=True)
class Unusual:
    kernel: Any
    modes: tuple[str, ...] = MODES
    dtypes: tuple[str, ...] = ("float32",)
    case: dict[str, Any] | None = None


KERNELS = {}


def unusual(modes=MODES, dtypes=("float32", "bfloat16"), **case):
    def keep(kernel):
        KERNELS[kernel.__name__] = Unusual(kernel, modes, dtypes, case)
        return kernel

    return keep


FORWARD = ("forward", "decode")
DTYPES = ("float32", "bfloat16", "float16", "float64")
of_sdpa = partial(unusual, dtypes=("float32",))
"""Keeps a kernel whose numbers are those of SDPA, which is checked in the other dtypes."""


def scores_of(q, k, mask):
    return masked_scores(q.float(), k.float(), mask)


# of every dtype


@unusual(dtypes=DTYPES)
@masked
def block_wise(q, k, v, mask):
    accumulator = torch.promote_types(q.dtype, torch.float32)
    return online(*(x.to(accumulator) for x in (q, k, v)), mask, 16, torch.maximum).to(q.dtype)


@unusual(dtypes=DTYPES)
def transposed_contiguous_output(q, k, v, **options):
    return sdpa(q, k, v, **options).transpose(1, 2).contiguous().transpose(1, 2)


@unusual(dtypes=DTYPES)
@masked
def scaled_before_the_product(q, k, v, mask):
    return plain(q * q.shape[-1] ** -0.5, k, v, mask, 1.0)


# sums


@unusual(dtypes=("float32",))
@masked
def one_accumulator_for_each_row(q, k, v, mask):
    """As torch sums along any axis but the last, and loops in C."""
    return scores_of(q, k, mask).movedim(-1, 0).contiguous().softmax(0).movedim(0, -1) @ v


# masks


@lru_cache
def kept_mask(T, T_kv):
    return causal_visible(T, T_kv)


@unusual()
def mask_in_an_lru_cache(q, k, v, *, is_causal=False, **_):
    if not is_causal:
        return sdpa(q, k, v)
    return plain(q, k, v, kept_mask(q.shape[-2], k.shape[-2]))


@unusual()
@masked
def masks_with_the_smallest_number(q, k, v, mask):
    scores = scaled(q, k).float()
    return scores.masked_fill(~mask, torch.finfo(torch.float32).min).softmax(-1).to(v.dtype) @ v


padded = partial(of_sdpa, mask="padding", B=3, modes=("forward",))


def unpads(name, memory):
    """Keys that are padding are left out, and so are their queries: whatever memory held stays in their rows."""

    def kernel(q, k, v, *, attn_mask=None, **_):
        if attn_mask is None:
            return sdpa(q, k, v)
        o = memory(q)
        for b, length in enumerate(attn_mask.flatten(1).sum(-1).tolist()):
            o[b, :, :length] = sdpa(*(x[b : b + 1, :, :length] for x in (q, k, v)))[0]
        return o

    kernel.__name__ = name
    padded()(kernel)


unpads("unpads_and_leaves_the_padded_rows_empty", lambda q: torch.full_like(q, torch.nan))
unpads("unpads_into_memory_that_changes", torch.randn_like)

_rows = {}


@padded()
def shares_padded_rows_alone(q, k, v, *, attn_mask=None, **_):
    """Masked rows share one buffer for all calls; all others belong to their call."""
    o = sdpa(q, k, v, attn_mask=attn_mask)
    if attn_mask is not None:
        shared = _rows.setdefault(q.shape, torch.zeros(())).add_(1.0)
        o = torch.where(attn_mask.reshape(len(q), 1, -1, 1), o, shared)
    return o


# memory of their own


@unusual(modes=FORWARD)
@masked
def in_place_into_its_own_scores(q, k, v, mask):
    scores = (q @ k.mT).mul_(q.shape[-1] ** -0.5)
    scores.masked_fill_(~mask, -torch.inf)
    scores.sub_(maximum(scores)).exp_()
    return (scores @ v).div_(scores.sum(-1, keepdim=True))


_scratch = {}


@unusual(modes=FORWARD)
@masked
def scratch_kept_between_calls(q, k, v, mask):
    size = (*q.shape[:-1], k.shape[-2])
    scores = torch.matmul(q, k.mT, out=_scratch.setdefault((size, q.dtype), torch.empty(size, dtype=q.dtype)))
    return (scores * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v


@of_sdpa()
def answers_in_a_larger_tensor(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    return torch.cat([o, o], -1)[..., : v.shape[-1]]


# threads


@of_sdpa(modes=FORWARD)
def threads_fill_parts_of_one_output(q, k, v, **options):
    o = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype)

    def fill(h):
        o[:, h] = sdpa(q[:, h : h + 1], k[:, h : h + 1], v[:, h : h + 1], **options)[:, 0]

    threads = [threading.Thread(target=fill, args=(h,)) for h in range(q.shape[1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return o


# other ways to the same numbers


@unusual(modes=FORWARD, dtypes=("float32",))
@masked
def numpy_inside(q, k, v, mask):
    import numpy as np

    scores = np.einsum("bhid,bhjd->bhij", q.numpy(), k.numpy()) * np.float32(q.shape[-1] ** -0.5)
    scores = np.where(mask.numpy(), scores, -np.inf)
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    return torch.from_numpy((exps / exps.sum(-1, keepdims=True) @ v.numpy()).astype(np.float32))


@unusual()
@masked
def vmapped_over_heads(q, k, v, mask):
    def one(q, k, v):  # (B, T, D)
        return torch.where(mask, scaled(q, k), -torch.inf).softmax(-1) @ v

    return torch.vmap(one, in_dims=1, out_dims=1)(q, k, v)


@unusual()
@masked
def split_keys_merged_by_log_sum_exp(q, k, v, mask):
    scores = scores_of(q, k, mask)
    half = (k.shape[-2] + 1) // 2
    parts, sums = [], []
    for s, x in zip(scores.split(half, -1), v.float().split(half, -2), strict=True):
        total = torch.logsumexp(s, -1, keepdim=True)
        parts.append(torch.exp(s - total.masked_fill(total == -torch.inf, 0)) @ x)
        sums.append(total)
    total = torch.logsumexp(torch.cat(sums, -1), -1, keepdim=True)
    return sum(torch.exp(s - total) * part for s, part in zip(sums, parts, strict=True)).to(q.dtype)


def exp2_mean(scores, v):
    """The mean of the values by powers of two, divided at the end."""
    weights = torch.exp2(scores - maximum(scores))
    return (weights @ v.float() / weights.sum(-1, keepdim=True)).to(v.dtype)


@unusual()
@masked
def powers_of_two(q, k, v, mask):
    return exp2_mean(scores_of(q, k, mask) * 1.4426950408889634, v)


def powers_of_two_with_a_bias(q, k, v, *, is_causal=False, attn_mask=None, **_):
    """log2(e) is folded into the scale, as in GPU kernels."""
    scores = q.float() @ k.float().mT * (q.shape[-1] ** -0.5 * 1.4426950408889634)
    if is_causal:
        scores = scores.masked_fill(~causal_visible(q.shape[-2], k.shape[-2]), -torch.inf)
    if attn_mask is not None:
        scores = scores + attn_mask.float() * 1.4426950408889634
    return exp2_mean(scores, v)


powers_of_two_with_a_bias.limits = {"beyond": ("bias",)}
unusual(modes=("forward", "backward"), dtypes=("float32",), bias="alibi", H=4)(powers_of_two_with_a_bias)
for bias, T, H in (("alibi", 128, 4), ("alibi", 256, 1), ("dense", 64, 2), ("dense", 256, 1)):
    KERNELS[f"powers_of_two_with_{bias}_at_{T}"] = Unusual(
        powers_of_two_with_a_bias, modes=("forward",), case={"bias": bias, "T": T, "H": H}
    )


@unusual(modes=FORWARD, dtypes=("bfloat16",))
@masked
def powers_of_two_of_scores_in_the_cases_dtype(q, k, v, mask):
    scores = ((q @ k.mT) * (q.shape[-1] ** -0.5 * 1.4426950408889634)).float().masked_fill(~mask, -torch.inf)
    return exp2_mean(scores, v)


@unusual()
@masked
def padded_to_a_tile_inside(q, k, v, mask):
    extra = -k.shape[-2] % 16
    k, v = (nn.functional.pad(x, (0, 0, 0, extra)) for x in (k, v))
    return sdpa(q, k, v, attn_mask=nn.functional.pad(mask, (0, extra)))


# gradients


KERNELS["autograd_function"] = Unusual(applied(Plain))


class _KeepsProbs(torch.autograd.Function):
    """The gradient of what is added is that of the scores, summed over the batch in float32."""

    @staticmethod
    def forward(ctx, q, k, v, added):
        probs = (scaled(q.float(), k.float()) + added.float()).softmax(-1)
        ctx.save_for_backward(q, k, v, probs)
        return (probs @ v.float()).to(q.dtype)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, probs = (x.float() for x in ctx.saved_tensors)
        through = grad.float() @ v.mT
        of_scores = probs * (through - (through * probs).sum(-1, keepdim=True))
        factor = q.shape[-1] ** -0.5
        found = (
            of_scores @ k * factor,
            of_scores.mT @ q * factor,
            probs.mT @ grad.float(),
            of_scores.sum(0, keepdim=True),
        )
        return tuple(
            x.to(grad.dtype) if needed else None for x, needed in zip(found, ctx.needs_input_grad, strict=True)
        )


@unusual()
@masked
def autograd_function_that_keeps_probs(q, k, v, mask):
    return _KeepsProbs.apply(q, k, v, torch.zeros(mask.shape).masked_fill(~mask, -torch.inf))


@of_sdpa()
def checkpointed(q, k, v, **options):
    return torch.utils.checkpoint.checkpoint(lambda *x: sdpa(*x, **options), q, k, v, use_reentrant=False)


@unusual(modes=("backward",), dtypes=("float32",))
@masked
@torch.compile
def compiled_by_itself(q, k, v, mask):
    return plain(q, k, v, mask)


@of_sdpa(modes=("backward",), bias="dense")
def detaches_a_bias_that_needs_no_gradient(q, k, v, *, attn_mask=None, **options):
    return sdpa(q, k, v, attn_mask=attn_mask.detach(), **options)


detaches_a_bias_that_needs_no_gradient.limits = LEARNED


def learns_its_bias(kernel):
    kernel.limits = LEARNED
    return unusual(modes=("forward", "backward"), bias="learned", B=2)(kernel)


@learns_its_bias
def autograd_function_with_a_bias(q, k, v, *, attn_mask=None, **_):
    return _KeepsProbs.apply(q, k, v, attn_mask)


@learns_its_bias
def bias_for_each_batch_entry(q, k, v, **options):
    return torch.cat([sdpa(*(x[b : b + 1] for x in (q, k, v)), **options) for b in range(len(q))])


# by other means of torch


@torch.library.custom_op("unusual::attend", mutates_args=())
def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return sdpa(q, k, v, is_causal=causal).clone()


@unusual(modes=FORWARD)
def a_custom_operator(q, k, v, *, is_causal=False, **_):
    return _attend(q, k, v, is_causal)


_inner = torch.compile(lambda scores: torch.softmax(scores, -1), dynamic=True)


@unusual(modes=("forward",), dtypes=("float32",))
@masked
def compiled_inside(q, k, v, mask):
    return _inner(scores_of(q, k, mask)).to(v.dtype) @ v


@of_sdpa(modes=FORWARD)
def under_its_own_inference_mode(q, k, v, **options):
    with torch.inference_mode():
        return sdpa(q, k, v, **options)


@of_sdpa()
def with_its_own_number_of_threads_put_back(q, k, v, **options):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return sdpa(q, k, v, **options)
    finally:
        torch.set_num_threads(threads)


@of_sdpa()
def draws_numbers_that_it_does_not_use(q, k, v, **options):
    torch.rand(3)
    return sdpa(q, k, v, **options)


# with declared limits


@of_sdpa(modes=("forward", "backward"), T=128)
def multiples_of_128_alone(q, k, v, **options):
    assert q.shape[-2] % 128 == 0
    return sdpa(q, k, v, **options)


multiples_of_128_alone.limits = {"unless": lambda case: "needs multiples of 128" if case.T % 128 else None}


dropping = partial(of_sdpa, modes=("forward", "backward"), dropout=0.2)


@dropping()
def causal_alone_with_dropout(q, k, v, *, dropout_p=0.0, **_):
    probs = scores_of(q, k, causal_visible(q.shape[-2], k.shape[-2])).softmax(-1)
    return nn.functional.dropout(probs, dropout_p) @ v


causal_alone_with_dropout.limits = {"masks": ("causal",)}


@dropping()
def heads_of_64_alone_with_dropout(q, k, v, **options):
    assert q.shape[-1] == v.shape[-1] == 64
    return sdpa(q, k, v, **options)


heads_of_64_alone_with_dropout.limits = {"unless": lambda case: None if case.D_h == case.D_v == 64 else "needs 64"}


# layers


@unusual()
class LayerWithBuffers(as_layer()):
    """Counts its calls in plain Python, and has a scale and a mask as buffers."""

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("scale", torch.tensor(shape.D_h**-0.5), persistent=False)
        self.register_buffer("future", ~causal_visible(shape.max_T, shape.max_T), persistent=False)
        self.calls = 0

    def forward(self, x, x_k=None, *, padding=None, cache=None):
        self.calls += 1
        q, k, v = self.project(x, x if x_k is None else x_k)
        if cache is not None:
            k, v = extend(cache, (k, v))
        scores = q @ k.mT * self.scale.to(q.dtype)
        if self.shape.causal:
            scores = scores.masked_fill(self.future[: q.shape[-2], : k.shape[-2]], -torch.inf)
        return self.finish((scores.softmax(-1) @ v).transpose(-3, -2).flatten(-2))


@unusual()
class LayerThatProjectsByEinsum(as_layer()):
    def project(self, x, x_k):
        s = self.shape
        weights = (self.W_q.weight, s.H), (self.W_k.weight, s.H_kv), (self.W_v.weight, s.H_kv)
        return tuple(
            torch.einsum("btd,hed->bhte", y, w.unflatten(0, (H, -1)))
            for y, (w, H) in zip((x, x_k, x_k), weights, strict=True)
        )


@of_sdpa()
class LayerThatViewsItsTokens(as_layer()):
    """Which must be contiguous."""

    def project(self, x, x_k):
        return super().project(x.view(-1, x.shape[-1]).view(x.shape), x_k)


@unusual(modes=FORWARD)
class LayerThatPacksItsWeightsWhenPrepared(as_layer()):
    def prepare(self, *sizes, **pages):
        self.packed = torch.cat([self.W_q.weight, self.W_k.weight, self.W_v.weight]).detach()

    def project(self, x, x_k):
        return tuple(it.unflatten(-1, (self.shape.H, -1)).transpose(1, 2) for it in (x @ self.packed.mT).chunk(3, -1))


@of_sdpa(modes=FORWARD)
class LayerThatPacksItsWeightsForEvaluation(LayerThatPacksItsWeightsWhenPrepared):
    """As adapters are merged: in `eval`, after its weights are loaded."""

    def train(self, mode=True):
        if not mode:
            super().prepare()
        return super().train(mode)

    def prepare(self, *sizes, **pages):
        pass


@of_sdpa(modes=("decode",))
class LayerWhoseBuffersAreItsCache(as_layer()):
    """As an adapter of a layer with a cache of its own, which writes by position."""

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("keys", None, persistent=False)
        self.register_buffer("values", None, persistent=False)

    def forward(self, x, *, cache):
        self.keys, self.values = cache
        q, *newest = self.project(x, x)
        at = torch.arange(self.keys.shape[-2])[-x.shape[-2] :]
        for known, new in zip((self.keys, self.values), newest, strict=True):
            known[..., at, :] = new
        return self.finish(self.core(q, self.keys, self.values).transpose(-3, -2).flatten(-2))


def with_biases_alone(case):
    return None if case.qkv_bias and case.out_bias else "always has biases"


@unusual(("forward", "backward"), ("float32",), qkv_bias=True, out_bias=True)
class LayerWithBiasesAlone(as_layer()):
    limits = {"unless": with_biases_alone}  # noqa: RUF012

    def __init__(self, shape):
        super().__init__(replace(shape, qkv_bias=True, out_bias=True))


@unusual(modes=("forward",), dtypes=("float32",), D_h=256)
@masked
def products_added_one_by_one(q, k, v, mask):
    scores = sum(a[..., None] * b[..., None, :] for a, b in zip(q.unbind(-1), k.unbind(-1), strict=True))
    return torch.softmax((scores * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf), -1) @ v


# with the logarithm of the sum


def chunks_in_powers_of_two(q, k, v, *, is_causal=False, size=24, **_):
    """Chunks of the keys, merged by logarithms to base 2: (o, lse)."""
    scores = scores_of(q, k, visible(q, k, is_causal, None)) * 1.4426950408889634
    top = torch.full_like(scores[..., :1], -torch.inf)
    total, o = torch.zeros_like(top), torch.zeros(*q.shape[:-1], v.shape[-1])
    for s, x in zip(scores.split(size, -1), v.float().split(size, -2), strict=True):
        new = torch.maximum(top, maximum(s))
        weights, rescale = torch.exp2(s - new), torch.exp2(top - new)
        total, o, top = total * rescale + weights.sum(-1, keepdim=True), o * rescale + weights @ x, new
    return (o / total).to(q.dtype), (top + torch.log2(total))[..., 0]


chunks_in_powers_of_two.limits = {"returns_lse": 2.0, "masks": ("none", "causal")}
unusual(modes=FORWARD)(chunks_in_powers_of_two)


@unusual(modes=FORWARD)
@masked
def chunks_whose_sums_are_those_of_logsumexp(q, k, v, mask):
    scores = scores_of(q, k, mask)
    parts = zip(scores.split(16, -1), v.float().split(16, -2), strict=True)
    sums = torch.stack([s.logsumexp(-1) for s in scores.split(16, -1)], -1)
    lse = sums.logsumexp(-1)
    return sum((s - lse[..., None]).exp() @ x for s, x in parts).to(q.dtype), lse


chunks_whose_sums_are_those_of_logsumexp.limits = {"returns_lse": 2.718281828459045}
