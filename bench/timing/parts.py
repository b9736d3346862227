"""Breaks down a decoder's call into seconds of attention's core, its projections, the MLP, the rest of a block,
embedding and head, and the remainder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

from torch import Tensor, nn
from torch.autograd import Function

from ..cases.decoders import depth
from .cell import Built

CALLS, SECONDS, LEAST = 30, 1.0, 3
"""Most calls, most total seconds, and least calls that are measured."""

Event = tuple[float, str, bool]
"""Time, part, and whether it begins."""


def parts_of(built: Built) -> dict[str, Any]:
    """Return columns of a row: `parts_s`, median seconds of each part in a call; `core_shares`, the core's share of
    each measured call; `blocks`, their number; `windows`, that of each block's core; and `depth`, the number of blocks in
    the whole model. None on a GPU and for compiled forms, where parts overlap.
    """
    cell = built.cell
    if cell.case.device != "cpu" or cell.impl.compiled:
        return {}
    with watching(built.module) as events:
        calls: list[dict[str, float]] = []
        began = perf_counter()
        while len(calls) < LEAST or (len(calls) < CALLS and perf_counter() - began < SECONDS):
            events.clear()
            start = perf_counter()
            built.call.run()
            calls.append(of_events(events, start, perf_counter()))
    shares = [round(call["core"] / sum(call.values()), 6) for call in calls]
    parts = {part: median(call[part] for call in calls) for part in sorted({part for call in calls for part in call})}
    decoder: Any = built.module
    windows = [attention.core.shape.window for attention in decoder.attentions]
    return {
        "parts_s": parts,
        "core_shares": shares,
        "blocks": len(windows),
        "windows": windows,
        "depth": depth(cell.case),
    }


def of_events(events: list[Event], start: float, end: float) -> dict[str, float]:
    """Return the seconds in each part, excluding parts nested within it; `around` is the time outside all parts."""
    found: dict[str, float] = defaultdict(float)
    within, since = ["around"], start
    for at, part, begins in events:
        found[within[-1]] += at - since
        since = at
        if begins:
            within.append(part)
        elif part in within:
            del within[len(within) - 1 - within[::-1].index(part) :]
    found[within[-1]] += end - since
    return found


@contextmanager
def watching(decoder: Any) -> Iterator[list[Event]]:
    """Record the events of calls within the block: those of a forward, and of the backward that follows it."""
    events: list[Event] = []
    handles = [handle for module, part in parts(decoder) for handle in _watch(module, part, events)]
    try:
        yield events
    finally:
        for handle in handles:
            handle.remove()


def parts(decoder: Any) -> Iterator[tuple[nn.Module, str]]:
    """Yield the modules of a `Decoder` with their parts."""
    for block, attention in zip(decoder.blocks, decoder.attentions, strict=True):
        yield from ((block, "block"), (attention, "projections"), (attention.core, "core"))
        if (mlp := getattr(block, "mlp", None)) is not None:
            yield mlp, "mlp"
    if (head := decoder.model.get_output_embeddings()) is not None:
        yield from ((decoder.model.get_input_embeddings(), "embedding"), (head, "head"))


def _watch(module: nn.Module, part: str, events: list[Event]) -> list[Any]:
    def note(begins: bool) -> Callable[[], None]:
        return lambda: events.append((perf_counter(), part, begins))

    begins, ends = note(True), note(False)

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        begins()
        leaves = [it for it in (*args, *kwargs.values()) if isinstance(it, Tensor) and it.requires_grad]
        if not leaves:
            return args, kwargs
        marked = dict(zip(map(id, leaves), mark(ends, *leaves), strict=True))
        return tuple(marked.get(id(it), it) for it in args), {n: marked.get(id(it), it) for n, it in kwargs.items()}

    def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], o: Any) -> Any:
        first, *others = o if isinstance(o, tuple) else (o,)
        if any(isinstance(it, Tensor) and it.requires_grad for it in (*args, *kwargs.values())):
            (first,) = mark(begins, first)
        ends()
        return (first, *others) if isinstance(o, tuple) else first

    return [
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after, with_kwargs=True),
    ]


class _Mark(Function):
    """Identity function on tensors whose backward records when all of their gradients have arrived."""

    @staticmethod
    def forward(ctx: Any, note: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.note = note
        return tuple(it.view_as(it) for it in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        ctx.note()
        return (None, *gradients)


mark: Callable[..., tuple[Tensor, ...]] = _Mark.apply
