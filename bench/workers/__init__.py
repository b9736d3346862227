"""Processes in which implementations run."""
