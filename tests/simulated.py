"""A CUDA device and an NVML that are made up, so that what is written for them is tested without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

L2 = 50 << 20
UUID = "01234567-89ab-cdef-0123-456789abcdef"


class SimulatedCuda:
    """A device whose work finishes later: calls return at once, and only `synchronize` lets the stream catch up.

    A kernel costs its own time and `launch` ms, and `miss` ms more when its data isn't in the L2. A captured kernel is
    launched with its graph. What spoils a capture does so as in torch: the stream and the generator stay as they were in it.
    """

    def __init__(self, launch: float = 0.0, miss: float = 0.0, l2: int = L2) -> None:
        self.launch, self.miss, self.l2 = launch, miss, l2
        self.queue: list[Any] = []
        self.now = 0.0
        self.current = 1000  # bytes, of which some are there before anything is measured
        self.peak = 50_000  # and an earlier peak
        self.in_cache = True
        self.stream_now = self.default = self.Stream()
        self.initialised = [self.default]
        self.captures: list[Any] = []
        self.capturing: Any = None
        self.sync_mode: Any = 0
        self.default_generators = (SimulatedGenerator(),)

    def work(self, milliseconds: float, allocates: int = 0) -> None:
        def run() -> None:
            self.now += milliseconds + (0.0 if self.in_cache else self.miss)
            self.in_cache = True
            self.current += allocates
            self.peak = max(self.peak, self.current)
            self.current -= allocates

        if self.stream_now not in self.initialised:
            self.forbidden_in_a_capture()  # a library's workspace on a stream that is new to it
            self.initialised.append(self.stream_now)
        if self.capturing:
            self.capturing.kernels.append(run)
        else:
            self.queue += [lambda: self._pass(self.launch), run]

    def _pass(self, milliseconds: float) -> None:
        self.now += milliseconds

    def item(self) -> None:
        """An operation that waits for the device, and of which torch knows that it does."""
        if self.sync_mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        self.synchronize()

    def forbidden_in_a_capture(self) -> None:
        if self.capturing:
            self.capturing.spoilt = True
            raise RuntimeError("operation not permitted when stream is capturing")

    def synchronize(self) -> None:
        self.forbidden_in_a_capture()
        while self.queue:
            self.queue.pop(0)()

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.current

    def memory_stats(self) -> dict[str, int]:
        return {"requested_bytes.all.current": self.current, "requested_bytes.all.peak": self.peak}

    def Event(self, enable_timing: bool = False) -> SimpleNamespace:
        event = SimpleNamespace(at=0.0)
        event.record = lambda: self.queue.append(lambda: setattr(event, "at", self.now))
        event.elapsed_time = lambda end: end.at - event.at
        return event

    def get_device_properties(self) -> SimpleNamespace:
        return SimpleNamespace(L2_cache_size=self.l2, uuid=UUID)

    def empty(self, size: int, dtype: Any, device: str) -> SimpleNamespace:
        """A buffer of bytes; writing it takes 7 ms, and when it is twice the L2 nothing else stays there."""

        def write() -> None:
            self._pass(7)
            self.in_cache = self.in_cache and size < 2 * self.l2

        return SimpleNamespace(zero_=lambda: self.queue.append(write))

    def current_device(self) -> int:
        return 0

    def get_sync_debug_mode(self) -> Any:
        return self.sync_mode

    def set_sync_debug_mode(self, mode: Any) -> None:
        self.sync_mode = mode

    def Stream(self) -> SimpleNamespace:
        stream = SimpleNamespace(waited_for=[])
        stream.wait_stream = stream.waited_for.append
        return stream

    def current_stream(self) -> SimpleNamespace:
        return self.stream_now

    @contextmanager
    def stream(self, stream: SimpleNamespace) -> Iterator[None]:
        before, self.stream_now = self.stream_now, stream
        try:
            yield
        finally:
            self.stream_now = before

    def CUDAGraph(self) -> SimpleNamespace:
        graph = SimpleNamespace(kernels=[], spoilt=False)
        graph.replay = lambda: self.queue.extend(graph.kernels)
        return graph

    @contextmanager
    def graph(self, graph: SimpleNamespace, stream: SimpleNamespace) -> Iterator[None]:
        before, self.stream_now, self.capturing = self.stream_now, stream, graph
        self.default_generators[0].state.capturing = True
        self.captures.append(graph)
        try:
            yield
        finally:
            self.capturing = None
            if graph.spoilt:
                raise RuntimeError("operation failed due to a previous error during capture")
            self.default_generators[0].state.capturing = False
            self.stream_now = before


class SimulatedGenerator:
    """Random numbers of the device: its state knows whether a capture is under way, and outside of one insists on none."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(capturing=False)

    def clone_state(self) -> SimulatedGenerator:
        return SimulatedGenerator()

    def graphsafe_set_state(self, other: SimulatedGenerator) -> None:
        self.state = other.state

    def draw(self) -> None:
        if self.state.capturing:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")


class SimulatedNvml:
    """`pynvml` with one GPU, whose clock-event reasons are read in turn, the last of them for ever.

    `without` names a function that this GPU doesn't support.
    """

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    millijoules = 7_000

    class NVMLError(Exception):
        pass

    def __init__(self, *reasons: int, without: str = "") -> None:
        self.reasons = list(reasons) or [0]
        if without:
            setattr(self, without, self.refuse)

    def refuse(self, *_: Any) -> Any:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"GPU-{UUID}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid if uuid == f"GPU-{UUID}" else self.refuse()

    def nvmlDeviceGetClockInfo(self, gpu: str, kind: int) -> int:
        return 1755

    def nvmlDeviceGetMaxClockInfo(self, gpu: str, kind: int) -> int:
        return 1980

    def nvmlDeviceGetPowerUsage(self, gpu: str) -> int:
        return 612_500  # milliwatts

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: str) -> int:
        return self.millijoules

    def nvmlDeviceGetTemperature(self, gpu: str, sensor: int) -> int:
        return 61

    def nvmlDeviceGetUtilizationRates(self, gpu: str) -> SimpleNamespace:
        return SimpleNamespace(gpu=3, memory=1)

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: str) -> int:
        return self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0]
