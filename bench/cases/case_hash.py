"""Hashes what a cell measures: numbers with different `case_hash` are not comparable.

The hash covers the case and the version of the measurement: how inputs and weights are generated, and what is timed. It
excludes the implementation, the timer and the correctness checks.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from impls.rules import document_lengths

from .models import config_of

if TYPE_CHECKING:
    from .case import Case


MEASUREMENT = "6f6082bd3f0f"
"""Version of the measurement: change it whenever a cell's numbers change their meaning.

Until 2026 it was a hash of the sources; this is its last value, so that runs of that time stay comparable.
"""


def case_hash(case: Case) -> str:
    """Return a hash that is equal in every process and for every implementation, until the case or the version changes.

    Axes at zero, off or unset are left out, so that new axes change no hash. Of a model given by its file, the contents
    count, of documents their lengths.
    """
    axes = {name: value for name, value in case.columns().items() if value}
    if (model := axes.get("model", "")).endswith(".json"):
        axes["config"] = config_of(model)
    if kind := axes.get("documents"):
        axes["documents"] = document_lengths(kind, case.T)
    return hashlib.sha256(json.dumps([sorted(axes.items()), MEASUREMENT]).encode()).hexdigest()[:12]
