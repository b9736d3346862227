"""`python -m reports conformance FILE...`: results of correctness checks, for one or several versions of torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from stats.estimate import grouped

from ..reading import command
from ..reading.runs import Object, RunError
from .tables import markdown, paragraph

MARKS = {"passed": "✓", "unsupported": "·"}
"""Marks of outcomes; any other outcome is shown as a fault."""

FAULT = "✗"


def main(arguments: Sequence[str]) -> int:
    description = "Print a Markdown table of what is correct, from output files of\n`python -m bench check --json`."
    parser = command.parser("conformance", description)
    parser.add_argument(
        "files", nargs="+", metavar="FILE", type=Path,
        help="output of `check --json`; several versions of torch, and CPU and GPU, are shown side by side",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    found: dict[tuple[str, str, str], Path] = {}
    every = []
    for path in options.files:
        these = _read(path)
        for key in ((it["torch"], it["impl"], it["problem"]) for it in these):
            if (other := found.setdefault(key, path)) != path:
                torch, impl, problem = key
                raise RunError(f"{other} and {path} both have {impl} with torch {torch} on {problem}: leave out one")
        every += these
    print(text(every))
    return command.FINE


def _read(path: Path) -> list[Object]:
    """Read the output of `check --json`, with the device in the version of torch; raises `RunError` for other files."""
    try:
        found: list[Object] = json.loads(path.read_text(encoding="utf-8"))
        kinds = {**dict.fromkeys(("torch", "impl", "problem", "id", "outcome"), str), "detail": str | None}
        if not found or not all(isinstance(it[key], of) for it in found for key, of in kinds.items()):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = getattr(error, "strerror", None) or "no output of `python -m bench check --json`"
        raise RunError(f"{path}: {why}") from None
    return [it | {"torch": it["torch"] + " on a GPU" * ("-cuda" in it["id"])} for it in found]


def text(found: Sequence[Object]) -> str:
    """Return test problems x implementations, one mark where all versions agree, and a line for each fault."""
    known = {(it["problem"], it["impl"], it["torch"]): MARKS.get(it["outcome"], FAULT) for it in found}
    problems, impls, versions = (list(dict.fromkeys(it[key] for it in found)) for key in ("problem", "impl", "torch"))

    def cell(problem: str, impl: str) -> str:
        """Return the marks of a cell; `-` for a version that was not checked."""
        marks = [known.get((problem, impl, version), "-") for version in versions]
        return marks[0] if len(set(marks)) == 1 else "".join(marks)

    rows = [[problem, *(cell(problem, impl) for impl in impls)] for problem in problems]
    faults = grouped(
        ((it["impl"], it["problem"], it["outcome"], it["detail"]), it["torch"])
        for it in found
        if it["outcome"] not in MARKS
    )
    lines_of_faults = [
        f"- `{impl}`, {problem}, torch {', '.join(of)}: {outcome}: {detail}"
        for (impl, problem, outcome, detail), of in faults.items()
    ]
    introduction = (
        f"torch {', '.join(versions)}. ✓ right, {FAULT} wrong or failed, · not supported, - not checked; "
        "one mark where all versions agree, else one for each in that order."
    )
    table = markdown(["test problem", *impls], rows)
    return "\n".join([paragraph(introduction), "", table, "", *lines_of_faults]).rstrip()
