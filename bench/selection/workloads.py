"""`--cases FILE`: reads cases from a file in this project's format or from common server traces (docs/commands.md)."""

from __future__ import annotations

import csv
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stats.arguments import nearest

from ..cases.case import AXES
from ..cases.modes import Point
from .errors import UsageError

Record = Mapping[str, Any]
Lengths = Sequence[tuple[int, int]]
"""New tokens and all tokens of each request of a batch."""

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

HEADS = {"num_q_heads": "H", "num_kv_heads": "H_kv", "head_dim": "D_h"}
"""Keys of vLLM's benchmark files, and the axes that they give."""

INTEGERS = {"I32": np.int32, "I64": np.int64}
"""Types of safetensors files."""

BATCH = re.compile(r"(\d*)q(\d+k?)(?:(?:s|kv)(\d+k?))?")
"""Part of a batch in vLLM's grammar: number of requests, their new tokens, and all their tokens."""


def read(path: Path) -> tuple[dict[str, Point], list[str]]:
    """Read points by their position in the file, and notes on what is measured differently; raises `UsageError`."""
    left_out: Counter[str] = Counter()
    try:
        text = path.read_text(encoding="utf-8-sig")
        records = _records(text)
        points = list(_reader(records)(text.splitlines() if records is None else records, path.parent, left_out))
    except KeyError as error:
        raise UsageError(f"--cases {path}: a record has no {error}") from None
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise UsageError(f"--cases {path}: {getattr(error, 'strerror', None) or error}") from None
    notes = [f"--cases {path}: {count} × {what}" for what, count in left_out.items()]
    if not points:
        nothing = f"--cases {path}: contains no case" + " that can be measured" * bool(notes)
        raise UsageError("; ".join([nothing, *notes]))
    return {f"{path.name}, {i}": point for i, point in enumerate(points, 1)}, notes


def _reader(records: Sequence[Record] | None) -> Callable[..., Iterator[Point]]:
    """Select a reader by the keys of the first record; other files have one batch per line."""
    if records is None:
        return _batches
    keys = {*records[0]} if records and isinstance(records[0], Mapping) else set()
    if "definition" in keys:
        return _workloads
    return _drawn if {*map(_plain, keys)} & {*PROMPT} else _own


def _records(text: str) -> list[Record] | None:
    """Parse records from JSON, JSONL or CSV; None for other text."""
    if text.lstrip()[:1] in ("[", "{"):
        try:
            found = json.loads(text)
        except ValueError as error:
            try:
                found = [json.loads(line) for line in text.splitlines() if line.strip()]
            except ValueError:
                raise ValueError(f"not JSON: {error}") from None
        return [found] if isinstance(found, dict) else found
    first = text.partition("\n")[0].partition("#")[0]
    return [*csv.DictReader(text.splitlines())] if "," in first or first.strip() in AXES else None


def _plain(name: Any) -> str:
    return re.sub(r"[\W_]", "", str(name)).lower()


def _own(records: Sequence[Record], *_: Any) -> Iterator[Point]:
    for record in records:
        if not isinstance(record, Mapping):
            raise ValueError(f'expected objects of axes such as {{"T": [256, 1024], "H": 8}}, not {record!r}')
        yield {axis: _values(axis, value) for axis, value in record.items()}


def _values(axis: str, value: Any) -> tuple[Any, ...]:
    if axis is None:  # of csv.DictReader
        raise ValueError(f"a line has more values than columns: {value}")
    if axis == "device":
        raise ValueError("cases of a file are for any device: leave it out, and give --device")
    if axis not in AXES:
        raise ValueError(f"no case has an axis {axis!r}{nearest(axis, AXES) or '; axes: ' + ', '.join(AXES)}")
    words = [as_option(it) for it in (value if isinstance(value, list) else [value])]
    if not words:
        raise ValueError(f"{axis} has no value")
    if axis == "model":  # read later, as those of --model
        return tuple(None if word == "none" else word for word in words)
    try:
        return AXES[axis].read_each(words)
    except ValueError as error:
        raise ValueError(f"{axis}: {error}") from None


def as_option(value: Any) -> str:
    """Format a value in command-line syntax."""
    return {"None": "none", "True": "on", "False": "off"}.get(str(value), str(value))


def _batches(lines: Sequence[str], folder: Path, left_out: Counter[str]) -> Iterator[Point]:
    """Read batches in vLLM's grammar, one per line, or one per entry of a YAML list, and heads of its YAML."""
    heads: Point = {}
    batches = []
    for line in filter(None, (line.partition("#")[0].strip() for line in lines)):
        parts = [BATCH.fullmatch(part) for part in line.lstrip("- ").strip("\"'").split("_")]
        key, colon, value = line.partition(":")
        if all(parts):
            kinds = [part.groups() for part in parts if part]
            batches.append("+".join(f"{count or 1}x{_size(new)}:{_size(all_ or new)}" for count, new, all_ in kinds))
        elif key in HEADS and value.strip().isdigit():
            heads[HEADS[key]] = int(value)
        elif key in HEADS or not colon or "[" in value:
            left_out["a line that is not a batch such as 2q1k_8q1s4k"] += 1
    yield from (heads | {"requests": batch} for batch in batches)  # heads may follow the batches


