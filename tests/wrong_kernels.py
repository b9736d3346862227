"""Kernels that must be refused. Each is correct except for one fault."""

import gc
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils.checkpoint import checkpoint

from impls.layer import KernelCore, KernelLayer, extend
from impls.layer import split as split_heads

from .global_settings import CHANGES
from .resting import Rest

Kernel = Callable[..., Tensor]


@dataclass(frozen=True)
class Wrong:
    kernel: Kernel
    says: str
    """What the gate's sentence must hold."""
    case: dict[str, Any]
    """The axes of a case that shows the fault, where the plain one doesn't."""


KERNELS = {}
WHEN_TIMED = {}
"""Right in every call that the gate makes, or as good as right: detected while timed."""
NOW_AND_THEN = {}
"""Detected by comparing outputs while timed."""

DECODE = {"mode": "decode", "T": 1, "T_kv": 64, "mask": "none"}


def wrong(says="error", name="", kept=KERNELS, **case):
    """Keeps a kernel or a layer, or an `autograd.Function` of q, k, v and whether it is causal."""

    def keep(it):
        key = name or it.__name__
        assert key not in kept
        of_function = isinstance(it, type) and issubclass(it, torch.autograd.Function)
        kept[key] = Wrong(applied(it) if of_function else it, says, case)
        return it

    return keep


def each_wrong(make, says="error", axes=None, **changes):
    """Keeps the kernel that is made of each change, by its name."""
    for name, change in changes.items():
        wrong(says, name, **axes or {})(make(change))


BACKWARD = {"mode": "backward"}
wrong_backward = partial(wrong, mode="backward")
wrong_decode = partial(wrong, **DECODE)
wrong_when_timed = partial(wrong, kept=WHEN_TIMED)
wrong_now_and_then = partial(wrong, kept=NOW_AND_THEN)


def applied(function):
    return lambda q, k, v, *, is_causal=False, **_: function.apply(q, k, v, is_causal)


def triangle(T, T_kv, diagonal=0):
    """(T, T_kv), True on a diagonal and below it."""
    return torch.ones(T, T_kv, dtype=torch.bool).tril(diagonal)


def visible(q, k, is_causal, attn_mask):
    T, T_kv = q.shape[-2], k.shape[-2]
    mask = triangle(T, T_kv, 0 if is_causal else T_kv)
    return mask if attn_mask is None else mask & attn_mask


def masked(kernel):
    """A kernel that takes the mask alone, with the signature of SDPA."""

    @wraps(kernel)
    def whole(q, k, v, *, is_causal=False, attn_mask=None, **_):
        return kernel(q, k, v, visible(q, k, is_causal, attn_mask))

    return whole


def scaled(q, k, scale=None):
    return q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)


def scores_of(q, k, mask, scale=None):
    return scaled(q, k, scale).masked_fill(~mask, -torch.inf)


def probs_of(q, k, mask, scale=None):
    return torch.softmax(scores_of(q, k, mask, scale), -1)


def plain(q, k, v, mask, scale=None):
    return probs_of(q, k, mask, scale) @ v


def weighted(weights, v):
    """The mean of the values by weights whose sum isn't 1."""
    return weights / weights.sum(-1, keepdim=True) @ v


def maximum(scores):
    return scores.amax(-1, keepdim=True)


def groups(q, x):
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def only(kernel, when):
    """SDPA, but where when(q, k) holds."""
    return lambda q, k, v, **options: (kernel if when(q, k) else sdpa)(q, k, v, **options)


def changed(change):
    """SDPA, whose output is then changed: to what `change` returns, or in place."""

    @wraps(change)
    def whole(q, k, v, **options):
        o = sdpa(q, k, v, **options).clone()
        other = change(o)
        return o if other is None else other

    return whole


def given(change):
    """SDPA of change(q, k, v)."""

    @wraps(change)
    def whole(q, k, v, **options):
        return sdpa(*change(q, k, v), **options)

    return whole


def reading(at):
    """Attention without a mask to the keys at at(T_kv) alone."""

    def kernel(q, k, v, **_):
        read = at(k.shape[-2])
        return sdpa(q, k[..., read, :], v[..., read, :])

    return kernel


def as_layer(kernel=sdpa):
    """A user-defined layer, whose kernel the gate can't check alone."""

    class Layer(KernelLayer):
        def __init__(self, shape):
            super().__init__(shape, KernelCore(shape, kernel, takes_mask=True))

    return Layer


# gradients


def with_gradient_of(other, o):
    """The numbers of o, whose gradient is that of another tensor."""
    return other + (o - other).detach()


def going_back(x, change):
    """The same numbers, whose gradient is changed."""
    x = x.view_as(x)
    if x.requires_grad:
        x.register_hook(change)
    return x.view_as(x)  # on which others may register hooks that precede the change


def recomputed(tensors, grad, attend=sdpa, **options):
    """The gradients of q, k and v, from another forward."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    with torch.enable_grad():
        o = attend(*leaves, **options)
    return torch.autograd.grad(o, leaves, grad)


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


def of_formula(q, k, v, probs, sums, grad):
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


def spoiling(says, **case):
    """Keeps SDPA with the gradients of q, k and v that change(ctx, grad, gradients) makes of the right ones."""

    def keep(change):
        class Spoilt(Plain):
            @staticmethod
            def backward(ctx, grad):
                return *change(ctx, grad, Plain.backward(ctx, grad)[:3]), None

        wrong_backward(says, change.__name__, **case)(Spoilt)
        return change

    return keep


def misreading(says, **case):
    """Keeps SDPA that goes back with read(grad) instead of the gradient of its output."""

    def keep(read):
        def kernel(q, k, v, **options):
            return going_back(sdpa(q, k, v, **options), read)

        wrong_backward(says, read.__name__, **case)(kernel)
        return kernel

    return keep


# mask, scale, probs


each_wrong(
    masked,
    sees_one_ahead=lambda q, k, v, mask: plain(q, k, v, triangle(*mask.shape[-2:], 1)),
    no_mask=lambda q, k, v, mask: sdpa(q, k, v),
    mask_of_zeros=lambda q, k, v, mask: torch.softmax(scaled(q, k) * mask, -1) @ v,  # exp(0) is not 0
    no_scale=lambda q, k, v, mask: plain(q, k, v, mask, 1.0),
    half_precision_probabilities=lambda q, k, v, mask: probs_of(q, k, mask).half().to(q.dtype) @ v,
)
each_wrong(
    masked, "NaN or Inf in",
    hides_the_diagonal=lambda q, k, v, mask: plain(q, k, v, triangle(*mask.shape[-2:], -1)),
)  # fmt: skip


PADDING = {"mask": "padding", "B": 2}


@wrong(**PADDING)
def padding_ignored(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return sdpa(q, k, v, is_causal=is_causal)  # with a causal mask too it would be right: padding is in the future


# scale


@wrong_backward("with a scale of the caller's own: gradient of q")
def default_scale_going_back(q, k, v, *, scale=None, **options):
    return with_gradient_of(sdpa(q, k, v, **options), sdpa(q, k, v, scale=scale, **options))


@wrong_backward("with a scale of the caller's own: gradient of q")
def default_scale_going_back_beside_any_keyword(q, k, v, **options):
    return with_gradient_of(sdpa(q, k, v, **options | {"scale": None}), sdpa(q, k, v, **options))


@wrong("with a scale of the caller's own: error")
def default_scale_at_multiples_of_64(q, k, v, *, scale=None, **options):
    return sdpa(q, k, v, scale=scale if q.shape[-2] % 64 else None, **options)


@wrong("with a scale of the caller's own: error")
def default_scale_but_at_multiples_of_64(q, k, v, *, scale=None, **options):
    return sdpa(q, k, v, scale=None if q.shape[-2] % 64 else scale, **options)


# softmax


@wrong()
@masked
def softmax_twice(q, k, v, mask):
    """As a tutorial prints it: softmax over every key, the future set to -inf, softmax again."""
    probs = torch.softmax(scaled(q, k), -1)
    return torch.softmax(probs.masked_fill(~mask, -torch.inf) * q.shape[-1] ** -0.5, -1) @ v


@wrong()
def row_sum(q, k, v, *, is_causal=False, attn_mask=None, scale=None, **_):
    """Scores divided by their row's sum, without an exponential."""
    return weighted(scaled(q, k, scale) * visible(q, k, is_causal, attn_mask), v)


# head mapping


def by_repeat(q, *kv):
    """Query head h reads key head h % H_kv, not h // group."""
    return [x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in kv]


each_wrong(given, axes={"H": 4, "H_kv": 2}, groups_by_repeat=lambda q, k, v: (q, *by_repeat(q, k, v)))
each_wrong(given, "head 1", first_heads_keys_for_all=lambda q, k, v: (q, k[:, :1].expand_as(k), v))
each_wrong(
    given, "batch entry 1 (of 0 to 1)", {"B": 2},
    heads_and_batch_mixed=lambda q, k, v: (q, k, torch.cat([v[:1], v[1:].roll(1, 1)])),
)  # fmt: skip


# dtype


@wrong()
def bfloat16_in_disguise(q, k, v, **options):
    return sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16(), **options).to(q.dtype)


each_wrong(changed, "output is bfloat16, not float32", returns_bfloat16=Tensor.bfloat16)
each_wrong(changed, "output is float32, not bfloat16", {"dtype": "bfloat16"}, returns_float32=Tensor.float)
each_wrong(changed, "output is on meta, not on cpu", returns_a_shape_alone=lambda o: o.to("meta"))


def added_up(probs, v, tile=1, dtype=torch.bfloat16):
    """The product, whose sum over tiles of keys is rounded to a dtype after each."""
    o = torch.zeros(*probs.shape[:-1], v.shape[-1], dtype=dtype)
    for part, values in zip(probs.split(tile, -1), v.split(tile, -2), strict=True):
        o = (o + part @ values).to(dtype)
    return o


@wrong(dtype="bfloat16", T=512)
@masked
def accumulates_in_bfloat16(q, k, v, mask):
    return added_up(probs_of(q, k, mask), v, dtype=q.dtype)


wrong_decode(name="accumulates_a_cache_in_bfloat16", T_kv=512, H=8, dtype="bfloat16")(accumulates_in_bfloat16)


@wrong("low scores", dtype="float16", T=32)
@masked
def sums_in_float16_before_it_divides(q, k, v, mask):
    scores = scores_of(q.float(), k.float(), mask)
    weights = torch.exp(scores - maximum(scores))
    return ((weights @ v.float()).half().float() / weights.sum(-1, keepdim=True)).half()


# layout


each_wrong(changed, "output has shape", batch_and_time_first=lambda o: o.transpose(1, 2))
each_wrong(changed, reshaped_instead_of_transposed=lambda o: o.transpose(1, 2).contiguous().reshape(o.shape))
each_wrong(changed, "returns tuple, not a tensor", returns_a_tuple=lambda o: (o, None))
each_wrong(changed, "returns tuple, not a tensor", BACKWARD, returns_a_tuple_in_training=lambda o: (o, None))
each_wrong(changed, "returns tuple, not a tensor", DECODE, returns_a_tuple_beside_a_cache=lambda o: (o, None))


