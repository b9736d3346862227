"""Runs one sweep on many machines: one job per case, a journal of results, a run file per type of node."""
