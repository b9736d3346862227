"""Where the code of a side comes from: a git revision in a worktree of its own, or a copy of the working tree's `impls`.

A copy, so that whoever goes on editing does not change what is being measured. All of it lies in one temporary folder, which
a small shell of its own removes as soon as this process is gone, however it ended.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import CHECKOUT
from ..runs.journal import alive, process
from ..selection.mistake import Mistake

PREFIX = "attention-bench-ab-"
"""Of the folder's name; the number of its owner, and the second in which that one began, follow."""

OWNER = re.compile(re.escape(PREFIX) + r"(\d+)-(\d+)-")

REMOVE = 'for tree in "$1"/*/; do git -C "$2" worktree remove --force "$tree"; done; rm -rf "$1"'
"""Shell: folder, checkout."""


@contextmanager
def temporary_worktrees() -> Iterator[Path]:
    """A temporary folder for the sides' code, gone afterwards with the git worktrees in it, also after `kill -9`."""
    remove_leftovers()
    me = process()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{me['pid']}-{int(me['started'])}-"))
    command = ["sh", "-c", f"cat; {REMOVE}", "sh", str(folder), str(CHECKOUT)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # it waits for the end of its input, which comes when this process ends; Ctrl-C must not reach it
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=_plain(), **quiet):  # type: ignore[call-overload]
        yield folder


def remove_leftovers() -> None:
    """What processes left that are gone: after a power failure nobody was there to remove it."""
    known = re.findall(r"^worktree (.+)$", _git("worktree", "list", "--porcelain") or "", re.MULTILINE)
    folders = {Path(tree).parent for tree in known} | {*Path(tempfile.gettempdir()).glob(f"{PREFIX}*")}
    for folder in folders:
        owner = OWNER.match(folder.name)
        if owner and not alive({"pid": int(owner[1]), "started": int(owner[2])}):
            for tree in known:
                if Path(tree).parent == folder:
                    _git("worktree", "remove", "--force", tree)
            shutil.rmtree(folder, ignore_errors=True)


def commit_of(revision: str) -> str:
    """The commit that a revision names; raises `Mistake`."""
    if _git("rev-parse", "--git-dir") is None:
        raise Mistake(f"{CHECKOUT} is no git checkout, so there is no revision {revision!r} of it")
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if not commit:
        raise Mistake(f"unknown revision {revision!r}: give a branch, a tag or a commit of {CHECKOUT}")
    return commit


def refuse_elsewhere() -> None:
    """Raises `Mistake` where the user stands in a git repository that isn't this checkout: its revisions can't be compared."""
    here = _git("rev-parse", "--show-toplevel", folder=Path.cwd())
    if here and here != _git("rev-parse", "--show-toplevel"):
        raise Mistake(
            f"{here} is another repository, and revisions are those of {CHECKOUT}: both sides would run the same kernel of "
            f"yours. Put the older one into a module of its own: --base-impl old=old:mine --head-impl mine=mine:mine"
        )


def commits_between(good: str, bad: str) -> list[str]:
    """The commits after the first that lead to the other, by first parents, the oldest first; raises `Mistake`."""
    found = _git("rev-list", "--first-parent", "--reverse", f"{good}..{bad}")
    if not found or _git("merge-base", "--is-ancestor", good, bad) is None:
        raise Mistake(f"{good[:10]} is no ancestor of {bad[:10]}: give GOOD first, then BAD")
    return found.splitlines()


def subject_of(commit: str) -> str:
    """`0123456789 what it says`"""
    return _git("show", "--no-patch", "--format=%h %s", commit) or commit[:10]


def check_out(commit: str, folder: Path) -> Path:
    """A worktree in `folder`; raises `Mistake` where it has no `impls`."""
    done = subprocess.run(
        ["git", "-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(folder), commit],
        cwd=CHECKOUT,
        env=_plain(),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise Mistake(f"git can't check out {commit[:10]}: {done.stderr.strip().splitlines()[-1]}")
    if not (folder / "impls" / "__init__.py").exists():
        raise Mistake(f"revision {commit[:10]} has no impls/: it is older than what is compared here")
    return folder


def copy_of_working_tree(folder: Path) -> Path:
    """The `impls` that lie in the checkout now, changes that are not committed included."""
    shutil.copytree(CHECKOUT / "impls", folder / "impls", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def twins(base: Path, head: Path, folder: Path) -> dict[Path, Path]:
    """Copies of both sides' `impls`, each under the other's name; none where both lie in one folder."""
    if base == head:
        return {}
    places = {base: folder / "exchanged" / head.name, head: folder / "exchanged" / base.name}
    for code, place in places.items():
        shutil.copytree(code / "impls", place / "impls", ignore=shutil.ignore_patterns("__pycache__"))
    return places


def digest(folder: Path) -> str:
    """Of the `impls` in a folder: another one is other code."""
    found = hashlib.sha256()
    for path in sorted((folder / "impls").rglob("*.py")):
        found.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _git(*arguments: str, folder: Path | None = None) -> str | None:
    """What git says in that folder, by default the checkout; None where it fails, or isn't there."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder or CHECKOUT, capture_output=True, text=True, env=_plain())
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _plain() -> dict[str, str]:
    """Without the variables by which a hook of git would point elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
