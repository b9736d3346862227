"""Rules of attention beyond its formula: which keys a query sees, and how scores are modified. Shared by
implementations, reference and counts.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

import torch
from torch import Tensor

Device = torch.device | str | None
Bound = Callable[[Tensor], Tensor]
"""Maps a query to the first, or the last, key that it sees."""

DOCUMENTS = 8
"""Number of documents packed into a sequence."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules that decide which keys a query sees and how scores are modified; by default plain causal attention.

    softmax(mask(cap(q kᵀ · scale) + bias)) v, with the softmax's sum taken over the keys and a sink.
    """

    mask: str = "causal"
    """`none`, `causal`, `padding`, `causal+padding`, all aligned top left; or `causal_br`, bottom right: queries are the newest
    of the tokens, and the last one sees every key."""
    window: int | None = None
    """Keys before its own that a query sees: Longformer (Beltagy et al., 2020), Mistral 7B (Jiang et al., 2023)."""
    window_right: int | None = None
    """Keys after its own that a query sees, without a causal mask; `window` if None, all if that is None too."""
    prefix: int | None = None
    """Number of first keys that every query sees despite the causal mask: prefix-LM (Raffel et al., 2020)."""
    documents: str | None = None
    """Lengths of sequences packed into one, whose queries see their own document alone (`document_lengths`)."""
    requests: str | None = None
    """Requests of a server in one batch, `2x512:512+8x1:4096` (`kinds_of`): queries are the newest tokens of each
    request in order, and see the tokens of their own request up to themselves; keys are all tokens of all requests.
    """
    bias: str | None = None
    """`alibi`, or `dense`: the bias added to the scores (`bias_of`); or `learned`: a table (H, T, T_kv), one of the weights."""
    softcap: int | None = None
    """Bound of the scores: softcap · tanh(score / softcap), before bias and mask, as in Gemma 2 (2024)."""
    sinks: bool = False
    """Learned score per head that enters the softmax's sum and has no value: as in gpt-oss (2025)."""

    @property
    def causal(self) -> bool:
        return self.mask.startswith("causal")

    @property
    def is_causal(self) -> bool:
        """Whether SDPA's `is_causal` expresses the whole mask, except for padding."""
        return self.mask in ("causal", "causal+padding") and not self.in_mask

    @property
    def in_mask(self) -> bool:
        """Whether a mask is needed beyond `is_causal` and padding."""
        return any(name in (*BY_MASK, "bias") for name in beyond(self))

    def offset(self, T: int, T_kv: int) -> int:
        """Return the position of the first query among the keys."""
        return T_kv - T if self.mask == "causal_br" else 0

    def span(self, T: int, T_kv: int, device: Device = None) -> Span:
        """Return which of T_kv keys each of T queries sees, ignoring padding."""
        offset, causal = self.offset(T, T_kv), self.causal
        first: list[Bound] = []
        last: list[Bound] = []

        def place(i: Tensor) -> Tensor:
            if self.requests is not None:
                return places[i]
            return i + offset if offset else i

        if self.requests is not None:
            own, places = _request_tables(self.requests, device)
            first.append(lambda i: own[i])
        if causal:
            prefix = self.prefix
            last.append(place if prefix is None else lambda i: place(i).clamp(min=prefix - 1))
        left, right = self.window, self.window if self.window_right is None else self.window_right
        if left is not None:
            first.append(lambda i: place(i) - left)
        if right is not None and not causal:
            last.append(lambda i: place(i) + right)
        if self.documents is not None:
            lengths = torch.tensor(document_lengths(self.documents, T_kv), device=device)
            ends = lengths.cumsum(0).repeat_interleave(lengths, output_size=T_kv)  # (T_kv,)
            starts = ends - lengths.repeat_interleave(lengths, output_size=T_kv)
            first.append(lambda i: starts[place(i)])
            last.append(lambda i: ends[place(i)] - 1)
        return Span(tuple(first), tuple(last))


BY_MASK = ("causal_br", "window", "window_right", "prefix", "documents", "requests")
"""Rules expressed by a boolean mask. A mask of numbers, which are added, expresses a bias too; SDPA supports both."""

EVERY_RULE = (*BY_MASK, "bias", "learned_bias", "softcap", "sinks")


def beyond(case: Any) -> list[str]:
    """Return the names of all rules of a case beyond plain attention, causal or with padding."""
    own = ["causal_br"] if case.mask == "causal_br" else []
    own += ["learned_bias"] if case.bias == "learned" else []
    return own + [it.name for it in fields(Rules) if it.name != "mask" and getattr(case, it.name)]


