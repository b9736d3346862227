"""Imported before all else by pytest's side of a run: torch takes seconds to import, and Ctrl-C meanwhile is one line."""

from __future__ import annotations

import sys

try:
    import torch  # noqa: F401
except KeyboardInterrupt:
    print("bench: interrupted", file=sys.stderr)
    sys.exit(2)
