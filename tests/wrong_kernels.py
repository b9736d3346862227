"""Kernels that must be refused, by the family of their fault. Each is correct except for one fault."""

from __future__ import annotations

import ctypes
import gc
import importlib
import math
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import BaseTorchDispatchMode
from torch.utils.checkpoint import checkpoint

from impls.layer import KernelCore, KernelLayer, LayerShape, extend
from impls.layer import split as split_heads

from .resting import Rest

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
DECODE: dict[str, Any] = {"mode": "decode", "T": 1, "T_kv": 64, "mask": "none"}


def wrong(family: str, says: str = "error", **case: Any) -> Callable[[Any], Any]:
    """Keeps a kernel or a layer, or an `autograd.Function` of q, k, v and whether it is causal."""

    def keep(it: Any) -> Any:
        assert it.__name__ not in KERNELS
        of_function = isinstance(it, type) and issubclass(it, torch.autograd.Function)
        KERNELS[it.__name__] = Wrong(family, applied(it) if of_function else it, says, case)
        return it

    return keep


def applied(function: type[torch.autograd.Function]) -> Kernel:
    return lambda q, k, v, *, is_causal=False, **_: function.apply(q, k, v, is_causal)


def visible(q: Tensor, k: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor:
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    if is_causal:
        mask = mask.tril()
    return mask if attn_mask is None else mask & attn_mask


def masked(kernel: Kernel) -> Kernel:
    """A kernel that takes the mask alone, with the signature of SDPA."""

    @wraps(kernel)
    def whole(q, k, v, *, is_causal=False, attn_mask=None, **_):
        return kernel(q, k, v, visible(q, k, is_causal, attn_mask))

    return whole


def scaled(q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    return q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)


def scores_of(q: Tensor, k: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    return scaled(q, k, scale).masked_fill(~mask, -torch.inf)


def probs_of(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores_of(q, k, mask), -1)


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    return torch.softmax(scores_of(q, k, mask, scale), -1) @ v


def recomputed(tensors: Any, grad: Tensor, attend: Kernel = sdpa, **options: Any) -> tuple[Tensor, ...]:
    """The gradients of q, k and v, from another forward."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    with torch.enable_grad():
        o = attend(*leaves, **options)
    return torch.autograd.grad(o, leaves, grad)


def only(kernel: Kernel, name: str, when: Callable[[Tensor, Tensor], bool]) -> Kernel:
    """SDPA, but where when(q, k) holds."""

    def whole(q, k, v, **options):
        return (kernel if when(q, k) else sdpa)(q, k, v, **options)

    whole.__name__ = name
    return whole


def changed(change: Callable[[Tensor], Any]) -> Kernel:
    """SDPA, whose output is then changed in place."""

    @wraps(change)
    def whole(q, k, v, **options):
        o = sdpa(q, k, v, **options).clone()
        change(o)
        return o

    return whole


def groups(q: Tensor, x: Tensor) -> Tensor:
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


# mask


@wrong("mask")
@masked
def anti_causal(q, k, v, mask):
    return plain(q, k, v, mask.mT)


@wrong("mask", "NaN or Inf")
@masked
def wrong_triangle(q, k, v, mask):
    return plain(q, k, v, ~mask)  # the last row sees nothing


@wrong("mask")
def sees_one_ahead(q, k, v, **_):
    return plain(q, k, v, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(1))


@wrong("mask", "NaN or Inf in")
def hides_the_diagonal(q, k, v, **_):
    return plain(q, k, v, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(-1))


@wrong("mask")
def no_mask(q, k, v, **_):
    return sdpa(q, k, v)


@wrong("mask")
@masked
def mask_of_zeros(q, k, v, mask):
    scores = scaled(q, k)
    return torch.softmax(scores * mask, -1) @ v  # exp(0) is not 0


@wrong("mask")
@masked
def mask_without_renormalising(q, k, v, mask):
    probs = torch.softmax(scaled(q, k), -1)
    return (probs * mask) @ v


@wrong("mask", mask="padding", B=2)
def padding_ignored(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return sdpa(q, k, v, is_causal=is_causal)  # with a causal mask too it would be right: padding is in the future


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
@masked
def no_scale(q, k, v, mask):
    return plain(q, k, v, mask, 1.0)


@wrong("scale")
@masked
def constant_scale(q, k, v, mask):
    return plain(q, k, v, mask, 256**-0.5)


@wrong("scale", d_model=256)
@masked
def scaled_by_the_models_width(q, k, v, mask):
    return plain(q, k, v, mask, (q.shape[1] * q.shape[-1]) ** -0.5)


@wrong("scale", "with a scale of the caller's own: gradient of q", mode="backward")
def default_scale_going_back(q, k, v, *, scale=None, **options):
    right, other = sdpa(q, k, v, scale=scale, **options), sdpa(q, k, v, **options)
    return other + (right - other).detach()


# softmax


@wrong("softmax")
@masked
def softmax_twice(q, k, v, mask):
    """As a tutorial prints it: softmax over every key, the future set to -inf, softmax again."""
    probs = torch.softmax(scaled(q, k), -1)
    return torch.softmax(probs.masked_fill(~mask, -torch.inf) * q.shape[-1] ** -0.5, -1) @ v


@wrong("softmax")
def row_sum(q, k, v, *, is_causal=False, attn_mask=None, scale=None, **_):
    """Scores divided by their row's sum, without an exponential."""
    scores = scaled(q, k, scale) * visible(q, k, is_causal, attn_mask)
    return scores / scores.sum(-1, keepdim=True) @ v


@wrong("softmax")
@masked
def softmax_over_queries(q, k, v, mask):
    scores = scores_of(q, k, mask)
    return torch.softmax(scores, -2) @ v


@wrong("softmax")
def zeros(q, k, v, **_):
    return torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)


@wrong("softmax")
@masked
def mean_of_the_visible(q, k, v, mask):
    return plain(torch.zeros_like(q), k, v, mask)


# head mapping


@wrong("head mapping")
@masked
def roles_swapped(q, k, v, mask):
    return plain(k, q, v, mask)


@wrong("head mapping", "batch entry 1 (of 0 to 1)", B=2)
def heads_and_batch_mixed(q, k, v, **options):
    return sdpa(q, k, v.roll(1, 0) if len(v) == 1 else torch.cat([v[:1], v[1:].roll(1, 1)]), **options)


@wrong("head mapping", "head 1")
def first_heads_keys_for_all(q, k, v, **options):
    return sdpa(q, k[:, :1].expand_as(k), v, **options)


@wrong("head mapping", H=4, H_kv=2)
def groups_by_repeat(q, k, v, **options):
    k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
    return sdpa(q, k, v, **options)


# dtype


@wrong("dtype")
def bfloat16_in_disguise(q, k, v, **options):
    return sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16(), **options).to(q.dtype)


@wrong("dtype")
@masked
def half_precision_probabilities(q, k, v, mask):
    return probs_of(q, k, mask).half().to(q.dtype) @ v


@wrong("dtype", "output is bfloat16, not float32")
def returns_bfloat16(q, k, v, **options):
    return sdpa(q, k, v, **options).bfloat16()


@wrong("dtype", "output is float32, not bfloat16", dtype="bfloat16")
def returns_float32(q, k, v, **options):
    return sdpa(q.float(), k.float(), v.float(), **options)


@wrong("dtype", dtype="bfloat16", T=512)
@masked
def accumulates_in_bfloat16(q, k, v, mask):
    probs = probs_of(q, k, mask)
    o = torch.zeros_like(q)
    for j in range(k.shape[-2]):
        o = o + probs[..., j : j + 1] * v[..., j : j + 1, :]
    return o


@wrong("dtype", **DECODE | {"T_kv": 512, "H": 8, "dtype": "bfloat16"})
def accumulates_a_cache_in_bfloat16(q, k, v, **_):
    return accumulates_in_bfloat16(q, k, v)


@wrong("dtype", "low scores", dtype="float16", T=32)
@masked
def sums_in_float16_before_it_divides(q, k, v, mask):
    scores = scores_of(q.float(), k.float(), mask)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return ((weights @ v.float()).half().float() / weights.sum(-1, keepdim=True)).half()


# layout


@wrong("layout", "output has shape")
def batch_and_time_first(q, k, v, **options):
    return sdpa(q, k, v, **options).transpose(1, 2)


