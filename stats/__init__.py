"""Statistics: estimates with their errors, and the verdicts that follow. NumPy and scipy only."""
