"""The axes of a case: values, display, and derivation from other axes. `AXES` is their only list; in bench, `Case` has them as
its fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from .arguments import nearest

Values = Mapping[str, Any]
"""Values of axes by name."""

NOTHING: Any = object()
"""Sentinel for no value, since None is a value."""

KINDS = {"int": "size", "float": "share", "str": "choice", "bool": "switch"}
"""Kinds of axes by the type of their values: `size`, an integer from 1; `share`, from 0 to below 1; `choice`, one of a few
words; `switch`, on or off.
"""

SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
"""Abbreviations of dtypes used in tables."""


@dataclass(frozen=True)
class Axis:
    """One axis, as used by the command line, by ids and by reports."""

    about: str = ""
    """Description of the values, for `--help`."""
    kind: str = "choice"
    """One of `KINDS`."""
    name: str = ""
    label: str = ""
    """Word printed before the name where space allows: `tokens` for T."""
    values: tuple[str, ...] = ()
    """Words of a `choice`; empty if any word may be one."""
    follows: tuple[str, ...] = ()
    """Axes whose product is the default."""
    default: Any = NOTHING
    """Value if none is given. NOTHING if the axis is required or derived."""
    most: int = 2**31 - 1
    """Largest `size`."""
    if_varying: bool = False
    """Whether it is shown only where it varies."""
    validate: Callable[[str], Any] = str
    """Checks a word: raises ValueError with the correct usage."""
    omitted: Any = NOTHING
    """Default that ids leave out; NOTHING if every value is shown."""
    masks: bool = False
    """Whether it affects visibility: which keys a query sees. `none` and None mask no key."""

    def read(self, text: str) -> Any:
        """Parse a command-line value, `none` where None is the default; raises ValueError with the correct usage."""
        if self.default is None and text == "none":
            return None
        if self.kind in ("choice", "switch"):
            values, word = ("on", "off") if self.kind == "switch" else self.values, SHORT.get(text, text)
            if values and word not in values:
                raise ValueError(f"one of {', '.join(values)}{nearest(text, values)}")
            self.validate(word)
            return word == "on" if self.kind == "switch" else word
        if self.kind == "share":
            return _share(text)
        if not text.isascii() or not text.isdigit() or int(text) == 0:
            raise ValueError("a positive whole number")
        if int(text) > self.most:
            raise ValueError(f"a whole number up to {self.most}")
        return int(text)

    def read_each(self, words: Iterable[str]) -> tuple[Any, ...]:
        """Parse several values, each once; raises ValueError with the wrong one and the correct usage."""
        found: dict[Any, None] = {}
        for word in words:
            try:
                found[self.read(word)] = None
            except ValueError as error:
                raise ValueError(f"{word!r} is not {error}") from None
        return tuple(found)

    def usual(self, values: Values) -> Any:
        """Return its value as derived from other axes; None if one of those is unknown."""
        factors = [values.get(name) for name in self.follows]
        return prod(factors) if factors and None not in factors else None


def _share(text: str) -> float:
    try:
        p = float(text)
    except ValueError:
        p = -1.0
    if not 0 <= p < 1:
        raise ValueError("a probability: 0 or more, and less than 1")
    return p


def axis(about: str = "", *, default: Any = NOTHING, **others: Any) -> Any:
    """Declare a dataclass field that is an axis, of a kind by its type; `others` are fields of `Axis`."""
    known = Axis(about, default=default, **{"omitted": default} | others)
    if default is NOTHING:
        return dataclasses.field(metadata={"axis": known})
    return dataclasses.field(default=default, metadata={"axis": known})


def axes_of(case: type[Any]) -> dict[str, Axis]:
    """Return every axis of a dataclass, in field order."""
    return {
        it.name: dataclasses.replace(
            it.metadata["axis"], name=it.name, kind=KINDS[str(it.type).removesuffix(" | None")]
        )
        for it in dataclasses.fields(case)
    }


DTYPES = ("float32", "bfloat16", "float16", "float64")
DEVICES = ("cpu", "cuda")
MASKS = ("none", "causal", "padding", "causal+padding", "causal_br")
DOCUMENTS = ("equal", "one_long", "lognormal")
BIASES = ("alibi", "dense", "learned")
AUTOCASTS = ("bfloat16", "float16")
SOURCES = ("self", "cross")
SCOPES = ("layer", "core", "block", "model")


@dataclass(frozen=True)
class Axes:
    """All axes in display order. In bench, `Case` says which words `mode`, `requests` and `model` may be."""

    B: int = axis("batch sizes", label="batch")
    H: int = axis("query heads", label="heads")
    H_kv: int = axis("key-value heads", label="key-value heads", follows=("H",))
    D_h: int = axis("width of a query or key head")
    D_v: int = axis("width of a value head", follows=("D_h",))
    d_model: int = axis("width of the model", follows=("H", "D_h"))
    T: int = axis("sequence length: tokens of the queries", label="tokens")
    T_kv: int = axis(
        "tokens of the keys and values (with --source cross or --mode decode)", label="keys", follows=("T",)
    )
    dtype: str = axis(", ".join(DTYPES), values=DTYPES)
    device: str = axis("cpu, cuda (default: what the machine has)", values=DEVICES, omitted="cpu")
    mask: str = axis(
        f"{', '.join(MASKS)} (causal, aligned bottom right: the queries are the newest tokens)",
        values=MASKS,
        default="causal",
        omitted=NOTHING,
        masks=True,
    )
    source: str = axis(
        "where keys and values come from: self, the same sequence; cross, another",
        values=SOURCES,
        default="self",
    )
    dropout: float = axis("dropout of the attention probabilities, such as 0.1", default=0.0)
    out_dropout: float = axis("dropout after the output projection, such as 0.1", default=0.0)
    qkv_bias: bool = axis("biases in the input projections: on, off", default=False)
    out_bias: bool = axis("a bias in the output projection: on, off", default=False)
    threads: int | None = axis(
        "intra-op threads on the CPU (default: torch's own)", default=None, most=1024, if_varying=True
    )
    mode: str = axis("what a call computes, such as backward", default="forward")
    scope: str = axis(
        "layer: attention with its projections; core: attention alone, from q, k, v to o; with --model also block: a decoder "
        "block of transformers, and model: two blocks, embedding and head",
        values=SCOPES,
        default="layer",
    )
    window: int | None = axis(
        "sliding window: how many keys before its own a query sees (without a causal mask also after it)",
        default=None,
        masks=True,
    )
    window_right: int | None = axis(
        "sliding window: how many keys after its own a query sees (default: as --window)",
        default=None,
        masks=True,
    )
    prefix: int | None = axis(
        "prefix: how many of the first keys every query sees, in spite of the causal mask",
        default=None,
        masks=True,
    )
    documents: str | None = axis(
        f"documents packed into one sequence, each of which sees only itself; their lengths: {', '.join(DOCUMENTS)}",
        values=DOCUMENTS,
        default=None,
        masks=True,
    )
    bias: str | None = axis(
        f"bias of the scores: {', '.join(BIASES)} (a learned one has a weight for each head, query and key)",
        values=BIASES,
        default=None,
    )
    softcap: int | None = axis("soft cap of the scores: softcap * tanh(score / softcap)", default=None)
    sinks: bool = axis(
        "attention sinks: a learned score per head, only in the sum of the softmax: on, off", default=False
    )
    latent: int | None = axis(
        "multi-head latent attention: width of the cached latent, from which keys and values are rebuilt",
        default=None,
    )
    rope: int | None = axis(
        "with --latent: number of rotary features of a head, whose key all heads share",
        default=None,
    )
    requests: str | None = axis("a server's batch", default=None)
    page: int | None = axis("paged KV cache: tokens per page (with --mode decode)", default=None)
    autocast: str | None = axis(
        f"{', '.join(AUTOCASTS)}: dtype of products under torch.autocast", values=AUTOCASTS, default=None
    )
    deterministic: bool = axis(
        "use torch.use_deterministic_algorithms, and check that results repeat bit for bit: on, off",
        default=False,
    )
    tf32: bool = axis("float32 products in TF32 on a GPU (torch.backends.cuda.matmul): on, off", default=False)
    model: str | None = axis("model that a block belongs to", default=None)


AXES = axes_of(Axes)
"""Every axis by name, in display order."""
