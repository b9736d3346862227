"""Packs the code sent to nodes: one archive, with equal bytes for equal files."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from .. import CHECKOUT
from ..selection.choice import MODULES

PACKAGES = ("bench", "impls", "stats")


def pack(folder: Path, arguments: Sequence[str]) -> bytes:
    """Pack the suite, and under `user/` the modules that `--impl` among the arguments names, resolved from `folder`."""
    files = {
        path.relative_to(CHECKOUT).as_posix(): path
        for package in PACKAGES
        for path in (CHECKOUT / package).rglob("*.py")
    }
    checked_out, installed = CHECKOUT / "attention_bench.py", CHECKOUT / "__init__.py"
    files["attention_bench.py"] = checked_out if checked_out.exists() else installed
    files["pyproject.toml"] = CHECKOUT / "pyproject.toml"
    places = [Path(place) for place in (*os.environ.get(MODULES, "").split(os.pathsep), str(folder)) if place]
    for name in {*re.findall(r"=[./]*(\w+)[\w./]*:", " ".join(arguments))}:
        for place in places:
            if found := [*(place / name).rglob("*.py")] or (
                [*place.glob("*.py")] if (place / f"{name}.py").is_file() else []
            ):
                files |= {f"user/{path.relative_to(place).as_posix()}": path for path in found}
                break
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, path in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes())  # without the file's date, uncompressed
    return packed.getvalue()
