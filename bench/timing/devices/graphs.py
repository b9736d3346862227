"""Captures calls as CUDA graphs: replays launch the same kernels at once, without the host's share of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

WARM = 3
"""Calls on the side stream before capture, as in torch's notes on CUDA graphs, to initialise libraries."""


def captured(cuda: Any, call: Callable[[], Any], calls: int = 1) -> tuple[Any, Any] | None:
    """Return a `torch.cuda.CUDAGraph` of `calls` calls, and the last output, which replays overwrite; None if capture
    fails.

    A failed capture leaves the current stream, and in some versions of torch the random generator, in capture mode:
    both are restored. The most common failure, a call that waits for the device, is detected before capture.
    """
    generator = cuda.default_generators[cuda.current_device()]
    spare = generator.clone_state()
    graph, side, before = cuda.CUDAGraph(), cuda.Stream(), cuda.current_stream()
    side.wait_stream(before)
    try:
        with cuda.stream(side):  # restores the stream even if `cuda.graph` failed and doesn't
            for _ in range(WARM):
                call()
            with _waiting_raises(cuda):
                call()
            with cuda.graph(graph, stream=side):
                for _ in range(calls - 1):
                    call()
                answer = call()
    except Exception:  # any exception of the implementation or the driver means no graph
        generator.graphsafe_set_state(spare)
        return None
    before.wait_stream(side)
    return graph, answer


@contextmanager
def _waiting_raises(cuda: Any) -> Iterator[None]:
    """Make operations that wait for the device raise within the block."""
    mode = cuda.get_sync_debug_mode()
    cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        cuda.set_sync_debug_mode(mode)
