"""Correctness checks: test problems, tolerances, process-global state."""
