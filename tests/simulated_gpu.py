"""A simulated GPU, with the `torch.cuda` of each process that uses it, and its NVML.

It has the host's clock and the device's: a launch takes the host's time, a kernel that of its stream, an event is stamped when
its stream reaches it. A kernel that faults breaks its process for good. Times are in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

L2 = 50 << 20
UUID = "01234567-89ab-cdef-0123-456789abcdef"
HZ = 2e9
"""Cycles of the device's clock in a second."""
FLUSH = 35e-6
"""Seconds that writing a buffer takes, as twice the L2 of an H100; one of that size leaves nothing else in it."""

GRAPH_LAUNCH = 10e-6
"""Seconds of the host's that the launch of a graph takes."""

ILLEGAL = "CUDA error: an illegal memory access was encountered"


class SimulatedCuda:
    """`torch.cuda` of one process, and a GPU of `total` bytes, of which `others` are held by processes of other users. Calls
    return when they are launched, and `synchronize` waits for all streams.

    A kernel takes `launch` of the host, its own time of its stream, and `miss` more when its data isn't in the L2. Kernels of a
    graph are launched together. What spoils a capture does so as in torch: stream and generator stay as they were in it. The
    queue holds `queue` launches: the host waits while it is full.
    """

    def __init__(self, launch=0.0, miss=0.0, l2=L2, total=80 << 30, others=0, queue=1024):
        self.launch, self.miss, self.l2, self.total, self.others = launch, miss, l2, total, others
        self.ends: deque[float] = deque([0.0], queue)
        self.host = self.busy = 0.0
        self.broken = self.has_context = False
        self.allocated, self.peak, self.reserved = 1000, 50_000, 1 << 21  # before anything is measured
        self.in_cache = True
        self.streams: list[SimpleNamespace] = []
        self.stream_now = self.default = self.Stream()
        self.initialised = [self.default]
        self.captures: list[Any] = []
        self.capturing: Any = None
        self.sync_mode: Any = 0
        self.default_generators = (SimulatedGenerator(),)
        self.allocator = "native"

    def clock(self):
        return self.host

    def is_available(self):
        return True

    def get_device_name(self):
        return "GPU 1"

    def is_initialized(self):
        return self.has_context

    def context(self):
        """Prefix of all functions except queries of device properties."""
        if self.broken:
            raise torch.AcceleratorError(ILLEGAL)
        self.has_context = True

    def work(self, seconds, allocates=0, faults=False, writes=None):
        """Launch a kernel in the current stream; `writes` is what it does to tensors."""
        self.context()
        if self.stream_now not in self.initialised:
            self.forbidden_in_a_capture()  # a library's workspace on a stream that is new to it
            self.initialised.append(self.stream_now)
        kernel = partial(self._run, seconds, allocates, faults, writes)
        if self.capturing:
            self.capturing.kernels.append(kernel)
        else:
            self.host = max(self.host, self.ends[0] if len(self.ends) == self.ends.maxlen else 0.0) + self.launch
            kernel()
            self.ends.append(self.stream_now.ready)

    def _run(self, seconds, allocates, faults, writes):
        stream, takes = self.stream_now, seconds + (0.0 if self.in_cache else self.miss)
        stream.ready = max(self.host, stream.ready) + takes
        self.busy, self.in_cache, self.broken = self.busy + takes, True, self.broken or faults
        self.allocate(allocates)
        self.free(allocates)
        if writes:
            writes()

    def _sleep(self, cycles):
        cached = self.in_cache
        self.in_cache = True  # it reads nothing
        self.work(cycles / HZ)
        self.in_cache = cached

    def item(self):
        """Read a number, which waits for the device."""
        if self.sync_mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        self.synchronize()

    def forbidden_in_a_capture(self):
        if self.capturing:
            self.capturing.spoilt = True
            raise RuntimeError("operation not permitted when stream is capturing")

    @property
    def ready(self):
        """Return the time at which all streams are done."""
        return max(stream.ready for stream in self.streams)

    def synchronize(self):
        self.forbidden_in_a_capture()
        self.context()
        self.host = max(self.host, self.ready)

    def allocate(self, size):
        """Allocate by a caching allocator: freed memory stays reserved until it is emptied or doesn't suffice."""
        grow = self.allocated + size - self.reserved
        if grow > self.unreserved():
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        self.allocated, self.reserved = self.allocated + size, self.reserved + max(0, grow)
        self.peak = max(self.peak, self.allocated)

    def free(self, size):
        self.allocated -= size

    def unreserved(self):
        return self.total - self.others - self.reserved

    def empty_cache(self):
        self.reserved = self.allocated

    def memory_reserved(self):
        return self.reserved

    def memory_allocated(self):
        return self.allocated

    def mem_get_info(self):
        self.context()
        return self.unreserved(), self.total

    def get_allocator_backend(self):
        return self.allocator

    def reset_peak_memory_stats(self):
        self.peak = self.allocated

    def memory_stats(self):
        return {"requested_bytes.all.current": self.allocated, "requested_bytes.all.peak": self.peak}

    def Event(self, enable_timing=False):
        event = SimpleNamespace(at=None)

        def record():
            self.context()
            event.at = max(self.host, self.stream_now.ready)

        def synchronize():
            self.context()
            self.host = max(self.host, event.at)

        def elapsed_time(end):
            if max(event.at, end.at) > self.host:
                raise RuntimeError("CUDA error: device not ready")
            return float(end.at - event.at) * 1e3

        event.record, event.synchronize, event.elapsed_time = record, synchronize, elapsed_time
        return event

    def get_device_properties(self):
        return SimpleNamespace(L2_cache_size=self.l2, uuid=UUID)

    def empty(self, size, dtype, device):
        """A buffer of bytes."""

        def zero():
            self.work(FLUSH)
            self.in_cache = size < 2 * self.l2

        return SimpleNamespace(zero_=zero)

    def current_device(self):
        return 0

    def get_sync_debug_mode(self):
        return self.sync_mode

    def set_sync_debug_mode(self, mode):
        self.sync_mode = mode

    def Stream(self):
        stream = SimpleNamespace(ready=0.0)

        def wait_stream(other):
            stream.ready = max(stream.ready, other.ready)

        stream.wait_stream = wait_stream
        self.streams.append(stream)
        return stream

    def current_stream(self):
        return self.stream_now

    @contextmanager
    def stream(self, stream):
        before, self.stream_now = self.stream_now, stream
        try:
            yield
        finally:
            self.stream_now = before

    def CUDAGraph(self):
        graph = SimpleNamespace(kernels=[], spoilt=False)

        def replay():
            self.context()
            self.host += GRAPH_LAUNCH
            for kernel in graph.kernels:
                kernel()

        graph.replay = replay
        return graph

    @contextmanager
    def graph(self, graph, stream):
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
    """The device's generator: its state records whether a capture is active, and requires none outside of one."""

    def __init__(self):
        self.state = SimpleNamespace(capturing=False)

    def clone_state(self):
        return SimulatedGenerator()

    def graphsafe_set_state(self, other):
        self.state = other.state

    def draw(self):
        if self.state.capturing:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")


