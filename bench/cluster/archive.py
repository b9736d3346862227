"""Packs the code sent to nodes: one archive, with equal bytes for equal files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

from .. import CHECKOUT
from ..selection.choice import own_files

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
    files |= {f"user/{name}": path for name, path in own_files(" ".join(arguments), folder).items()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, path in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes())  # without the file's date, uncompressed
    return packed.getvalue()
