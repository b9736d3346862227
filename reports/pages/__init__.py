"""Output for readers: pages, tables, comparisons."""
