"""Processes in which implementations run, and how they are asked."""
