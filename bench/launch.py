"""`python -P PATH/TO/bench/launch.py ...` runs `pytest ...`; Ctrl-C ends it with one line from the start."""

from __future__ import annotations

import os
import runpy
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from bench import interrupts  # noqa: F401  (installs the handler)

if __name__ == "__main__":
    runpy.run_module("pytest", run_name="__main__")
