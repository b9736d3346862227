"""Breaks down a decoder's call into seconds of attention's core, its projections, the MLP, the rest of a block,
embedding and head, and the remainder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

from torch import Tensor, nn

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
    decoder: Any = built.call.module
    events, calls = list[Event](), list[dict[str, float]]()
    with ExitStack() as hooks:
        for module, part in parts(decoder):
            _watch(module, part, events, hooks)
        began = perf_counter()
        while len(calls) < LEAST or (len(calls) < CALLS and perf_counter() - began < SECONDS):
            events.clear()
            start = perf_counter()
            built.call.run()
            calls.append(of_events(events, start, perf_counter()))
    shares = [round(call["core"] / sum(call.values()), 6) for call in calls]
    windows = [attention.core.shape.window for attention in decoder.attentions]
    return {
        "parts_s": {part: median(call[part] for call in calls) for part in sorted(calls[0])},
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
            while within.pop() != part:
                pass
    found[within[-1]] += end - since
    return found


def parts(decoder: Any) -> Iterator[tuple[nn.Module, str]]:
    """Yield the modules of a `Decoder` with their parts."""
    for block, attention in zip(decoder.blocks, decoder.attentions, strict=True):
        yield from ((block, "block"), (attention, "projections"), (attention.core, "core"))
        if (mlp := getattr(block, "mlp", None)) is not None:
            yield mlp, "mlp"
    if (head := decoder.model.get_output_embeddings()) is not None:
        yield from ((decoder.model.get_input_embeddings(), "embedding"), (head, "head"))


def _watch(module: nn.Module, part: str, events: list[Event], hooks: ExitStack) -> None:
    """Record when a module's forward begins and ends, and its backward: once its output has a gradient, and once all of
    its inputs have theirs. Closing `hooks` removes the hooks.
    """

    def note(begins: bool, *_: Any) -> None:
        events.append((perf_counter(), part, begins))

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        note(True)
        inputs, arrived = _differentiable(args, kwargs), count(1)

        def arrive(_: Tensor) -> None:
            if next(arrived) == len(inputs):
                note(False)

        for it in inputs:
            hooks.enter_context(it.register_hook(arrive))

    def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], o: Any) -> None:
        if _differentiable(args, kwargs):
            (o[0] if isinstance(o, tuple) else o).register_hook(partial(note, True))
        note(False)

    hooks.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
    hooks.enter_context(module.register_forward_hook(after, with_kwargs=True))


def _differentiable(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return [it for it in (*args, *kwargs.values()) if isinstance(it, Tensor) and it.requires_grad]
