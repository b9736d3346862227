"""Runs one sweep on many machines: one job per case, a journal of results, a run file per type of node."""

ENGINES = {"ray": "ray", "slurm": "submitit"}
"""Engines with their packages; each is implemented by the module `on_NAME`."""
