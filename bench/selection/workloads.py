"""`--cases FILE`: reads cases from a file of axes, or of the lengths of a server's requests (docs/commands.md)."""

from __future__ import annotations

import csv
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..cases.axes import nearest
from ..cases.case import AXES
from .errors import UsageError

Record = Mapping[str, Any]
Point = dict[str, Any]
"""Axes, each with a value or a tuple of values."""

BATCHES, REQUESTS = 4, 8
"""Batches drawn from a list of requests, and requests in each."""

PROMPT = (
    "inputlength", "inputlen", "inputtokens", "contexttokens", "requesttokens", "promptlength", "promptlen", "prompttokens",
    "numprefilltokens", "prompt",
)  # fmt: skip
OUTPUT = (
    "outputlength", "outputlen", "outputtokens", "generatedtokens", "responsetokens", "completiontokens", "numdecodetokens",
    "output",
)  # fmt: skip
"""Column names of lengths of prompts and outputs, without case and punctuation."""


def read(path: Path) -> tuple[dict[str, Point], list[str]]:
    """Read points by their position in the file, and notes on what is measured differently; raises `UsageError`."""
    left_out: Counter[str] = Counter()
    try:
        text = path.read_text(encoding="utf-8-sig")
        records = list(_records(text))
        names = {_plain(name) for record in records[:1] if isinstance(record, Mapping) for name in record}
        points = list(_drawn(records, left_out) if names & {*PROMPT} else map(_point, records))
    except (OSError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(f"--cases {path}: {getattr(error, 'strerror', None) or error}") from None
    notes = [f"--cases {path}: {count} × {what}" for what, count in left_out.items()]
    if not points:
        raise UsageError("; ".join([f"--cases {path}: no case that can be measured", *notes]))
    return {f"{path.name}, {i}": point for i, point in enumerate(points, 1)}, notes


def _records(text: str) -> Iterator[Record]:
    """Parse records from JSON, JSONL or CSV."""
    if text.lstrip()[:1] in ("[", "{"):
        try:
            found = json.loads(text)
        except ValueError as error:
            try:
                found = [json.loads(line) for line in text.splitlines() if line.strip()]
            except ValueError:
                raise ValueError(f"not JSON: {error}") from None
        yield from [found] if isinstance(found, dict) else found
    else:
        yield from csv.DictReader(text.splitlines())


def _plain(name: Any) -> str:
    return re.sub(r"[\W_]", "", str(name)).lower()


def _point(record: Any) -> Point:
    if not isinstance(record, Mapping):
        raise ValueError(f'expected objects of axes such as {{"T": [256, 1024], "H": 8}}, not {record!r}')
    return {axis: _values(axis, value) for axis, value in record.items()}


def _values(axis: str, value: Any) -> tuple[Any, ...]:
    if axis is None:  # of csv.DictReader
        raise ValueError(f"a line has more values than columns: {value}")
    if axis == "device":
        raise ValueError("cases of a file are for any device: leave it out, and give --device")
    if axis not in AXES:
        raise ValueError(f"no case has an axis {axis!r}{nearest(axis, AXES)}")
    found = []
    if value == []:
        raise ValueError(f"{axis} has no value")
    for it in value if isinstance(value, list) else [value]:
        word = as_option(it)
        try:  # a model is read later, as that of --model
            found.append(word if axis == "model" and word != "none" else AXES[axis].read(word))
        except ValueError as error:
            raise ValueError(f"{axis}: {it!r} is not {error}") from None
    return tuple(found)


def as_option(value: Any) -> str:
    """Format a value in command-line syntax."""
    return {"None": "none", "True": "on", "False": "off"}.get(str(value), str(value))


def _drawn(records: Sequence[Record], left_out: Counter[str]) -> Iterator[Point]:
    """Draw batches of requests, each at a uniformly random step: the prompt, or one of its new tokens."""
    lengths = []
    for record in ({_plain(name): value for name, value in record.items()} for record in records):
        prompt, output = (
            next((int(float(record[name])) for name in names if record.get(name)), 0) for names in (PROMPT, OUTPUT)
        )
        if prompt > 0:
            lengths.append((prompt, output))
        else:
            left_out["a request without a prompt"] += 1
        if "hashids" in record:
            left_out["a list of shared blocks: every request has all its keys"] += 1
    rng = random.Random(0)
    for _batch in range(BATCHES if lengths else 0):
        drawn = rng.choices(lengths, [1 + output for _, output in lengths], k=REQUESTS)
        steps = [(prompt, rng.randint(0, output)) for prompt, output in drawn]
        kinds = Counter((1, prompt + step) if step else (prompt, prompt) for prompt, step in steps)
        ordered = sorted(kinds.items(), reverse=True)
        yield {"requests": "+".join(f"{count}x{new}:{tokens}" for (new, tokens), count in ordered)}
