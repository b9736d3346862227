"""Reads a GPU's state from NVIDIA's management library: clock, power, temperature, and reasons for throttling."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from stats import conditions

REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Clock-event reasons, by their bits in nvml.h."""

IDLE = 0x1
SETTINGS = IDLE | 0x2 | 0x100
"""Reasons that are not throttling: idle, or clocks set by the user."""

POLICIES = {0: 0x4, 1: 0x20}
"""Bits of `REASONS` by policy of nvml.h that accumulates its time: power, thermal."""

HELD_BACK = sum(bit for bit, word in REASONS.items() if word in conditions.HELD_BACK)

EVERY = 0.25
"""Seconds between two readings: each takes a tenth of a millisecond or more, during which an idle device cools down."""


@dataclass(frozen=True)
class Reading:
    """State of one GPU at one time; None for unavailable values."""

    sm_mhz: int | None
    sm_mhz_most: int | None
    power_w: float | None
    """Power in watts; on recent GPUs an average over the last second."""
    temperature_c: int | None
    busy_percent: int | None
    reasons: int
    """Bits of `REASONS`, including those active since the previous reading; 0 also if unavailable."""

    @property
    def throttled(self) -> str:
        """Describe the reasons other than settings; '' if there are none."""
        return ", ".join(words(self.reasons & ~SETTINGS))


def words(reasons: int) -> list[str]:
    """Describe reasons: `0x24` -> power cap, software thermal slowdown; an unknown bit stays a number."""
    unknown = reasons & ~sum(REASONS)
    return [word for bit, word in REASONS.items() if reasons & bit] + ([f"{unknown:#x}"] if unknown else [])


class Nvml:
    """Read-only access. `nvml` is `pynvml`, initialised, or a simulation with the same interface; without it, there are
    no GPUs.
    """

    def __init__(self, nvml: Any = None):
        self._nvml = nvml
        self._last = -math.inf
        self._violated: list[int | None] = []

    def all(self) -> list[Reading]:
        """Return the state of every GPU, in NVML's order, which may differ from CUDA's."""
        return [self._read(gpu) for gpu in self._every()]

    def state(self) -> list[dict[str, Any]]:
        """Return the reading and the settings of every GPU: clocks in MHz, power limit in watts, NVML's compute mode (3:
        exclusive), whether it is divided. None for unavailable values.
        """
        return [
            asdict(it := self._read(gpu)) | {"reasons": words(it.reasons)} | self._settings(gpu)
            for gpu in self._every()
        ]

    def is_due(self, now: float) -> bool:
        """Whether the previous reading is `EVERY` seconds old; if so, starts a new interval."""
        if now - self._last < EVERY:
            return False
        self._last = now
        return True

    def of(self, uuid: str) -> Reading | None:
        """Return the state of the GPU that has this UUID in torch, or a part (MIG) with it; None if NVML doesn't have
        it.

        Cumulative counters show throttling between two readings, which single readings would miss.
        """
        gpu = self._gpu(uuid)
        if gpu is None:
            return None
        reading, before = self._read(gpu), self._violated
        now = self._violated = [  # nanoseconds of throttling so far
            self._query("DeviceGetViolationStatus", gpu, policy, read=lambda it: int(it.violationTime))
            for policy in POLICIES
        ]
        moved = sum(bit for bit, a, b in zip(POLICIES.values(), before or now, now, strict=True) if a != b)
        return replace(reading, reasons=reading.reasons | moved)

    def driver(self) -> str | None:
        """Return the driver's version; None without NVML."""
        found: str | None = self._query("SystemGetDriverVersion", read=str)
        return found

    def _every(self) -> list[Any]:
        handles = (self._query("DeviceGetHandleByIndex", index) for index in range(self._query("DeviceGetCount") or 0))
        return [gpu for gpu in handles if gpu is not None]

    def _gpu(self, uuid: str) -> Any:
        """Return the handle of the GPU: of a part (MIG) that of the whole, which alone has clocks and power."""
        if (part := self._query("DeviceGetHandleByUUID", f"MIG-{uuid}")) is not None:
            return self._query("DeviceGetDeviceHandleFromMigDeviceHandle", part)
        return self._query("DeviceGetHandleByUUID", f"GPU-{uuid}")

    def _read(self, gpu: Any) -> Reading:
        return Reading(
            sm_mhz=self._query("DeviceGetClockInfo", gpu, self._nvml.NVML_CLOCK_SM),
            sm_mhz_most=self._query("DeviceGetMaxClockInfo", gpu, self._nvml.NVML_CLOCK_SM),
            power_w=self._query("DeviceGetPowerUsage", gpu, read=_watts),
            temperature_c=self._query("DeviceGetTemperature", gpu, self._nvml.NVML_TEMPERATURE_GPU),
            busy_percent=self._query("DeviceGetUtilizationRates", gpu, read=lambda rates: rates.gpu),
            reasons=self._query("DeviceGetCurrentClocksEventReasons", gpu)
            or self._query("DeviceGetCurrentClocksThrottleReasons", gpu)  # its name before driver 535
            or 0,
        )

    def _settings(self, gpu: Any) -> dict[str, Any]:
        return {
            "uuid": self._query("DeviceGetUUID", gpu),
            "sm_mhz_chosen": self._query("DeviceGetApplicationsClock", gpu, self._nvml.NVML_CLOCK_SM),
            "memory_mhz": self._query("DeviceGetClockInfo", gpu, self._nvml.NVML_CLOCK_MEM),
            "power_limit_w": self._query("DeviceGetEnforcedPowerLimit", gpu, read=_watts),
            "compute_mode": self._query("DeviceGetComputeMode", gpu),
            "mig": self._query("DeviceGetMigMode", gpu, read=lambda now_and_next: bool(now_and_next[0])),
        }

    def _query(self, name: str, *arguments: Any, read: Callable[[Any], Any] = lambda found: found) -> Any:
        """Return the result of an NVML function, as `read`; None if this GPU, its driver or this NVML lacks it."""
        try:
            return read(getattr(self._nvml, f"nvml{name}")(*arguments))
        except Exception:  # NVML's own, or a missing function
            return None


def _watts(milliwatts: int) -> float:
    return milliwatts / 1e3


@cache
def opened() -> Nvml:
    """Return NVML, without GPUs where the driver or the package is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # any exception of NVML means that it is unavailable
        return Nvml()
    return Nvml(pynvml)
