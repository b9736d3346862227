"""Kernels that must be refused, by the family of their fault. Each is honest but for one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from impls.layer import KernelCore, KernelLayer, LayerShape, extend

Kernel = Callable[..., Tensor]


@dataclass(frozen=True)
class Wrong:
    family: str
    kernel: Kernel
    says: str
    """What the gate's sentence must hold."""
    case: dict[str, Any]
    """The axes of a case that shows the fault, where the plain one doesn't."""


KERNELS: dict[str, Wrong] = {}


def wrong(family: str, says: str = "error", **case: Any) -> Callable[[Kernel], Kernel]:
    def keep(kernel: Kernel) -> Kernel:
        KERNELS[kernel.__name__] = Wrong(family, kernel, says, case)
        return kernel

    return keep


def visible(q: Tensor, k: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor:
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    if is_causal:
        mask = mask.tril()
    return mask if attn_mask is None else mask & attn_mask


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return torch.softmax(scores.masked_fill(~mask, -torch.inf), -1) @ v


def groups(q: Tensor, x: Tensor) -> Tensor:
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


# mask


@wrong("mask")
def anti_causal(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return plain(q, k, v, visible(q, k, is_causal, attn_mask).mT)


@wrong("mask", "NaN or Inf")
def wrong_triangle(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return plain(q, k, v, ~visible(q, k, is_causal, attn_mask))  # the last row sees nothing


@wrong("mask")
def sees_one_ahead(q, k, v, *, is_causal=False, **_):
    return plain(q, k, v, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(1))


@wrong("mask", "NaN or Inf in")
def hides_the_diagonal(q, k, v, *, is_causal=False, **_):
    return plain(q, k, v, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(-1))


@wrong("mask")
def no_mask(q, k, v, **_):
    return sdpa(q, k, v)


@wrong("mask")
def mask_of_zeros(q, k, v, *, is_causal=False, attn_mask=None, **_):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return torch.softmax(scores * visible(q, k, is_causal, attn_mask), -1) @ v  # exp(0) is not 0


@wrong("mask")
def mask_without_renormalising(q, k, v, *, is_causal=False, attn_mask=None, **_):
    probs = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
    return (probs * visible(q, k, is_causal, attn_mask)) @ v


@wrong("mask", mask="padding", B=2)
def padding_ignored(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return sdpa(q, k, v, is_causal=is_causal)  # with a causal mask too it would be right: padding lies in the future


@wrong("mask", mask="padding", B=2)
def mask_true_means_hide(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return plain(q, k, v, visible(q, k, is_causal, None) if attn_mask is None else ~attn_mask | _first(attn_mask))


def _first(mask: Tensor) -> Tensor:
    first = torch.zeros_like(mask)
    first[..., 0] = True  # so that no row is empty
    return first


@wrong("mask", mask="causal", source="cross", T_kv=40)
def causal_bottom_right(q, k, v, *, is_causal=False, attn_mask=None, **_):
    T, T_kv = q.shape[-2], k.shape[-2]
    return torch.nan_to_num(plain(q, k, v, torch.ones(T, T_kv, dtype=torch.bool).tril(T_kv - T)))


# scale


@wrong("scale")
def no_scale(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return plain(q, k, v, visible(q, k, is_causal, attn_mask), 1.0)


@wrong("scale")
def constant_scale(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return plain(q, k, v, visible(q, k, is_causal, attn_mask), 256**-0.5)


@wrong("scale", d_model=256)
def scaled_by_the_models_width(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return plain(q, k, v, visible(q, k, is_causal, attn_mask), (q.shape[1] * q.shape[-1]) ** -0.5)


# softmax


@wrong("softmax")
def softmax_twice(q, k, v, *, is_causal=False, attn_mask=None, **_):
    """As a tutorial prints it: softmax over every key, the future set to -inf, softmax again."""
    scale = q.shape[-1] ** -0.5
    probs = torch.softmax(q @ k.mT * scale, -1)
    return torch.softmax(probs.masked_fill(~visible(q, k, is_causal, attn_mask), -torch.inf) * scale, -1) @ v


@wrong("softmax")
def row_sum(q, k, v, *, is_causal=False, attn_mask=None, scale=None, **_):
    """Scores divided by their row's sum, without an exponential."""
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores * visible(q, k, is_causal, attn_mask)
    return scores / scores.sum(-1, keepdim=True) @ v


@wrong("softmax")
def softmax_over_queries(q, k, v, *, is_causal=False, attn_mask=None, **_):
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~visible(q, k, is_causal, attn_mask), -torch.inf)
    return torch.softmax(scores, -2) @ v


@wrong("softmax", "NaN or Inf in")
def exp_without_the_maximum(q, k, v, *, is_causal=False, attn_mask=None, **_):
    mask = visible(q, k, is_causal, attn_mask)
    weights = torch.exp(q @ k.mT * q.shape[-1] ** -0.5) * mask
    return weights / weights.sum(-1, keepdim=True) @ v


@wrong("softmax")
def zeros(q, k, v, **_):
    return torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)


@wrong("softmax")
def mean_of_the_visible(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return plain(torch.zeros_like(q), k, v, visible(q, k, is_causal, attn_mask))


# head mapping


@wrong("head mapping")
def roles_swapped(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return plain(k, q, v, visible(q, k, is_causal, attn_mask))


@wrong("head mapping", "batch entry 1 of 2", B=2)
def heads_and_batch_mixed(q, k, v, *, is_causal=False, **_):
    return sdpa(q, k, v.roll(1, 0) if len(v) == 1 else torch.cat([v[:1], v[1:].roll(1, 1)]), is_causal=is_causal)


@wrong("head mapping", "head 1")
def first_heads_keys_for_all(q, k, v, *, is_causal=False, **_):
    return sdpa(q, k[:, :1].expand_as(k), v, is_causal=is_causal)


@wrong("head mapping", H=4, H_kv=2)
def groups_by_repeat(q, k, v, *, is_causal=False, **_):
    k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
    return sdpa(q, k, v, is_causal=is_causal)


# dtype


@wrong("dtype")
def bfloat16_in_disguise(q, k, v, *, is_causal=False, **_):
    return sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16(), is_causal=is_causal).to(q.dtype)


@wrong("dtype")
def half_precision_probabilities(q, k, v, *, is_causal=False, attn_mask=None, **_):
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~visible(q, k, is_causal, attn_mask), -torch.inf)
    return torch.softmax(scores, -1).half().to(q.dtype) @ v


@wrong("dtype", "output is bfloat16, not float32")
def returns_bfloat16(q, k, v, *, is_causal=False, **_):
    return sdpa(q, k, v, is_causal=is_causal).bfloat16()


@wrong("dtype", "output is float32, not bfloat16", dtype="bfloat16")
def returns_float32(q, k, v, *, is_causal=False, **_):
    return sdpa(q.float(), k.float(), v.float(), is_causal=is_causal)


@wrong("dtype", dtype="bfloat16", T=512)
def accumulates_in_bfloat16(q, k, v, *, is_causal=False, attn_mask=None, **_):
    mask = visible(q, k, is_causal, attn_mask)
    probs = torch.softmax((q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf), -1)
    o = torch.zeros_like(q)
    for j in range(k.shape[-2]):
        o = o + probs[..., j : j + 1] * v[..., j : j + 1, :]
    return o


# layout


@wrong("layout", "output has shape")
def batch_and_time_first(q, k, v, *, is_causal=False, **_):
    return sdpa(q, k, v, is_causal=is_causal).transpose(1, 2)


@wrong("layout")
def reshaped_instead_of_transposed(q, k, v, *, is_causal=False, **_):
    o = sdpa(q, k, v, is_causal=is_causal)
    return o.transpose(1, 2).contiguous().reshape(o.shape)


@wrong("layout", "returns tuple, not a tensor")
def returns_a_tuple(q, k, v, *, is_causal=False, **_):
    return sdpa(q, k, v, is_causal=is_causal), None


# state

_remembered: dict[Any, Tensor] = {}


@wrong("state", "new numbers in the same buffers")
def remembers_by_shape(q, k, v, *, is_causal=False, **_):
    if q.shape not in _remembered:
        _remembered[q.shape] = sdpa(q, k, v, is_causal=is_causal)
    return _remembered[q.shape].clone()


@wrong("state", "new numbers in the same buffers")
def remembers_by_address(q, k, v, *, is_causal=False, **_):
    key = (q.data_ptr(), 0 if q.is_inference() else q._version, q.shape)
    if key not in _remembered:
        _remembered[key] = sdpa(q, k, v, is_causal=is_causal)
    return _remembered[key].clone()


@wrong("state", "share one buffer")
def answers_in_one_buffer(q, k, v, *, is_causal=False, **_):
    buffer = _remembered.setdefault(("buffer", q.shape), torch.empty_like(q))
    return buffer.copy_(sdpa(q, k, v, is_causal=is_causal))


@wrong("state", "writes to its inputs")
def scales_its_input_in_place(q, k, v, *, is_causal=False, **_):
    q.mul_(q.shape[-1] ** -0.5)
    return sdpa(q, k, v, is_causal=is_causal, scale=1.0)


@wrong("state", "writes to its inputs")
def answers_into_its_values(q, k, v, *, is_causal=False, **_):
    return v.copy_(sdpa(q, k, v, is_causal=is_causal))


@wrong("state", "writes to its weights or its mask", mask="padding", B=2)
def writes_to_the_mask(q, k, v, *, is_causal=False, attn_mask=None, **_):
    o = sdpa(q, k, v, attn_mask=attn_mask)
    if attn_mask is not None:
        attn_mask.logical_not_()
    return o


@wrong("state", "torch's own settings")
def changes_the_threads(q, k, v, *, is_causal=False, **_):
    torch.set_num_threads(torch.get_num_threads() + 1)
    return sdpa(q, k, v, is_causal=is_causal)


@wrong("state", "choice of SDPA's flash kernel: True → False")
def switches_a_kernel_off(q, k, v, *, is_causal=False, **_):
    torch.backends.cuda.enable_flash_sdp(False)
    return sdpa(q, k, v, is_causal=is_causal)


@wrong("state", "torch's own settings")
def lowers_the_precision_of_products(q, k, v, *, is_causal=False, **_):
    torch.set_float32_matmul_precision("high")
    return sdpa(q, k, v, is_causal=is_causal)


@wrong("state", "torch's own settings")
def lowers_it_by_the_newer_means(q, k, v, *, is_causal=False, **_):
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    return sdpa(q, k, v, is_causal=is_causal)


@wrong("state")
def adds_noise(q, k, v, *, is_causal=False, **_):
    return sdpa(q, k, v, is_causal=is_causal) * (1 + 1e-3 * torch.rand(()))


# only at some sizes


@wrong("only at some sizes", "rows, t from 32 to 36 (T = 37)")
def drops_the_ragged_tail(q, k, v, *, is_causal=False, **_):
    o = sdpa(q, k, v, is_causal=is_causal).clone()
    whole = q.shape[-2] // 32 * 32
    if whole:
        o[..., whole:, :] = 0
    return o


@wrong("only at some sizes", "t from 512 to 576 (T = 577)")
def wrong_beyond_512(q, k, v, *, is_causal=False, **_):
    o = sdpa(q, k, v, is_causal=is_causal).clone()
    o[..., 512:, :] = o[..., 511:512, :]
    return o


@wrong("only at some sizes", "t = 63 (T = 64)")
def wrong_last_row(q, k, v, *, is_causal=False, **_):
    o = sdpa(q, k, v, is_causal=is_causal).clone()
    o[..., -1, :] *= 1.001
    return o


@wrong("only at some sizes", "NaN or Inf")
def nan_in_one_row(q, k, v, *, is_causal=False, **_):
    o = sdpa(q, k, v, is_causal=is_causal).clone()
    o[0, 0, 0, 0] = torch.nan
    return o


@wrong("only at some sizes", "head 2 of 3")
def wrong_third_head(q, k, v, *, is_causal=False, **_):
    o = sdpa(q, k, v, is_causal=is_causal).clone()
    o[:, 2:] = 0
    return o


@wrong("only at some sizes", "batch entry 1 of 2")
def wrong_second_batch_entry(q, k, v, *, is_causal=False, **_):
    return sdpa(q, k[:1].expand_as(k), v, is_causal=is_causal)


@wrong("only at some sizes", mask="none", source="cross", T_kv=40)
def assumes_as_many_keys_as_queries(q, k, v, *, is_causal=False, **_):
    T = q.shape[-2]
    return sdpa(q, k[..., :T, :], v[..., :T, :], is_causal=is_causal)


@wrong("only at some sizes", H=1)
def treats_one_head_as_the_batch(q, k, v, *, is_causal=False, **_):
    if q.shape[1] > 1 or len(q) == 1:
        return sdpa(q, k, v, is_causal=is_causal)
    return sdpa(q, k.roll(1, 0), v.roll(1, 0), is_causal=is_causal)


# gradient


BACKWARD: dict[str, Any] = {"mode": "backward"}


@wrong("gradient", "no gradient reaches its inputs", **BACKWARD)
def detached(q, k, v, *, is_causal=False, **_):
    return sdpa(q, k, v, is_causal=is_causal).detach()


@wrong("gradient", "no gradient reaches k", **BACKWARD)
def keys_detached(q, k, v, *, is_causal=False, **_):
    return sdpa(q, k.detach(), v, is_causal=is_causal)


@wrong("gradient", "gradient of q", **BACKWARD)
def right_forward_wrong_backward(q, k, v, *, is_causal=False, **_):
    """The answer of one formula, the gradient of another: here without the mask."""
    right, other = sdpa(q, k, v, is_causal=is_causal), sdpa(q, k, v)
    return other + (right - other).detach()


@wrong("gradient", "gradient of q", **BACKWARD)
def forgets_the_scale_going_back(q, k, v, *, is_causal=False, **_):
    scale = q.shape[-1] ** -0.5
    scaled = q + (q * scale - q).detach()
    return sdpa(scaled, k, v, is_causal=is_causal, scale=1.0)


@wrong("gradient", "t = 63 (T = 64)", **BACKWARD)
def no_gradient_for_the_last_row(q, k, v, *, is_causal=False, **_):
    o = sdpa(q, k, v, is_causal=is_causal)
    return torch.cat([o[..., :-1, :], o[..., -1:, :].detach()], dim=-2)


@wrong("gradient", "gradient of q", **BACKWARD)
def probs_are_constants_going_back(q, k, v, *, is_causal=False, attn_mask=None, **_):
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~visible(q, k, is_causal, attn_mask), -torch.inf)
    probs = torch.softmax(scores, -1)
    return probs @ v.detach() + (probs.mT @ v - (probs.mT @ v).detach())


@wrong("gradient", "gradient of", **BACKWARD)
def bfloat16_going_back(q, k, v, *, is_causal=False, **_):
    right = sdpa(q, k, v, is_causal=is_causal)
    rough = sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16(), is_causal=is_causal).to(q.dtype)
    return rough + (right - rough).detach()


class _Remembered(torch.autograd.Function):
    gradients: tuple[Tensor, ...] = ()

    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.save_for_backward(q, k, v)
        ctx.is_causal = is_causal
        return sdpa(q, k, v, is_causal=is_causal)

    @staticmethod
    def backward(ctx, grad):
        known = _Remembered.gradients
        if not known or known[0].shape != ctx.saved_tensors[0].shape:
            leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            with torch.enable_grad():
                o = sdpa(*leaves, is_causal=ctx.is_causal)
            _Remembered.gradients = torch.autograd.grad(o, leaves, grad)
        return *(x.clone() for x in _Remembered.gradients), None


@wrong("gradient", "new numbers in the same buffers: gradient of", **BACKWARD)
def remembers_its_gradients(q, k, v, *, is_causal=False, **_):
    return _Remembered.apply(q, k, v, is_causal)


@wrong("gradient", "gradient of q: error", H=4, H_kv=2, **BACKWARD)
def half_the_group_going_back(q, k, v, *, is_causal=False, enable_gqa=False, **_):
    """The answer is right; the gradient of a shared head takes one query head of its group alone."""
    k_, v_ = groups(q, k), groups(q, v)
    wrong_q = torch.cat([q[:, :1], q[:, 1:].detach()], dim=1)
    return sdpa(wrong_q, k_, v_, is_causal=is_causal)


# dropout

DROPOUT: dict[str, Any] = {"dropout": 0.25}


def _probs(q: Tensor, k: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return torch.softmax(scores.masked_fill(~visible(q, k, is_causal, attn_mask), -torch.inf), -1)


@wrong("dropout", "drops 0.0% of the probs, not 25.0%", **DROPOUT)
def no_dropout(q, k, v, *, is_causal=False, **_):
    return sdpa(q, k, v, is_causal=is_causal)


@wrong("dropout", "not 1 / (1 - p) = 1.333 times as large", **DROPOUT)
def dropped_without_rescaling(q, k, v, *, is_causal=False, attn_mask=None, dropout_p=0.0, **_):
    probs = _probs(q, k, is_causal, attn_mask)
    return probs * (torch.rand_like(probs) >= dropout_p) @ v


@wrong("dropout", "of the probs, not 25.0%", **DROPOUT)
def keeps_what_it_should_drop(q, k, v, *, is_causal=False, attn_mask=None, dropout_p=0.0, **_):
    probs = _probs(q, k, is_causal, attn_mask)
    return torch.nn.functional.dropout(probs, 1 - dropout_p if dropout_p else 0.0) @ v


@wrong("dropout", "the same probs in every call", **DROPOUT)
def drops_by_a_fixed_seed(q, k, v, *, is_causal=False, attn_mask=None, dropout_p=0.0, **_):
    probs = _probs(q, k, is_causal, attn_mask)
    noise = torch.rand(probs.shape, generator=torch.Generator().manual_seed(7))
    return probs * (noise >= dropout_p) / (1 - dropout_p) @ v


@wrong("dropout", "features of the output, not probs", **DROPOUT)
def drops_the_output(q, k, v, *, is_causal=False, dropout_p=0.0, **_):
    return torch.nn.functional.dropout(sdpa(q, k, v, is_causal=is_causal), dropout_p)


# cache

DECODE: dict[str, Any] = {"mode": "decode", "T": 1, "T_kv": 64, "mask": "none"}


class CachedLayer(KernelLayer):
    """An honest layer but for `extend`."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape, KernelCore(shape, sdpa))

    def extend(self, cache: tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def forward(self, x, x_k=None, x_v=None, *, padding=None, cache=None):
        q, k, v = self.project(x, x, x)
        o = self.core(q, *(self.extend(cache, k, v) if cache else (k, v)))
        return self.finish(o.transpose(-3, -2).flatten(-2))


@wrong("cache", "key written to the cache: NaN or Inf", **DECODE)
class leaves_the_cache_as_it_was(CachedLayer):  # noqa: N801
    def extend(self, cache, k, v):
        return tuple(torch.cat([known[..., :-1, :], new], -2) for known, new in zip(cache, (k, v), strict=True))


@wrong("cache", **DECODE)
class attends_to_the_old_keys_alone(CachedLayer):  # noqa: N801
    def extend(self, cache, k, v):
        return tuple(known[..., :-1, :] for known in extend(cache, k, v))


@wrong("cache", "writes to its inputs", **DECODE)
class writes_to_the_first_place_too(CachedLayer):  # noqa: N801
    def extend(self, cache, k, v):
        extend(cache, k, v)
        cache[0][..., :1, :] = k
        return cache


@wrong("cache", "value written to the cache", **DECODE)
class writes_the_key_as_the_value(CachedLayer):  # noqa: N801
    def extend(self, cache, k, v):
        right = tuple(x.clone() for x in extend(cache, k, v))
        cache[1][..., -1:, :] = k
        return right


RIGHT: dict[str, Kernel] = {}


def right(kernel: Kernel) -> Kernel:
    RIGHT[kernel.__name__] = kernel
    return kernel


@right
def keys_in_reverse(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return plain(q, k.flip(-2), v.flip(-2), visible(q, k, is_causal, attn_mask).flip(-1))


@right
def block_wise(q, k, v, *, is_causal=False, attn_mask=None, **_):
    mask = visible(q, k, is_causal, attn_mask)
    dtype, accumulator = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q, k, v = (x.to(accumulator) for x in (q, k, v))
    o = torch.zeros_like(q)
    top = q.new_full((*q.shape[:-1], 1), -torch.inf)
    total = q.new_zeros(*q.shape[:-1], 1)
    for j in range(0, k.shape[-2], 16):
        scores = (q @ k[..., j : j + 16, :].mT * q.shape[-1] ** -0.5).masked_fill(~mask[..., j : j + 16], -torch.inf)
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, rescale = torch.exp(scores - new), torch.exp(top - new)
        o, total, top = (
            o * rescale + weights @ v[..., j : j + 16, :],
            total * rescale + weights.sum(-1, keepdim=True),
            new,
        )
    return (o / total).to(dtype)


@right
def float32_accumulation(q, k, v, *, is_causal=False, **_):
    return sdpa(q.float(), k.float(), v.float(), is_causal=is_causal).to(q.dtype)


@right
def transposed_contiguous_output(q, k, v, *, is_causal=False, **_):
    return sdpa(q, k, v, is_causal=is_causal).transpose(1, 2).contiguous().transpose(1, 2)


@right
def scaled_before_the_product(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return plain(q * q.shape[-1] ** -0.5, k, v, visible(q, k, is_causal, attn_mask), 1.0)
