"""Reports: saved runs -> rows -> findings, charts and a page. Never imports torch, impls or bench."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
