"""What NVIDIA's management library says of a GPU at a moment: clock, power, temperature, and what holds the clock back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

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
"""Reasons that are no throttling: nothing to do, or clocks that somebody chose."""

HELD_BACK = 0x8 | 0x20 | 0x40 | 0x80
"""Reasons under which a sample isn't worth keeping. A power cap is ordinary under matrix products, and only marked."""


@dataclass(frozen=True)
class Reading:
    """One GPU at one moment; None for what it doesn't tell."""

    sm_mhz: int | None
    sm_mhz_most: int | None
    power_w: float | None
    """Of recent GPUs an average over the last second."""
    temperature_c: int | None
    busy_percent: int | None
    reasons: int
    """Bits of `REASONS`; 0 also where they can't be read."""

    @property
    def throttling(self) -> int:
        """The reasons without those that are settings."""
        return self.reasons & ~SETTINGS

    @property
    def held_back(self) -> bool:
        return bool(self.reasons & HELD_BACK)


def words(reasons: int) -> list[str]:
    """`0x24` -> power cap, software thermal slowdown; a bit that is not known stays a number."""
    unknown = reasons & ~sum(REASONS)
    return [word for bit, word in REASONS.items() if reasons & bit] + ([f"{unknown:#x}"] if unknown else [])


class Nvml:
    """`nvml` is `pynvml`, initialised, or a simulated one that answers to the same names. It only reads."""

    def __init__(self, nvml: Any):
        self._nvml = nvml

    def all(self) -> list[Reading]:
        """Every GPU, in NVML's order, which is not always that of CUDA."""
        handles = (self._ask("DeviceGetHandleByIndex", index) for index in range(self._ask("DeviceGetCount") or 0))
        return [self._read(gpu) for gpu in handles if gpu is not None]

    def of(self, uuid: str) -> Reading | None:
        """The GPU with this UUID (`GPU-...`); None when NVML knows none."""
        gpu = self._ask("DeviceGetHandleByUUID", uuid)
        return None if gpu is None else self._read(gpu)

    def millijoules(self, uuid: str) -> int | None:
        """What the GPU with this UUID took since its driver was loaded; None where it doesn't tell."""
        gpu = self._ask("DeviceGetHandleByUUID", uuid)
        return None if gpu is None else self._ask("DeviceGetTotalEnergyConsumption", gpu)

    def _read(self, gpu: Any) -> Reading:
        milliwatts, rates = self._ask("DeviceGetPowerUsage", gpu), self._ask("DeviceGetUtilizationRates", gpu)
        return Reading(
            sm_mhz=self._ask("DeviceGetClockInfo", gpu, self._nvml.NVML_CLOCK_SM),
            sm_mhz_most=self._ask("DeviceGetMaxClockInfo", gpu, self._nvml.NVML_CLOCK_SM),
            power_w=None if milliwatts is None else milliwatts / 1e3,
            temperature_c=self._ask("DeviceGetTemperature", gpu, self._nvml.NVML_TEMPERATURE_GPU),
            busy_percent=None if rates is None else rates.gpu,
            reasons=self._ask("DeviceGetCurrentClocksEventReasons", gpu) or 0,
        )

    def _ask(self, name: str, *arguments: Any) -> Any:
        """What a function answers; None where this GPU, its driver or this NVML doesn't have it."""
        try:
            return getattr(self._nvml, f"nvml{name}")(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None


@cache
def opened() -> Nvml | None:
    """NVML; None without a driver, a GPU or the package."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # whatever NVML raises, there is nothing to look at
        return None
    return Nvml(pynvml)


def readings() -> list[Reading]:
    """Every GPU now; empty without NVML."""
    nvml = opened()
    return nvml.all() if nvml else []
