"""What it means: saved runs -> frames -> findings, charts and a page. Never imports torch, impls or bench."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
INSTALLED = CHECKOUT.name == "attention_bench" and not (CHECKOUT / "tox.ini").exists()
"""From a wheel: there is no checkout, and one command, `attention-bench`."""
