"""`python -m reports advise`, with the attention layers of models by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.pages import advise
from reports.reading.runs import RunError


def main(arguments: Sequence[str]) -> int:
    return advise.main(arguments, layers)


def layers(model: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the axes of each kind of layer; raises `RunError`."""
    from bench.cases.models import config_of, layers_of

    try:
        return layers_of(config_of(model))
    except ValueError as error:
        raise RunError(f"--model {model}: {error}") from None
