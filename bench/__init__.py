"""The measurement: cases, correctness checks, meters, timing. The only package that uses pytest, devices and clocks."""

import os
import sys
from pathlib import Path

if sys.platform == "win32":
    sys.exit("attention-bench measures on Linux (Windows Subsystem for Linux included) and macOS")

# Silences the profiler's own lines on stderr; it is read when torch is imported, so it must be set before.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

# On a small machine the compile workers cost more than they save, and compete with what is timed.
if (os.cpu_count() or 1) <= 4:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

CHECKOUT = Path(__file__).resolve().parent.parent
INSTALLED = CHECKOUT.name == "attention_bench" and not (CHECKOUT / "tox.ini").exists()
"""From a wheel: there is no checkout, and one command, `attention-bench`."""