def _size(text: str) -> int:
    return int(text.removesuffix("k")) * (1024 if text.endswith("k") else 1)


def _drawn(records: Sequence[Record], _: Path, left_out: Counter[str]) -> Iterator[Point]:
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
        yield {"requests": _requests([(1, prompt + step) if step else (prompt, prompt) for prompt, step in steps])}


def _requests(lengths: Lengths) -> str:
    kinds = sorted(Counter(lengths).items(), reverse=True)
    return "+".join(f"{count}x{new}:{tokens}" for (new, tokens), count in kinds)


def _workloads(records: Sequence[Record], folder: Path, left_out: Counter[str]) -> Iterator[Point]:
    """Read workloads of flashinfer-bench: GQA and MLA, paged or ragged. Definitions' names contain constant axes."""
    for record in records:
        name = str(record["definition"])
        op = re.match("(gqa|mla)_(paged|ragged)_(decode|prefill_causal)_", name)
        if not op:
            left_out[f"a workload of {name}"] += 1
            continue
        of = {it[1]: int(it[2]) for part in name.split("_") if (it := re.fullmatch(r"([a-z]+)(\d+)", part))}
        lengths = _lengths(record["workload"], of.get("ps", 1), folder, left_out)
        if any(new > tokens for new, tokens in lengths):
            left_out["a workload with fewer keys than queries"] += 1
        else:
            yield _point(of, op[2] == "paged", lengths, left_out)


def _point(of: Mapping[str, int], paged: bool, lengths: Lengths, left_out: Counter[str]) -> Point:
    point: Point = {"dtype": "bfloat16", "H": of["h"]}
    if "ckv" in of:  # absorbed; heads as in DeepSeek-V2 and V3, since the workload omits them
        point |= {"D_h": 128 + of["kpe"], "D_v": 128, "latent": of["ckv"], "rope": of["kpe"]}
    else:
        D_h = of.get("d") or of["qk"]
        point |= {"H_kv": of.get("kv", of["h"]), "D_h": D_h, "D_v": of.get("vo", D_h)}
    equal = len({*lengths}) == 1
    if not paged or not (equal or "ckv" in of):
        if paged:
            left_out["a paged batch of unequal lengths: measured without pages"] += 1
        return point | {"requests": _requests(lengths)}
    if not equal:
        left_out["a latent batch of unequal lengths: each request has the mean"] += 1
    T, T_kv = (round(sum(each) / len(lengths)) for each in zip(*lengths, strict=True))
    mask = "none" if T == 1 else "causal_br"
    return point | {"B": len(lengths), "T": T, "T_kv": T_kv, "mask": mask, "mode": "decode", "page": of["ps"]}


def _lengths(workload: Record, page: int, folder: Path, left_out: Counter[str]) -> Lengths:
    """Read lengths from the index tensors; if their file is missing, divide the batch's totals equally."""
    inputs, axes = workload["inputs"], workload["axes"]
    keys, new, last = (_tensor(inputs.get(name), folder) for name in ("kv_indptr", "qo_indptr", "kv_last_page_len"))
    if keys is not None:
        pages = np.diff(keys)
        tokens = pages * page if last is None else np.maximum(pages - 1, 0) * page + last
        queries = np.ones_like(tokens) if new is None else np.diff(new)
        return [(n, t) for n, t in zip(queries.tolist(), tokens.tolist(), strict=True) if n > 0]
    left_out["a workload whose file of lengths is missing: tokens are divided equally among its requests"] += 1
    count = axes.get("batch_size") or axes["len_indptr"] - 1
    total = axes.get("total_q") or axes.get("total_tokens") or count
    tokens = axes.get("total_kv") or axes.get("total_tokens") or axes["num_kv_indices"] * page
    return [(max(1, total // count), max(1, tokens // count))] * count


def _tensor(described: Any, folder: Path) -> Any:
    """Read a tensor of integers from a safetensors file; its path is relative to a parent of the workloads' folder."""
    if not isinstance(described, Mapping) or described.get("type") != "safetensors":
        return None
    places = (parent / described["path"] for parent in (folder, *folder.resolve().parents))
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        return None
    data = file.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    tensor = json.loads(data[8:begin])[described["tensor_key"]]
    if tensor["dtype"] not in INTEGERS:
        raise ValueError(f"{file}: {described['tensor_key']} is {tensor['dtype']}, not one of {', '.join(INTEGERS)}")
    first, last = tensor["data_offsets"]
    return np.frombuffer(data[begin + first : begin + last], INTEGERS[tensor["dtype"]])
