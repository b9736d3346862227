"""Comparisons of two variants, interleaved."""
