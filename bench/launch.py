"""`python -P PATH/TO/bench/launch.py ...` runs `pytest ...`; Ctrl-C ends it with one line from start to end."""

from __future__ import annotations

import os
import runpy
import sys

HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

COMMAND = (sys.executable, "-P", os.path.realpath(__file__))

OPTIONS = (
    "-c", os.path.join(HOME, "pyproject.toml"), f"--rootdir={HOME}", "-o", "verbosity_test_cases=0",
    "-p", "no:cacheprovider", os.path.join(HOME, "bench"),
)  # fmt: skip
"""What `attention-bench run` adds, so that nothing else configures pytest."""

if __name__ == "__main__":
    sys.path.insert(0, HOME)
    from stats import interrupts  # noqa: F401  (installs the handler)
    from stats.arguments import UNFINISHED

    try:
        runpy.run_module("pytest", run_name="__main__")
    except KeyboardInterrupt:  # after the run, where pytest doesn't handle it
        print("attention-bench: interrupted", file=sys.stderr)
        sys.exit(UNFINISHED)
