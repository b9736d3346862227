"""Axes, cases, sweeps, and the possible outcomes of a cell."""
