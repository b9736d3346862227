"""What a cell means, as a short hash: numbers with another `case_hash` answer another question, and don't belong on one line.

It tells the case, and the source of what makes its numbers and of what is called while the clock runs. The implementation is
not in it, nor the clock, nor what only judges answers: they may change, and the question stays.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sweep import Case

CHECKOUT = Path(__file__).resolve().parent.parent

ASKED = {
    "bench/problem.py": ("problem_of", "given"),
    "bench/modes.py": ("call_of", "recording"),
    "bench/gate.py": ("module_of",),
    "bench/test_attention.py": ("test_forward", "test_backward", "test_decode"),
    "impls/weights.py": ("draw",),
}
"""Where the question is put. What these definitions use of their own module belongs to it too."""

JUDGING = frozenset({"Answer", "_answers", "_gradients", "SANE", "SANE_OFFSET"})
"""Used by them, but only to know the right answers."""


def case_hash(case: Case) -> str:
    """The same in every process and for every implementation, until the case or the source of the question changes.

    An axis at zero, off or unset is left out, so that a new one changes no hash.
    """
    axes = {name: value for name, value in case.columns().items() if value}
    return _digest(json.dumps([sorted(axes.items()), source_hash()]))


@cache
def source_hash(checkout: Path = CHECKOUT) -> str:
    """Of what a checkout asks; comments, docstrings, formatting and the version of Python are not in it."""
    found = [
        (path, definition)
        for path, roots in ASKED.items()
        for definition in definitions((checkout / path).read_text(encoding="utf-8"), roots)
    ]
    return _digest(json.dumps(found))


def hash_of(paths: tuple[str, ...], checkout: Path = CHECKOUT) -> str:
    """Of what whole files of a checkout do, by the same rules."""
    return _digest(json.dumps([shape(ast.parse((checkout / path).read_text(encoding="utf-8"))) for path in paths]))


def definitions(source: str, roots: tuple[str, ...]) -> list[str]:
    """The definitions named `roots` and all that they use of their module, in its order, as `shape` writes them.

    Raises KeyError for a root that isn't there.
    """
    known = {name: node for node in ast.parse(source).body for name in _defined(node)}
    wanted = list(roots)
    for name in wanted:  # which grows on the way
        used = {node.id for node in ast.walk(known[name]) if isinstance(node, ast.Name)} & known.keys()
        wanted += sorted(used - JUDGING - set(wanted))
    return [shape(node) for name, node in known.items() if name in wanted]


def _defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def shape(node: object) -> str:
    """A syntax tree as text, without strings that stand alone.

    `ast.dump` differs between versions of Python by fields that are empty: here those are left out.
    """
    if isinstance(node, list):
        return f"[{' '.join(shape(item) for item in node if not _comment(item))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    filled = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
    return f"({type(node).__name__}{''.join(f' {name}={shape(value)}' for name, value in filled)})"


def _comment(node: object) -> bool:
    """A docstring, or a string below a constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
