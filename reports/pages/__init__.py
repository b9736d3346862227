"""What a reader gets: pages, tables, comparisons."""
