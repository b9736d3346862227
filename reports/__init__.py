"""What it means: saved runs -> frames -> findings, charts and a page. Never imports torch, impls or bench."""
