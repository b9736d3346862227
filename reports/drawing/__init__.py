"""Charts, for files and for the page."""
