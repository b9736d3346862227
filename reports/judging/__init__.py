"""Frames, verdicts, findings."""
