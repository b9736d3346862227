"""Measurement: cases, correctness checks, meters, timing. The only package that uses pytest, devices and clocks."""

import os
import sys
from pathlib import Path

if sys.platform == "win32":
    sys.exit("attention-bench measures on Linux (Windows Subsystem for Linux included) and macOS")

# Silences the profiler's messages on stderr; must be set before torch is imported, which reads it.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

# On small machines compile workers cost more than they save, and compete with the timed code.
if (os.cpu_count() or 1) <= 4:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

CHECKOUT = Path(__file__).resolve().parent.parent
"""Folder of bench, impls and reports: a checkout or an installation."""
