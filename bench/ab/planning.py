"""Plans a comparison: its two variants, with their code, and its cells."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from .. import CHECKOUT
from ..cases.case_hash import case_hash
from ..selection.choice import listed, own_files
from ..selection.errors import UsageError
from ..selection.options import CELLS, cases_of, picked, spelt, sweep_of
from ..workers.client import Setting, Variant
from .plan import Plan, Unjudgeable, by_variant
from .selftest import conditions
from .sources import (
    check_out,
    commit_of,
    copy_of_impls,
    copy_of_working_tree,
    digest,
    digest_of,
    repository,
    same_files,
    twins,
)

NEEDED = """\
import sys, torch, numpy, psutil
assert sys.version_info >= (3, 11), 'Python 3.11 or newer is needed'
print(sys.version, torch.__version__, torch.version.git_version)
"""
"""Requirements on an interpreter, and its versions, which an installation changes in place."""


class SameCode(Unjudgeable):
    """Both variants have the same code, so that nothing is measured."""

    def __init__(self, base: Variant, head: Variant):
        super().__init__(f"no difference in code between {base.label} and {head.label}")
        self.variants = base.label, head.label


def plan_of(options: argparse.Namespace, folder: Path) -> Plan:
    """Return the comparison that the options describe, with its code in `folder`; raises `UsageError`, or `SameCode`."""
    given = {name: value for name in CELLS if (value := getattr(options, name)) is not None}
    names, threads = listed(given.pop("impl")), given.pop("threads")
    if options.impl and not names:
        raise UsageError("--impl names nothing")
    sweep, device, overrides = sweep_of(given)
    cases = tuple(picked(cases_of(sweep, device, overrides), options.case))
    base, head = variants = _variants(options, folder)
    own = () if base.tree else (*names, *filter(None, (base.impl, head.impl)))  # a tree has the user's modules
    words = (*own, *filter(None, (options.model, options.cases)))
    same = {
        "cases": [case_hash(case) for case in cases],
        "code": [digest(it.code) for it in variants],
        "files": digest_of_own(words),
        "interpreters": [it.versions for it in variants],
        **conditions(),
    }
    return Plan(
        variants=variants,
        cases=cases,
        names=tuple(names),
        whole_registry=sweep.whole_registry,
        setting=Setting(
            str(Path.cwd()),
            threads,
            options.cell_timeout,
            repository=repository(),
            deterministic=any(case.deterministic for case in cases),
        ),
        margin=options.margin,
        seconds=60 * options.budget,
        seed=random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed,
        same=json.loads(json.dumps(same)),
        words=words,
        allow_gone=tuple(listed(options.allow_gone)),
        twins=twins(base.tree or base.impls, head.tree or head.impls, folder),
    )


def digest_of_own(words: Iterable[str]) -> str:
    """Return a digest of the files that these words of the options name, of which a comparison has no copy."""
    return digest_of(own_files(words, Path.cwd()))


def _variants(options: argparse.Namespace, folder: Path) -> tuple[Variant, Variant]:
    """Return both variants; raises `UsageError` for missing, incomplete or conflicting options."""
    kinds = ("base", "base_impl", "base_python", "self_test")
    for base, head in zip(kinds, ("head", "head_impl", "head_python"), strict=False):
        if getattr(options, head) and not getattr(options, base):
            raise UsageError(f"{spelt(head)} is compared with {spelt(base)}, which is missing")
    if sum(bool(getattr(options, kind)) for kind in kinds) != 1:
        raise UsageError(
            "one comparison at a time: give either --base REF, or --base-impl NAME --head-impl NAME, or --base-python PATH, "
            "or --self-test N"
        )
    if options.base:
        return _revisions(options, folder)
    here = copy_of_impls(folder / "working-tree")
    if options.self_test:
        there = copy_of_impls(folder / "another-copy")  # the folder's path may affect time, which must show
        return Variant("the working tree", here), Variant("a copy of it", there)
    if options.base_python:
        first, second = options.base_python, options.head_python or sys.executable
        return Variant(first, here, *interpreter(first)), Variant(second, here, *interpreter(second))
    first, second = options.base_impl, options.head_impl
    if not second:
        raise UsageError(f"--base-impl {first} is compared with --head-impl NAME, which is missing")
    if options.impl:
        raise UsageError("--base-impl and --head-impl name what is compared: leave out --impl")
    name, other = first.partition("=")[0], second.partition("=")[0]
    if name == other:
        raise UsageError(f"both are called {name}: give two names; --self-test N compares unchanged code")
    return Variant(name, here, impl=first), Variant(other, here, impl=second)


def _revisions(options: argparse.Namespace, folder: Path) -> tuple[Variant, Variant]:
    """Return two revisions of the suite, or of the user's own repository with its modules."""
    root = repository()
    own = any("=" in name for name in listed(options.impl))
    if own and not Path.cwd().is_relative_to(root):
        raise UsageError(f"{Path.cwd()} is not in a git repository: start in that of your kernel")
    if root != CHECKOUT and not own:
        raise UsageError(f"--base is a revision of {root}: name a kernel in it, as in --impl mine=mine:mine")
    commits = commit_of(options.base, root), options.head and commit_of(options.head, root)
    if commits[0] == commits[1]:
        raise UsageError(
            f"--base {options.base} and --head {options.head} are the same commit {commits[0][:10]}; name another"
        )
    variants = []
    for name, (given, commit) in by_variant(((options.base, commits[0]), (options.head, commits[1]))):
        place = folder / name
        if commit:
            check_out(commit, place, root)
            label = commit[:10] if commit.startswith(given) else f"{given} ({commit[:10]})"
        else:
            copy_of_working_tree(place, root) if own else copy_of_impls(place)
            label = "the working tree"
        impls = place if root == CHECKOUT else CHECKOUT
        variants.append(Variant(label, impls, commit=commit, tree=place if own else None))
    base, head = variants
    if digest(base.code) == digest(head.code) and same_files(*commits, root):
        raise SameCode(base, head)
    return base, head


@cache
def interpreter(given: str) -> tuple[str, str]:
    """Return the path and the versions of an interpreter that can run a worker; raises `UsageError`."""
    path = shutil.which(given)
    if path is None:
        raise UsageError(f"there is no interpreter {given}: give the path of a `python` with torch, numpy and psutil")
    path = str(Path(path).absolute())
    done = subprocess.run([path, "-c", NEEDED], cwd=CHECKOUT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UsageError(f"{given} can't run the suite ({why}): `{given} -m pip install torch numpy psutil`")
    return path, done.stdout
