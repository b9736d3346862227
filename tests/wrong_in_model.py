"""Cores that must be refused inside a model: each is correct except for one fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from impls.layer import KernelCore, LayerShape

THETA = 1e6
"""Of the rotary embedding of Qwen3."""

DECODE = {"mode": "decode"}
PADDED = {"mode": "decode", "mask": "padding"}
"""Requests of several lengths, the shorter ones padded on the left."""
NEW_TOKENS = {"mode": "decode", "T": 7, "T_kv": 24, "mask": "causal_br"}
TWO_KINDS = {"model": str(Path(__file__).parent / "data" / "two_kinds.json")}
"""A small Gemma 3: its first block sees eight keys, its second one all; scores are scaled by 1/4, heads are 32 wide."""


@dataclass(frozen=True)
class Wrong:
    core: type[KernelCore]
    case: dict[str, Any]
    """The axes of a case that shows the fault."""


WRONG: dict[str, Wrong] = {}


class Correct(KernelCore):
    """A core of SDPA with its own mask, of which each part can be replaced."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape, sdpa)

    def seen(self, T: int, T_kv: int, padding: Tensor | None) -> Tensor:
        """(T, T_kv) or (B, 1, T, T_kv)"""
        mask = torch.ones(T, T_kv, dtype=torch.bool).tril(T_kv - T)
        if self.shape.window is not None:
            mask = mask.triu(T_kv - T - self.shape.window)
        return mask if padding is None else mask & padding[:, None, None]

    def share(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.shape.H // self.shape.H_kv, dim=1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return sdpa(q, k, v, attn_mask=mask, scale=self.shape.scale)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        return self.attend(q, self.share(k), self.share(v), self.seen(q.shape[-2], k.shape[-2], padding))


def wrong(**case: Any) -> Callable[[type[KernelCore]], type[KernelCore]]:
    def keep(core: type[KernelCore]) -> type[KernelCore]:
        WRONG[core.__name__] = Wrong(core, case)
        return core

    return keep


def turned(x: Tensor, places: Tensor) -> Tensor:
    """(B, H, T, D), rotated by additional positions (T,)."""
    half = x.shape[-1] // 2
    angle = places[:, None] / THETA ** (torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1).to(x)


@wrong(**DECODE)
class RotaryAtTheFirstPlace(Correct):
    """The new token's query and key are turned as if the cache were empty."""

    def forward(self, q, k, v, *, padding=None):
        back = torch.tensor([-(k.shape[-2] - 1.0)])
        k = torch.cat([k[..., :-1, :], turned(k[..., -1:, :], back)], dim=-2)
        return super().forward(turned(q, back), k, v)


@wrong(**DECODE)
class RotaryOnePlaceLate(Correct):
    def forward(self, q, k, v, *, padding=None):
        return super().forward(turned(q, torch.ones(1)), k, v)


@wrong()
class HeadsRepeatedAsAWhole(Correct):
    """Query head h reads key head h % H_kv, not h // group."""

    def share(self, x):
        return x.repeat(1, self.shape.H // self.shape.H_kv, 1, 1)


@wrong(**PADDED)
class NoPadding(Correct):
    def seen(self, T, T_kv, padding):
        return super().seen(T, T_kv, None)


@wrong()
class NoScale(Correct):
    def attend(self, q, k, v, mask):
        return sdpa(q, k, v, attn_mask=mask, scale=1.0)


@wrong()
class ScaledByTheWidthOfTheModel(Correct):
    """1 / sqrt(d_model / H): a head of Qwen3 is wider than its share of the model."""

    def attend(self, q, k, v, mask):
        return sdpa(q, k, v, attn_mask=mask, scale=(self.shape.d_model / self.shape.H) ** -0.5)


@wrong(**NEW_TOKENS)
class AlignedTopLeft(Correct):
    """New tokens see the first ones of the cache alone."""

    def seen(self, T, T_kv, padding):
        return torch.ones(T, T_kv, dtype=torch.bool).tril()


@wrong(**NEW_TOKENS)
class NewTokensSeeTheNext(Correct):
    def seen(self, T, T_kv, padding):
        return torch.ones(T, T_kv, dtype=torch.bool).tril(T_kv - T + 1)


@wrong()
class MaskedTwice(Correct):
    """Once more after the softmax, shifted by one key: probs that don't sum to one."""

    def attend(self, q, k, v, mask):
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
        return torch.softmax(scores, -1).tril(-1) @ v


@wrong(**DECODE)
class KeysAndValuesSwapped(Correct):
    def attend(self, q, k, v, mask):
        return sdpa(q, v, k, attn_mask=mask)


@wrong()
class DropoutLeftOn(Correct):
    def attend(self, q, k, v, mask):
        return sdpa(q, k, v, attn_mask=mask, dropout_p=0.1)


@wrong(**DECODE)
class WithoutTheNewestToken(Correct):
    def forward(self, q, k, v, *, padding=None):
        return super().forward(q, k[..., :-1, :], v[..., :-1, :])


@wrong(mode="backward")
class ValuesDetached(Correct):
    """The output is right, and no gradient reaches the values' projection."""

    def attend(self, q, k, v, mask):
        return sdpa(q, k, v.detach(), attn_mask=mask)


FIRST: dict[int, Tensor] = {}


@wrong(scope="model")
class KeysOfTheFirstBlock(Correct):
    """What is kept by a number that blocks share: right in one block."""

    def forward(self, q, k, v, *, padding=None):
        known = FIRST.pop(0, None)
        if known is None:
            FIRST[0] = k
        return super().forward(q, k if known is None else known, v)


@wrong()
class HeadsReadAsTheyLie(Correct):
    """Reads rows of memory as tokens: in a model heads lie between them. Right for contiguous queries."""

    def forward(self, q, k, v, *, padding=None):
        B, H, T, D = q.shape
        return super().forward(q.as_strided((B, H, T, D), (H * T * D, T * D, D, 1)), k, v)


@wrong(**TWO_KINDS)
class ScaledByTheWidthOfAHead(Correct):
    """The config has another scale."""

    def attend(self, q, k, v, mask):
        return sdpa(q, k, v, attn_mask=mask)


@wrong(**TWO_KINDS)
class WindowOneKeyTooLong(Correct):
    def seen(self, T, T_kv, padding):
        window = self.shape.window or T_kv
        return torch.ones(T, T_kv, dtype=torch.bool).tril().triu(-window - 1)


WINDOWS: list[int | None] = []


@wrong(scope="model", **TWO_KINDS)
class WindowOfTheFirstBlock(Correct):
    """Kept for all blocks: right in one block."""

    def seen(self, T, T_kv, padding):
        WINDOWS.append(self.shape.window)
        return torch.ones(T, T_kv, dtype=torch.bool).tril().triu(-(WINDOWS[0] or T_kv))


@wrong(**DECODE)
class LateAfterTheFirstToken(Correct):
    """Right in its first call; later ones take the length of the cache before it was extended."""

    calls = 0

    def seen(self, T, T_kv, padding):
        self.calls += 1
        mask = super().seen(T, T_kv, padding)
        return mask.tril(T_kv - T - 1) if self.calls > 1 else mask


@wrong(**PADDED)
class PaddingOfTheFirstBatch(Correct):
    """Kept by its size."""

    def seen(self, T, T_kv, padding):
        if not hasattr(self, "kept"):
            self.kept = padding
        return super().seen(T, T_kv, self.kept)


@wrong(**PADDED)
class PaddingFromTheOtherEnd(Correct):
    """Requests are padded on the left; this one takes the last keys for padding."""

    def seen(self, T, T_kv, padding):
        return super().seen(T, T_kv, None if padding is None else padding.flip(-1))


@wrong(mode="backward")
class GradientOfOneHeadAGroup(Correct):
    """The output is right; of each group, one query head's gradient reaches the keys and values."""

    def share(self, x):
        others = [x.detach()] * (self.shape.H // self.shape.H_kv - 1)
        return torch.stack([x, *others], dim=2).flatten(1, 2)


@wrong(**DECODE)
class KeysOfTheFirstRequest(Correct):
    """Every entry of a batch reads the cache of the first one."""

    def forward(self, q, k, v, *, padding=None):
        return super().forward(q, k[:1].expand_as(k), v)


@wrong(**TWO_KINDS)
class WindowOneKeyTooShort(Correct):
    def seen(self, T, T_kv, padding):
        window = self.shape.window or T_kv
        return torch.ones(T, T_kv, dtype=torch.bool).tril().triu(1 - window)


@wrong(scope="model", **TWO_KINDS)
class WindowInEveryBlock(Correct):
    """Of the config, which has global layers too."""

    def seen(self, T, T_kv, padding):
        return torch.ones(T, T_kv, dtype=torch.bool).tril().triu(-7)


@wrong(mode="backward")
class QueriesDetached(Correct):
    def attend(self, q, k, v, mask):
        return sdpa(q.detach(), k, v, attn_mask=mask)


@wrong(mode="backward")
class GradientAveragedOverAGroup(Correct):
    """Keys and values get the mean of their query heads' gradients, not the sum."""

    def share(self, x):
        group = self.shape.H // self.shape.H_kv
        shared = x.repeat_interleave(group, dim=1)
        return shared.detach() + (shared - shared.detach()) / group


class OwnBackward(torch.autograd.Function):
    """Attention with its own backward, which a core may spoil."""

    @staticmethod
    def forward(ctx, q, k, v, mask, of):
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
        probs = scores.softmax(-1)
        ctx.of = of
        of.save(ctx, q, k, v, probs)
        return probs @ v

    @staticmethod
    def backward(ctx, *gradients):
        q, k, v, probs = ctx.of.saved(ctx)
        g, scale = ctx.of.read(gradients[0]), q.shape[-1] ** -0.5
        d_probs = g @ v.mT
        d_scores = probs * (d_probs - (d_probs * probs).sum(-1, keepdim=True)) * scale
        return d_scores @ k, d_scores.mT @ q, probs.mT @ g, None, None


class WithOwnBackward(Correct):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        o: Tensor = OwnBackward.apply(q, k, v, mask, type(self))
        return o

    @staticmethod
    def save(ctx: Any, *tensors: Tensor) -> None:
        ctx.save_for_backward(*tensors)

    @staticmethod
    def saved(ctx: Any) -> Any:
        return ctx.saved_tensors

    @staticmethod
    def read(gradient: Tensor) -> Tensor:
        return gradient


@wrong(mode="backward", scope="model")
class ProbsOfTheLastBlock(WithOwnBackward):
    """Kept in a place that blocks share until the backward: right in one block."""

    KEPT: tuple[Tensor, ...] = ()

    @staticmethod
    def save(ctx, *tensors):
        ctx.save_for_backward(*tensors)
        ProbsOfTheLastBlock.KEPT = tensors

    @staticmethod
    def saved(ctx):
        return (*ctx.saved_tensors[:3], ProbsOfTheLastBlock.KEPT[3])


@wrong(mode="backward")
class GradientReadAsItLies(WithOwnBackward):
    """A model's gradients of heads lie between each other."""

    @staticmethod
    def read(gradient):
        B, H, T, D = gradient.shape
        return gradient.as_strided((B, H, T, D), (H * T * D, T * D, D, 1))


@wrong()
class KeysReadAsTheyLie(Correct):
    """As `HeadsReadAsTheyLie`; right for the keys of a cache, which are contiguous."""

    def forward(self, q, k, v, *, padding=None):
        B, H, T, D = k.shape
        return super().forward(q, k.as_strided((B, H, T, D), (H * T * D, T * D, D, 1)), v, padding=padding)


@wrong(**PADDED)
class PaddingAsZeros(Correct):
    """Keys of padding are zero, so that they have a score, and with it a weight."""

    def forward(self, q, k, v, *, padding=None):
        here = 1.0 if padding is None else padding[:, None, :, None].to(k)
        return super().forward(q, k * here, v * here)


@wrong(**PADDED)
class PaddingOfTheNextRequest(Correct):
    def seen(self, T, T_kv, padding):
        return super().seen(T, T_kv, None if padding is None else padding.roll(1, 0))


@wrong(**DECODE)
class TheLatestKeysAlone(Correct):
    """As a cache of fixed size keeps them."""

    def forward(self, q, k, v, *, padding=None):
        return super().forward(q, k[..., -16:, :], v[..., -16:, :])


@wrong()
class RoundedToBfloat16(Correct):
    def attend(self, q, k, v, mask):
        return sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16(), attn_mask=mask).to(q)
