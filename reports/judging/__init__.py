"""Rows and grids of runs; findings, comparisons, recommendations and histories made from them."""
