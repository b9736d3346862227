"""Run files, and how what is in them is said."""
