"""Reports: saved runs -> frames -> findings, charts and a page. Never imports torch, impls or bench."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
INSTALLED = CHECKOUT.name == "attention_bench" and not (CHECKOUT / "tox.ini").exists()
"""Whether the suite is installed from a wheel: without a checkout, with a single command, `attention-bench`."""
