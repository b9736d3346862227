"""Experiments on the suite itself, run by hand; docs/measured.md shows what they printed. No tests, though tests use parts."""
