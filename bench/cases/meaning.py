"""What a cell means, as a short hash: numbers with another `case_hash` answer another question, and don't belong on one line.

It tells the case and the version of the question: how inputs and weights are drawn, and what is called while the clock runs.
The implementation is not in it, nor the clock, nor what only judges answers: they may change, and the question stays.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from .. import CHECKOUT

if TYPE_CHECKING:
    from .case import Case


QUESTION = "6f6082bd3f0f"
"""The version of the question: give it another value whenever a cell's numbers come to mean something else.

Until 2026 it was a hash of the sources; runs of that time stay comparable, since this is the last value it had.
"""


def case_hash(case: Case) -> str:
    """The same in every process and for every implementation, until the case or the question changes.

    An axis at zero, off or unset is left out, so that a new one changes no hash.
    """
    axes = {name: value for name, value in case.columns().items() if value}
    return _digest(json.dumps([sorted(axes.items()), QUESTION]).encode())


def hash_of(paths: tuple[str, ...]) -> str:
    """Of whole files of this checkout."""
    return _digest(b"\0".join((CHECKOUT / path).read_bytes() for path in paths))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]