@dataclass(frozen=True)
class Span:
    """Keys that query i sees: from the largest of `first` to the smallest of `last`; every key if both are empty."""

    first: tuple[Bound, ...] = ()
    last: tuple[Bound, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.first or self.last)

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        """Return True where query i sees key j: for scalars, as in FlexAttention, or for tensors that broadcast."""
        bounds = [*(j >= bound(i) for bound in self.first), *(j <= bound(i) for bound in self.last)]
        return reduce(operator.and_, bounds) if bounds else j >= 0

    def ends(self, T: int, T_kv: int) -> tuple[Tensor, Tensor]:
        """Return the first and the last key of each query, (T,) each; without any, the last precedes the first."""
        i = torch.arange(T)
        first = reduce(torch.maximum, (bound(i) for bound in self.first), torch.zeros_like(i))
        last = reduce(torch.minimum, (bound(i) for bound in self.last), torch.full_like(i, T_kv - 1))
        return first, last


def document_lengths(kind: str, T: int) -> list[int]:
    """Return lengths with sum T: `equal`; `one_long`, one with half of the tokens; or `lognormal`, with sigma 1. The first
    one is not the longest: a kernel that takes its loop bounds from it is wrong.
    """
    count = min(DOCUMENTS, T)
    shares = {
        "equal": torch.ones(count),
        "one_long": torch.tensor([float(max(1, count - 1)), *[1.0] * (count - 1)]),
        "lognormal": torch.randn(count, generator=torch.Generator().manual_seed(0)).exp(),
    }[kind].roll(count // 2)
    ends = 1 + shares.cumsum(0) / shares.sum() * (T - count)  # one token each, and a share of the rest
    ends = (ends + torch.arange(count)).round().long()
    ends[-1] = T
    return ends.diff(prepend=ends.new_zeros(1)).tolist()


def kinds_of(requests: str) -> list[tuple[int, int, int]]:
    """Parse requests into counts, new tokens, and all tokens: `2x512:512+8x1:4096` are two prompts of 512 tokens, and
    eight requests with one new token and 4095 cached ones. Raises ValueError with the correct usage.
    """
    found = [re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,6}):([1-9]\d{0,6})", kind) for kind in requests.split("+")]
    kinds = [(int(it[1]), int(it[2]), int(it[3])) for it in found if it]
    if len(kinds) < len(found) or any(new > tokens for _, new, tokens in kinds):
        raise ValueError("COUNTxNEW:ALL, as 2x512:512+8x1:4096, where ALL tokens include the NEW ones")
    return kinds


def requests_of(requests: str) -> list[tuple[int, int]]:
    """Return new tokens and all tokens of each request."""
    return [(new, tokens) for count, new, tokens in kinds_of(requests) for _ in range(count)]


def _request_tables(requests: str, device: Device) -> tuple[Tensor, Tensor]:
    """Return the first key of each query's request, and the query's own position among all keys: (T,) each."""
    lengths = requests_of(requests)
    T = sum(new for new, _ in lengths)
    new, tokens = torch.tensor(lengths, device=device).unbind(1)
    ends = tokens.cumsum(0)
    places = torch.arange(T, device=device) + (ends - new.cumsum(0)).repeat_interleave(new, output_size=T)
    return (ends - tokens).repeat_interleave(new, output_size=T), places


def alibi_slopes(H: int) -> Tensor:
    """Return (H,): 2 to the power -8 h / H for h = 1 to H; Press et al., "Train Short, Test Long", 2022.

    If H is no power of two: those of the next smaller power, then every other one of the next larger, as in their code.
    """
    power = 1 << int(math.log2(H))
    slopes = 2.0 ** (-8 * torch.arange(1, power + 1, dtype=torch.float64) / power)
    between = 2.0 ** (-4 * (2 * torch.arange(H - power, dtype=torch.float64) + 1) / power)
    return torch.cat([slopes, between])


def bias_of(
    rules: Rules, H: int, T: int, T_kv: int, device: Device = None, dtype: torch.dtype = torch.float64
) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """Return a function of the bias of head h, query i and key j, for scalars or tensors that broadcast; None for no
    bias, or a learned one.

    `alibi`: the distance from the query's own position, times the head's negative slope. `dense`: a table (H, T, T_kv)
    of `quarters`, which a layer slices from that of its longest sequence.
    """
    if rules.bias in (None, "learned"):
        return None
    if rules.bias == "alibi":
        slopes, offset = -alibi_slopes(H).to(device, dtype), rules.offset(T, T_kv)
        return lambda h, i, j: slopes[h] * (i + offset - j).abs()
    table = quarters((H, T, max(T, T_kv)), torch.Generator().manual_seed(0), dtype).to(device)
    return lambda h, i, j: table[h, i, j]


def quarters(size: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw multiples of 1/4 between -2 and 2, which are exact in every dtype."""
    return torch.randint(-8, 9, size, generator=generator, dtype=torch.int8).to(dtype) / 4


def capped(scores: Tensor, softcap: float) -> Tensor:
    """Return softcap · tanh(scores / softcap)."""
    return torch.tanh(scores / softcap) * softcap


def softmax(scores: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Return the softmax over the keys, (..., H, T, T_kv); with `sinks` (H,) probs add up to less than one."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    column = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
