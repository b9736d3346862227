"""The code as it travels to the nodes: one archive that is named by its digest, the same bytes for the same files."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import CHECKOUT
from ..selection.choice import MODULES

ROOMS = ("bench", "impls", "stats")


def pack(folder: Path, impls: Sequence[str]) -> bytes:
    """The suite, and under `user/` the modules of the user's own implementations among `impls`, found as from `folder`."""
    files = dict(sorted([*_suite(), *_modules(folder, impls)]))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, path in files.items():
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes())  # without the file's date, nor compressed
    return packed.getvalue()


def _suite() -> Iterator[tuple[str, Path]]:
    for room in ROOMS:
        for path in (CHECKOUT / room).rglob("*.py"):
            yield path.relative_to(CHECKOUT).as_posix(), path
    yield "pyproject.toml", CHECKOUT / "pyproject.toml"
    checked_out, installed = CHECKOUT / "attention_bench.py", CHECKOUT / "__init__.py"
    yield "attention_bench.py", checked_out if checked_out.exists() else installed


def _modules(folder: Path, impls: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """The Python files of the folder that a module lies in, or all of its package; what is installed is left to the nodes."""
    places = [Path(place) for place in (*os.environ.get(MODULES, "").split(os.pathsep), str(folder)) if place]
    names = {name.partition("=")[2].partition(":")[0].partition(".")[0] for name in impls if "=" in name}
    for name in names:
        for place in places:
            if (place / name).is_dir():
                found = [*(place / name).rglob("*.py")]
            elif (place / f"{name}.py").is_file():
                found = [*place.glob("*.py")]
            else:
                continue
            yield from ((f"user/{path.relative_to(place).as_posix()}", path) for path in found)
            break
