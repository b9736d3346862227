"""Sweeps on clusters that are started on this machine: `tox -e cluster`."""
