"""Run files: reading, and wording of their contents."""
