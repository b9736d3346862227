"""Cores that must be refused inside a model: each is correct except for one fault."""

from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from impls.layer import KernelCore

from .wrong_kernels import bfloat16_in_disguise, by_repeat, groups, of_formula, probs_of, triangle, with_gradient_of

THETA = 1e6
"""Of the rotary embedding of Qwen3."""

DECODE = {"mode": "decode"}
BACKWARD = {"mode": "backward"}
MODEL = {"scope": "model"}
"""Of what is right in one block."""
PADDED = {"mode": "decode", "mask": "padding"}
"""Requests of several lengths, the shorter ones padded on the left."""
NEW_TOKENS = {"mode": "decode", "T": 7, "T_kv": 24, "mask": "causal_br"}
TWO_KINDS = {"model": str(Path(__file__).parent / "data" / "two_kinds.json")}
"""A small Gemma 3: its first block sees eight keys, its second one all; scores are scaled by 1/4, heads are 32 wide."""

WRONG = {}
"""Cores, and the axes of a case that shows the fault."""


class Correct(KernelCore):
    """A core of SDPA with its own mask, of which each part can be replaced."""

    def __init__(self, shape):
        super().__init__(shape, sdpa)

    def read(self, q, k, v):
        return q, k, v

    def seen(self, T, T_kv, padding):
        """(T, T_kv) or (B, 1, T, T_kv)"""
        mask = triangle(T, T_kv, T_kv - T)
        if self.shape.window is not None:
            mask = mask.triu(T_kv - T - self.shape.window)
        return mask if padding is None else mask & padding[:, None, None]

    def share(self, q, x):
        return groups(q, x)

    def attend(self, q, k, v, mask):
        return sdpa(q, k, v, attn_mask=mask, scale=self.shape.scale)

    def forward(self, q, k, v, *, padding=None):
        q, k, v = self.read(q, k, v)
        return self.attend(q, self.share(q, k), self.share(q, v), self.seen(q.shape[-2], k.shape[-2], padding))


def wrong(**case):
    def keep(core):
        WRONG[core.__name__] = core, case
        return core

    return keep


def each_wrong(part, case, **changes):
    """Keeps a core for each replacement of a part."""
    WRONG.update({name: (type(name, (Correct,), {part: change}), case) for name, change in changes.items()})


# what is read


def turned(x, by):
    """(B, H, T, D), rotated by additional positions."""
    half = x.shape[-1] // 2
    angle = by / THETA ** (torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1).to(x)


def at_the_first_place(core, q, k, v):
    """The new token's query and key are turned as if the cache were empty."""
    back = 1.0 - k.shape[-2]
    return turned(q, back), torch.cat([k[..., :-1, :], turned(k[..., -1:, :], back)], dim=-2), v


def as_it_lies(x):
    """Reads rows of memory as tokens: in a model heads lie between them. Right for contiguous tensors, as in a cache."""
    B, H, T, D = x.shape
    return x.as_strided((B, H, T, D), (H * T * D, T * D, D, 1))


FIRST = {}


def keys_of_the_first_block(core, q, k, v):
    """What is kept by a number that blocks share."""
    known = FIRST.pop(0, None)
    if known is None:
        FIRST[0] = k
    return q, k if known is None else known, v


each_wrong(
    "read", DECODE,
    rotary_at_the_first_place=at_the_first_place,
    without_the_newest_token=lambda core, q, k, v: (q, k[..., :-1, :], v[..., :-1, :]),
    the_latest_keys_alone=lambda core, q, k, v: (q, k[..., -16:, :], v[..., -16:, :]),  # as in a cache of fixed size
    keys_of_the_first_request=lambda core, q, k, v: (q, k[:1].expand_as(k), v),
)  # fmt: skip
each_wrong("read", MODEL, keys_of_the_first_block=keys_of_the_first_block)
each_wrong(
    "read", {},
    keys_read_as_they_lie=lambda core, q, k, v: (q, as_it_lies(k), v),
)  # fmt: skip


@wrong(**PADDED)
class PaddingAsZeros(Correct):
    """Keys of padding are zero, so that they have a score, and with it a weight."""

    def forward(self, q, k, v, *, padding=None):
        here = 1.0 if padding is None else padding[:, None, :, None].to(k)
        return super().forward(q, k * here, v * here)


# key heads

each_wrong("share", {}, heads_repeated_as_a_whole=lambda core, q, x: by_repeat(q, x)[0])
each_wrong(
    "share", BACKWARD,
    # the output is right: of each group, the mean of the gradients reaches keys and values
    gradient_averaged_over_a_group=lambda core, q, x: with_gradient_of(
        groups(q, x) * (x.shape[1] / q.shape[1]), groups(q, x)
    ),
)  # fmt: skip

# scores and probs


def masked_twice(core, q, k, v, mask):
    """Once more after the softmax, shifted by one key: probs that don't sum to one."""
    return probs_of(q, k, mask).tril(-1) @ v