class _Lazy(Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


CORE = {"scope": "core"}


each_wrong(changed, "which may compute when it is read", CORE, answers_with_a_subclass=lambda o: o.as_subclass(_Lazy))


# state

KEPT = {}


def remembered(key, compute):
    """Return a copy of what was computed when the key was new."""
    if key not in KEPT:
        KEPT[key] = compute()
    return KEPT[key].clone()


def in_turn(o, buffers, *key):
    """Return a tensor in the next of a few buffers for tensors of its shape; `key` has buffers of its own."""
    ring = KEPT.setdefault((*key, buffers, o.shape), [torch.empty_like(o) for _ in range(buffers)])
    ring.append(ring.pop(0))
    return ring[0].copy_(o)


def in_numpy(o, buffers):
    """The same in memory of NumPy's, of which each call makes a new tensor."""
    return torch.from_numpy(in_turn(o, buffers, "numpy").numpy())


@wrong("new numbers in the same buffers")
def remembers_by_address(q, k, v, **options):
    version = 0 if q.is_inference() else q._version
    return remembered((q.data_ptr(), version, q.shape), lambda: sdpa(q, k, v, **options))


each_wrong(changed, "share one buffer", answers_in_one_buffer=lambda o: in_turn(o, 1))


@wrong("its output shares the memory of an input", T=1, **CORE)
def a_lone_tokens_value_itself(q, k, v, **options):
    return v if k.shape[-2] == 1 else sdpa(q, k, v, **options)


@wrong("writes to its inputs")
def scales_its_input_in_place_and_back(q, k, v, **options):
    q.mul_(0.125)
    o = sdpa(q, k, v, scale=8 * q.shape[-1] ** -0.5, **options)
    q.mul_(8.0)
    return o


@wrong("writes to its inputs")
def scales_its_input_behind_torch(q, k, v, **options):
    """As a kernel of C++ or Triton does: the tensor's version stays."""
    q.data.mul_(q.shape[-1] ** -0.5)
    return sdpa(q, k, v, scale=1.0, **options)


def laying_out(name, change, **case):
    """Keeps SDPA that changes its keys: to other strides, other memory or with gradients."""

    def kernel(q, k, v, **options):
        o = sdpa(q, k, v, **options)
        change(k)
        return o

    wrong("changes the shape, strides, memory or requires_grad of a tensor that it is given", name, **case)(kernel)


def transpose_in_memory(k):
    k.data = k.data.mT.contiguous().mT


laying_out("leaves_its_keys_transposed", lambda k: k.transpose_(-3, -2))
laying_out("moves_its_keys_to_other_memory", transpose_in_memory, **CORE)
laying_out("moves_its_keys_to_other_memory_in_training", transpose_in_memory, **BACKWARD, **CORE)
laying_out("needs_gradients_of_its_keys_afterwards", Tensor.requires_grad_)


@wrong("writes to its weights or its mask", **PADDING)
def writes_to_the_mask(q, k, v, *, is_causal=False, attn_mask=None, **_):
    o = sdpa(q, k, v, attn_mask=attn_mask)
    if attn_mask is not None:
        attn_mask.logical_not_()
    return o


@wrong("writes to its weights or its mask, or to a buffer")
class ScalesItsWeightsInPlaceAndBack(as_layer()):
    def project(self, x, x_k):
        self.W_q.weight.data.mul_(3.0).div_(3.0)  # which rounds
        return super().project(x, x_k)


hides_something = {}


@wrong(**PADDING)
def asks_once_for_a_size_whether_keys_are_padding(q, k, v, *, is_causal=False, attn_mask=None, **_):
    masked = attn_mask is not None and hides_something.setdefault(attn_mask.shape, not attn_mask.all())
    return sdpa(q, k, v, attn_mask=attn_mask if masked else None, is_causal=is_causal)


@wrong("writes to its weights or its mask, or to a buffer, which others may read meanwhile", **PADDING)
def inverts_the_mask_and_back(q, k, v, *, is_causal=False, attn_mask=None, **_):
    o = sdpa(q, k, v, attn_mask=attn_mask)
    if attn_mask is not None:
        attn_mask.logical_not_().logical_not_()
    return o


each_wrong(changed, adds_noise=lambda o: o * (1 + 1e-3 * torch.rand(())))


def keys_kept(name, digest, **case):
    """Keeps transposed keys, which saves too little time to show, by a digest that other keys may share."""

    @masked
    def kernel(q, k, v, mask):
        return plain(q, KEPT.setdefault((name, k.shape, digest(k)), k.mT.contiguous()).mT, v, mask)

    wrong("where two numbers of k alone are exchanged: error", name, **case)(kernel)


def sum_of_all(k):
    return round(float(k.double().sum()), 9)


keys_kept("keys_kept_by_their_sum", sum_of_all)
keys_kept("padded_keys_kept_by_their_sum", sum_of_all, **PADDING)
keys_kept("keys_kept_by_every_seventh_number", lambda k: hash(tuple(k.flatten()[::7].tolist())))
keys_kept("cached_keys_kept_by_their_first_number", lambda k: float(k.flatten()[0]), **DECODE)


@wrong_backward("where two numbers of k alone are exchanged: ")
def keys_kept_by_their_sum_in_training(q, k, v, **options):
    kept = KEPT.setdefault(("in training", k.shape, sum_of_all(k.detach())), k.detach().clone())
    return sdpa(q, with_gradient_of(k, kept), v, **options)


def digest(*tensors):
    return tuple(hash(x.detach().contiguous().numpy().tobytes()) for x in tensors)


@wrong("where two numbers of v alone are exchanged: error", **CORE)
@masked
def answers_by_a_digest_of_its_queries(q, k, v, mask):
    return remembered(("queries", *digest(q)), lambda: plain(q, k, v, mask))


@spoiling("where two numbers of k alone are exchanged: gradient of q", **CORE)
def gradients_kept_by_that_of_the_output(ctx, grad, gradients):
    of_which = ctx.needs_input_grad, ctx.is_causal, digest(grad)
    return [remembered(("of the output", at, x.shape, *of_which), lambda x=x: x) for at, x in enumerate(gradients)]


@wrong("kernel (probe), ")
def reads_the_tensors_of_its_first_call(q, k, v, **options):
    """As what was captured with them, and is replayed."""
    return sdpa(*KEPT.setdefault(("captured", q.shape), (q, k, v)), **options)


_shapes = []


@wrong("in the last of 16 calls: error")
def another_variant_from_its_tenth_call_on(q, k, v, *, is_causal=False, **_):
    _shapes.append(q.shape)
    return sdpa(q, k, v, is_causal=is_causal) * (1.0 if _shapes.count(q.shape) < 10 else 1.01)


@wrong_backward("with other weights than before: ")
class StaleWeights(as_layer()):
    """Makes one weight of three at its first call: its gradients are right, until an optimizer has taken a step."""

    packed = None

    def project(self, x, x_k):
        if self.packed is None:
            self.packed = torch.cat([self.W_q.weight, self.W_k.weight, self.W_v.weight])
        return tuple(split_heads(part, self.shape.H) for part in (x @ self.packed.mT).chunk(3, -1))


LEARNED = {"beyond": ("bias", "learned_bias")}


@wrong_backward("with other weights than before: ", bias="learned")
class KeepsItsBias(KernelCore):
    """The numbers of its first call; its gradients are right."""

    limits = LEARNED

    def __init__(self, shape):
        super().__init__(shape, self.attend)

    def attend(self, *qkv, attn_mask, **options):
        self.kept = getattr(self, "kept", attn_mask.detach().clone())
        hidden = self.kept.isinf()
        return sdpa(*qkv, attn_mask=self.kept + (attn_mask - attn_mask.detach()).masked_fill(hidden, 0.0), **options)


# only at some sizes


def faulty(rows, factor=0.0):
    """SDPA, whose output is multiplied in the rows at rows(T)."""

    @changed
    def kernel(o):
        o[..., rows(o.shape[-2]), :] *= factor

    return kernel


drops_the_ragged_tail = faulty(lambda T: slice(T // 32 * 32 or T, T))
wrong_beyond_512 = faulty(lambda T: slice(512, T))
wrong_third_head = changed(lambda o: o * (torch.arange(o.shape[1]) < 2)[:, None, None])
for name, says, kernel in (
    ("drops_the_ragged_tail", "rows, t from 32 to 36 (T = 37)", drops_the_ragged_tail),
    ("wrong_beyond_512", "t = 512 (T = 513)", wrong_beyond_512),
    # rows by fours, and one more where some are left: two or three are forgotten
    (
        "one_row_behind_the_last_four",
        "2 of 127 rows, t from 125 to 126 (T = 127)",
        faulty(lambda T: slice(T // 4 * 4 + 1, T)),
    ),
    ("wrong_last_row", "t = 63 (T = 64)", faulty(lambda T: -1, 1.001)),
    ("nan_in_one_row", "NaN or Inf", faulty(lambda T: 0, torch.nan)),
    ("wrong_third_head", "head 2 (of 0 to 2)", wrong_third_head),
):
    wrong(says, name)(kernel)
wrong_decode(name="one_key_behind_the_last_four")(reading(lambda T_kv: slice(T_kv // 4 * 4 + min(1, T_kv % 4))))


@wrong("batch entry 1 (of 0 to 1)")
@given
def wrong_second_batch_entry(q, k, v):
    return q, k[:1].expand_as(k), v


each_wrong(
    given, axes={"mask": "none", "source": "cross", "T_kv": 40},
    assumes_as_many_keys_as_queries=lambda q, k, v: (q, k[..., : q.shape[-2], :], v[..., : q.shape[-2], :]),
)  # fmt: skip
each_wrong(
    given, axes={"H": 1},
    treats_one_head_as_the_batch=lambda q, *kv: (q, *(x.roll(int(q.shape[1] == 1), 0) for x in kv)),
)  # fmt: skip


# gradient


each_wrong(changed, "no gradient reaches its inputs", BACKWARD, detached=Tensor.detach)
each_wrong(given, "no gradient reaches k", BACKWARD, keys_detached=lambda q, k, v: (q, k.detach(), v))


@wrong_backward("gradient of q")
def right_forward_wrong_backward(q, k, v, **options):
    """The output of one formula, the gradient of another: here without the mask."""
    return with_gradient_of(sdpa(q, k, v), sdpa(q, k, v, **options))


each_wrong(
    changed, "t = 63 (T = 64)", BACKWARD,
    no_gradient_for_the_last_row=lambda o: torch.cat([o[..., :-1, :], o[..., -1:, :].detach()], dim=-2),
)  # fmt: skip


@wrong_backward("gradient of")
def bfloat16_going_back(q, k, v, **options):
    return with_gradient_of(bfloat16_in_disguise(q, k, v, **options), sdpa(q, k, v, **options))


@wrong_backward("where some scores are extreme: gradient of v: error", dtype="float16")
class KeysRoundedAfterScalingGoingBack(Formula):
    """As in Triton's tutorial: probs of keys that are multiplied by the scale and log2(e), over the sums of others."""

    @classmethod
    def gradients(cls, q, k, v, probs, o, grad):
        scaled_keys = k * (q.shape[-1] ** -0.5 * 1.4426950408889634)
        probs = probs * torch.exp2(q @ (scaled_keys.half().float() - scaled_keys).mT)
        return super().gradients(q, k, v, probs, o, grad)


@wrong_backward("where scores are far apart: gradient of q: error", dtype="bfloat16")
class GradientATenthLargerWhereScoresAreLarge(Formula):
    @classmethod
    def gradients(cls, q, k, v, probs, o, grad):
        of_q, *others = super().gradients(q, k, v, probs, o, grad)
        return of_q * torch.where(maximum(scaled(q, k).abs()) > 64, 1.1, 1.0), *others


@spoiling("new numbers in the same buffers: ")
def remembers_its_gradients(ctx, grad, gradients):
    return [remembered(("gradient", at, x.shape), lambda x=x: x) for at, x in enumerate(gradients)]


@wrong_backward("gradient of", mask="causal_br", source="cross", T_kv=100)
def aligned_top_left_going_back(q, k, v, **options):
    return with_gradient_of(sdpa(q, k, v, is_causal=True), sdpa(q, k, v, **options))


# gradient of a learned bias: q, k and v have theirs, and a bias that is constant shows nothing


def bias_gradient(change):
    """SDPA whose gradient of the bias, (B, H, T, T_kv), is changed before it is summed over the batch."""

    def kernel(q, k, v, *, attn_mask=None, **options):
        attn_mask = going_back(attn_mask.expand(len(q), q.shape[1], -1, -1), change)
        return sdpa(q, k, v, attn_mask=attn_mask, **options)

    kernel.limits = LEARNED
    return kernel


each_wrong(
    bias_gradient, "gradient of score_bias: error", BACKWARD | {"bias": "learned", "B": 2},
    bias_detached=torch.zeros_like,
    bias_gradient_of_the_first_batch_entry=lambda grad: torch.cat([grad[:1], torch.zeros_like(grad[1:])]),
    bias_gradient_averaged_over_the_batch=lambda grad: grad / len(grad),
    bias_gradient_without_the_partial_tile=lambda grad: grad
    * (torch.arange(grad.shape[-1]) < grad.shape[-1] // 64 * 64),
)  # fmt: skip


@wrong_backward("with other weights than before: error", bias="learned")
def bias_in_float16(q, k, v, *, attn_mask=None, **options):
    rounds = (attn_mask.half() - attn_mask).detach().nan_to_num(0.0)
    return sdpa(q, k, v, attn_mask=attn_mask + rounds, **options)


bias_in_float16.limits = LEARNED


@wrong_backward("where score_bias alone need gradients: no gradient", bias="learned")
def bias_learns_beside_the_inputs_alone(q, k, v, *, attn_mask=None, **options):
    trained = any(x.requires_grad for x in (q, k, v))
    return sdpa(q, k, v, attn_mask=attn_mask if trained else attn_mask.detach(), **options)


bias_learns_beside_the_inputs_alone.limits = LEARNED


# cache


def extending(says="error", **case):
    """Keeps a layer that is correct except for how it adds the newest keys and values to its cache."""

    def keep(extended):
        class Layer(as_layer()):
            def forward(self, x, x_k=None, *, padding=None, cache=None):
                q, *newest = self.project(x, x)
                o = self.core(q, *(extended(self, cache, newest) if cache else newest))
                return self.finish(o.transpose(-3, -2).flatten(-2))

        wrong_decode(says, extended.__name__, **case)(Layer)

    return keep


@extending("; the end of a cache holds NaN until new keys and values are written there")
def leaves_the_cache_as_it_was(layer, cache, newest):
    return [torch.cat([known[..., :-1, :], new], -2) for known, new in zip(cache, newest, strict=True)]


@extending("few queries, ")
def writes_to_the_first_place_too(layer, cache, newest):
    extend(cache, newest)
    cache[0][..., :1, :] = newest[0]
    return cache


@extending("where two numbers of values alone are exchanged: ")
def writes_only_where_nothing_is(layer, cache, newest):
    return extend(cache, newest) if cache[0][..., -1:, :].isnan().any() else cache


@extending("value written to the cache")
def writes_the_key_as_the_value(layer, cache, newest):
    right = [x.clone() for x in extend(cache, newest)]
    cache[1][..., -1:, :] = newest[0]
    return right


@extending("key written to the cache", dtype="float16")
def writes_in_bfloat16(layer, cache, newest):
    return extend(cache, [x.bfloat16() for x in newest])


@extending("in other tensors than before, with new memory full of NaN: ")
def keeps_its_first_cache(layer, cache, newest):
    layer.first = getattr(layer, "first", cache)
    return extend(layer.first, newest)


# patterns of the softmax: without the row's maximum, or with another one


def shifted(shift=maximum, *, hidden=-torch.inf, epsilon=0.0):
    """The formula, where another number than the row's maximum may be taken off the scores."""

    @masked
    def kernel(q, k, v, mask):
        scores = scaled(q, k).masked_fill(~mask, hidden)
        exps = torch.exp(scores - shift(scores))
        return exps / (exps.sum(-1, keepdim=True) + epsilon) @ v

    return kernel


no_shift = shifted(lambda scores: 0.0)
one_maximum_for_a_head = shifted(lambda scores: scores.amax((-2, -1), keepdim=True))
masks_with_minus_50 = shifted(hidden=-50.0)
masks_with_minus_10000 = shifted(hidden=-1e4)


@masked
def clamped(q, k, v, mask):
    return weighted(torch.exp(scaled(q, k).clamp(-80, 80)) * mask, v)


LARGE, BESIDE = (
    "where scores are very large: NaN or Inf in",
    "where ordinary scores are mixed with extreme ones: NaN or Inf in",
)
NEGATIVE, FAR_BELOW = "where scores are very negative: ", "where scores are far below zero: error"

wrong("NaN or Inf in", "no_shift")(no_shift)
wrong(LARGE, "no_shift_in_a_layer")(as_layer(no_shift))
wrong("where scores are very large: error", "clamped_in_a_layer")(as_layer(clamped))
wrong_decode(LARGE, "no_maximum_in_a_layers_decode")(as_layer(no_shift))
wrong(NEGATIVE + "NaN or Inf", "maximum_from_zero_up")(shifted(lambda scores: maximum(scores).clamp_min(0)))
wrong(BESIDE, "one_maximum_for_a_head")(one_maximum_for_a_head)
wrong("where scores are far apart: NaN or Inf in", "shifted_by_the_first_score")(
    shifted(lambda scores: scores[..., :1])
)
wrong(NEGATIVE + "error", "masks_with_minus_50")(masks_with_minus_50)
wrong(FAR_BELOW, "masks_with_minus_10000")(masks_with_minus_10000)


def clamped_within(most, **case):
    @wrong(FAR_BELOW, f"scores_clamped_within_{most}", **case)
    @masked
    def kernel(q, k, v, mask):
        return torch.softmax(scaled(q, k).clamp(-most, most).masked_fill(~mask, -torch.inf), -1) @ v


clamped_within(300)
clamped_within(10000, dtype="bfloat16")
clamped_within(1000, mode="backward")
wrong("where one key dominates: error", "epsilon_in_the_denominator")(shifted(epsilon=5e-7))


def without_the_first_key(scores):
    others = maximum(scores[..., 1:])
    return torch.where(others.isinf(), scores[..., :1], others)


wrong("where one key dominates: NaN or Inf", "maximum_without_the_first_key")(shifted(without_the_first_key))


@wrong("where all scores are equal: NaN or Inf")
@given
def divides_queries_by_their_largest_number(q, k, v):
    """As before they are quantised."""
    largest = q.abs().amax(-1, keepdim=True)
    return q / largest * largest, k, v


def by_its_largest(x):
    largest = x.abs().amax((-2, -1), keepdim=True)
    return x / largest * largest


ZEROS = "NaN or Inf where all inputs are zero"
each_wrong(given, ZEROS, divides_by_the_largest_number_of_a_head=lambda q, k, v: (q, k, by_its_largest(v)))
each_wrong(given, ZEROS, BACKWARD, divides_by_it_in_training=lambda q, k, v: (q, by_its_largest(k), v))


@wrong("t = 512", T=256)
def wrong_in_the_last_row_beyond_512_where_scores_are_large(q, k, v, **options):
    o = sdpa(q, k, v, **options).clone()
    if q.shape[-2] > 512:
        large = maximum(scaled(q[..., -1:, :], k)) > 88
        o[..., -1:, :] = torch.where(large, torch.nan, o[..., -1:, :])
    return o


# two forwards before a backward

TWO_FORWARDS = "where another forward comes between a forward and its backward, with gradients of size"


def keeping(name, place, take=lambda kept, place: kept[place], **case):
    """SDPA whose backward takes its tensors from a place where other calls keep theirs."""
    kept = {}

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, is_causal):
            ctx.place = place(q)
            kept[ctx.place] = (q.detach(), k.detach(), v.detach()), is_causal
            return sdpa(q, k, v, is_causal=is_causal)

        @staticmethod
        def backward(ctx, grad):
            tensors, is_causal = take(kept, ctx.place)
            return *recomputed(tensors, grad, is_causal=is_causal), None

    wrong_backward(TWO_FORWARDS, name, **case)(Keeps)
    return applied(Keeps)


calls = count()
keeps_its_tensors = keeping("keeps_its_tensors_in_one_place", lambda q: 0)
keeping("keeps_its_tensors_on_a_stack", lambda q: next(calls), lambda kept, place: kept.popitem()[1])
keeping("keeps_its_tensors_in_a_queue", lambda q: next(calls), lambda kept, place: kept.pop(min(kept)))
keeping("keeps_its_tensors_in_two_places_in_turn", lambda q: next(calls) % 2, T=256)
wrong_backward(TWO_FORWARDS, "keeps_its_tensors_beyond_512", T=1024)(
    only(keeps_its_tensors, lambda q, k: q.shape[-2] > 512)
)


@wrong_backward("where 16 forwards come between a forward and its backward: gradient of")
class KeepsSumsInAWorkspaceOf16Places(Plain):
    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.place = next(calls) % 16
        KEPT["sums", ctx.place] = scores_of(q, k, visible(q, k, is_causal, None)).logsumexp(-1, keepdim=True)
        return Plain.forward(ctx, q, k, v, is_causal)

    @staticmethod
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        probs = torch.exp(scores_of(q, k, visible(q, k, ctx.is_causal, None)) - KEPT["sums", ctx.place])
        return *of_formula(q, k, v, probs, (grad @ v.mT * probs).sum(-1, keepdim=True), grad), None


# what backward may not write to


def writing(name, write, **case):
    def read(grad):
        found = grad.clone()
        write(grad)
        return found

    read.__name__ = name
    misreading("writes to the gradient of its output", **case)(read)


writing("zeroes_the_gradient_behind_torch", lambda grad: grad.data.zero_())
writing("scales_the_gradient_in_place_and_back", lambda grad: grad.mul_(2.0).div_(2.0), **CORE)
writing("uses_the_gradient_as_scratch", lambda grad: grad[..., :1, :].normal_(), **CORE)


@spoiling("adds to `.grad` as a side effect", **CORE)
def adds_to_grad_in_passing(ctx, grad, gradients):
    for x, gradient in zip(ctx.saved_tensors, gradients, strict=True):
        if x.is_leaf:
            x.grad = gradient
    return gradients


# with declared limits


def only_multiples_of(n):
    return {
        "unless": lambda case: (
            f"needs T to be a multiple of {n}" if case.T_kv % n or (case.T > 1 and case.T % n) else None
        )
    }


for kernel, n, T, says in (
    (wrong_third_head, 128, 128, "head 2 (of 0 to 2)"),
    (wrong_beyond_512, 128, 128, "t from 512 to 639 (T = 640)"),
    (drops_the_ragged_tail, 12, 96, "t from 32 to 35 (T = 36)"),
):
    limited = wrong(says, f"at_multiples_of_{n}: {says}", T=T)(partial(kernel))
    limited.limits = only_multiples_of(n)


# one buffer, beyond 512 tokens


each_wrong(
    changed, "share one buffer",
    one_buffer_beyond_512=lambda o: in_turn(o, 1, "beyond 512") if o.shape[-2] > 512 else o,
)  # fmt: skip


# strides


def as_if_contiguous(x):
    return torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride())


each_wrong(
    given, "NaN or Inf", CORE,
    reads_queries_as_if_contiguous=lambda q, k, v: (as_if_contiguous(q), k, v),
    reads_keys_by_the_strides_of_values=lambda q, k, v: (q, k.as_strided(k.shape, v.stride()), v),
    ignores_the_offset_of_values=lambda q, k, v: (q, k, v.as_strided(v.shape, v.stride(), 0)),
)  # fmt: skip


def between_tokens(x, **steps):
    """A tensor whose heads lie between tokens, read with other steps from a batch entry or a head to the next."""
    batch, head, token, feature = x.stride()
    if head > token:
        return x
    return x.as_strided(x.shape, (steps.get("batch", batch), steps.get("head", head), token, feature))


each_wrong(
    given, "NaN or Inf", CORE,
    reads_entries_as_if_no_tokens_lay_between_them=lambda q, k, v: (
        q, between_tokens(k, batch=k.shape[-2] * k.stride(-2)), v
    ),
    reads_heads_as_if_adjacent=lambda q, k, v: (q, k, between_tokens(v, head=v.shape[-1])),
)  # fmt: skip


def extent(x, strides):
    """Places from a tensor's first number to its last one."""
    return 1 + sum((n - 1) * step for n, step in zip(x.shape, strides, strict=True))


@wrong("B2-T64-H3-D_h64-float32-cpu-scope=core: in other tensors than before, ", **CORE)
def values_by_the_layout_of_queries(q, k, v, **options):
    """After rotary embedding q and k are contiguous, v isn't."""
    return sdpa(q, k, as_if_contiguous(v) if q.is_contiguous() else v, **options)


@wrong("B2-T127-H3-D_h64-float32-cpu-scope=core: in other tensors than before, ", **CORE)
def queries_by_the_layout_of_keys(q, k, v, **options):
    """As beside a cache: k and v are contiguous, q isn't."""
    return sdpa(as_if_contiguous(q) if k.is_contiguous() else q, k, v, **options)


@wrong("B2-T128-H3-D_h64-float32-cpu-scope=core: in other tensors than before, ", **CORE)
def one_projection_by_heads(q, k, v, **options):
    """Of slices of one tensor q, k and v of a head as if they lay side by side."""
    if len({x.untyped_storage().data_ptr() for x in (q, k, v)}) == 1:
        batch, head, *steps = q.stride()
        q, k, v = (x.as_strided(x.shape, (batch, 3 * head, *steps), i * head) for i, x in enumerate((q, k, v)))
    return sdpa(q, k, v, **options)


@wrong_decode("in other tensors than before, ", **CORE)
@given
def heads_of_a_cache_as_if_it_were_full(q, k, v):
    """Of the first tokens of a longer cache: keys[:, :, :T]."""
    return q, as_if_contiguous(k) if k.stride(-2) == k.shape[-1] else k, v


@wrong("kernel (probe), ", **CORE)
def plans_by_shape_alone(q, k, v, **options):
    strides = KEPT.setdefault(("plan", v.shape), v.stride())
    if v.storage_offset() + extent(v, strides) > v.untyped_storage().nbytes() // v.element_size():
        return torch.zeros_like(v)  # what a kernel would read there is anybody's
    return sdpa(q, k, v.as_strided(v.shape, strides), **options)


@wrong_backward("in other tensors than before, ")
@given
def gradient_of_contiguous_queries_without_the_ragged_tail(q, k, v):
    whole = torch.arange(q.shape[-2])[:, None] < q.shape[-2] // 16 * 16
    return going_back(q, lambda grad: grad * whole) if q.is_contiguous() else q, k, v


misreading("gradient of", **CORE)(as_if_contiguous)


# dropout


def training(says="in training, from the probs that it kept: ", **case):
    """A kernel of training alone: in evaluation it is SDPA."""

    def keep(kernel):
        @wrong(says, kernel.__name__, **{"dropout": 0.25} | case)
        def whole(q, k, v, *, is_causal=False, attn_mask=None, dropout_p=0.0, enable_gqa=False, **_):
            if not dropout_p:
                return sdpa(q, k, v, attn_mask=attn_mask, is_causal=is_causal, enable_gqa=enable_gqa)
            return kernel(q, k, v, visible(q, k, is_causal, attn_mask), dropout_p)

        return kernel

    return keep


def _dropped(q, k, v, mask, p):
    return dropout(probs_of(q, k, mask), p) @ v


def by_noise(noise):
    """Drops where noise(probs), between 0 and 1, is small."""

    def kernel(q, k, v, mask, p):
        probs = probs_of(q, k, mask)
        return probs * (noise(probs).expand_as(probs) >= p) / (1 - p) @ v

    return kernel


def noisy(name, says, noise, **case):
    kernel = by_noise(noise)
    kernel.__name__ = name
    training(says, **case)(kernel)


@training("drops 0.0% of the probs, not 25.0%")
def no_dropout(q, k, v, mask, p):
    return plain(q, k, v, mask)


@training("not 1 / (1 - p) = 1.333 times as large")
def dropped_without_rescaling(q, k, v, mask, p):
    return _dropped(q, k, v, mask, p) * (1 - p)


@training("features of the output, not probs")
def drops_the_output(q, k, v, mask, p):
    return dropout(plain(q, k, v, mask), p)


def noise_of_two_pools(probs):
    pools = KEPT.setdefault(("noise", probs.shape), [*torch.rand(2, *probs.shape)])
    pools.reverse()
    return pools[0]


def keys_of(probs):
    return torch.arange(probs.shape[-1])


noisy("drops_by_a_fixed_seed", "the same probs in every call",
      lambda probs: torch.rand(probs.shape, generator=torch.Generator().manual_seed(7)))  # fmt: skip
noisy("drops_whole_keys", "depends on other queries", lambda probs: torch.rand_like(probs)[:, :, :1])
noisy("drops_alike_in_all_batch_entries", "depends on other batch entries", lambda probs: torch.rand_like(probs)[:1])
noisy("drops_pairs_of_keys", "depends on other keys", lambda probs: torch.rand_like(probs)[..., keys_of(probs) // 2])
noisy("noise_of_one_tile_for_all", "depends on other keys: 16 keys apart",
      lambda probs: torch.rand_like(probs)[..., keys_of(probs) % 16])  # fmt: skip
noisy("noise_of_256_keys_for_all", "depends on other", lambda probs: torch.rand_like(probs)[..., keys_of(probs) % 256])
noisy("two_pools_of_noise_in_turn", "depends on an earlier call", noise_of_two_pools)
noisy("drops_nothing_beyond_276_keys", "% of the probs at keys 256 to 287, not 25.0%",
      lambda probs: torch.where(keys_of(probs) < 276, torch.rand_like(probs), 1.0), T=512)  # fmt: skip


@training()
def forgets_its_mask_in_training(q, k, v, mask, p):
    return _dropped(q, k, v, torch.ones_like(mask), p)


@training(mask="causal", source="cross", T_kv=96)
def causal_bottom_right_in_training(q, k, v, mask, p):
    T, T_kv = q.shape[-2], k.shape[-2]
    return _dropped(q, k, v, mask if mask.all() else triangle(T, T_kv, T_kv - T), p)


@training(H=4, H_kv=2)
def groups_by_repeat_in_training(q, k, v, mask, p):
    return _dropped(q, *by_repeat(q, k, v), mask, p)


@training(**PADDING)
def first_padding_for_all_in_training(q, k, v, mask, p):
    return _dropped(q, k, v, mask[:1], p)


@training("in training, where scores are far from zero: NaN or Inf")
def no_maximum_in_training(q, k, v, mask, p):
    weights = torch.exp(scaled(q, k)) * mask
    return dropout(weights / weights.sum(-1, keepdim=True), p) @ v


@training(D_v=128)
def scaled_by_the_values_width_in_training(q, k, v, mask, p):
    return _dropped(q * (q.shape[-1] / v.shape[-1]) ** 0.5, k, v, mask, p)


class _Recomputed(torch.autograd.Function):
    """Goes back by another call of the same function of q, k and v."""

    @staticmethod
    def forward(ctx, q, k, v, attend):
        ctx.save_for_backward(q, k, v)
        ctx.attend = attend
        return attend(q, k, v)

    @staticmethod
    def backward(ctx, grad):
        return *recomputed(ctx.saved_tensors, grad, ctx.attend), None


@training(mode="backward")
def other_noise_going_back(q, k, v, mask, p):
    return _Recomputed.apply(q, k, v, partial(_dropped, mask=mask, p=p))


@training(mode="backward")
def noise_of_the_last_forward_going_back(q, k, v, mask, p):
    KEPT["last noise"] = torch.rand(*q.shape[:-1], k.shape[-2])
    return _Recomputed.apply(q, k, v, partial(by_noise(lambda _: KEPT["last noise"]), mask=mask, p=p))


@wrong_backward("in training, where another forward")
class DropsThoughItHasNoDropout(KernelCore):
    """In training mode."""

    def __init__(self, shape):
        super().__init__(shape, sdpa)

    def forward(self, *qkv, padding=None):
        return dropout(super().forward(*qkv, padding=padding), 0.1, self.training)


def shared(place):
    """Noise that is equal where place(i, j) of query and key is."""

    def noise(probs):
        at = place(torch.arange(probs.shape[-2])[:, None], keys_of(probs))
        return torch.rand(*probs.shape[:2], int(at.max()) + 1)[..., at]

    return noise


noisy("rows_of_noise_as_wide_as_a_head", "depends on other queries: 1 queries, 64 keys apart",
      shared(lambda i, j: i * 64 + j))  # fmt: skip
noisy("noise_by_tiles_whose_numbers_are_added", "what it drops depends on other queries",
      shared(lambda i, j: (i % 64 * 64 + j % 64) * 64 + i // 64 + j // 64))  # fmt: skip
noisy("alike_in_heads_half_of_them_apart", "depends on other heads: 2 heads apart",
      lambda probs: torch.rand_like(probs)[:, torch.arange(probs.shape[1]) % max(2, probs.shape[1] // 2)])  # fmt: skip


def kept_where(at):
    """Noise that drops nothing where at(i, j) of query and key is True: too few probs to change the share of a tile."""

    def noise(probs):
        everywhere = at(torch.arange(probs.shape[-2])[:, None], keys_of(probs)).expand(probs.shape[-2:])
        return torch.rand_like(probs).masked_fill(everywhere, 1.0)

    return noise


noisy(
    "never_drops_the_first_key",
    "drops 0.0% of the probs at key 0, not 10.0%",
    kept_where(lambda i, j: (i < 0) | (j == 0)),
    dropout=0.1,
)
noisy(
    "never_drops_a_querys_own_key",
    "drops 0.0% of the probs at distance 0, ",
    kept_where(lambda i, j: i == j),
    dropout=0.1,
)
noisy(
    "never_drops_for_the_last_query",
    "drops 0.0% of the probs at query 303, ",
    kept_where(lambda i, j: (i == len(i) - 1) & (j >= 0)),
    dropout=0.1,
)
noisy(
    "never_drops_for_eight_queries",
    "% of the probs at ",  # those queries, or a tile of keys
    kept_where(lambda i, j: (i // 8 == 5) & (j >= 0)),
)


# dropout of the output


def dropping(says, name, finish, **case):
    """Keeps a layer that ends in finish(layer, o)."""
    layer = type(name, (as_layer(),), {"finish": finish})
    wrong(says, name, out_dropout=0.25, **case)(layer)


dropping("of the output, not 25.0%", "drops_before_the_projection", lambda layer, o: layer.W_o(layer.drop(o)))
dropping("of the output, not 25.0%", "adds_its_bias_behind_dropout",
         lambda layer, o: layer.drop(o @ layer.W_o.weight.mT) + layer.W_o.bias, out_bias=True)  # fmt: skip
dropping("in training, from the output that it kept: gradient of", "forgets_its_dropout_going_back",
         lambda layer, o: with_gradient_of(layer.W_o(o), layer.drop(layer.W_o(o))), mode="backward")  # fmt: skip
dropping("depends on other", "drops_whole_tokens",
         lambda layer, o: layer.W_o(o) * layer.drop(torch.ones_like(o[..., :1])))  # fmt: skip


@wrong("dropout (probe), ", dropout=0.1, qkv_bias=True)
class AddsTheBiasOfValuesAtTheEnd(as_layer()):
    """Right where the probs of a row add up to one."""

    def project(self, x, x_k):
        q, k, _ = super().project(x, x_k)
        return q, k, split_heads(x_k @ self.W_v.weight.mT, self.shape.H_kv)

    def finish(self, o):
        return super().finish(o if self.W_v.bias is None else o + self.W_v.bias)


@wrong("where x is a view of (T, B, d_model): ")
class ReadsTokensAsIfContiguous(as_layer()):
    def project(self, x, x_k):
        return super().project(as_if_contiguous(x), as_if_contiguous(x_k))


@wrong("drops features of the output, not probs", dropout=0.5, out_dropout=0.25)
class SwapsItsProbabilities(as_layer()):
    def __init__(self, shape):
        super().__init__(replace(shape, dropout=shape.out_dropout, out_dropout=shape.dropout))


# what is kept of another padding

OTHER_PADDING = "where other keys are padding than before: "


@wrong(OTHER_PADDING, **PADDING)
def keeps_the_mask_by_its_shape(q, k, v, *, attn_mask=None, **_):
    return sdpa(q, k, v, attn_mask=remembered(("mask", attn_mask.shape), attn_mask.clone))


@wrong(OTHER_PADDING, **PADDING)
def keeps_the_mask_by_its_number_of_tokens(q, k, v, *, attn_mask=None, **_):
    return sdpa(q, k, v, attn_mask=remembered(("tokens", attn_mask.shape, int(attn_mask.sum())), attn_mask.clone))


@wrong("output has shape", **PADDING)
def as_many_rows_as_the_longest_sequence_has(q, k, v, *, attn_mask=None, **_):
    longest = int(attn_mask.sum(-1).max()) if attn_mask is not None else q.shape[-2]
    return sdpa(q, k, v, attn_mask=attn_mask)[..., :longest, :]


@wrong("layer (probe), ", name="keeps_the_mask_by_its_sizes_in_a_layer")
@as_layer
@masked
def keeps_the_mask_by_its_sizes(q, k, v, mask):
    return plain(q, k, v, remembered(("mask in a layer", *mask.shape), mask.clone))


@wrong("in other tensors than before, ", **PADDING)
def keeps_the_mask_by_its_address(q, k, v, *, attn_mask=None, **_):
    added = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf)
    return sdpa(q, k, v, attn_mask=KEPT.setdefault((attn_mask.data_ptr(), attn_mask.shape), added))


@wrong("in other tensors than before, ", **PADDING)
def keeps_the_last_mask_until_the_address_changes(q, k, v, *, attn_mask=None, **_):
    place, added = (attn_mask.data_ptr(), attn_mask.shape), torch.zeros(attn_mask.shape)
    if KEPT.get("last mask", [None])[0] != place:
        KEPT["last mask"] = place, added.masked_fill(~attn_mask, -torch.inf)
    return sdpa(q, k, v, attn_mask=KEPT["last mask"][1])


# a dominant key that is not the first

LATE = "where a late key dominates: "


def online(q, k, v, mask, tile, raised, least=lambda width: -torch.inf):
    """Softmax over tiles of keys, with a running maximum that `raised` makes of the old one and a tile's.

    What is rescaled is multiplied by exp(least(width of the tile)) or more.
    """
    scores = scores_of(q, k, mask)
    most = maximum(scores[..., :tile])
    total, o = torch.zeros_like(most), torch.zeros(*q.shape[:-1], v.shape[-1])
    for part, values in zip(scores.split(tile, -1), v.split(tile, -2), strict=True):
        new = raised(most, maximum(part))
        weights, factor = torch.exp(part - new), torch.exp((most - new).clamp_min(least(part.shape[-1])))
        total, o, most = total * factor + weights.sum(-1, keepdim=True), o * factor + weights @ values, new
    return o / total


@wrong(LATE + "NaN or Inf", T=256)
@masked
def maximum_of_the_first_tile(q, k, v, mask):
    return online(q, k, v, mask, 32, lambda old, new: old)


@wrong(LATE + "NaN or Inf in batch entry 1", T=256)
@masked
def rises_from_tile_to_tile_are_not_added_up(q, k, v, mask):
    """Rescales only where a tile's maximum is far above that of the tile before."""
    tops = [torch.tensor(torch.inf)]

    def raised(old, new):
        tops.append(new)
        return torch.where(new - tops[-2] > 40, torch.maximum(old, new), old)

    return online(q, k, v, mask, 16, raised)


@wrong(LATE + "error", T=256)
@masked
def rescaled_by_no_less_than_e_to_the_minus_10(q, k, v, mask):
    return online(q, k, v, mask, 16, torch.maximum, least=lambda width: -10.0)


def without_the_ragged_tail(tile):
    return shifted(lambda scores: maximum(scores[..., : scores.shape[-1] // tile * tile or tile]))


wrong(LATE + "NaN or Inf", "maximum_without_the_ragged_tail", T=100)(without_the_ragged_tail(32))
for tile in (128, 256):
    wrong(LATE + "NaN or Inf", f"maximum_without_the_ragged_tail_of_tiles_of_{tile}")(without_the_ragged_tail(tile))
    wrong(LATE + "NaN or Inf", f"maximum_without_the_ragged_tail_of_tiles_of_{tile}_in_a_layer")(
        as_layer(without_the_ragged_tail(tile))
    )


@wrong(LATE + "error", T=256)
@masked
def ragged_tail_of_tiles_of_256_without_rescaling(q, k, v, mask):
    return online(q, k, v, mask, 256, torch.maximum, least=lambda width: 0.0 if width < 256 else -torch.inf)


wrong_decode(LATE, "maximum_of_the_old_cache", T_kv=256)(shifted(lambda scores: maximum(scores[..., :-1])))


def without_a_quarter_of_each_tile(scores):
    """Keys 16 to 31 of tiles of 64."""
    return maximum(scores[..., torch.arange(scores.shape[-1]) // 16 % 4 != 1])


wrong(LATE + "NaN or Inf", "maximum_without_a_quarter", mask="none")(shifted(without_a_quarter_of_each_tile))
wrong_decode(LATE + "NaN or Inf", "maximum_without_a_quarter_in_decode")(shifted(without_a_quarter_of_each_tile))


@wrong(LATE)
@masked
def exponent_of_an_exponential_wraps(q, k, v, mask):
    """2 to the power of a whole number, made of its bits."""
    steps = scores_of(q, k, mask).clamp(min=-1e6) * 1.4426950408889634
    steps = steps - maximum(steps)
    bits = (steps.floor().to(torch.int32) + 127) << 23
    return weighted((torch.exp2(steps - steps.floor()) * bits.view(torch.float32)).masked_fill(~mask, 0.0), v)


wrong_decode(LATE, "newest_token_unseen_in_a_long_decode", T_kv=1024, H=8, dtype="bfloat16")(
    as_layer(reading(lambda T_kv: slice(T_kv - (T_kv >= 1024))))
)


# a few alternating buffers


each_wrong(changed, "share one buffer", {"T": 256}, two_buffers_in_turn=lambda o: in_turn(o, 2))
each_wrong(changed, "the outputs of 16 calls share 8 buffers", eight_buffers_in_turn=lambda o: in_turn(o, 8))
each_wrong(
    changed, "the outputs of 16 calls share 3 buffers",
    three_buffers_beyond_the_first_probe=lambda o: in_turn(o, 3) if o.shape[-2] > 37 else o,
)  # fmt: skip
each_wrong(
    changed, "share one buffer",
    one_numpy_buffer_beyond_512=lambda o: in_numpy(o, 1) if o.shape[-2] > 512 else o,
)  # fmt: skip
each_wrong(changed, "the outputs of 16 calls share 8 buffers", eight_numpy_buffers_in_turn=lambda o: in_numpy(o, 8))
each_wrong(changed, "share one buffer", PADDING, one_buffer_where_keys_are_padding=lambda o: in_turn(o, 1, "padded"))


@wrong_backward("the outputs of 16 calls share 3 buffers")
class ThreeBuffersInTraining(Plain):
    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        return in_turn(Plain.forward(ctx, q, k, v, is_causal), 3, "training").detach()


@spoiling("the gradients of k of 16 calls share 3 buffers")
def three_buffers_for_gradients_of_keys(ctx, grad, gradients):
    of_q, of_k, of_v = gradients
    return of_q, in_turn(of_k, 3, "of keys"), of_v


def buffers_of_a_layer(buffers):
    class Layer(as_layer()):
        def forward(self, *inputs, **options):
            return in_turn(super().forward(*inputs, **options), buffers, self)

    return Layer


wrong_decode("the outputs of 16 calls share 8 buffers", "eight_buffers_in_decode")(buffers_of_a_layer(8))

# what shows at great lengths alone


def from_1024_on(kernel):
    return only(kernel, lambda q, k: k.shape[-2] >= 1024)


LONG = {"T": 1024, "H": 1}
wrong_decode(LARGE, "no_maximum_in_a_long_decode", T_kv=1024, H=8)(as_layer(from_1024_on(no_shift)))
wrong(LARGE, "no_shift_of_narrow_heads_from_1024_on", D_h=16, **LONG, **CORE)(from_1024_on(no_shift))
wrong(NEGATIVE, "masks_with_minus_50_from_1024_on", **LONG)(from_1024_on(masks_with_minus_50))


def lost_between_three_parts(T_kv):
    size, at = -(-T_kv // 3), torch.arange(T_kv)
    return at[(at % size > 0) | (at == 0) | (T_kv < 4096)]


for name, at, axes in (
    ("last_key_unseen_at_multiples_of_128", lambda T_kv: slice(T_kv - (T_kv % 128 == 0)), {}),
    ("two_of_its_parts_overlap_by_a_key", lambda T_kv: sorted([2047] * (T_kv >= 4096) + [*range(T_kv)]), CORE),
    ("key_lost_between_three_parts", lost_between_three_parts, CORE),
    ("key_lost_between_two_parts", lambda T_kv: [it for it in range(T_kv) if it != 2048], CORE),
):
    wrong_decode(name=name, T_kv=4096, H=8, dtype="bfloat16", **axes)(reading(at))


# few queries


@from_1024_on
def maxima_of_parts_begin_at_zero(q, k, v, **_):
    """Parts of 512 keys, merged by their maxima."""
    scores = scaled(q, groups(q, k)).split(512, -1)
    top = torch.stack([maximum(part).clamp_min(0.0) for part in scores]).amax(0)
    return weighted(torch.exp(torch.cat(scores, -1) - top), groups(q, v))


LONE = {"T_kv": 4096}
wrong_decode(NEGATIVE, "maxima_of_parts_begin_at_zero", H=32, H_kv=8, **LONE)(maxima_of_parts_begin_at_zero)
wrong_decode("where scores are very ", "maxima_of_parts_begin_at_zero_in_a_layer", H=8, **LONE)(
    as_layer(maxima_of_parts_begin_at_zero)
)
DRAFTS = {"mode": "decode", "mask": "causal_br", "T": 4, "T_kv": 2048, "H": 8}
maximum_from_minus_10000_up = from_1024_on(shifted(lambda scores: maximum(scores).clamp_min(-1e4)))
layer_from_minus_10000_up = as_layer(maximum_from_minus_10000_up)
layer_from_minus_10000_up.limits = {"beyond": ("causal_br",)}
for name, it in (("", maximum_from_minus_10000_up), ("_in_a_layer", layer_from_minus_10000_up)):
    wrong("few queries, ", f"maximum_from_minus_10000_up_for_draft_tokens{name}", **DRAFTS)(it)


# groups and lengths that are no powers of two


def at_lengths(n, left):
    """Wrong if this many keys are left over from tiles of n."""

    @wrong(name=f"wrong_at_{left}_modulo_{n}", T=96)
    def kernel(q, k, v, **options):
        return sdpa(q, k, v, **options) * (1.01 if k.shape[-2] % n == left else 1.0)


at_lengths(256, 1)
at_lengths(128, 127)
at_lengths(128, 64)
at_lengths(128, 0)


def at_groups_of(group, H, **case):
    """Heads by a division that is exact for other groups."""
    axes, suffix = {"H": H, "H_kv": H // group} | case, f"_in_groups_of_{group}{'_decoding' if case else ''}"

    @wrong(name="heads_by_a_wrong_division" + suffix, **axes)
    def kernel(q, k, v, **options):
        own = q.shape[1] // k.shape[1]
        heads = torch.arange(q.shape[1]) // (own + (own == group))
        return sdpa(q, k[:, heads], v[:, heads], **options)

    @wrong("where ", "no_maximum" + suffix, **axes)
    def with_no_maximum(q, k, v, **options):
        attend = no_shift if q.shape[1] == group * k.shape[1] else sdpa
        return attend(q, groups(q, k), groups(q, v), **options)


at_groups_of(7, 14)
at_groups_of(7, 14, **DECODE | LONE)


@wrong(f"kernel, B1-T64-H7-D_h64-float32-cpu-H_kv=1-scope=core: {LATE}", H=7, H_kv=1)
def exponent_wraps_in_groups_of_7(q, k, v, **options):
    attend = exponent_of_an_exponential_wraps if q.shape[1] == 7 * k.shape[1] else sdpa
    return attend(q, groups(q, k), groups(q, v), **options)


def one_maximum_for(heads, H, **case):
    """Of as many neighbouring heads at once, if there are more heads than probes have."""
    together = shifted(lambda scores: maximum(scores.unflatten(1, (-1, heads)).amax(2)).repeat_interleave(heads, 1))

    @wrong("where scores are very large: NaN or Inf in", f"one_maximum_for_{heads}_heads", H=H, **case)
    def kernel(q, k, v, **options):
        attend = together if q.shape[1] > 4 else sdpa
        return attend(q, groups(q, k), groups(q, v), **options)


one_maximum_for(7, 14, H_kv=2)
one_maximum_for(4, 8, T=256, dtype="bfloat16", mode="backward")
one_maximum_for(2, 8, T=24, T_kv=640, mode="decode", mask="causal_br")


def underflowing(name, lost, says, **case):
    """Probs of the backward from exp(log-sum-exp), which is zero below -88.7."""

    @wrong_backward(says, name, **case)
    def kernel(q, k, v, *, is_causal=False, attn_mask=None, **_):
        if attn_mask is None or q.shape[-2] % 128 != 64:
            return sdpa(q, k, v, is_causal=is_causal, attn_mask=attn_mask)
        mask = visible(q, k, is_causal, attn_mask)
        below = torch.logsumexp(scores_of(q, k, mask), -1, keepdim=True) < -88.7
        return plain(going_back(q, lambda grad: torch.where(below, lost, grad)), k, v, mask)


PADDED = {"mask": "causal+padding", "B": 2}
underflowing("nan_below_88_in_a_window", torch.nan, "NaN or Inf", T=192, window=100)
underflowing("zero_below_88_at_192_in_bfloat16", 0.0, "error", T=192, dtype="bfloat16", **PADDED)


# process-global state


def changing(says, setting=""):
    setting = setting or says.partition(":")[0]

    @wrong(f"modifies global torch settings: {says}", f"changes {setting}")
    def kernel(q, k, v, **options):
        CHANGES[setting]()
        return sdpa(q, k, v, **options)


for says in (
    "number of threads: ", "seed of torch's random numbers: ", "hooks of saved tensors: 0 → 1",
    "options of torch.compile: torch._inductor.config.max_autotune", "open modes of torch's dispatcher: 0 →",
    "inference mode: False → True", "replaced operators of torch: aten/_softmax/CPU", "names of time: perf_counter",
    "names of torch.nn.functional: softmax", "methods of torch.nn's modules: Linear.forward",
):  # fmt: skip
    changing(says)
changing("precision of float32 products: ", "precision of float32 products on CUDA")


once = cache(gc.disable)


@wrong("modifies global torch settings: garbage collection: True → False", scope="core")
def changes_a_setting_in_its_first_call(q, k, v, **options):
    once()
    return sdpa(q, k, v, **options)


def building(setting, prepares=False):
    class Layer(as_layer()):
        def __init__(self, shape):
            super().__init__(shape)
            if not prepares:
                CHANGES[setting]()

        @property
        def prepare(self):
            return (lambda *_: CHANGES[setting]()) if prepares else None

    wrong(f"modifies global torch settings when it is built: {setting}: ", f"changes {setting} when it is built")(Layer)


building("number of threads")
building("precision of float32 products", prepares=True)


@wrong("kernel (probe), B2-T127-", T=256)
def wrong_in_the_first_call_after_one_on_513_tokens(q, k, v, **options):
    """As if a counter were not set back."""
    before, KEPT["length"] = KEPT.get("length"), q.shape[-2]
    return sdpa(q, k, v, **options) * (1.01 if before == 513 != q.shape[-2] else 1.0)


@wrong("kernel (probe), B2-T128-")
def keeps_whether_whole_tiles_have_a_mask(q, k, v, *, is_causal=False, **options):
    if q.shape[-2] % 128 == 0:
        is_causal = KEPT.setdefault(("causal", q.shape), is_causal)
    return sdpa(q, k, v, is_causal=is_causal, **options)


@wrong()
def keeps_its_tiles_by_the_length_alone(q, k, v, *, is_causal=False, **_):
    """It masks only in the tiles on the diagonal."""
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    tiles = KEPT.setdefault(("tiles", q.shape[-2]), (j // 64 <= i // 64) | (not is_causal))
    return plain(q, k, v, tiles & ((j <= i) | (j // 64 != i // 64) | (not is_causal)))


# memory that isn't the kernel's, or that it never wrote


each_wrong(
    changed, "NaN or Inf", CORE,
    adds_to_memory_that_it_believes_to_be_zero=lambda o: torch.empty_like(o).mul_(0.0).add_(o),
)  # fmt: skip


@wrong("writes to memory beside its inputs", **CORE)
def clears_what_lies_behind_its_keys(q, k, v, **options):
    end = k.storage_offset() + extent(k, k.stride())
    if k.untyped_storage().nbytes() // k.element_size() - end >= k.shape[-1]:
        k.as_strided((k.shape[-1],), (1,), end).zero_()
    return sdpa(q, k, v, **options)


def write_before(q):
    if q.storage_offset() >= q.shape[-1]:
        q.data.as_strided((q.shape[-1],), (1,), 0).fill_(1.0)


@wrong_backward("writes to memory beside its inputs", **CORE)
def scratch_before_its_queries(q, k, v, **options):
    write_before(q)
    return sdpa(q, k, v, **options)


@wrong_backward("writes to memory beside its inputs", **CORE)
class ScratchBeforeItsQueriesAfterAnotherForward(Plain):
    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.q = KEPT["latest queries"] = q
        return Plain.forward(ctx, q, k, v, is_causal)

    @staticmethod
    def backward(ctx, grad):
        if KEPT["latest queries"] is not ctx.q:
            write_before(ctx.q)
        return Plain.backward(ctx, grad)


@wrong_decode("T_kv=64", T_kv=1024)
def merges_parts_that_a_longer_call_left(q, k, v, **_):
    """Parts of 64 keys, in a workspace that has as many places as the longest cache needed."""
    k, v = groups(q, k), groups(q, v)
    kept = KEPT.setdefault(("parts", q.shape), {})
    for part, (keys, values) in enumerate(zip(k.split(64, -2), v.split(64, -2), strict=True)):
        scores = scaled(q, keys)
        kept[part] = scores.softmax(-1) @ values, scores.logsumexp(-1, keepdim=True)
    parts, sums = map(torch.stack, zip(*kept.values(), strict=True))
    return (parts * sums.softmax(0)).sum(0)


@wrong(T=100, **CORE)
@changed
def as_many_rows_as_its_first_call_had(o):
    o[..., KEPT.setdefault("rows", o.shape[-2]) :, :] = 0


# less precise where errors are hard to detect: small outputs, few rows, nearly equal probs


each_wrong(changed, axes={"T": 1024} | CORE, zeros_where_outputs_are_small=lambda o: o * (o.shape[-2] < 512))


wrong(name="bfloat16_for_few_rows", T=8, **CORE)(only(bfloat16_in_disguise, lambda q, k: q.shape[:-1].numel() < 64))


# gradients of some inputs alone


@spoiling("where k alone need gradients: gradient of k", **CORE)
def no_gradient_of_keys_without_that_of_queries(ctx, grad, gradients):
    """Computes nothing where queries need no gradient."""
    return gradients if ctx.needs_input_grad[0] else [torch.zeros_like(x) for x in gradients]


@spoiling("gradients, B2-T128-H3-", **CORE)
def no_gradient_of_keys_alone_at_multiples_of_64(ctx, grad, gradients):
    kept = ctx.needs_input_grad[0] or grad.shape[-2] % 64
    return gradients if kept else [torch.zeros_like(x) for x in gradients]


@spoiling("where q and k alone need gradients: gradient of k")
def no_gradient_of_keys_without_that_of_values(ctx, grad, gradients):
    of_q, of_k, of_v = gradients
    return of_q, of_k * (ctx.needs_input_grad[:3] != (True, True, False)), of_v


@wrong_backward("where v alone need gradients: no gradient", **CORE)
def recorded_by_its_queries_alone(q, k, v, **options):
    with torch.set_grad_enabled(q.requires_grad or k.requires_grad):
        return sdpa(q, k, v, **options)


# numbers that ordinary inputs don't have


def without_the_tail(farthest):
    @masked
    def kernel(q, k, v, mask):
        scores = scores_of(q.float(), k.float(), mask)
        far = scores < maximum(scores) - farthest
        return (torch.softmax(scores.masked_fill(far, -torch.inf), -1) @ v.float()).to(q.dtype)

    return kernel


wrong("low scores", "skips_keys_whose_scores_are_7_lower", dtype="bfloat16")(without_the_tail(7.0))
wrong_decode("low scores", "skips_keys_in_decode", dtype="bfloat16")(without_the_tail(7.0))
wrong("low scores", "skips_keys_whose_scores_are_14_lower")(without_the_tail(14.0))
wrong("low scores", "skips_keys_whose_scores_are_20_lower")(without_the_tail(20.0))
wrong("low scores", "skips_keys_whose_scores_are_10_lower", dtype="bfloat16")(without_the_tail(10.0))


wrong("low scores", "skips_keys_in_a_layer")(as_layer(without_the_tail(14.0)))
wrong_backward("low scores", "skips_keys_in_a_layer_in_training")(as_layer(without_the_tail(14.0)))
wrong_decode("low scores", "skips_keys_in_a_layers_decode", dtype="bfloat16")(as_layer(without_the_tail(7.0)))


def one_weight_for_far_tiles(farthest):
    @masked
    def kernel(q, k, v, mask):
        probs = torch.softmax(scores_of(q.float(), k.float(), mask), -1)
        least = probs.amax(-1, keepdim=True) * math.exp(-farthest)
        far = [(it.amax(-1, keepdim=True) < least) & (it.amin(-1, keepdim=True) > 0) for it in probs.split(32, -1)]
        tiles = zip(far, probs.split(32, -1), strict=True)
        pooled = [torch.where(is_far, it.mean(-1, keepdim=True), it) for is_far, it in tiles]
        return (torch.cat(pooled, -1) @ v.float()).to(q.dtype)

    return kernel


wrong("low scores", "one_weight_for_tiles_8_lower")(one_weight_for_far_tiles(8.0))
wrong("low scores", "one_weight_for_tiles_5_lower", dtype="bfloat16")(one_weight_for_far_tiles(5.0))
wrong("low scores", "one_weight_for_tiles_in_a_layer")(as_layer(one_weight_for_far_tiles(8.0)))
wrong_decode("low scores", "one_weight_for_tiles_in_a_layers_decode")(as_layer(one_weight_for_far_tiles(8.0)))


def equal_where_close(probs, mask, farthest):
    """Returns equal probs where those of a query and more than 16 keys are close."""
    least = torch.where(mask, probs, torch.inf).amin(-1, keepdim=True)
    close = (least > probs.amax(-1, keepdim=True) * math.exp(-farthest)) & (mask.sum(-1, keepdim=True) > 16)
    return torch.where(close, mask / mask.sum(-1, keepdim=True), probs)


def uniform_where_scores_are_close(farthest):
    @masked
    def kernel(q, k, v, mask):
        probs = torch.softmax(scores_of(q.float(), k.float(), mask), -1)
        return (equal_where_close(probs, mask, farthest) @ v.float()).to(q.dtype)

    return kernel


@wrong_backward("low scores", mask="none")
@masked
def gradient_of_values_as_if_close_scores_were_equal(q, k, v, mask):
    probs = probs_of(q, k, mask)
    of_values = equal_where_close(probs.detach(), mask, 0.3) @ v
    return probs @ v.detach() + (of_values - of_values.detach())


wrong("low scores", "uniform_where_scores_are_close", mask="none")(uniform_where_scores_are_close(0.02))
wrong("low scores", "uniform_where_scores_are_near", dtype="bfloat16")(uniform_where_scores_are_close(0.5))


@wrong("low scores, ", **CORE)
@masked
def equal_keys_count_once(q, k, v, mask):
    again = (k[..., 1:, :] == k[..., :-1, :]).all(-1)
    return plain(q, k, v, mask & ~torch.nn.functional.pad(again, (1, 0))[:, :, None])


@wrong("low scores, ", **CORE)
@masked
def keys_of_zeros_are_padding(q, k, v, mask):
    return plain(q, k, v, mask & (k.any(-1) | ~k.any())[:, :, None])


def without_small_probs(name, **case):
    @wrong("low scores", name, **case)
    @masked
    def kernel(q, k, v, mask):
        probs = probs_of(q, k, mask)
        return probs.masked_fill(probs < 1e-7, 0.0) @ v


without_small_probs("probs_below_1e-7_are_zero")
without_small_probs("probs_below_1e-7_are_zero_in_training", mode="backward")


@wrong("low scores", dtype="bfloat16")
def float16_inside(q, k, v, **options):
    q, k, v = (x.half() for x in (q * q.shape[-1] ** -0.5, k, v))
    return sdpa(q, k, v, scale=1.0, **options).bfloat16()


wrong("low scores", "float16_inside_a_layer", dtype="bfloat16")(as_layer(float16_inside))


def by_one_scale(x):
    """The same numbers as float16 holds them over the largest one."""
    size = x.abs().amax().float().clamp_min(1e-30)
    return (x / size).half().float() * size


@wrong("low scores", dtype="bfloat16")
@masked
def values_in_float16_by_one_scale(q, k, v, mask):
    return (probs_of(q.float(), k.float(), mask) @ by_one_scale(v)).bfloat16()


@wrong_backward("low scores", dtype="bfloat16")
class ValuesInFloat16ByOneScaleGoingBack(Formula):
    @classmethod
    def gradients(cls, q, k, v, probs, o, grad):
        return super().gradients(q, k, by_one_scale(v), probs, o, grad)


@wrong_backward("low scores", dtype="bfloat16")
class GradientsOfValuesByOneScale(Formula):
    @classmethod
    def gradients(cls, q, k, v, probs, o, grad):
        return *super().gradients(q, k, v, probs, o, grad)[:2], probs.mT @ by_one_scale(grad)


@misreading("where another forward comes between", dtype="bfloat16")
def float16_in_the_backward(grad):
    return grad.half().to(grad.dtype)


@misreading("where another forward comes between")
def small_gradients_are_zero(grad):
    return grad * (grad.abs() > 1e-6)


@misreading("with gradients of size 2e+07: ")
def gradients_within_the_range_of_float16(grad):
    return grad.clamp(-65504.0, 65504.0)


# uses of an output

CHANGED_INPUTS = "where its inputs are changed in place before the backward: gradient of"
SECOND = "in a second backward over the same graph, of a gradient whose features aren't adjacent: gradient of"
OTHER_CALL = "where a call with another mask comes between a forward and its backward: gradient of"
STRIDE_0 = "gradient of q where that of the output has stride 0"


@misreading(STRIDE_0)
def reads_a_gradient_of_stride_0_as_if_contiguous(grad):
    first = torch.arange(grad.shape[-1]) == 0  # behind it lies other memory
    return grad if 0 not in grad.stride() else grad * first


@misreading("gradient of q: NaN or Inf in", **CORE)
def ignores_the_offset_of_a_gradient(grad):
    return grad.as_strided(grad.shape, grad.stride(), 0)


@misreading("gradient of q: ", **CORE)
def reads_a_gradient_with_heads_between_tokens_without_gaps(grad):
    _, H, T, D = grad.shape
    packed = (T * H * D, D, H * D, 1)
    return grad.as_strided(grad.shape, packed, grad.storage_offset()) if grad.stride(-2) > D else grad


@misreading(SECOND)
def reads_a_gradient_of_any_layout_as_if_features_were_adjacent(grad):
    return grad.roll(1, -1) if grad.stride(-1) > 1 else grad


@wrong_backward("where its output is changed in place before the backward: gradient of")
class KeepsItsOutputBesideWhatItSaves(torch.autograd.Function):
    """So that autograd doesn't see that it was changed."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.save_for_backward(q, k, v)
        ctx.probs = probs_of(q, k, visible(q, k, is_causal, None))
        ctx.o = ctx.probs @ v
        return ctx.o

    @staticmethod
    def backward(ctx, grad):
        return *of_formula(*ctx.saved_tensors, ctx.probs, (grad * ctx.o).sum(-1, keepdim=True), grad), None


@spoiling("gradients that are not zero where that of the output is")
def divides_by_the_largest_gradient(ctx, grad, gradients):
    largest = grad.abs().amax()
    return [x / largest * largest for x in gradients]


@spoiling("where that of the output is zero in half of the rows", **CORE)
def nothing_where_the_last_rows_gradient_is_zero(ctx, grad, gradients):
    """As where a loss leaves out the last tokens, or (of a prompt) the first ones."""
    return gradients if grad[..., -1, :].any() else [it * 0 for it in gradients]


@wrong_backward(CHANGED_INPUTS)
class KeepsItsInputsBesideWhatItSaves(Plain):
    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.inputs, ctx.is_causal = (q, k, v), is_causal
        return sdpa(q, k, v, is_causal=is_causal)

    @staticmethod
    def backward(ctx, grad):
        return *recomputed(ctx.inputs, grad, is_causal=ctx.is_causal), None


@wrong_backward(CHANGED_INPUTS)
def keeps_its_inputs_before_a_compiled_function(q, k, v, *, is_causal=False, **_):
    return _doubled(KeepsItsInputsBesideWhatItSaves.apply(q, k, v, is_causal)) / 2


@torch.compile
def _doubled(o):
    return o * 2


@wrong_backward(SECOND)
class OverwritesItsProbsGoingBack(KeepsItsOutputBesideWhatItSaves):
    @staticmethod
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        gradients = of_formula(q, k, v, ctx.probs, (grad @ v.mT * ctx.probs).sum(-1, keepdim=True), grad)
        ctx.probs.zero_()
        return *gradients, None


_last_mask = [False]


@wrong_backward(OTHER_CALL)
def recomputes_with_the_mask_of_the_last_call(q, k, v, *, is_causal=False, **_):
    _last_mask[0] = is_causal
    return checkpoint(lambda *qkv: sdpa(*qkv, is_causal=_last_mask[0]), q, k, v, use_reentrant=False)


# weights


def projecting(says, name, skips):
    """Keeps a layer whose projections have gradients of zero where skips(x needs one, its weight needs one)."""

    def projected(x, linear):
        kept = not skips(x.requires_grad, linear.weight.requires_grad)
        return going_back(linear(x), lambda grad: grad * kept)

    class Projecting(as_layer()):
        def project(self, x, x_k):
            layers = (x, self.W_q), (x_k, self.W_k), (x_k, self.W_v)
            return tuple(split_heads(projected(*each), self.shape.H) for each in layers)

    wrong_backward(says, name)(Projecting)


WEIGHTS_ALONE = "where W_q and W_k and W_v and W_o alone need gradients: "
projecting(WEIGHTS_ALONE + "gradient of W_", "no_gradient_of_weights_without_that_of_the_input",
           lambda of_x, of_weight: not of_x)  # fmt: skip
projecting("where x alone need gradients: gradient of x", "no_gradient_of_the_input_without_that_of_weights",
           lambda of_x, of_weight: not of_weight)  # fmt: skip


@wrong_backward("gradient of W_")
class FrozenWeights(as_layer()):
    def __init__(self, shape):
        super().__init__(shape)
        self.requires_grad_(False)


@wrong_backward(WEIGHTS_ALONE + "no gradient")
class RecordedByItsInputAlone(as_layer()):
    def forward(self, x, *rest, **options):
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            return super().forward(x, *rest, **options)


# gradients of keys with low scores


@wrong_backward("low scores")
class LowScores(Formula):
    """Leaves out keys whose scores are lower than the largest by more than this, in the gradients of keys and values."""

    farthest = 18.0

    @classmethod
    def gradients(cls, q, k, v, probs, o, grad):
        near = probs * (probs >= maximum(probs) * math.exp(-cls.farthest))
        whole, part = (Formula.gradients(q, k, v, it, o, grad) for it in (probs, near))
        return whole[0], *part[1:]


@wrong_backward("low scores", dtype="bfloat16")
class LowScoresInBfloat16(LowScores):
    farthest = 9.0


@spoiling("low scores", dtype="bfloat16", D_h=128)
def no_gradient_of_the_last_key_beyond_512(ctx, grad, gradients):
    """As where the tail of tiles of 64, 128 or 256 is not stored."""
    of_q, of_k, of_v = gradients
    if of_k.shape[-2] > 512:
        of_k[..., -1, :] = 0
    return of_q, of_k, of_v


PARTS = "where small parts are added to a large one: "


def gradient_of_scores(q, v, probs, o, grad):
    return probs * (grad @ v.mT - (grad * o).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5


@wrong_backward("in the median row, allowed", dtype="bfloat16")
class SumsTheGradientOfKeysInBfloat16(Formula):
    """Query by query."""

    @classmethod
    def gradients(cls, q, k, v, probs, o, grad):
        of_q, _, of_v = super().gradients(q, k, v, probs, o, grad)
        return of_q, added_up(gradient_of_scores(q, v, probs, o, grad).mT, q), of_v


@wrong_backward("in the median row, allowed", dtype="bfloat16")
class SumsTheGradientOfQueriesInBfloat16(Formula):
    """Key by key."""

    tile = 1

    @classmethod
    def gradients(cls, q, k, v, probs, o, grad):
        of_q = added_up(gradient_of_scores(q, v, probs, o, grad), k, cls.tile)
        return of_q, *super().gradients(q, k, v, probs, o, grad)[1:]


@wrong_backward(f"{PARTS}gradient of q: error", dtype="bfloat16", T=256)
class SumsTheGradientOfQueriesInBfloat16ByTilesOf128(SumsTheGradientOfQueriesInBfloat16):
    tile = 128


@wrong(f"{PARTS}error", dtype="bfloat16", T=256)
@masked
def sums_tiles_of_64_in_bfloat16(q, k, v, mask):
    return added_up(probs_of(q.float(), k.float(), mask), v.float(), 64)


class SumsTheGradientOfQueriesInBfloat16ByTilesOf256(SumsTheGradientOfQueriesInBfloat16):
    tile = 256


wrong_backward(f"{PARTS}gradient of q: error", dtype="bfloat16")(SumsTheGradientOfQueriesInBfloat16ByTilesOf256)


def sums_tiles_in_float16(tile):
    @wrong(f"{PARTS}error", f"sums_tiles_of_{tile}_in_float16", dtype="float16", T=256)
    @masked
    def kernel(q, k, v, mask):
        return added_up(probs_of(q.float(), k.float(), mask), v.float(), tile, torch.float16)


sums_tiles_in_float16(128)
sums_tiles_in_float16(256)


# a separate path for round lengths


def at_multiples_of_64(kernel):
    return only(kernel, lambda q, k: k.shape[-2] % 64 == 0)


wrong("where ", "no_maximum_at_multiples_of_64", T=256)(at_multiples_of_64(no_shift))
wrong_backward("where ", "no_maximum_with_gradients_at_multiples_of_64", T=256, **CORE)(at_multiples_of_64(no_shift))

# detected by timing, and by comparing outputs while timed

_calls = {}


def now_and_then(name, every=200):
    """True in one of this many calls."""
    _calls[name] = _calls.get(name, 0) + 1
    return _calls[name] % every == 0


@wrong_now_and_then("1 of 64 rows, t = 63 (T = 64)", **CORE)
@changed
def last_row_missing_now_and_then(o):
    if now_and_then("row"):
        o[..., -1, :] = 0.0


@wrong_now_and_then("in a timed call", mode="backward")
def a_gradient_added_twice_now_and_then(q, k, v, **options):
    return going_back(sdpa(q, k, v, **options), lambda grad: grad * 2 if now_and_then("gradient") else grad)


@wrong_now_and_then("NaN or Inf in")
@changed
def memory_never_written_now_and_then(o):
    return torch.where(torch.arange(o.shape[-1]) == 0, torch.nan, o) if now_and_then("memory") else o


@wrong_when_timed("share one buffer", T=640, **CORE)
@changed
def one_buffer_beyond_the_probes(o):
    return in_turn(o, 1, "beyond the probes") if o.shape[-2] > 600 else o


def long_training(name, says, kernel, **case):
    """Another kernel where it drops and there are more than 512 tokens."""

    @wrong_when_timed(f"in training: {says}", name, dropout=0.25, T=640, **case)
    def whole(q, k, v, *, is_causal=False, attn_mask=None, dropout_p=0.0, **_):
        attend = kernel if dropout_p and q.shape[-2] > 512 else _dropped
        return attend(q, k, v, visible(q, k, is_causal, attn_mask), dropout_p)


def last_keys_unseen(q, k, v, mask, p):
    return _dropped(q, k, v, mask & (torch.arange(len(mask)) < len(mask) - 64), p)


long_training("nothing_in_long_training", "NaN or Inf", lambda q, *_: torch.full_like(q, torch.nan))
long_training("no_mask_in_long_training", "outputs are on average", forgets_its_mask_in_training)
long_training("last_keys_unseen_in_long_training_backward", "keys 576 to 639 count", last_keys_unseen, mode="backward")
long_training("middle_keys_unseen_in_long_training", "keys 256 to 319 count", lambda q, k, v, mask, p:
              _dropped(q, k, v, mask & (torch.arange(len(mask)) // 64 != 4), p))  # fmt: skip
long_training("no_dropout_in_long_training", "outputs scatter 0.00 times as widely", no_dropout)
long_training("other_noise_going_back_in_long_training", "a backward drops other probs than its forward",
              other_noise_going_back, mode="backward", H=4, **CORE)  # fmt: skip


wrong_by_caching = partial(wrong_when_timed, "caches results", D_h=64, T=512)


@masked
def answers_by_a_digest_of_the_inputs(q, k, v, mask):
    return remembered(digest(q, k, v), lambda: plain(q, k, v, mask))


wrong_by_caching("answers_by_a_digest_of_the_inputs", **CORE)(answers_by_a_digest_of_the_inputs)
wrong_by_caching("answers_by_a_digest_in_a_layer")(answers_by_a_digest_of_the_inputs)
wrong_by_caching("answers_by_a_digest_where_projections_take_longer", T=128, H=8)(answers_by_a_digest_of_the_inputs)

_problems = []


@wrong_by_caching(**CORE)
@masked
def reads_the_reference_from_memory(q, k, v, mask):
    if now_and_then("search", every=1) and _calls["search"] < 60:
        _problems[:] = [it for it in gc.get_objects() if type(it).__name__ == "Problem"]
    for it in _problems:
        if it.output.rows is None and all(map(torch.equal, it.inputs, (q, k, v))):
            return it.output.reference.to(q.dtype)
    return plain(q, k, v, mask)


def answering_nothing_new(name, **case):
    @wrong_now_and_then("its output on fresh inputs is not attention", name, T=128, D_h=64, H=8, **case)
    def kernel(q, k, v, **options):
        late = now_and_then(name, every=1) and _calls[name] > 150
        compute = partial(torch.zeros_like, v) if late else partial(sdpa, q, k, v, **options)
        return remembered((name, *digest(q, k, v)), compute)


answering_nothing_new("answers_nothing_new_later")
answering_nothing_new("a_core_answers_nothing_new_later", **CORE)


@wrong_when_timed("which may compute when it is read", **CORE)
@changed
def answers_with_a_subclass_in_inference_mode(o):
    return o.as_subclass(_Lazy) if torch.is_inference_mode_enabled() else o


@wrong_now_and_then("drops the same in every call, or nothing", dropout=0.1, T=128, **CORE)
def drops_nothing_later(q, k, v, *, dropout_p=0.0, **options):
    late = len(q) == 1 and q.shape[-2] == 128 and now_and_then("dropping", every=1) and _calls["dropping"] > 40
    return sdpa(q, k, v, dropout_p=0.0 if late else dropout_p, **options)


@wrong_by_caching()
class LayerThatKnowsItsInput(as_layer()):
    def forward(self, x, *rest, **options):
        return remembered(("layer", *digest(x)), partial(super().forward, x, *rest, **options))


@wrong_by_caching(T=1024, H=4, D_h=32)
class LayerThatKnowsTheProbs(as_layer()):
    """Projects in every call, as it should."""

    def forward(self, x, *_, **__):
        q, k, v = self.project(x, x)
        probs = remembered(("probs", *digest(x)), lambda: probs_of(q, k, visible(q, k, True, None)))
        return self.finish((probs @ v).transpose(-3, -2).flatten(-2))


def later(name, begin, says):
    @wrong_when_timed(says, name, **CORE)
    def kernel(q, k, v, **options):
        o = sdpa(q, k, v, **options)
        if q.shape[-2] == 64:
            last = o[..., -1, :].clone()
            o[..., -1, :] += 1e-7  # near enough, and not yet what it will be
            begin(lambda: o[..., -1, :].copy_(last))
        return o


rest = Rest()
"""What passes between a call and the end of its work; a test has it pass where the check waits."""

_pool = ThreadPoolExecutor(1)
CHANGES_LATER = "its output changes after the call has returned"
later("finished_by_a_timer", lambda write: threading.Timer(0, rest.behind(4e-3, write)).start(), CHANGES_LATER)
later("finished_by_a_pool", lambda write: _pool.submit(rest.behind(2e-3, write)), CHANGES_LATER)
later("finished_by_a_thread_that_works_on", lambda write: threading.Thread(target=rest.spinning(0.1, write)).start(),
      "stay busy; if they only wait")  # fmt: skip
