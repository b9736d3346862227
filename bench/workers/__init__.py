"""The processes in which implementations run."""
