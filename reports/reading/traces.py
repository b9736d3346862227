"""What a profiler trace tells, read by torch-tb-profiler's parser. No other module knows that package, nor needs it."""

from __future__ import annotations

import ast
import logging
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

PARSER = "torch-tb-profiler==0.4.3"


class TraceError(Exception):
    """A trace that can't be read. The message is what is the matter with it, behind its name: 'is cut off'."""


@dataclass(frozen=True)
class Trace:
    """One call, as the profiler saw it."""

    operators: pd.DataFrame
    """A row for every operator with its shapes, the most time of its own first: name, shapes, calls, host_s, device_s.

    The seconds are its own, without those of the operators that it calls; device_s is NaN where no device was traced.
    """
    memory: pd.DataFrame
    """Bytes that the call held from a time on, in seconds since it began: at, bytes. Empty where nothing was allocated."""


def read(path: Path) -> Trace:
    """The trace of a file.

    Raises:
        TraceError: there is none, it is cut off, holds no trace, or its parser is not installed.
    """
    data = _parsed(path)
    if not data.op_list_groupby_name_input:
        raise TraceError("holds no operator")
    device = bool(data.has_kernel or data.has_memcpy_or_memset)
    return Trace(_operators(data.op_list_groupby_name_input, device), _memory(data))


def _parsed(path: Path) -> Any:
    try:
        from torch_tb_profiler.profiler.data import RunProfileData
    except ImportError:
        raise TraceError(f"can't be read without {PARSER} (pip install {PARSER})") from None
    logging.getLogger("pytorch_profiler").setLevel(logging.CRITICAL)  # what it would print of a trace is said in a line
    try:
        if not path.is_file():  # nor a pipe that nobody writes to
            raise TraceError("is not there")
        if not path.stat().st_size:
            raise TraceError("is empty")
        return RunProfileData.parse("call", "1", str(path), None)
    except TraceError:
        raise
    except (EOFError, zlib.error):
        raise TraceError("is cut off") from None
    except OSError as error:
        raise TraceError(f"can't be read ({error.strerror})" if error.strerror else "is not gzip") from None
    except Exception:  # the parser raises whatever it trips over
        raise TraceError("holds no trace of torch's profiler") from None


def _operators(found: Iterable[Any], device: bool) -> pd.DataFrame:
    rows = [
        (
            op.name,
            _shapes(op.input_shape),
            op.calls,
            op.self_host_duration / 1e6,  # microseconds
            op.self_device_duration / 1e6 if device else float("nan"),
        )
        for op in found
    ]
    frame = pd.DataFrame(rows, columns=["name", "shapes", "calls", "host_s", "device_s"])
    return frame.sort_values("device_s" if device else "host_s", ascending=False, kind="stable", ignore_index=True)


def _shapes(text: str) -> str:
    """'[[2, 64, 16], [2, 16, 64], []]' -> '2×64×16 · 2×16×64': those of the tensors, of which a number is none."""
    try:
        return " · ".join(_tensors(ast.literal_eval(text)))
    except (ValueError, SyntaxError):
        return ""


def _tensors(shapes: Any) -> Iterator[str]:
    """Each as '2×64×16', also those of a list of tensors."""
    for shape in shapes if isinstance(shapes, list) else []:
        if isinstance(shape, list) and shape and all(isinstance(size, int) for size in shape):
            yield "×".join(map(str, shape))
        else:
            yield from _tensors(shape)


def _memory(data: Any) -> pd.DataFrame:
    """From the allocations of the device, where there is one, else of the host."""
    records = data.memory_snapshot.memory_records if data.memory_snapshot else []
    devices = {record.device_name for record in records if record.device_name} or {"CPU"}
    steps = [event for event in data.events if event.name.startswith("ProfilerStep#")]
    start = min((step.ts for step in steps), default=data.profiler_start_ts)
    ends = [(step.ts + step.duration, 0, None) for step in steps[-1:]]
    of_device = [(r.ts, r.bytes, r.addr) for r in records if r.device_name == max(devices)]  # 'GPU0' is behind 'CPU'
    return _held([(ts - start) / 1e6, change, address] for ts, change, address in [*of_device, *ends])


def _held(changes: Iterable[Any]) -> pd.DataFrame:
    """Bytes held, from (time, change, address); what is freed and was there before the call doesn't count."""
    live: dict[Any, int] = {}
    curve = [(0.0, 0)]
    for at, change, address in changes:
        if change > 0:
            live[address] = change
        else:
            change = -live.pop(address, 0)
        curve.append((at, curve[-1][1] + change))
    return pd.DataFrame(curve if len(curve) > 2 else [], columns=["at", "bytes"])
