"""Runs: planned, measured, saved, resumed, printed."""