each_wrong(
    "attend", {},
    no_scale=lambda core, q, k, v, mask: sdpa(q, k, v, attn_mask=mask, scale=1.0),
    # a head of Qwen3 is wider than its share of the model
    scaled_by_the_width_of_the_model=lambda core, q, k, v, mask: sdpa(
        q, k, v, attn_mask=mask, scale=(core.shape.d_model / core.shape.H) ** -0.5
    ),
    masked_twice=masked_twice,
    dropout_left_on=lambda core, q, k, v, mask: sdpa(q, k, v, attn_mask=mask, dropout_p=0.1),
    rounded_to_bfloat16=lambda core, q, k, v, mask: bfloat16_in_disguise(q, k, v, attn_mask=mask),
)  # fmt: skip
each_wrong("attend", DECODE, keys_and_values_swapped=lambda core, q, k, v, mask: sdpa(q, v, k, attn_mask=mask))
each_wrong(  # the config has another scale
    "attend", TWO_KINDS, scaled_by_the_width_of_a_head=lambda core, q, k, v, mask: sdpa(q, k, v, attn_mask=mask)
)
each_wrong(  # the output is right, and no gradient reaches a projection
    "attend", BACKWARD,
    queries_detached=lambda core, q, k, v, mask: sdpa(q.detach(), k, v, attn_mask=mask),
)  # fmt: skip

# masks

WINDOWS = []


def window_of_the_first_block(core, T, T_kv, padding):
    """Kept for all blocks."""
    WINDOWS.append(core.shape.window)
    return triangle(T, T_kv).triu(-(WINDOWS[0] or T_kv))


def late_after_the_first_token(core, T, T_kv, padding):
    """Right in its first call; later ones take the length of the cache before it was extended."""
    core.calls = getattr(core, "calls", 0) + 1
    mask = Correct.seen(core, T, T_kv, padding)
    return mask.tril(T_kv - T - 1) if core.calls > 1 else mask


def padding_of_the_first_batch(core, T, T_kv, padding):
    core.kept = getattr(core, "kept", padding)
    return Correct.seen(core, T, T_kv, core.kept)


def padded_by(change):
    return lambda core, T, T_kv, padding: Correct.seen(core, T, T_kv, None if padding is None else change(padding))


each_wrong(
    "seen", NEW_TOKENS,
    aligned_top_left=lambda core, T, T_kv, padding: triangle(T, T_kv),  # new tokens see the first ones of the cache alone
    new_tokens_see_the_next=lambda core, T, T_kv, padding: triangle(T, T_kv, T_kv - T + 1),
)  # fmt: skip
each_wrong("seen", DECODE, late_after_the_first_token=late_after_the_first_token)
each_wrong(
    "seen", PADDED,
    no_padding=padded_by(lambda padding: None),
    padding_of_the_first_batch=padding_of_the_first_batch,
    padding_of_the_next_request=padded_by(lambda padding: padding.roll(1, 0)),
)  # fmt: skip
each_wrong(
    "seen", TWO_KINDS,
    window_one_key_too_short=lambda core, T, T_kv, padding: triangle(T, T_kv).triu(1 - (core.shape.window or T_kv)),
)  # fmt: skip
each_wrong(
    "seen", TWO_KINDS | MODEL,
    window_of_the_first_block=window_of_the_first_block,
    window_in_every_block=lambda core, T, T_kv, padding: triangle(T, T_kv).triu(-7),  # the config has global layers too
)  # fmt: skip

# a backward of their own


class OwnBackward(torch.autograd.Function):
    """Attention with its own backward, which a core may spoil."""

    @staticmethod
    def forward(ctx, q, k, v, mask, of):
        probs = probs_of(q, k, mask)
        ctx.save_for_backward(q, k, v, probs)
        ctx.of = of
        of.last_probs = probs
        return probs @ v

    @staticmethod
    def backward(ctx, grad):
        *qkv, probs = ctx.saved_tensors
        probs, grad = ctx.of.spoilt(probs, grad)
        sums = ((grad @ qkv[2].mT) * probs).sum(-1, keepdim=True)
        return *of_formula(*qkv, probs, sums, grad), None, None


class WithOwnBackward(Correct):
    def attend(self, q, k, v, mask):
        return OwnBackward.apply(q, k, v, mask, type(self))

    @classmethod
    def spoilt(cls, probs, grad):
        return probs, grad


@wrong(**BACKWARD, **MODEL)
class ProbsOfTheLastBlock(WithOwnBackward):
    """Kept in a place that blocks share until the backward."""

    @classmethod
    def spoilt(cls, probs, grad):
        return cls.last_probs, grad


@wrong(**BACKWARD)
class GradientReadAsItLies(WithOwnBackward):
    """A model's gradients of heads lie between each other."""

    @classmethod
    def spoilt(cls, probs, grad):
        return probs, as_it_lies(grad)
