"""A run: planned, measured, saved, resumed, printed."""
