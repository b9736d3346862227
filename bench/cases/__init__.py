"""What is measured: axes, cases, sweeps, and what may become of a cell."""
