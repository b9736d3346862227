"""Provides the code of a variant: the files of a git revision, or a copy of the working tree.

Revisions belong to the user's own repository, or, in a checkout of the suite, to its `impls`. The working tree is
copied, so that edits during a comparison have no effect.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from filecmp import cmp
from pathlib import Path

from .. import CHECKOUT
from ..runs.saving import results_root
from ..selection.choice import code_among
from ..selection.errors import UsageError

NO_CODE = shutil.ignore_patterns("__pycache__")

PREFIX = "attention-bench-ab-"
"""Beginning of the name of the temporary folder with the variants' code."""


def repository() -> Path:
    """Return the git repository of the current folder; outside of any, the suite's own checkout."""
    here = Path.cwd()
    return next((it for it in (here, *here.parents) if (it / ".git").exists()), CHECKOUT)


def commit_of(revision: str) -> str:
    """Return the commit of a revision; raises `UsageError`."""
    if not (repository() / ".git").exists():
        raise UsageError(
            f"{Path.cwd()} is not in a git repository, so there is no revision {revision!r}: start in your kernel's repository"
        )
    how = _unshallow() or f"give a branch, a tag or a commit of {repository()}"
    with suppress(UsageError):
        return _git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    raise UsageError(f"unknown revision {revision!r}: {how}")


def commits_between(good: str, bad: str) -> list[str]:
    """Return the first-parent commits after `good` up to `bad`, oldest first; raises `UsageError`. Those without `good`, as
    before a merge of its branch, may be slow since they lack what made it fast.
    """
    if _git("rev-list", "--max-count=1", f"{bad}..{good}"):
        how = _unshallow() or "give GOOD first, then BAD"
        raise UsageError(f"{good[:10]} is no ancestor of {bad[:10]}: {how}")
    after = {*_git("rev-list", "--ancestry-path", f"{good}..{bad}").splitlines()}
    along = _git("rev-list", "--first-parent", "--reverse", f"{good}..{bad}").splitlines()
    return [commit for commit in along if commit in after]


def _unshallow() -> str:
    """Return how to complete a shallow clone; '' for another one."""
    shallow = _git("rev-parse", "--is-shallow-repository") == "true"
    return f"`git fetch --unshallow` (actions/checkout: fetch-depth: 0) completes {repository()}" if shallow else ""


def same_folders(base: Path, head: Path) -> bool:
    """Whether all files and links are equal in two folders: also data, and changes that git doesn't see."""
    links, others = (
        {
            it.relative_to(root): it.is_symlink() and it.readlink()
            for it in root.rglob("*")
            if it.is_file() or it.is_symlink()
        }
        for root in (base, head)
    )
    return links == others and all(link or cmp(base / it, head / it, shallow=False) for it, link in links.items())


def subject_of(commit: str) -> str:
    """Return the abbreviated hash and the subject of a commit: `0123456789 what it says`."""
    return _git("show", "--no-patch", "--format=%h %s", commit)


def check_out(commit: str, folder: Path) -> None:
    """Write the files of a commit to `folder`; raises `UsageError`."""
    index = f"{folder}.index"
    _git("read-tree", commit, GIT_INDEX_FILE=index)
    _git("checkout-index", "--all", f"--prefix={folder}/", GIT_INDEX_FILE=index)


def copy_of_impls(folder: Path) -> Path:
    """Copy `impls` of the checkout, uncommitted changes included."""
    shutil.copytree(CHECKOUT / "impls", folder / "impls", ignore=NO_CODE)
    return folder


def copy_of_working_tree(folder: Path) -> None:
    """Copy the current files of the user's repository, except ignored files, bytecode, and of the untracked ones results,
    pages, virtual environments, and what comparisons keep in a temporary folder in it.
    """
    root = repository()
    tracked, others = (
        [root / name for name in _git("ls-files", "-z", *which).split("\0")]
        for which in (["--cached"], ["--others", "--exclude-standard"])
    )
    environments = (it.parent for it in others if it.name == "pyvenv.cfg" and it.parent != root)
    results = results_root(Path.cwd(), None)
    left_out = [results, results.parent / "reports" / "out", *folder.parent.parent.glob(f"{PREFIX}*"), *environments]
    for source in [*tracked, *(it for it in others if not any(map(it.is_relative_to, left_out)))]:
        if (source.is_file() or source.is_symlink()) and source.parent.name != "__pycache__":
            copy = folder / source.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)


def twins(base: Path, head: Path, folder: Path) -> dict[Path, Path]:
    """Create other folders with the same files, each under the other's name."""
    places = {base: folder / "exchanged" / head.name, head: folder / "exchanged" / base.name}
    for code, place in places.items():
        shutil.copytree(code, place, symlinks=True, ignore=NO_CODE, copy_function=os.link)
    return places


def digest(folder: Path) -> str:
    """Return a digest of the code in a folder."""
    return digest_of({str(it.relative_to(folder)): it for it in code_among(folder.rglob("*"))})


def digest_of(files: Mapping[str, Path]) -> str:
    """Return a digest of files by name."""
    found = hashlib.sha256()
    for name, path in sorted(files.items()):
        found.update(os.fsencode(name) + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def _git(*arguments: str, **environment: str) -> str:
    """Return the output of git in the repository, without the variables by which a git hook would redirect it.

    Raises `UsageError` if it fails, for example because another user owns the repository.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | environment
    try:
        done = subprocess.run(["git", *arguments], cwd=repository(), env=env, capture_output=True)
    except FileNotFoundError:
        raise UsageError("git can't be started: is it installed?") from None
    if done.returncode:
        raise UsageError(f"git {arguments[0]} failed in {repository()}: {' '.join(os.fsdecode(done.stderr).split())}")
    return os.fsdecode(done.stdout).rstrip("\n")
