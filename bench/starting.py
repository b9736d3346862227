"""Imported before all else by pytest's side of a run: torch takes seconds to import, and Ctrl-C meanwhile is one line."""

from __future__ import annotations

import sys

from .terminal import interrupted

try:
    import torch  # noqa: F401
except BaseException as error:
    if not interrupted(error):
        raise
    print("bench: interrupted", file=sys.stderr)
    sys.exit(2)
