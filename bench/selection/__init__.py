"""Resolves the command line into cells."""