@wrong("layout")
def reshaped_instead_of_transposed(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    return o.transpose(1, 2).contiguous().reshape(o.shape)


@wrong("layout", "returns tuple, not a tensor")
def returns_a_tuple(q, k, v, **options):
    return sdpa(q, k, v, **options), None


# state

_remembered: dict[Any, Tensor] = {}


@wrong("state", "new numbers in the same buffers")
def remembers_by_shape(q, k, v, **options):
    if q.shape not in _remembered:
        _remembered[q.shape] = sdpa(q, k, v, **options)
    return _remembered[q.shape].clone()


@wrong("state", "new numbers in the same buffers")
def remembers_by_address(q, k, v, **options):
    key = (q.data_ptr(), 0 if q.is_inference() else q._version, q.shape)
    if key not in _remembered:
        _remembered[key] = sdpa(q, k, v, **options)
    return _remembered[key].clone()


@wrong("state", "share one buffer")
def answers_in_one_buffer(q, k, v, **options):
    buffer = _remembered.setdefault(("buffer", q.shape), torch.empty_like(q))
    return buffer.copy_(sdpa(q, k, v, **options))


@wrong("state", "writes to its inputs")
def scales_its_input_in_place(q, k, v, **options):
    q.mul_(q.shape[-1] ** -0.5)
    return sdpa(q, k, v, scale=1.0, **options)


@wrong("state", "writes to its inputs")
def answers_into_its_values(q, k, v, **options):
    return v.copy_(sdpa(q, k, v, **options))


@wrong("state", "writes to its weights or its mask", mask="padding", B=2)
def writes_to_the_mask(q, k, v, *, is_causal=False, attn_mask=None, **_):
    o = sdpa(q, k, v, attn_mask=attn_mask)
    if attn_mask is not None:
        attn_mask.logical_not_()
    return o


@wrong("state")
def adds_noise(q, k, v, **options):
    return sdpa(q, k, v, **options) * (1 + 1e-3 * torch.rand(()))


def keys_kept(name: str, digest: Callable[[Tensor], float], **case: Any) -> None:
    """Keeps transposed keys, which saves too little time to show, by a digest that other keys may share."""

    def kernel(q, k, v, *, is_causal=False, attn_mask=None, **_):
        transposed = _remembered.setdefault((name, k.shape, digest(k)), k.mT.contiguous())
        return plain(q, transposed.mT, v, visible(q, k, is_causal, attn_mask))

    kernel.__name__ = name
    wrong("state", "where two numbers of each input are exchanged since the call before: error", **case)(kernel)


keys_kept("keys_kept_by_their_first_number", lambda k: float(k.flatten()[0]))
keys_kept("keys_kept_by_their_sum", lambda k: round(float(k.double().sum()), 9))
keys_kept("padded_keys_kept_by_their_sum", lambda k: round(float(k.double().sum()), 9), mask="padding", B=2)
keys_kept("keys_kept_by_every_seventh_number", lambda k: hash(tuple(k.flatten()[::7].tolist())))
keys_kept("cached_keys_kept_by_their_first_number", lambda k: float(k.flatten()[0]),
          mode="decode", T=1, T_kv=64, mask="none")  # fmt: skip

_captured: dict[Any, tuple[Tensor, ...]] = {}


@wrong("state", "kernel (probe), ")
def reads_the_tensors_of_its_first_call(q, k, v, **options):
    """As what was captured with them, and is replayed."""
    return sdpa(*_captured.setdefault(q.shape, (q, k, v)), **options)


# only at some sizes


_shapes: list[torch.Size] = []


@wrong("state", "in the last of 16 calls: error")
def another_variant_from_its_tenth_call_on(q, k, v, *, is_causal=False, **_):
    _shapes.append(q.shape)
    return sdpa(q, k, v, is_causal=is_causal) * (1.0 if _shapes.count(q.shape) < 10 else 1.01)


@wrong("only at some sizes", "rows, t from 32 to 36 (T = 37)")
@changed
def drops_the_ragged_tail(o):
    if whole := o.shape[-2] // 32 * 32:
        o[..., whole:, :] = 0


@wrong("only at some sizes", "t = 512 (T = 513)")
@changed
def wrong_beyond_512(o):
    o[..., 512:, :] = o[..., 511:512, :]


@wrong("only at some sizes", "2 of 127 rows, t from 125 to 126 (T = 127)")
@changed
def one_row_behind_the_last_four(o):
    """Rows by fours, and one more where some are left: two or three are forgotten."""
    o[..., o.shape[-2] // 4 * 4 + 1 :, :] = 0


@wrong("only at some sizes", "error", **DECODE)
def one_key_behind_the_last_four(q, k, v, **_):
    seen = k.shape[-2] // 4 * 4 + min(1, k.shape[-2] % 4)
    return sdpa(q, k[..., :seen, :], v[..., :seen, :])


@wrong("only at some sizes", "t = 63 (T = 64)")
@changed
def wrong_last_row(o):
    o[..., -1, :] *= 1.001


@wrong("only at some sizes", "NaN or Inf")
@changed
def nan_in_one_row(o):
    o[0, 0, 0, 0] = torch.nan


@wrong("only at some sizes", "head 2 (of 0 to 2)")
@changed
def wrong_third_head(o):
    o[:, 2:] = 0


@wrong("only at some sizes", "batch entry 1 (of 0 to 1)")
def wrong_second_batch_entry(q, k, v, **options):
    return sdpa(q, k[:1].expand_as(k), v, **options)


@wrong("only at some sizes", mask="none", source="cross", T_kv=40)
def assumes_as_many_keys_as_queries(q, k, v, **options):
    T = q.shape[-2]
    return sdpa(q, k[..., :T, :], v[..., :T, :], **options)


@wrong("only at some sizes", H=1)
def treats_one_head_as_the_batch(q, k, v, **options):
    if q.shape[1] > 1 or len(q) == 1:
        return sdpa(q, k, v, **options)
    return sdpa(q, k.roll(1, 0), v.roll(1, 0), **options)


# gradient


BACKWARD: dict[str, Any] = {"mode": "backward"}


@wrong("gradient", "no gradient reaches its inputs", **BACKWARD)
def detached(q, k, v, **options):
    return sdpa(q, k, v, **options).detach()


@wrong("gradient", "no gradient reaches k", **BACKWARD)
def keys_detached(q, k, v, **options):
    return sdpa(q, k.detach(), v, **options)


@wrong("gradient", "gradient of q", **BACKWARD)
def right_forward_wrong_backward(q, k, v, **options):
    """The output of one formula, the gradient of another: here without the mask."""
    right, other = sdpa(q, k, v, **options), sdpa(q, k, v)
    return other + (right - other).detach()


@wrong("gradient", "gradient of q", **BACKWARD)
def forgets_the_scale_going_back(q, k, v, **options):
    scale = q.shape[-1] ** -0.5
    scaled = q + (q * scale - q).detach()
    return sdpa(scaled, k, v, scale=1.0, **options)


@wrong("gradient", "t = 63 (T = 64)", **BACKWARD)
def no_gradient_for_the_last_row(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    return torch.cat([o[..., :-1, :], o[..., -1:, :].detach()], dim=-2)


@wrong("gradient", "gradient of q", **BACKWARD)
@masked
def probs_are_constants_going_back(q, k, v, mask):
    probs = probs_of(q, k, mask)
    return probs @ v.detach() + (probs.mT @ v - (probs.mT @ v).detach())


@wrong("gradient", "gradient of", **BACKWARD)
def bfloat16_going_back(q, k, v, **options):
    right = sdpa(q, k, v, **options)
    rough = sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16(), **options).to(q.dtype)
    return rough + (right - rough).detach()


class Plain(torch.autograd.Function):
    """SDPA, its gradients by SDPA's own."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.save_for_backward(q, k, v)
        ctx.is_causal = is_causal
        return sdpa(q, k, v, is_causal=is_causal)

    @staticmethod
    def backward(ctx, grad):
        return *recomputed(ctx.saved_tensors, grad, is_causal=ctx.is_causal), None


def of_formula(q: Tensor, k: Tensor, v: Tensor, probs: Tensor, sums: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and v; `sums` (B, H, T, 1): through the softmax's sum."""
    of_scores = probs * (grad @ v.mT - sums) * q.shape[-1] ** -0.5
    return of_scores @ k, of_scores.mT @ q, probs.mT @ grad


class Formula(torch.autograd.Function):
    """The formula, and its gradients from the probs."""

    @classmethod
    def forward(cls, ctx, q, k, v, is_causal):
        probs = probs_of(q.float(), k.float(), visible(q, k, is_causal, None))
        o = probs @ v.float()
        ctx.save_for_backward(q, k, v, probs, o)
        ctx.of = cls
        return o.to(q.dtype)

    @classmethod
    def gradients(cls, q, k, v, probs, o, grad):
        return of_formula(q, k, v, probs, (grad * o).sum(-1, keepdim=True), grad)

    @staticmethod
    def backward(ctx, grad):
        return *(x.to(grad.dtype) for x in ctx.of.gradients(*(x.float() for x in (*ctx.saved_tensors, grad)))), None


@wrong("gradient", "new numbers in the same buffers: ", **BACKWARD)
class RemembersItsGradients(Plain):
    gradients: tuple[Any, ...] = ()

    @staticmethod
    def backward(ctx, grad):
        known = RemembersItsGradients.gradients
        if not known or known[0].shape != ctx.saved_tensors[0].shape:
            RemembersItsGradients.gradients = Plain.backward(ctx, grad)
        return *(x.clone() for x in RemembersItsGradients.gradients[:3]), None


@wrong("gradient", "gradient of", mask="causal_br", source="cross", T_kv=100, **BACKWARD)
def aligned_top_left_going_back(q, k, v, **options):
    right, other = sdpa(q, k, v, **options), sdpa(q, k, v, is_causal=True)
    return other + (right - other).detach()


@wrong("gradient", "gradient of q: error", H=4, H_kv=2, **BACKWARD)
def half_the_group_going_back(q, k, v, *, is_causal=False, enable_gqa=False, **_):
    """The output is right; the gradient of a shared head uses only one query head of its group."""
    k_, v_ = groups(q, k), groups(q, v)
    wrong_q = torch.cat([q[:, :1], q[:, 1:].detach()], dim=1)
    return sdpa(wrong_q, k_, v_, is_causal=is_causal)


# gradient of a learned bias: q, k and v have theirs, and a bias that is constant shows nothing


class Back(torch.autograd.Function):
    """The same number, whose gradient is changed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.change(gradients[0]), None


def going_back(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    changed: Tensor = Back.apply(x, change)
    return changed


def bias_gradient(change: Callable[[Tensor], Tensor]) -> Kernel:
    """SDPA whose gradient of the bias, (B, H, T, T_kv), is changed before it is summed over the batch."""

    @wrong("bias gradient", "gradient of score_bias: error", **BACKWARD, bias="learned", B=2)
    @wraps(change)
    def kernel(q, k, v, *, attn_mask=None, **options):
        attn_mask = going_back(attn_mask.expand(len(q), q.shape[1], -1, -1), change)
        return sdpa(q, k, v, attn_mask=attn_mask, **options)

    kernel.limits = {"beyond": ("bias", "learned_bias")}  # type: ignore[attr-defined]
    return kernel


@bias_gradient
def bias_detached(grad):
    return torch.zeros_like(grad)


@bias_gradient
def bias_gradient_without_its_sign(grad):
    return grad.abs()


@bias_gradient
def bias_gradient_of_the_first_batch_entry(grad):
    return torch.cat([grad[:1], torch.zeros_like(grad[1:])])


@bias_gradient
def bias_gradient_averaged_over_the_batch(grad):
    return grad / len(grad)


@bias_gradient
def bias_gradient_averaged_over_the_heads(grad):
    return grad.mean(1, keepdim=True).expand_as(grad)


@bias_gradient
def bias_gradient_summed_over_the_queries(grad):
    return grad.sum(2, keepdim=True).expand_as(grad)


@bias_gradient
def bias_gradient_scaled_as_that_of_the_queries(grad):
    return grad / 8  # sqrt(D_h)


@wrong("bias gradient", "where score_bias alone need gradients: no gradient", **BACKWARD, bias="learned")
def bias_learns_beside_the_inputs_alone(q, k, v, *, attn_mask=None, **options):
    trained = any(x.requires_grad for x in (q, k, v))
    return sdpa(q, k, v, attn_mask=attn_mask if trained else attn_mask.detach(), **options)


bias_learns_beside_the_inputs_alone.limits = {"beyond": ("bias", "learned_bias")}  # type: ignore[attr-defined]


@bias_gradient
def bias_gradient_transposed(grad):
    return grad.mT


@bias_gradient
def bias_gradient_without_the_partial_tile(grad):
    return torch.cat(
        [grad[..., : grad.shape[-1] // 64 * 64], torch.zeros_like(grad[..., grad.shape[-1] // 64 * 64 :])], -1
    )


class StaleWeights(KernelLayer):
    """Makes one weight of three at its first call: its gradients are right, until an optimizer has taken a step."""

    packed: Tensor | None = None

    def __init__(self, shape: LayerShape):
        super().__init__(shape, KernelCore(shape, sdpa))

    def project(self, x, x_k):
        if self.packed is None:
            self.packed = torch.cat([self.W_q.weight, self.W_k.weight, self.W_v.weight])
        parts = torch.nn.functional.linear(x, self.packed).chunk(3, -1)
        return tuple(part.unflatten(-1, (self.shape.H, -1)).transpose(1, 2) for part in parts)


wrong("state", "with other weights than before: ", **BACKWARD)(StaleWeights)


# cache


class CachedLayer(KernelLayer):
    """A layer that is correct except for `extend`."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape, KernelCore(shape, sdpa))

    def extend(self, cache: tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def forward(self, x, x_k=None, *, padding=None, cache=None):
        q, k, v = self.project(x, x)
        o = self.core(q, *(self.extend(cache, k, v) if cache else (k, v)))
        return self.finish(o.transpose(-3, -2).flatten(-2))


@wrong("cache", "key written to the cache: NaN or Inf", **DECODE)
class leaves_the_cache_as_it_was(CachedLayer):  # noqa: N801
    def extend(self, cache, k, v):
        return tuple(torch.cat([known[..., :-1, :], new], -2) for known, new in zip(cache, (k, v), strict=True))


@wrong("cache", **DECODE)
class attends_to_the_old_keys_alone(CachedLayer):  # noqa: N801
    def extend(self, cache, k, v):
        return tuple(known[..., :-1, :] for known in extend(cache, (k, v)))


@wrong("cache", "lone queries, ", **DECODE)
class writes_to_the_first_place_too(CachedLayer):  # noqa: N801
    def extend(self, cache, k, v):
        extend(cache, (k, v))
        cache[0][..., :1, :] = k
        return cache


@wrong("cache", "value written to the cache", **DECODE)
class writes_the_key_as_the_value(CachedLayer):  # noqa: N801
    def extend(self, cache, k, v):
        right = tuple(x.clone() for x in extend(cache, (k, v)))
        cache[1][..., -1:, :] = k
        return right


@wrong("cache", "in other tensors than before, with new memory full of NaN: ", **DECODE)
class keeps_its_first_cache(CachedLayer):  # noqa: N801
    first: tuple[Tensor, Tensor] | None = None

    def extend(self, cache, k, v):
        self.first = self.first or cache
        return extend(self.first, (k, v))


# patterns of the softmax: without the row's maximum, or with another one


def as_layer(kernel: Kernel) -> type[KernelLayer]:
    """A user-defined layer, whose kernel the gate can't check alone."""

    class Layer(KernelLayer):
        def __init__(self, shape: LayerShape):
            super().__init__(shape, KernelCore(shape, kernel, takes_mask=True))

    Layer.__name__ = f"{kernel.__name__}_in_a_layer"
    return Layer


def maximum(scores: Tensor) -> Tensor:
    return scores.amax(-1, keepdim=True)


def shifted(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, shift: Callable[[Tensor], Tensor | float] = maximum, *,
    hidden: float = -torch.inf, epsilon: float = 0.0,
) -> Tensor:  # fmt: skip
    """The formula, where another number than the row's maximum may be taken off the scores."""
    scores = scaled(q, k).masked_fill(~mask, hidden)
    exps = torch.exp(scores - shift(scores))
    return exps / (exps.sum(-1, keepdim=True) + epsilon) @ v


@masked
def no_shift(q, k, v, mask):
    return shifted(q, k, v, mask, lambda scores: 0.0)


@masked
def clamped(q, k, v, mask):
    exps = torch.exp(scaled(q, k).clamp(-80, 80)) * mask
    return exps / exps.sum(-1, keepdim=True) @ v


LARGE, BESIDE = (
    "where scores are very large: NaN or Inf in",
    "where ordinary scores are mixed with extreme ones: NaN or Inf in",
)
BEYOND_FEW: dict[str, Any] = {"T": 256}
"""A case so large that its core is checked on probes only."""

wrong("softmax", "NaN or Inf in")(no_shift)
wrong("no maximum", LARGE)(as_layer(no_shift))
wrong("no maximum", "where scores are very large: error")(as_layer(clamped))


@wrong("no maximum", LARGE, mode="backward", T=32)
def no_maximum_where_gradients_are_wanted(q, k, v, **options):
    return no_shift(q, k, v, **options)


@wrong("no maximum", LARGE, **BACKWARD)
class NoMaximumInALayersBackward(as_layer(no_shift)):
    pass


@wrong("no maximum", LARGE, **DECODE)
class NoMaximumInALayersDecode(as_layer(no_shift)):
    pass


wrong("no maximum", LARGE, **BEYOND_FEW)(only(no_shift, "no_maximum_from_64_on", lambda q, k: q.shape[-2] >= 64))


@wrong("no maximum", "t = 512", **BEYOND_FEW)
def wrong_in_the_last_row_beyond_512_where_scores_are_large(q, k, v, **options):
    o = sdpa(q, k, v, **options).clone()
    if q.shape[-2] > 512:
        large = (q[..., -1:, :] @ k.mT).amax(-1, keepdim=True) * q.shape[-1] ** -0.5 > 88
        o[..., -1:, :] = torch.where(large, torch.nan, o[..., -1:, :])
    return o


@wrong("another maximum", "where scores are very negative: NaN or Inf")
@masked
def maximum_from_zero_up(q, k, v, mask):
    return shifted(q, k, v, mask, lambda scores: maximum(scores).clamp_min(0))


@wrong("another maximum", BESIDE)
@masked
def one_maximum_for_a_head(q, k, v, mask):
    return shifted(q, k, v, mask, lambda scores: scores.amax((-2, -1), keepdim=True))


@wrong("another maximum", "where scores are far apart: NaN or Inf in")
@masked
def shifted_by_the_first_score(q, k, v, mask):
    return shifted(q, k, v, mask, lambda scores: scores[..., :1])


@wrong("another maximum", BESIDE)
class OneMaximumForAHeadInALayer(as_layer(one_maximum_for_a_head)):
    pass


@wrong("another maximum", "where scores are very negative: error")
@masked
def masks_with_minus_50(q, k, v, mask):
    return shifted(q, k, v, mask, hidden=-50.0)


@wrong("another maximum", "where scores are very negative: error")
@masked
def masks_with_minus_150(q, k, v, mask):
    return shifted(q, k, v, mask, hidden=-150.0)


@wrong("another maximum", "where all scores are equal and far below zero: error")
@masked
def masks_with_minus_10000(q, k, v, mask):
    return shifted(q, k, v, mask, hidden=-1e4)


@wrong("another maximum", "where all scores are equal and far below zero: error")
class MasksWithMinus10000InALayer(as_layer(masks_with_minus_10000)):
    pass


@wrong("another maximum", "where one key dominates: error")
@masked
def epsilon_in_the_denominator(q, k, v, mask):
    return shifted(q, k, v, mask, epsilon=5e-7)


# two forwards before a backward

TWO_FORWARDS = "where another forward comes between a forward and its backward, with gradients of size"


@wrong("backward's own state", TWO_FORWARDS, **BACKWARD)
class KeepsItsTensorsOnTheClass(torch.autograd.Function):
    """Correct gradients from what `keep` and `known` return."""

    kept: ClassVar[Any] = None

    @classmethod
    def keep(cls, tensors: Any) -> None:
        cls.kept = tensors

    @classmethod
    def known(cls, grad: Tensor) -> Any:
        return cls.kept

    @classmethod
    def forward(cls, ctx, q, k, v, is_causal):
        ctx.save_for_backward(q, k, v)
        ctx.of = cls
        cls.keep((q.detach(), k.detach(), v.detach(), is_causal))
        return sdpa(q, k, v, is_causal=is_causal)

    @staticmethod
    def backward(ctx, grad):
        *tensors, is_causal = ctx.of.known(grad)
        return *recomputed(tensors, grad, is_causal=is_causal), None


@wrong("backward's own state", TWO_FORWARDS, **BACKWARD)
class KeepsItsTensorsOnAStack(KeepsItsTensorsOnTheClass):
    kept: ClassVar[Any] = []

    @classmethod
    def keep(cls, tensors: Any) -> None:
        cls.kept.append(tensors)

    @classmethod
    def known(cls, grad: Tensor) -> Any:
        return cls.kept.pop()


@wrong("backward's own state", TWO_FORWARDS, **BACKWARD)
class KeepsItsTensorsByShape(KeepsItsTensorsOnTheClass):
    kept: ClassVar[Any] = {}

    @classmethod
    def keep(cls, tensors: Any) -> None:
        cls.kept[tensors[0].shape] = tensors

    @classmethod
    def known(cls, grad: Tensor) -> Any:
        return cls.kept[grad.shape]


@as_layer
def on_the_class(q, k, v, *, attn_mask=None, **_):
    return KeepsItsTensorsOnTheClass.apply(q, k, v, attn_mask is not None)


wrong("backward's own state", TWO_FORWARDS, **BACKWARD)(on_the_class)


# what backward may not write to

GRAD = "writes to the gradient of its output"


class _WritesToGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal, write):
        ctx.save_for_backward(q, k, v)
        ctx.is_causal, ctx.write = is_causal, write
        return sdpa(q, k, v, is_causal=is_causal)

    @staticmethod
    def backward(ctx, grad):
        found = recomputed(ctx.saved_tensors, grad, is_causal=ctx.is_causal)
        ctx.write(grad)
        return *found, None, None


def writing(name: str, write: Callable[[Tensor], Tensor], **case: Any) -> None:
    def kernel(q, k, v, *, is_causal=False, **_):
        return _WritesToGrad.apply(q, k, v, is_causal, write)

    kernel.__name__ = name
    wrong("backward's gradient", GRAD, **BACKWARD, **case)(kernel)


writing("scales_the_gradient_in_place", lambda grad: grad.mul_(0.125))
writing("zeroes_the_gradient_when_done", lambda grad: grad.zero_())
writing("uses_the_gradient_as_scratch", lambda grad: grad[..., :1, :].normal_(), scope="core")


# with declared limits


def only_multiples_of(n: int) -> dict[str, Any]:
    return {
        "unless": lambda case: (
            f"needs T to be a multiple of {n}" if case.T_kv % n or (case.T > 1 and case.T % n) else None
        )
    }


def limited(kernel: Kernel, n: int, says: str, **case: Any) -> None:
    def within(q, k, v, **options):
        return kernel(q, k, v, **options)

    within.__name__ = f"{kernel.__name__}_at_multiples_of_{n}"
    within.limits = only_multiples_of(n)  # type: ignore[attr-defined]
    wrong("behind its limits", says, **case)(within)


limited(wrong_third_head, 128, "head 2 (of 0 to 2)", T=128)
limited(wrong_second_batch_entry, 128, "batch entry 1 (of 0 to 1)", T=128)
limited(wrong_beyond_512, 128, "t from 512 to 639 (T = 640)", T=128)
limited(drops_the_ragged_tail, 12, "t from 32 to 35 (T = 36)", T=96)


# one buffer, beyond 512 tokens


@wrong("buffer beyond 512", "share one buffer")
def one_buffer_beyond_512(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    return _remembered.setdefault(("long", q.shape), torch.empty_like(o)).copy_(o) if q.shape[-2] > 512 else o


@wrong("buffer beyond 512", "share one buffer", scope="core")
def one_buffer_for_all_long_sequences(q, k, v, **options):
    if q.shape[-2] <= 512:
        return sdpa(q, k, v, **options)
    pool = _remembered.setdefault("pool", torch.empty(1 << 20))
    return pool[: q.numel()].view(q.shape).copy_(sdpa(q, k, v, **options))


@wrong("buffer beyond 512", "share one buffer")
class OneBufferInALayerBeyond512(as_layer(sdpa)):
    def finish(self, o):
        o = super().finish(o)
        if o.shape[-2] <= 512:
            return o
        self.buffer = getattr(self, "buffer", torch.empty_like(o))
        return self.buffer.copy_(o)


# strides

CORE: dict[str, Any] = {"scope": "core"}


def as_if_contiguous(x: Tensor) -> Tensor:
    return torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride())


@wrong("strides", "NaN or Inf", **CORE)
def reads_queries_as_if_contiguous(q, k, v, **options):
    return sdpa(as_if_contiguous(q), k, v, **options)


@wrong("strides", "NaN or Inf", **CORE)
def reads_keys_as_if_contiguous(q, k, v, **options):
    return sdpa(q, as_if_contiguous(k), v, **options)


@wrong("strides", "NaN or Inf", **CORE)
def reads_values_by_their_address(q, k, v, **options):
    read = (ctypes.c_float * v.numel()).from_address(v.data_ptr())
    return sdpa(q, k, torch.frombuffer(read, dtype=torch.float32).view(v.shape).clone(), **options)


@wrong("strides", "NaN or Inf", **CORE)
def reads_keys_by_the_strides_of_values(q, k, v, **options):
    return sdpa(q, k.as_strided(k.shape, v.stride()), v, **options)


@wrong("strides", "NaN or Inf", **CORE)
def ignores_the_offset_of_values(q, k, v, **options):
    return sdpa(q, k, v.as_strided(v.shape, v.stride(), 0), **options)


@wrong("strides", "kernel (probe), ", **CORE)
def plans_by_shape_alone(q, k, v, **options):
    strides = _remembered.setdefault(("plan", v.shape), v.stride())
    inside = v.storage_offset() + sum((n - 1) * step for n, step in zip(v.shape, strides, strict=True))
    if inside >= v.untyped_storage().nbytes() // v.element_size():
        return torch.zeros_like(v)  # what a kernel would read there is anybody's
    return sdpa(q, k, v.as_strided(v.shape, strides), **options)


@wrong("strides", "in other tensors than before, ", mode="backward")
def gradient_of_contiguous_queries_without_the_ragged_tail(q, k, v, **options):
    whole = q.shape[-2] // 16 * 16
    if q.is_contiguous():
        q = going_back(q, lambda grad: grad * (torch.arange(grad.shape[-2]) < whole)[:, None])
    return sdpa(q, k, v, **options)


# dropout

DROPOUT: dict[str, Any] = {"dropout": 0.25}


def training(says: str = "in training, from the probs that it kept: ", **case: Any) -> Callable[[Kernel], Kernel]:
    """A kernel of training alone: in evaluation it is SDPA."""

    def keep(kernel: Kernel) -> Kernel:
        def whole(q, k, v, *, is_causal=False, attn_mask=None, dropout_p=0.0, enable_gqa=False, **_):
            if not dropout_p:
                return sdpa(q, k, v, attn_mask=attn_mask, is_causal=is_causal, enable_gqa=enable_gqa)
            return kernel(q, k, v, visible(q, k, is_causal, attn_mask), dropout_p)

        whole.__name__ = kernel.__name__
        wrong("dropout", says, **DROPOUT | case)(whole)
        return kernel

    return keep


def _dropped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, p: float) -> Tensor:
    return torch.nn.functional.dropout(probs_of(q, k, mask), p) @ v


@training("drops 0.0% of the probs, not 25.0%")
def no_dropout(q, k, v, mask, p):
    return plain(q, k, v, mask)


@training("not 1 / (1 - p) = 1.333 times as large")
def dropped_without_rescaling(q, k, v, mask, p):
    probs = probs_of(q, k, mask)
    return probs * (torch.rand_like(probs) >= p) @ v


@training("of the probs, not 25.0%")
def keeps_what_it_should_drop(q, k, v, mask, p):
    return _dropped(q, k, v, mask, 1 - p)


@training("features of the output, not probs")
def drops_the_output(q, k, v, mask, p):
    return torch.nn.functional.dropout(plain(q, k, v, mask), p)


def dropping(name: str, says: str, noise: Callable[[Tensor], Tensor]) -> None:
    def kernel(q, k, v, mask, p):
        probs = probs_of(q, k, mask)
        return probs * (noise(probs).expand_as(probs) >= p) / (1 - p) @ v

    kernel.__name__ = name
    training(says)(kernel)


dropping("drops_by_a_fixed_seed", "the same probs in every call",
         lambda p: torch.rand(p.shape, generator=torch.Generator().manual_seed(7)))  # fmt: skip
dropping("drops_whole_keys", "depends on other queries", lambda p: torch.rand(*p.shape[:2], 1, p.shape[-1]))
dropping("drops_alike_in_all_heads", "depends on other heads", lambda p: torch.rand(len(p), 1, *p.shape[2:]))
dropping("drops_alike_in_all_batch_entries", "depends on other batch entries", lambda p: torch.rand(1, *p.shape[1:]))
dropping("drops_pairs_of_keys", "depends on other keys",
         lambda p: torch.rand(*p.shape[:3], p.shape[-1] // 2 + 1).repeat_interleave(2, -1)[..., : p.shape[-1]])  # fmt: skip


@training()
def forgets_its_mask_in_training(q, k, v, mask, p):
    return _dropped(q, k, v, torch.ones_like(mask), p)


@training(mask="causal", source="cross", T_kv=96)
def causal_bottom_right_in_training(q, k, v, mask, p):
    causal = torch.ones_like(mask).tril(k.shape[-2] - q.shape[-2])
    return _dropped(q, k, v, mask if mask.all() else causal, p)


@training()
def masks_after_the_softmax_in_training(q, k, v, mask, p):
    return torch.nn.functional.dropout(scaled(q, k).softmax(-1), p) * mask @ v


@training(H=4, H_kv=2)
def groups_by_repeat_in_training(q, k, v, mask, p):
    k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
    return _dropped(q, k, v, mask, p)


@training(mask="padding", B=2)
def first_padding_for_all_in_training(q, k, v, mask, p):
    return _dropped(q, k, v, mask[:1], p)


@training("in training, where scores are far from zero: NaN or Inf")
def no_maximum_in_training(q, k, v, mask, p):
    weights = torch.exp(scaled(q, k)) * mask
    return torch.nn.functional.dropout(weights / weights.sum(-1, keepdim=True), p) @ v


@training("depends on other keys: 16 keys apart")
def noise_of_one_tile_for_all(q, k, v, mask, p):
    probs = probs_of(q, k, mask)
    noise = torch.rand(*probs.shape[:-1], 16).repeat(1, 1, 1, probs.shape[-1] // 16 + 1)
    return probs * (noise[..., : probs.shape[-1]] >= p) / (1 - p) @ v


class _Drops(torch.autograd.Function):
    """Drops going forward, and going back as if by `again`."""

    @staticmethod
    def forward(ctx, q, k, v, mask, p, again):
        ctx.save_for_backward(q, k, v)
        ctx.rest = mask, again
        return _dropped(q, k, v, mask, p)

    @staticmethod
    def backward(ctx, grad):
        mask, again = ctx.rest
        return *recomputed(ctx.saved_tensors, grad, _dropped, mask=mask, p=again), None, None, None


@training(mode="backward")
def other_noise_going_back(q, k, v, mask, p):
    return _Drops.apply(q, k, v, mask, p, p)


@training(mode="backward")
def no_dropout_going_back(q, k, v, mask, p):
    return _Drops.apply(q, k, v, mask, p, 0.0)


class _LastNoise(_Drops):
    """Keeps the noise of the last call alone."""

    noise: ClassVar[Any] = None

    @classmethod
    def dropped(cls, q, k, v, mask, p):
        return probs_of(q, k, mask) * cls.noise / (1 - p) @ v

    @staticmethod
    def forward(ctx, q, k, v, mask, p, again):
        _LastNoise.noise = torch.rand(*q.shape[:-1], k.shape[-2]) >= p
        ctx.save_for_backward(q, k, v)
        ctx.rest = mask, p
        return _LastNoise.dropped(q, k, v, mask, p)

    @staticmethod
    def backward(ctx, grad):
        mask, p = ctx.rest
        return *recomputed(ctx.saved_tensors, grad, _LastNoise.dropped, mask=mask, p=p), None, None, None


@training(mode="backward")
def noise_of_the_last_forward_going_back(q, k, v, mask, p):
    return _LastNoise.apply(q, k, v, mask, p, p)


@wrong("dropout", "in training, where another forward", **BACKWARD)
class DropsThoughItHasNoDropout(KernelCore):
    """In training mode."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape, sdpa)

    def forward(self, *qkv, padding=None):
        return torch.nn.functional.dropout(super().forward(*qkv, padding=padding), 0.1, self.training)


def counted(name: str, says: str, number: Callable[..., Tensor], **case: Any) -> None:
    """Dropout by a hash of `number` of batch entry, head, query and key, and of a random seed."""

    def kernel(q, k, v, mask, p):
        b, h, i, j = (torch.arange(n).reshape(-1, *[1] * (3 - at)) for at, n in enumerate((*q.shape[:3], k.shape[-2])))
        seed = torch.randint(1 << 30, ())
        state = (number(b, h, i, j, q, k) * 2654435761 + seed) % (1 << 32)
        for _ in range(3):
            state = ((state ^ (state >> 15)) * 2246822519) % (1 << 32)
        probs = probs_of(q, k, mask)
        return probs * (state / (1 << 32) >= p) / (1 - p) @ v

    kernel.__name__ = name
    training(says, **case)(kernel)


def _flat(b: Tensor, h: Tensor, i: Tensor, j: Tensor, q: Tensor, k: Tensor, stride: int) -> Tensor:
    return ((b * q.shape[1] + h) * q.shape[2] + i) * stride + j


counted(
    "rows_of_noise_as_wide_as_a_head",
    "depends on other queries: 1 queries, 64 keys apart",
    lambda *at: _flat(*at, stride=at[-1].shape[-1]),
)
counted(
    "noise_by_a_counter_of_16_bits",
    "what it drops depends on other",
    lambda *at: _flat(*at, stride=at[-1].shape[-2]) % 65536,
)
counted(
    "noise_by_entry_plus_head",
    "depends on other heads",
    lambda b, h, i, j, q, k: _flat(b + h, h * 0, i, j, q, k, k.shape[-2]),
)
counted(
    "noise_by_tiles_whose_numbers_are_added",
    "what it drops depends on other queries",
    lambda b, h, i, j, q, k: _flat(b, h, i % 64, j % 64, q, k, 64) * 64 + i // 64 + j // 64,
)
counted(
    "alike_in_heads_half_of_them_apart",
    "depends on other heads: 2 heads apart",
    lambda b, h, i, j, q, k: _flat(b, h % max(2, q.shape[1] // 2), i, j, q, k, k.shape[-2]),
)


_pools: list[Tensor] = []


@training("depends on an earlier call")
def two_pools_of_noise_in_turn(q, k, v, mask, p):
    probs = probs_of(q, k, mask)
    if not _pools or _pools[0].shape != probs.shape:
        _pools[:] = torch.rand(2, *probs.shape)
    _pools.reverse()
    return probs * (_pools[0] >= p) / (1 - p) @ v


@training(D_v=128)
def scaled_by_the_values_width_in_training(q, k, v, mask, p):
    return _dropped(q * (q.shape[-1] / v.shape[-1]) ** 0.5, k, v, mask, p)


@training("% of the probs at keys 256 to 287, not 25.0%", T=512)
def drops_nothing_beyond_268_keys(q, k, v, mask, p):
    probs = probs_of(q, k, mask)
    noise = torch.rand_like(probs)
    noise[..., 268:] = 1.0
    return probs * (noise >= p) / (1 - p) @ v


# dropout of the output


class OutDropout(KernelLayer):
    """Right; those below change a thing of it."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape, KernelCore(shape, sdpa))

    def finish(self, o):
        return self.drop(self.W_o(o))


OUT: dict[str, Any] = {"out_dropout": 0.25}


@wrong("dropout of the output", "of the output, not 25.0%", **OUT)
class DropsBeforeTheProjection(OutDropout):
    def finish(self, o):
        return self.W_o(self.drop(o))


@wrong("dropout of the output", "of the output, not 25.0%", out_bias=True, **OUT)
class AddsItsBiasBehindDropout(OutDropout):
    def finish(self, o):
        return self.drop(torch.nn.functional.linear(o, self.W_o.weight)) + self.W_o.bias


@wrong("dropout of the output", "drops features of the output, not probs", dropout=0.5, **OUT)
class SwapsItsProbabilities(OutDropout):
    def __init__(self, shape: LayerShape):
        super().__init__(replace(shape, dropout=shape.out_dropout, out_dropout=shape.dropout))


class _ForgetsGoingBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, o, p):
        return torch.nn.functional.dropout(o, p)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


@wrong("dropout of the output", "in training, from the output that it kept: gradient of", mode="backward", **OUT)
class ForgetsItsDropoutGoingBack(OutDropout):
    def finish(self, o):
        o = self.W_o(o)
        return _ForgetsGoingBack.apply(o, self.drop.p) if self.training else o


@wrong("dropout of the output", "depends on other", **OUT)
class DropsWholeTokens(OutDropout):
    def finish(self, o):
        o = self.W_o(o)
        return o * self.drop(torch.ones_like(o[..., :1]))


# what is kept of another padding

PADDING: dict[str, Any] = {"mask": "padding", "B": 2}
OTHER_PADDING = "where other keys are padding than before: "


@wrong("another padding", OTHER_PADDING, **PADDING)
def keeps_the_mask_by_its_shape(q, k, v, *, attn_mask=None, **_):
    if attn_mask.shape not in _masks:
        _masks[attn_mask.shape] = attn_mask.clone()
    return sdpa(q, k, v, attn_mask=_masks[attn_mask.shape])


_masks: dict[Any, Tensor] = {}


@wrong("another padding", OTHER_PADDING, scope="core", **PADDING)
def keeps_the_lengths_of_its_first_call(q, k, v, *, attn_mask=None, **_):
    lengths = _lengths.setdefault(k.shape, attn_mask.sum(-1, keepdim=True))
    return sdpa(q, k, v, attn_mask=torch.arange(k.shape[-2]) < lengths)


_lengths: dict[Any, Tensor] = {}


@wrong("another padding", OTHER_PADDING, **PADDING)
class KeepsItsFirstPadding(as_layer(sdpa)):  # type: ignore[misc]
    def forward(self, x, x_k=None, *, padding=None, cache=None):
        self.first = getattr(self, "first", padding)
        return super().forward(x, x_k, padding=self.first, cache=cache)


@wrong("another padding", "in other tensors than before, ", **PADDING)
def keeps_the_mask_by_its_address(q, k, v, *, attn_mask=None, **_):
    known = _additive.setdefault(
        (attn_mask.data_ptr(), attn_mask.shape), torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf)
    )
    return sdpa(q, k, v, attn_mask=known)


_additive: dict[Any, Tensor] = {}


# a dominant key that is not the first

LATE = "where a late key dominates: "


def online(q, k, v, mask, tile: int, raised: Callable[[Tensor, Tensor], Tensor], rescale: float = -torch.inf) -> Tensor:
    """Softmax over tiles of keys, with a running maximum that `raised` makes of the old one and a tile's."""
    scores = scores_of(q, k, mask)
    most = scores[..., :tile].amax(-1, keepdim=True)
    total, o = torch.zeros_like(most), torch.zeros(*q.shape[:-1], v.shape[-1])
    for at in range(0, k.shape[-2], tile):
        part = scores[..., at : at + tile]
        new = raised(most, part.amax(-1, keepdim=True))
        weights, factor = torch.exp(part - new), torch.exp((most - new).clamp_min(rescale))
        total, o, most = (
            total * factor + weights.sum(-1, keepdim=True),
            o * factor + weights @ v[..., at : at + tile, :],
            new,
        )
    return o / total


@wrong("a late key", LATE + "NaN or Inf", T=256)
@masked
def maximum_of_the_first_tile(q, k, v, mask):
    return online(q, k, v, mask, 32, lambda old, new: old)


@wrong("a late key", LATE + "error", T=256)
@masked
def rescaled_by_no_less_than_e_to_the_minus_10(q, k, v, mask):
    return online(q, k, v, mask, 16, torch.maximum, rescale=-10.0)


@wrong("a late key", LATE + "NaN or Inf", T=100)
@masked
def maximum_without_the_ragged_tail(q, k, v, mask):
    scores = scores_of(q, k, mask)
    whole = max(32, k.shape[-2] // 32 * 32)
    weights = torch.exp(scores - scores[..., :whole].amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True) @ v


@wrong("a late key", LATE, **DECODE | {"T_kv": 256})
def maximum_of_the_old_cache(q, k, v, **_):
    scores = scaled(q, k)
    weights = torch.exp(scores - scores[..., :-1].amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True) @ v


@wrong("a late key", LATE)
@masked
def exponent_of_an_exponential_wraps(q, k, v, mask):
    """2 to the power of a whole number, made of its bits."""
    steps = scores_of(q, k, mask).clamp(min=-1e6) * 1.4426950408889634
    steps = steps - steps.amax(-1, keepdim=True)
    bits = (steps.floor().to(torch.int32) + 127) << 23
    weights = (torch.exp2(steps - steps.floor()) * bits.view(torch.float32)).masked_fill(~mask, 0.0)
    return weights / weights.sum(-1, keepdim=True) @ v


def _newest_unseen_from_1024_on(q, k, v, **_):
    last = -1 if k.shape[-2] >= 1024 else k.shape[-2]
    return sdpa(q, k[..., :last, :], v[..., :last, :])


@wrong("a late key", **DECODE | {"T_kv": 1024, "H": 8, "dtype": "bfloat16"})
class NewestTokenUnseenInALongDecode(as_layer(_newest_unseen_from_1024_on)):  # type: ignore[misc]
    pass


# a few alternating buffers


@wrong("buffers in turn", "share one buffer", T=256)
def two_buffers_in_turn(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    ring = _remembered.setdefault(("ring", o.shape), [torch.empty_like(o), torch.empty_like(o)])
    ring.reverse()
    return ring[0].copy_(o)


@wrong("buffers in turn", "the outputs of 16 calls share 8 buffers")
def eight_buffers_in_turn(q, k, v, *, is_causal=False, **_):
    o = sdpa(q, k, v, is_causal=is_causal)
    ring = _remembered.setdefault(("ring of eight", o.shape), [torch.empty_like(o) for _ in range(8)])
    ring.append(ring.pop(0))
    return ring[0].copy_(o)


def three_buffers_in_turn(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    ring = _remembered.setdefault(("ring of three", o.shape), [torch.empty_like(o) for _ in range(3)])
    ring.append(ring.pop(0))
    return ring[0].copy_(o)


wrong("buffers in turn", "the outputs of 16 calls share 3 buffers")(
    only(three_buffers_in_turn, "three_buffers_beyond_the_first_probe", lambda q, k: q.shape[-2] > 37)
)


@wrong("buffers in turn", "the outputs of 16 calls share 3 buffers", **BACKWARD)
class ThreeBuffersInTraining(Plain):
    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        Plain.forward(ctx, q, k, v, is_causal)
        return three_buffers_in_turn(q, k, v, is_causal=is_causal).detach()


@wrong("buffers in turn", "the outputs of 16 calls share 8 buffers")
class EightBuffersInALayer(as_layer(sdpa)):  # type: ignore[misc]
    def forward(self, *inputs, **options):
        o = super().forward(*inputs, **options)
        self.ring = getattr(self, "ring", None) or [torch.empty_like(o) for _ in range(8)]
        self.ring.append(self.ring.pop(0))
        return self.ring[0].copy_(o)


@wrong("buffers in turn", "the outputs of 16 calls share 8 buffers", **DECODE)
class EightBuffersInDecode(EightBuffersInALayer):
    pass


@wrong("buffers in turn", "share one buffer", **PADDING)
def one_buffer_where_keys_are_padding(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    return _remembered.setdefault(("padded", o.shape), torch.empty_like(o)).copy_(o)


@wrong("buffers in turn", "share one buffer", **DECODE | {"T_kv": 256})
class OneBufferInDecode(as_layer(sdpa)):  # type: ignore[misc]
    def forward(self, *inputs, **options):
        o = super().forward(*inputs, **options)
        self.o = getattr(self, "o", torch.empty_like(o))
        return self.o.copy_(o)


@wrong("buffers in turn", TWO_FORWARDS, T=256, **BACKWARD)
class KeepsItsTensorsInTwoPlacesInTurn(KeepsItsTensorsOnTheClass):
    """Two alternating buffers for the state of a backward: enough for two layers."""

    kept: ClassVar[list[Any]] = [None, None]
    turn: ClassVar[int] = 0

    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.at, KeepsItsTensorsInTwoPlacesInTurn.turn = (
            KeepsItsTensorsInTwoPlacesInTurn.turn,
            1 - KeepsItsTensorsInTwoPlacesInTurn.turn,
        )
        KeepsItsTensorsInTwoPlacesInTurn.kept[ctx.at] = (q, k, v, is_causal)
        return sdpa(q, k, v, is_causal=is_causal)

    @staticmethod
    def backward(ctx, grad):
        *inputs, is_causal = KeepsItsTensorsInTwoPlacesInTurn.kept[ctx.at]
        return *recomputed(inputs, grad, is_causal=is_causal), None


@wrong("buffers in turn", TWO_FORWARDS, T=1024, **BACKWARD)
def keeps_its_tensors_on_the_class_beyond_512(q, k, v, *, is_causal=False, **_):
    return (
        KeepsItsTensorsOnTheClass.apply(q, k, v, is_causal) if q.shape[-2] > 512 else sdpa(q, k, v, is_causal=is_causal)
    )


# what shows at great lengths alone


def from_1024_on(kernel: Kernel, name: str = "") -> Kernel:
    return only(kernel, f"{name or kernel.__name__}_from_1024_on", lambda q, k: k.shape[-2] >= 1024)


@wrong("a late key", LARGE, **DECODE | {"T_kv": 1024, "H": 8})
class NoMaximumInALongDecode(as_layer(from_1024_on(no_shift))):  # type: ignore[misc]
    pass


LONG: dict[str, Any] = {"T": 1024, "H": 1}
LONG_DECODE = DECODE | {"T_kv": 4096, "H": 8, "dtype": "bfloat16"}

wrong("great lengths", LARGE, **LONG)(from_1024_on(no_shift))
wrong("great lengths", LARGE, scope="core", **LONG | {"D_h": 16})(from_1024_on(no_shift, "no_shift_of_narrow_heads"))
wrong("great lengths", "where scores are very negative: ", **LONG)(from_1024_on(masks_with_minus_50))


@wrong("great lengths", **LONG_DECODE)
def last_key_unseen_at_multiples_of_128(q, k, v, **_):
    last = -1 if k.shape[-2] % 128 == 0 else k.shape[-2]
    return sdpa(q, k[..., :last, :], v[..., :last, :])


@wrong("great lengths", scope="core", **LONG_DECODE)
def first_key_unseen_at_multiples_of_128(q, k, v, **_):
    first = 1 if k.shape[-2] % 128 == 0 else 0
    return sdpa(q, k[..., first:, :], v[..., first:, :])


@wrong("great lengths", scope="core", **LONG_DECODE)
def two_of_its_parts_overlap_by_a_key(q, k, v, **_):
    if k.shape[-2] < 4096:
        return sdpa(q, k, v)
    twice = torch.cat([torch.arange(2048), torch.arange(2047, k.shape[-2])])
    return sdpa(q, k[..., twice, :], v[..., twice, :])


@wrong("great lengths", scope="core", **LONG_DECODE)
def key_lost_between_three_parts(q, k, v, **_):
    size, at = -(-k.shape[-2] // 3), torch.arange(k.shape[-2])
    if k.shape[-2] >= 4096:
        at = at[(at % size > 0) | (at == 0)]
    return sdpa(q, k[..., at, :], v[..., at, :])


@wrong("a late key", LATE + "NaN or Inf", scope="core", mask="none", T=1024)
@masked
def rescaled_where_a_tile_exceeds_the_one_before(q, k, v, mask):
    """Not where it exceeds the scores that were taken off so far."""
    before: list[Tensor] = []

    def raised(old: Tensor, tile: Tensor) -> Tensor:
        before.append(tile)
        return torch.where(tile - before[-2:][0] > 8, tile, old)

    return online(q, k, v, mask, 64, raised)


# lone queries


def split(begin: float, name: str) -> Kernel:
    """Decode in parts of 512 keys, merged by their maxima, which start at `begin`."""

    def kernel(q, k, v, **_):
        if k.shape[-2] < 1024:
            return sdpa(q, k, v, enable_gqa=True)
        scores = scaled(q, groups(q, k)).split(512, -1)
        tops = [part.amax(-1, keepdim=True).clamp_min(begin) for part in scores]
        exps = [torch.exp(part - top) for part, top in zip(scores, tops, strict=True)]
        top = torch.stack(tops).amax(0)
        shares = [torch.exp(own - top) for own in tops]
        total = sum(part.sum(-1, keepdim=True) * share for part, share in zip(exps, shares, strict=True))
        values = groups(q, v).split(512, -2)
        return sum(part @ x * share for part, x, share in zip(exps, values, shares, strict=True)) / total

    kernel.__name__ = name
    return kernel


LONE = DECODE | {"T_kv": 4096}
NEGATIVE = "where scores are very negative: "
maxima_from_zero = split(0.0, "maxima_of_parts_begin_at_zero")
wrong("lone queries", NEGATIVE, H=32, H_kv=8, **LONE)(maxima_from_zero)
wrong("lone queries", NEGATIVE, H=2, **LONE)(split(0.0, "maxima_of_parts_begin_at_zero_with_two_heads"))
wrong("lone queries", NEGATIVE, H=8, **LONE)(as_layer(maxima_from_zero))


# groups and lengths that are no powers of two


def at_lengths(n: int, left: int, says: str = "error") -> None:
    """Wrong if this many keys are left over from tiles of n."""

    def kernel(q, k, v, **options):
        o = sdpa(q, k, v, **options)
        return o * 1.01 if k.shape[-2] % n == left else o

    kernel.__name__ = f"wrong_at_{left}_modulo_{n}"
    wrong("lengths", says, T=96)(kernel)


at_lengths(256, 1)
at_lengths(128, 127)
at_lengths(128, 64)
at_lengths(128, 0)


def at_groups_of(group: int, H: int, **case: Any) -> None:
    """Heads by a division that is exact for other groups."""

    def kernel(q, k, v, **options):
        own = q.shape[1] // k.shape[1]
        wanted = own + 1 if own == group else own
        heads = torch.arange(q.shape[1]) // wanted
        return sdpa(q, k[:, heads], v[:, heads], **options)

    def with_no_maximum(q, k, v, **options):
        k, v, own = groups(q, k), groups(q, v), q.shape[1] // k.shape[1]
        return (no_shift if own == group else sdpa)(q, k, v, **options)

    for it, name, says in ((kernel, "heads_by_a_wrong_division", "error"), (with_no_maximum, "no_maximum", "where ")):
        it.__name__ = f"{name}_in_groups_of_{group}{'_decoding' if case else ''}"
        wrong("groups", says, H=H, H_kv=H // group, **case)(it)


at_groups_of(7, 14)
at_groups_of(3, 6)
at_groups_of(7, 14, **LONE)
at_groups_of(8, 16)


class _Underflows(Plain):
    """Probs of the backward from exp(log-sum-exp), which is zero below -88.7."""

    @staticmethod
    def forward(ctx, q, k, v, mask):
        ctx.save_for_backward(q, k, v)
        ctx.mask = mask
        return plain(q, k, v, mask)

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            q, k, v = leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            scores = scores_of(q, k, ctx.mask)
            lost = torch.logsumexp(scores, -1, keepdim=True) < -88.7
            o = torch.softmax(scores, -1) @ v
        gradients = torch.autograd.grad(o, leaves, grad)
        return (
            torch.where(lost, torch.nan if q.shape[-2] % 128 == 64 else gradients[0], gradients[0]),
            *gradients[1:],
            None,
        )


class _Vanishes(_Underflows):
    @staticmethod
    def backward(ctx, grad):
        found = _Underflows.backward(ctx, grad)
        return found[0].nan_to_num(0.0), *found[1:]


def underflowing(name: str, function: type[Plain], says: str, **case: Any) -> None:
    def kernel(q, k, v, *, is_causal=False, attn_mask=None, **_):
        if attn_mask is None or q.shape[-2] % 128 != 64:
            return sdpa(q, k, v, is_causal=is_causal, attn_mask=attn_mask)
        return function.apply(q, k, v, visible(q, k, is_causal, attn_mask))

    kernel.__name__ = name
    wrong("lengths of 64 mod 128", says, **BACKWARD, **case)(kernel)


PADDED: dict[str, Any] = {"mask": "causal+padding", "B": 2}
underflowing("nan_below_88_at_64", _Underflows, "gradient of q", T=64, **PADDED)
underflowing("nan_below_88_at_192", _Underflows, "NaN or Inf", T=192, **PADDED)
underflowing("nan_below_88_in_a_window", _Underflows, "NaN or Inf", T=192, window=100)
underflowing("zero_below_88_at_192", _Vanishes, "error", T=192, **PADDED)
underflowing("zero_below_88_at_192_in_bfloat16", _Vanishes, "error", T=192, dtype="bfloat16", **PADDED)


# process-global state


def changing(name: str, says: str, change: Callable[[], Any]) -> None:
    def kernel(q, k, v, **options):
        change()
        return sdpa(q, k, v, **options)

    kernel.__name__ = name
    wrong("process", f"modifies global torch settings: {says}")(kernel)


changing("changes_the_threads", "number of threads", lambda: torch.set_num_threads(torch.get_num_threads() + 1))
changing("lowers_precision_by_the_newer_means", "precision of float32 products",
         lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"))  # fmt: skip
changing("stops_the_garbage_collector", "garbage collection: True → False", gc.disable)
changing("reseeds", "seed of torch's random numbers", lambda: torch.manual_seed(1234))
changing("takes_another_clock", "names of time: perf_counter", lambda: setattr(time, "perf_counter", time.monotonic))
changing("patches_softmax", "names of torch.nn.functional: softmax",
         lambda: setattr(torch.nn.functional, "softmax", torch.softmax))  # fmt: skip


_opened: list[Any] = []


def leaving_open(name: str, says: str, make: Callable[[], Any]) -> None:
    """Enters a context in every call, and leaves none."""

    def enter() -> None:
        _opened.append(make())
        _opened[-1].__enter__()

    changing(name, says, enter)


def replace_softmax() -> None:
    """As a library does that replaces torch's operators by its own."""
    library = torch.library.Library("aten", "IMPL")
    if "aten/_softmax/CPU" not in torch.library._impls:
        library.impl("_softmax", lambda x, *rest: torch.ops.aten._log_softmax(x, *rest).exp(), "CPU")
        _opened.append(library)


leaving_open("leaves_hooks_of_saved_tensors", "hooks of saved tensors: 0 → 1",
             lambda: torch.autograd.graph.saved_tensors_hooks(Tensor.clone, Tensor.clone))  # fmt: skip
leaving_open("leaves_a_mode_of_functions", "open modes of torch's functions: 0 →", BaseTorchFunctionMode)
leaving_open("leaves_a_mode_of_the_dispatcher", "open modes of torch's dispatcher: 0 →", BaseTorchDispatchMode)
leaving_open("leaves_inference_mode", "inference mode: False → True", torch.inference_mode)
changing("hooks_every_module", "hooks of all modules: _global_forward_hooks",
         lambda: torch.nn.modules.module.register_module_forward_hook(lambda *_: None))  # fmt: skip


def _set_option() -> None:
    importlib.import_module("torch._inductor.config").max_autotune = True  # which takes a second to import


changing("sets_an_option_of_the_compiler", "options of torch.compile: torch._inductor.config.max_autotune", _set_option)
changing("patches_linear_layers", "methods of torch.nn's modules: Linear.forward",
         lambda: setattr(torch.nn.Linear, "forward", lambda self, x: x @ self.weight.mT))  # fmt: skip
changing("leaves_a_profiler_on", "profiling of Python code: None →", lambda: sys.setprofile(lambda *_: None))
changing("patches_torch", "names of torch: softmax", lambda: setattr(torch, "softmax", torch.special.softmax))
changing("replaces_an_operator", "replaced operators of torch: aten/_softmax/CPU", replace_softmax)


def building(name: str, says: str, change: Callable[[], Any], prepares: bool = False) -> None:
    class Layer(as_layer(sdpa)):
        def __init__(self, shape: LayerShape):
            super().__init__(shape)
            if not prepares:
                change()

        @property
        def prepare(self):
            return (lambda *_: change()) if prepares else None

    Layer.__name__ = name
    wrong("building", f"modifies global torch settings when it is built: {says}")(Layer)


building("ThreadsWhenBuilt", "number of threads", lambda: torch.set_num_threads(torch.get_num_threads() + 1))
building("ReseedsWhenBuilt", "seed of torch's random numbers", lambda: torch.manual_seed(7))
building("PrecisionWhenPrepared", "precision of float32 products",
         lambda: torch.set_float32_matmul_precision("high"), prepares=True)  # fmt: skip


# detected by timing, and by comparing outputs while timed

WHEN_TIMED: dict[str, Wrong] = {}


def wrong_when_timed(family: str, says: str, **case: Any) -> Callable[[Kernel], Kernel]:
    """The gate has no chance: these are right in every call that it makes, or as good as right."""

    def keep(kernel: Kernel) -> Kernel:
        WHEN_TIMED[kernel.__name__] = Wrong(family, kernel, says, case)
        return kernel

    return keep


_calls: dict[str, int] = {}


def now_and_then(name: str, every: int = 200) -> bool:
    """True in one of this many calls."""
    _calls[name] = _calls.get(name, 0) + 1
    return _calls[name] % every == 0


@wrong_when_timed("race", "1 of 64 rows, t = 63 (T = 64)", scope="core")
def last_row_missing_now_and_then(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    if now_and_then("row"):
        o[..., -1, :] = 0.0
    return o


@wrong_when_timed("race", "in a timed call")
def one_head_of_the_call_before_now_and_then(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    before = _remembered.get("call before")
    if before is not None and before.shape == o.shape and now_and_then("head"):
        o[:, 1] = before[:, 0]
    _remembered["call before"] = o.clone()
    return o


@wrong_when_timed("race", "in a timed call", mode="backward")
def a_gradient_added_twice_now_and_then(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    if o.requires_grad:
        o.register_hook(lambda grad: grad * 2 if now_and_then("gradient") else grad)
    return o


@wrong_when_timed("race", "NaN or Inf in")
def memory_never_written_now_and_then(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    return torch.where(torch.arange(o.shape[-1]) == 0, torch.nan, o) if now_and_then("memory") else o


@wrong_when_timed("buffer", "share one buffer", scope="core", T=640)
def one_buffer_beyond_the_probes(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    return _remembered.setdefault("beyond the probes", torch.empty_like(o)).copy_(o) if q.shape[-2] > 600 else o


def long_training(name: str, says: str, kernel: Callable[..., Tensor], **case: Any) -> None:
    """Another kernel where it drops and there are more than 512 tokens."""

    def whole(q, k, v, *, is_causal=False, attn_mask=None, dropout_p=0.0, **_):
        mask = visible(q, k, is_causal, attn_mask)
        if not dropout_p or q.shape[-2] <= 512:
            return _dropped(q, k, v, mask, dropout_p)
        return kernel(q, k, v, mask, dropout_p)

    whole.__name__ = name
    wrong_when_timed("long training", f"in training: {says}", dropout=0.25, T=640, **case)(whole)


long_training("nothing_in_long_training", "NaN or Inf", lambda q, *_: torch.full_like(q, torch.nan))
long_training("no_mask_in_long_training", "outputs are on average",
              lambda q, k, v, mask, p: _dropped(q, k, v, torch.ones_like(mask), p))  # fmt: skip
for mode in ("forward", "backward"):
    long_training(f"last_keys_unseen_in_long_training_{mode}", "the first or the last 64 keys", lambda q, k, v, mask, p:
                  _dropped(q, k, v, mask & (torch.arange(len(mask)) < len(mask) - 64), p), mode=mode)  # fmt: skip
long_training("no_dropout_in_long_training", "outputs scatter 0.00 times as widely",
              lambda q, k, v, mask, p: plain(q, k, v, mask))  # fmt: skip
long_training("other_noise_going_back_in_long_training", "a backward drops other probs than its forward",
              lambda q, k, v, mask, p: _Drops.apply(q, k, v, mask, p, p), mode="backward", scope="core", H=4)  # fmt: skip


def digest(*tensors: Tensor) -> tuple[Any, ...]:
    places = [torch.linspace(1, 2, x.numel(), dtype=torch.float64) for x in tensors]
    return tuple(
        (x.shape, x.dtype, float(x.detach().flatten().double() @ it)) for x, it in zip(tensors, places, strict=True)
    )


LONG_ENOUGH: dict[str, Any] = {"T": 512, "D_h": 64}


@wrong_when_timed("cached", "caches results", scope="core", **LONG_ENOUGH)
def answers_by_a_digest_of_the_inputs(q, k, v, *, is_causal=False, **_):
    key = digest(q, k, v)
    if key not in _remembered:
        _remembered[key] = plain(q, k, v, visible(q, k, is_causal, None))
    return _remembered[key].clone()


@wrong_when_timed("cached", "caches results", **LONG_ENOUGH)
def answers_by_a_digest_in_a_layer(q, k, v, **options):
    return answers_by_a_digest_of_the_inputs(q, k, v, **options)


@wrong_when_timed("cached", "caches results", T=128, D_h=64, H=8)
def answers_by_a_digest_where_projections_take_longer(q, k, v, **options):
    return answers_by_a_digest_of_the_inputs(q, k, v, **options)


_problems: list[Any] = []


@wrong_when_timed("cached", "caches results", scope="core", **LONG_ENOUGH)
def reads_the_reference_from_memory(q, k, v, *, is_causal=False, **_):
    if now_and_then("search", every=1) and _calls["search"] < 40:
        _problems[:] = [it for it in gc.get_objects() if type(it).__name__ == "Problem"]
    for it in _problems:
        if it.output.rows is None and all(map(torch.equal, it.inputs, (q, k, v))):
            return it.output.reference.to(q.dtype)
    return plain(q, k, v, visible(q, k, is_causal, None))


@wrong_when_timed("later", "its output on fresh inputs is not attention", T=128, D_h=64, H=8)
def answers_nothing_new_later(q, k, v, **options):
    key, late = ("new", *digest(q, k, v)), now_and_then("new", every=1) and _calls["new"] > 150
    if key not in _remembered:
        _remembered[key] = torch.zeros_like(v) if late else sdpa(q, k, v, **options)
    return _remembered[key].clone()


@wrong_when_timed("cached", "caches results", **LONG_ENOUGH)
class LayerThatKnowsItsInput(as_layer(sdpa)):
    def forward(self, x, *rest, **options):
        key = ("layer", *digest(x))
        if key not in _remembered:
            _remembered[key] = super().forward(x, *rest, **options)
        return _remembered[key].clone()


@wrong_when_timed("cached", "caches results", **LONG_ENOUGH | {"T": 640, "H": 4})
class LayerThatKnowsTheProbs(as_layer(sdpa)):
    """Projects in every call, as it should."""

    def forward(self, x, *_, **__):
        q, k, v = self.project(x, x)
        key = ("probs", *digest(x))
        if key not in _remembered:
            _remembered[key] = probs_of(q, k, visible(q, k, True, None))
        return self.finish((_remembered[key] @ v).transpose(-3, -2).flatten(-2))


def later(name: str, begin: Callable[[Callable[[], Any]], Any], says: str) -> None:
    def kernel(q, k, v, **options):
        o = sdpa(q, k, v, **options)
        if q.shape[-2] != 64:
            return o
        last = o[..., -1, :].clone()
        o[..., -1, :] += 1e-7  # near enough, and not yet what it will be
        begin(lambda: o[..., -1, :].copy_(last))
        return o

    kernel.__name__ = name
    wrong_when_timed("finished later", says, scope="core")(kernel)


rest = Rest()
"""What passes between a call and the end of its work; a test has it pass where the check waits."""

_pool = ThreadPoolExecutor(1)
CHANGES, WORKS = "its output changes after the call has returned", "leaves threads that work when its call has returned"
later("finished_by_a_timer", lambda write: threading.Timer(0, rest.behind(4e-3, write)).start(), CHANGES)
later("finished_by_a_pool", lambda write: _pool.submit(rest.behind(2e-3, write)), CHANGES)
later(
    "finished_by_a_thread_that_works_on",
    lambda write: threading.Thread(target=rest.spinning(0.2, write)).start(),
    WORKS,
)


# a separate path for round lengths


ROUND: dict[str, Any] = {"T": 256}


def at_multiples_of_64(kernel: Kernel, name: str) -> Kernel:
    return only(kernel, f"{name}_at_multiples_of_64", lambda q, k: k.shape[-2] % 64 == 0)


wrong("round lengths", "where ", **ROUND)(at_multiples_of_64(no_shift, "no_maximum"))
wrong("round lengths", "where ", **ROUND)(at_multiples_of_64(masks_with_minus_50, "masks_with_minus_50"))
wrong("round lengths", "where ", scope="core", mode="backward", **ROUND)(
    at_multiples_of_64(no_shift, "no_maximum_with_gradients")
)


wrong("round lengths", "NaN or Inf", scope="core", **ROUND)(
    at_multiples_of_64(reads_keys_as_if_contiguous, "reads_keys_as_if_contiguous")
)


# state after a backward


@wrong("backward's gradient", "gradient of", scope="core", **BACKWARD)
class ReadsTheGradientAsIfContiguous(Plain):
    @staticmethod
    def backward(ctx, grad):
        return Plain.backward(ctx, as_if_contiguous(grad))


@wrong("backward's gradient", "adds to `.grad` as a side effect", scope="core", **BACKWARD)
class AddsToGradInPassing(Plain):
    @staticmethod
    def backward(ctx, grad):
        found = Plain.backward(ctx, grad)
        for x, gradient in zip(ctx.saved_tensors, found[:3], strict=True):
            if x.is_leaf:
                x.grad = gradient
        return found


class _Lazy(Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


@wrong("layout", "which may compute when it is read", scope="core")
def answers_with_a_subclass(q, k, v, **options):
    return sdpa(q, k, v, **options).as_subclass(_Lazy)


changing(
    "patches_tensors", "methods of torch.Tensor: masked_fill", lambda: setattr(Tensor, "masked_fill", Tensor.where)
)


# memory that isn't the kernel's, or that it never wrote


@wrong("memory", "NaN or Inf", scope="core")
@masked
def multiplies_memory_never_written_by_zero(q, k, v, mask):
    behind = v.new_empty(*v.shape[:-2], 16, v.shape[-1])
    return torch.nn.functional.pad(probs_of(q, k, mask), (0, 16)) @ torch.cat([v, behind], -2)


@wrong("memory", "NaN or Inf", scope="core")
def adds_to_memory_that_it_believes_to_be_zero(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    return torch.empty_like(o).mul_(0.0).add_(o)


@wrong("memory", "writes to memory beside its inputs", scope="core")
def clears_what_lies_behind_its_keys(q, k, v, **options):
    end = k.storage_offset() + sum((n - 1) * step for n, step in zip(k.shape, k.stride(), strict=True)) + 1
    if k.untyped_storage().nbytes() // k.element_size() - end >= k.shape[-1]:
        k.as_strided((k.shape[-1],), (1,), end).zero_()
    return sdpa(q, k, v, **options)


@wrong("memory", "writes to memory beside its inputs", scope="core", **BACKWARD)
def scratch_before_its_queries(q, k, v, **options):
    if q.storage_offset() >= q.shape[-1]:
        q.detach().as_strided((q.shape[-1],), (1,), 0).fill_(1.0)
    return sdpa(q, k, v, **options)


@wrong("memory", "error", scope="core", T=100)
@changed
def as_many_rows_as_its_first_call_had(o):
    o[..., _remembered.setdefault("rows", o.shape[-2]) :, :] = 0


# less precise where errors are hard to detect: small outputs, few rows, nearly equal probs


@wrong("tolerance by shape", scope="core", T=1024)
def zeros_where_outputs_are_small(q, k, v, **options):
    return sdpa(q, k, v, **options) * (k.shape[-2] < 512)


wrong("tolerance by shape", scope="core", T=8)(
    only(bfloat16_in_disguise, "bfloat16_for_few_rows", lambda q, k: q.shape[:-1].numel() < 64)
)


@wrong("tolerance by shape", scope="core", T=1024)
def mean_of_the_values_for_late_queries(q, k, v, *, is_causal=False, **_):
    o = sdpa(q, k, v, is_causal=is_causal).clone()
    if is_causal:
        o[..., 256:, :] = (v.cumsum(-2) / torch.arange(1, 1 + v.shape[-2])[:, None])[..., 256:, :]
    return o


# gradients of some inputs alone


@wrong("gradients of some", "where k alone need gradients: gradient of k", scope="core", **BACKWARD)
class NoGradientOfKeysWithoutThatOfQueries(Plain):
    """Computes nothing where queries need no gradient."""

    @staticmethod
    def backward(ctx, grad):
        found = Plain.backward(ctx, grad)
        return found if ctx.needs_input_grad[0] else tuple(None if x is None else torch.zeros_like(x) for x in found)


@wrong("gradients of some", "where q and k alone need gradients: gradient of k", **BACKWARD)
class NoGradientOfKeysWithoutThatOfValues(Plain):
    @staticmethod
    def backward(ctx, grad):
        found = Plain.backward(ctx, grad)
        return found if ctx.needs_input_grad[:3] != (True, True, False) else (found[0], found[1] * 0, *found[2:])


@wrong("gradients of some", "where k alone need gradients: gradient of k", **BACKWARD)
class TheFirstGradientsWhateverIsNeeded(Plain):
    """Returns as many gradients as are needed, the first ones."""

    @staticmethod
    def backward(ctx, grad):
        found = iter(Plain.backward(ctx, grad)[:3])
        return *(next(found) if needed else None for needed in ctx.needs_input_grad[:3]), None


@wrong("gradients of some", "where v alone need gradients: no gradient", scope="core", **BACKWARD)
def recorded_by_its_queries_alone(q, k, v, **options):
    with torch.set_grad_enabled(q.requires_grad or k.requires_grad):
        return sdpa(q, k, v, **options)


# numbers that ordinary inputs don't have


def _without_the_tail(q, k, v, mask, farthest):
    scores = scores_of(q.float(), k.float(), mask)
    far = scores < scores.amax(-1, keepdim=True) - farthest
    return (torch.softmax(scores.masked_fill(far, -torch.inf), -1) @ v.float()).to(q.dtype)


@wrong("low scores", "low scores", dtype="bfloat16")
@masked
def skips_keys_whose_scores_are_7_lower(q, k, v, mask):
    return _without_the_tail(q, k, v, mask, 7.0)


@wrong("low scores", "low scores", dtype="bfloat16", **DECODE)
@masked
def skips_keys_in_decode(q, k, v, mask):
    return _without_the_tail(q, k, v, mask, 7.0)


@wrong("low scores", "low scores")
@masked
def skips_keys_whose_scores_are_14_lower(q, k, v, mask):
    return _without_the_tail(q, k, v, mask, 14.0)


@wrong("range of float16", "low scores", dtype="bfloat16")
def float16_inside(q, k, v, **options):
    q, k, v = (x.half() for x in (q * q.shape[-1] ** -0.5, k, v))
    return sdpa(q, k, v, scale=1.0, **options).bfloat16()


@wrong("range of float16", "low scores", dtype="bfloat16")
@masked
def values_in_float16_by_one_scale(q, k, v, mask):
    size = v.abs().amax().float()
    return (probs_of(q.float(), k.float(), mask) @ (v / size).half().float() * size).bfloat16()


@wrong("range of float16", "where another forward comes between", dtype="bfloat16", **BACKWARD)
class Float16InTheBackward(Plain):
    @staticmethod
    def backward(ctx, grad):
        return Plain.backward(ctx, grad.half().to(grad.dtype))


@wrong("range of float16", "where another forward comes between", **BACKWARD)
class SmallGradientsAreZero(Plain):
    @staticmethod
    def backward(ctx, grad):
        return Plain.backward(ctx, grad * (grad.abs() > 1e-6))


# uses of an output


@wrong("uses", "gradient of q where that of the output has stride 0", **BACKWARD)
def reads_a_gradient_of_stride_0_as_if_contiguous(q, k, v, **options):
    first = torch.arange(v.shape[-1]) == 0  # behind it lies other memory
    return going_back(sdpa(q, k, v, **options), lambda grad: grad if 0 not in grad.stride() else grad * first)


@wrong("uses", "where its output is changed in place before the backward: gradient of", **BACKWARD)
class KeepsItsOutputBesideWhatItSaves(torch.autograd.Function):
    """So that autograd doesn't see that it was changed."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        probs = probs_of(q, k, visible(q, k, is_causal, None))
        ctx.save_for_backward(q, k, v, probs)
        ctx.o = probs @ v
        return ctx.o

    @staticmethod
    def backward(ctx, grad):
        return *of_formula(*ctx.saved_tensors, (grad * ctx.o).sum(-1, keepdim=True), grad), None


def uses(says: str, **case: Any) -> Callable[[Any], Any]:
    return wrong("uses", says, **BACKWARD, **case)


CHANGED_INPUTS = "where its inputs are changed in place before the backward: gradient of"
SECOND = "in a second backward over the same graph, of a gradient whose features aren't adjacent: gradient of"
OTHER_CALL = "where a call with another mask comes between a forward and its backward: gradient of"


@uses("gradient of q where that of the output has stride 0")
def reads_a_gradient_of_stride_0_as_if_contiguous_at_multiples_of_128(q, k, v, **options):
    kernel = reads_a_gradient_of_stride_0_as_if_contiguous
    return (sdpa if q.shape[-2] % 128 else kernel)(q, k, v, **options)


@uses("gradients that are not zero where that of the output is")
class DividesByTheLargestGradient(Plain):
    @staticmethod
    def backward(ctx, grad):
        largest = grad.abs().amax()
        return *(x * largest for x in Plain.backward(ctx, grad / largest)[:3]), None


@uses(CHANGED_INPUTS)
class KeepsItsInputsBesideWhatItSaves(Plain):
    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.inputs, ctx.is_causal = (q, k, v), is_causal
        return sdpa(q, k, v, is_causal=is_causal)

    @staticmethod
    def backward(ctx, grad):
        return *recomputed(ctx.inputs, grad, is_causal=ctx.is_causal), None


@uses(SECOND)
class OverwritesItsProbsGoingBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.probs = probs_of(q, k, visible(q, k, is_causal, None))
        ctx.save_for_backward(q, k, v)
        return ctx.probs @ v

    @staticmethod
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        of_values, of_probs = ctx.probs.mT @ grad, grad @ v.mT
        of_scores = ctx.probs.mul_(of_probs - (of_probs * ctx.probs).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return of_scores @ k, of_scores.mT @ q, of_values, None


@uses(SECOND)
class AddsToTheGradientsOfItsFirstBackward(Formula):
    @staticmethod
    def backward(ctx, grad):
        found = Formula.backward(ctx, grad)
        ctx.of_keys = getattr(ctx, "of_keys", 0.0) + found[1]
        return found[0], ctx.of_keys, *found[2:]


@uses(SECOND)
def reads_a_gradient_of_any_layout_as_if_features_were_adjacent(q, k, v, **options):
    return going_back(sdpa(q, k, v, **options), lambda grad: grad.roll(1, -1) if grad.stride(-1) > 1 else grad)


@uses(OTHER_CALL)
class TheMaskOfTheLastCall(Plain):
    last: ClassVar[bool] = False

    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        TheMaskOfTheLastCall.last = is_causal
        return Plain.forward(ctx, q, k, v, is_causal)

    @staticmethod
    def backward(ctx, grad):
        ctx.is_causal = TheMaskOfTheLastCall.last
        return Plain.backward(ctx, grad)


_mask: list[bool] = []


@uses(OTHER_CALL)
def recomputes_with_the_mask_of_the_last_call(q, k, v, *, is_causal=False, **_):
    _mask[:] = [is_causal]
    return checkpoint(lambda *qkv: sdpa(*qkv, is_causal=_mask[0]), q, k, v, use_reentrant=False)


# weights


class _Linear(torch.autograd.Function):
    """x Wᵀ, whose gradients `skips(needs_input_grad)` sets to zero."""

    @staticmethod
    def forward(ctx, x, weight, skips):
        ctx.save_for_backward(x, weight)
        ctx.skips = skips
        return x @ weight.mT

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        factor = 0.0 if ctx.skips(*ctx.needs_input_grad[:2]) else 1.0
        return grad @ weight * factor, grad.flatten(0, -2).mT @ x.flatten(0, -2) * factor, None


class Projected(as_layer(sdpa)):  # type: ignore[misc]
    @staticmethod
    def skips(of_x: bool, of_weight: bool) -> bool:
        raise NotImplementedError

    def project(self, x, x_k):
        layers = (x, self.W_q), (x_k, self.W_k), (x_k, self.W_v)
        return tuple(split_heads(_Linear.apply(it, layer.weight, self.skips), self.shape.H) for it, layer in layers)


@wrong("gradients of some", "where W_q and W_k and W_v and W_o alone need gradients: gradient of W_", **BACKWARD)
class NoGradientOfWeightsWithoutThatOfTheInput(Projected):
    @staticmethod
    def skips(of_x, of_weight):
        return not of_x


@wrong("gradients of some", "where x alone need gradients: gradient of x", **BACKWARD)
class NoGradientOfTheInputWithoutThatOfWeights(Projected):
    @staticmethod
    def skips(of_x, of_weight):
        return not of_weight


@wrong("gradients of some", "where W_q and W_k and W_v and W_o alone need gradients: no gradient", **BACKWARD)
class RecordedByItsInputAlone(as_layer(sdpa)):  # type: ignore[misc]
    def forward(self, x, *rest, **options):
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            return super().forward(x, *rest, **options)


@wrong("state", "with other weights than before: ", bias="learned", **BACKWARD)
class KeepsItsBias(KernelCore):
    """The numbers of its first call; its gradients are right."""

    limits: ClassVar[dict[str, Any]] = {"beyond": ("bias", "learned_bias")}

    def __init__(self, shape: LayerShape):
        super().__init__(shape, self.attend)

    def attend(self, *qkv: Tensor, attn_mask: Tensor, **options: Any) -> Tensor:
        self.kept = getattr(self, "kept", attn_mask.detach().clone())
        hidden = self.kept.isinf()
        return sdpa(*qkv, attn_mask=self.kept + (attn_mask - attn_mask.detach()).masked_fill(hidden, 0.0), **options)


# gradients of keys with low scores


class LowScores(Formula):
    """Leaves out keys whose scores are lower than the largest by more than this, in the gradients of keys and values."""

    farthest: ClassVar[float] = 12.0

    @classmethod
    def gradients(cls, q, k, v, probs, o, grad):
        near = probs * (probs >= probs.amax(-1, keepdim=True) * math.exp(-cls.farthest))
        whole, part = (Formula.gradients(q, k, v, it, o, grad) for it in (probs, near))
        return whole[0], *part[1:]


wrong("low scores", "low scores", **BACKWARD)(LowScores)


@wrong("low scores", "low scores", dtype="bfloat16", **BACKWARD)
class LowScoresInBfloat16(LowScores):
    farthest = 7.0


@wrong("low scores", "low scores", **BACKWARD)
class QueriesWithoutLowScores(LowScores):
    @classmethod
    def gradients(cls, q, k, v, probs, o, grad):
        far = probs < probs.amax(-1, keepdim=True) * math.exp(-12.0)
        whole, part = (Formula.gradients(q, k, v, it, o, grad) for it in (probs, probs.masked_fill(far, 0.0)))
        return part[0], *whole[1:]


@wrong("dtype", "in the median row, allowed", dtype="bfloat16", **BACKWARD)
class SumsTheGradientOfQueriesInBfloat16(Formula):
    """Key by key."""

    tile: ClassVar[int] = 1

    @classmethod
    def gradients(cls, q, k, v, probs, o, grad):
        of_scores = probs * (grad @ v.mT - (grad * o).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        total = torch.zeros_like(q, dtype=torch.bfloat16)
        for part, keys in zip(of_scores.split(cls.tile, -1), k.split(cls.tile, -2), strict=True):
            total = (total + part @ keys).bfloat16()
        return total, *super().gradients(q, k, v, probs, o, grad)[1:]


PARTS = "where small parts are added to a large one: "


@wrong("dtype", f"{PARTS}gradient of q: error", dtype="bfloat16", T=256, **BACKWARD)
class SumsTheGradientOfQueriesInBfloat16ByTilesOf32(SumsTheGradientOfQueriesInBfloat16):
    tile = 32


@wrong("dtype", f"{PARTS}error", dtype="bfloat16", T=256)
@masked
def sums_tiles_of_64_in_bfloat16(q, k, v, mask):
    probs, o = probs_of(q.float(), k.float(), mask), torch.zeros_like(q)
    for part, values in zip(probs.split(64, -1), v.float().split(64, -2), strict=True):
        o = (o + part @ values).bfloat16()
    return o
