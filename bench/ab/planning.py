"""Plans a comparison: its two variants, with their code, and its cells."""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from .. import CHECKOUT
from ..selection.choice import listed, own_files
from ..selection.errors import UsageError
from ..selection.options import OPTIONS, cases_of, picked, sweep_of
from ..workers.client import Setting, Variant
from .comparison import Plan
from .replicates import VARIANTS
from .sources import (
    check_out,
    commit_of,
    copy_of_impls,
    copy_of_working_tree,
    digest,
    repository,
    same_files,
    twins,
)

ASKED = """\
import sys, torch, numpy, psutil
assert sys.version_info >= (3, 11), 'Python 3.11 or newer is needed'
print(sys.version, torch.__version__, torch.version.git_version)
"""
"""Requirements on an interpreter, and its versions, which an installation changes in place."""


class SameCode(Exception):
    """Both variants have the same code, so that nothing is measured."""

    def __init__(self, base: Variant, head: Variant):
        super().__init__(f"no difference in code between {base.label} and {head.label}")
        self.variants = base.label, head.label


def plan_of(options: argparse.Namespace, folder: Path) -> Plan:
    """Return the comparison that the options describe, with its code in `folder`; raises `UsageError`, or `SameCode`."""
    selected = {
        name: value
        for name in ("sweep", "model", "cases", *OPTIONS)
        if name != "threads" and (value := getattr(options, name)) is not None
    }
    sweep, device, overrides = sweep_of(selected)
    names = tuple(listed(options.impl))
    if options.impl and not names:
        raise UsageError("--impl names nothing")
    cases = tuple(picked(cases_of(sweep, device, overrides), options.case))
    base, head = _variants(options, folder)
    return Plan(
        variants=(base, head),
        cases=cases,
        names=names,
        whole_registry=sweep.whole_registry,
        setting=Setting(
            str(Path.cwd()),
            options.threads,
            options.cell_timeout,
            repository=repository(),
            deterministic=any(case.deterministic for case in cases),
        ),
        margin=options.margin,
        seconds=60 * options.budget,
        seed=random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed,
        code=code_of((base, head), names),
        allow_gone=tuple(listed(options.allow_gone)),
        twins=twins(base.tree or base.impls, head.tree or head.impls, folder),
    )


def code_of(variants: tuple[Variant, Variant], names: Sequence[str]) -> tuple[str, str]:
    """Return digests of both variants' code, the user's modules included, and of their interpreters' versions."""
    base, head = variants
    given = " ".join([*names, *(it.impl for it in variants if it.impl)])
    own = own_files(given, Path.cwd()) if base.tree is None else {}  # a tree has the user's modules
    return digest(base.code, own, base.versions), digest(head.code, own, head.versions)


def _variants(options: argparse.Namespace, folder: Path) -> tuple[Variant, Variant]:
    """Return both variants; raises `UsageError` for missing, incomplete or conflicting options."""
    kinds = {
        kind: (getattr(options, f"base{kind}"), getattr(options, f"head{kind}")) for kind in ("", "_impl", "_python")
    }
    given = [kind for kind, both in kinds.items() if any(both)]
    if len(given) + bool(options.self_test) != 1:
        raise UsageError(
            "one comparison at a time: give either --base REF, or --base-impl NAME --head-impl NAME, or --base-python PATH, "
            "or --self-test N"
        )
    kind = given[0] if given else "self-test"
    first, second = kinds.get(kind, ("", ""))
    if given and not first:
        option = kind.replace("_", "-")
        raise UsageError(f"--head{option} {second} is compared with --base{option}, which is missing")
    if kind == "":
        return _revisions(options, folder)
    if kind == "_impl":
        if not second:
            raise UsageError(f"--base-impl {first} is compared with --head-impl NAME, which is missing")
        if options.impl:
            raise UsageError("--impl chooses among many; here --base-impl and --head-impl are the two")
        name = first.partition("=")[0]
        if name == second.partition("=")[0]:
            raise UsageError(f"both are called {name}: give two names; --self-test N compares unchanged code")
    here = copy_of_impls(folder / "working-tree")
    if kind == "self-test":
        there = copy_of_impls(folder / "another-copy")  # the folder's path may affect time, which must show
        return Variant("the working tree", here), Variant("a copy of it", there)
    if kind == "_impl":
        base, head = (Variant(name.partition("=")[0], here, impl=name) for name in (first, second))
    else:
        base, head = (
            Variant(given, here, python=path, versions=versions)
            for given in (first, second or sys.executable)
            for path, versions in [interpreter(given)]
        )
    return base, head


def _revisions(options: argparse.Namespace, folder: Path) -> tuple[Variant, Variant]:
    root = repository()
    own = Path.cwd().is_relative_to(root) and any("=" in name for name in listed(options.impl))
    if root != CHECKOUT and not own:
        raise UsageError(f"revisions of {root} are compared: name a kernel in it, as in --impl mine=mine:mine")
    commits = commit_of(options.base, root), options.head and commit_of(options.head, root)
    if commits[0] == commits[1]:
        raise UsageError(
            f"--base {options.base} and --head {options.head} are the same commit {commits[0][:10]}; name another"
        )
    base, head = (
        _variant(given, commit, folder / name, root, own)
        for name, given, commit in zip(VARIANTS, (options.base, options.head), commits, strict=True)
    )
    if digest(base.code) == digest(head.code) and same_files(*commits, root):
        raise SameCode(base, head)
    return base, head


def _variant(given: str, commit: str | None, place: Path, root: Path, own: bool) -> Variant:
    """Return a variant: a revision or the working tree, of the user's repository or of the suite; with `own` modules
    of it.
    """
    if commit is None:
        label = "the working tree"
        place = copy_of_working_tree(place, root) if own else copy_of_impls(place)
    else:
        short = commit[:10]
        label, place = short if commit.startswith(given) else f"{given} ({short})", check_out(commit, place, root)
    impls = place if root == CHECKOUT else CHECKOUT
    return Variant(label, impls, commit=commit, tree=place if own else None)


@cache
def interpreter(given: str) -> tuple[str, str]:
    """Return the path and the versions of an interpreter that can run a worker; raises `UsageError`."""
    path = shutil.which(given)
    if path is None:
        raise UsageError(f"there is no interpreter {given}: give the path of a `python` with torch, numpy and psutil")
    path = str(Path(path).absolute())
    done = subprocess.run([path, "-c", ASKED], cwd=CHECKOUT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UsageError(f"{given} can't run the suite ({why}): `{given} -m pip install torch numpy psutil`")
    return path, done.stdout
