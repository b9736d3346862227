"""A run: planned, measured, kept, resumed, shown."""
