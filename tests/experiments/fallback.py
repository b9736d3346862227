"""`python -m tests.experiments.fallback`: the report of `bench ab` when `sdpa` falls back from its flash kernel to the formula.

Two revisions of a separate checkout; the second pins `sdpa` to the kernel `math`, as torch silently does for
some inputs. Prints the report as a pull request would show it. Run it with nothing else running.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
CALL = "    return scaled_dot_product_attention(q, k, v, **options)\n"
PINNED = "    with sdpa_kernel(SDPBackend.MATH):\n    " + CALL


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--budget", default="1", help="minutes")
    options.add_argument("--T", default="64,256,1024")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = committed(Path(name) / "checkout")
        fall(folder)
        report = Path(name) / "report.md"
        command = [sys.executable, "-m", "bench", "ab", "--base", "HEAD", "--impl", "sdpa,fused", "--T", asked.T]
        command += ["--H", "8", "--dtype", "float32", "--budget", asked.budget, "--markdown", str(report)]
        code = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL).returncode
        print(report.read_text(encoding="utf-8"))
        print(f"exit code {code}")


def committed(folder: Path) -> Path:
    """A separate checkout with one commit, which may be changed."""
    for package in ("bench", "commands", "impls", "stats", "reports"):
        shutil.copytree(CHECKOUT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "out"))
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        git(folder, *arguments)
    return folder


def git(folder: Path, *arguments: str) -> None:
    """Run git in a folder, without the variables by which a git hook would redirect it."""
    settings = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *settings, *arguments], cwd=folder, check=True, env=plain)


def fall(checkout: Path) -> None:
    """Pin `sdpa` to the kernel `math`."""
    path = checkout / "impls" / "sdpa.py"
    source = path.read_text(encoding="utf-8")
    assert CALL in source
    path.write_text(source.replace(CALL, PINNED, 1), encoding="utf-8")  # the first is that of `sdpa`


if __name__ == "__main__":
    main()