class SimulatedNvml:
    """`pynvml` of one GPU that has `reasons` while a process of ours works, and is idle otherwise.

    `capped` counts the time at work under a power cap.
    """

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = (
        1,
        2,
        0,
        0,
        1,
    )
    FOUND: Mapping[str, Any] = {
        "ComputeMode": 0, "ApplicationsClock": 1500, "MaxClockInfo": 1980, "MigMode": [1, 1], "Temperature": 61,
        "EnforcedPowerLimit": 700_000, "PowerUsage": 612_500, "UtilizationRates": SimpleNamespace(gpu=3, memory=1),
    }  # fmt: skip
    """By the end of a function's name. Powers are in milliwatts; MIG is on now, and from the next reset on."""

    class NVMLError(Exception):
        pass

    def __init__(self, cuda, reasons=0, kind="GPU", capped=False):
        self.cuda, self.reasons, self.kind, self.capped = cuda, reasons, kind, capped

    def refuse(self, *_):
        raise self.NVMLError("Not Supported")

    def _answer(self, value, gpu="GPU"):
        """A part of a GPU has no sensors."""
        return value if gpu.startswith("GPU") else self.refuse()

    def nvmlSystemGetDriverVersion(self):
        return "575.51.03"

    def __getattr__(self, name):
        """Return the function that reads a value of `FOUND`."""
        what = name.removeprefix("nvmlDeviceGet")
        if what not in self.FOUND:
            raise AttributeError(name)
        return lambda gpu, *_: self._answer(self.FOUND[what], gpu)

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return f"GPU-{UUID}"

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid if uuid == f"{self.kind}-{UUID}" else self.refuse()

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, part):
        return part.replace("MIG", "GPU") if part.startswith("MIG") else self.refuse()

    def nvmlDeviceGetClockInfo(self, gpu, kind):
        return self._answer({self.NVML_CLOCK_SM: 1755, self.NVML_CLOCK_MEM: 2619}[kind], gpu)

    def nvmlDeviceGetUUID(self, gpu):
        return gpu

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu):
        return self._answer(self.reasons if self.cuda.ready > self.cuda.host else 0x1, gpu)

    nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons

    def nvmlDeviceGetViolationStatus(self, gpu, policy):
        capped = int(self.cuda.busy * 1e9) if self.capped and policy == self.NVML_PERF_POLICY_POWER else 0
        return self._answer(SimpleNamespace(violationTime=capped, referenceTime=0), gpu)
