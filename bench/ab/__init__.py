"""Two sides, by turns."""
