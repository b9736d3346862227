"""`python -P PATH/TO/bench/launch.py ...` is `pytest ...`, in which Ctrl-C is one line from the first moment on."""

from __future__ import annotations

import os
import runpy
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from bench import starting  # noqa: F401  (it listens from now on)

if __name__ == "__main__":
    runpy.run_module("pytest", run_name="__main__")
