"""Calls as a CUDA graph: the same kernels, launched at once, so that replays leave the host's share of a call out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

WARM = 3
"""Calls on the side stream before the capture, as torch's notes on CUDA graphs do: libraries initialise themselves."""


def captured(cuda: Any, call: Callable[[], Any], calls: int = 1) -> tuple[Any, Any] | None:
    """A `torch.cuda.CUDAGraph` of so many calls, and the last one's answer, which a replay writes anew; None where the call
    can't be captured.

    A capture that fails leaves the stream, and in some versions of torch the generator of random numbers, in its hands:
    both are put back. What fails most often, a call that waits for the device, is found before the capture begins.
    """
    generator = cuda.default_generators[cuda.current_device()]
    spare = generator.clone_state()
    graph, side, before = cuda.CUDAGraph(), cuda.Stream(), cuda.current_stream()
    side.wait_stream(before)
    try:
        with cuda.stream(side):  # restores the stream also where `cuda.graph`, having failed, doesn't
            for _ in range(WARM):
                call()
            with _waiting_raises(cuda):
                call()
            with cuda.graph(graph, stream=side):
                for _ in range(calls - 1):
                    call()
                answer = call()
    except Exception:  # whatever the implementation or the driver raises: then there is no graph
        generator.graphsafe_set_state(spare)
        return None
    before.wait_stream(side)
    return graph, answer


@contextmanager
def _waiting_raises(cuda: Any) -> Iterator[None]:
    """Operations that wait for the device raise."""
    mode = cuda.get_sync_debug_mode()
    cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        cuda.set_sync_debug_mode(mode)
