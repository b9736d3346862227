"""Plans a comparison: its two variants, with their code, its cells, and the processes that it needs."""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from .. import CHECKOUT
from ..cases.case_hash import case_hash
from ..cases.cells import Key
from ..cases.outcome import Skip
from ..selection.choice import folder_of, from_folder, is_installed, listed, lists_of_files, own_files, with_imports
from ..selection.errors import UsageError
from ..selection.options import CELLS, cases_of, picked, sweep_of, warn_of_threads
from ..timing.machine import fingerprint
from ..timing.malloc import HUGE_PAGES, KEEP
from ..workers.client import NamedWorkers, Script, Variant, WorkerClient, WorkerSettings, run_concurrently
from .sources import (
    check_out,
    commit_of,
    copy_of_impls,
    copy_of_working_tree,
    digest,
    digest_of,
    repository,
    same_folders,
    twins,
)

Record = dict[str, Any]

VARIANTS = ("base", "head")

PROCEDURE = (
    "bench/ab/comparison.py",
    "bench/ab/plan.py",
    "bench/ab/replicates.py",
    "bench/timing/schedule.py",
    "bench/timing/cell.py",
    "bench/timing/malloc.py",
    "bench/timing/devices/cpu.py",
    "bench/timing/devices/cuda.py",
    "bench/timing/devices/device.py",
    "bench/workers/client.py",
    "bench/workers/fresh.py",
    "bench/workers/tasks.py",
    "bench/workers/worker.py",
    "stats/estimate.py",
    "stats/effects.py",
    "stats/verdict.py",
)
"""Modules of the decision procedure: comparisons by another procedure don't count."""

NEEDED = """\
import sys, torch, numpy, psutil
assert sys.version_info >= (3, 11), 'Python 3.11 or newer is needed'
print(sys.version, torch.__version__, torch.version.git_version)
"""
"""Requirements on an interpreter, and its versions, which an installation changes in place."""


@dataclass(frozen=True)
class Plan:
    """What is compared, and for how long."""

    variants: Mapping[str, Variant]
    """By their names in `VARIANTS`."""
    cases: Mapping[str, Record]
    """Axes of each case, by id."""
    names: Sequence[str]
    """Names given by `--impl`; empty for those of the sweep. Unused if each variant has its own implementation."""
    whole_registry: bool
    setting: WorkerSettings
    margin: float
    """Equivalence margin, within which an unchanged cell must lie."""
    seed: int
    same: Record
    """What must be equal for replicates to count together: cases, code, machine and procedure."""
    words: Sequence[str]
    """Words of the options that name the user's files, where the variants have no copy of these."""
    allow_gone: Sequence[str]
    """Implementations that head may lack, entirely or in some cases."""
    twins: Mapping[Path, Path]
    """For the code folder of each variant, another folder with the same code, beside the other variant's copy."""
    folder: Path
    """Temporary folder, with the variants' code."""
    same_code: bool
    """Whether no file differs between two revisions, so that nothing is measured."""

    @property
    def versus(self) -> str:
        """Label of cells that compare two differently named implementations; '' if both variants run the same names."""
        base, head = self.variants.values()
        return f"{head.label} against {base.label}" if base.impl else ""

    @property
    def in_parallel(self) -> bool:
        """Whether both variants are prepared at once; not on a GPU, where one would be tuned beside the other."""
        return all(axes["device"] == "cpu" for axes in self.cases.values())

    def name_in(self, variant: str, label: str) -> str:
        """Return the name of an implementation in a variant."""
        it = self.variants[variant]
        return it.label if it.impl else label

    def request(self, variant: str, key: Key) -> Record:
        """Return the request that prepares a cell in a variant."""
        return {"impl": self.name_in(variant, key[0]), "case": self.cases[key[1]]}

    def expected(self, variant: str, key: Key) -> str:
        """Return the file in which the processes of a variant keep a case's expected outputs: each would take seconds to
        compute those of long cases.
        """
        return str(self.folder / f"{variant}-{[*self.cases].index(key[1])}.expected")

    def start(self, exchanged: bool = False, order: Sequence[str] = VARIANTS) -> NamedWorkers:
        """Start a process for each variant in this order, which imports the implementations and checks support for the
        cases; with `exchanged`, from the twins of their folders.
        """
        moved = self.twins if exchanged else {}
        cases = [*self.cases.values()]
        of_all = {"device": cases[0]["device"], "whole_registry": self.whole_registry, "cases": cases}

        def begin(variant: str) -> WorkerClient:
            it = self.variants[variant]
            tree = it.tree and moved.get(it.tree, it.tree)
            extensions = Path(f"{tree or self.folder / variant}-extensions")
            there = replace(it, impls=moved.get(it.impls, it.impls), tree=tree, extensions=extensions)
            names = [it.impl] if it.impl else self.names
            return WorkerClient(there, self.setting).send("cells", names=names, **of_all)

        return NamedWorkers(order, begin)

    def run(self, scripts: Sequence[Script]) -> None:
        """Run the scripts of base and head, in parallel or one after the other."""
        for those in [scripts] if self.in_parallel else [[script] for script in scripts]:
            run_concurrently(those)


class SameCode(Skip):
    """Both variants have the same code, so that nothing is measured."""

    def __init__(self, base: str, head: str):
        super().__init__(f"no difference in code between {base} and {head}")
        self.labels = base, head


def plan_of(options: argparse.Namespace, folder: Path) -> Plan:
    """Return the comparison that the options describe, with its code in `folder`; raises `UsageError`."""
    given = {name: value for name in CELLS if name != "threads" and (value := getattr(options, name)) is not None}
    names = [_from_here(name) for name in listed(options.impl)]
    if options.impl and not names:
        raise UsageError("--impl names nothing")
    if options.model:
        given["model"] = ",".join(map(_from_here, listed([options.model])))
    sweep, device, overrides = sweep_of(given)
    cases = picked(cases_of(sweep, device, overrides), options.case)
    warn_of_threads(options.threads)
    base, head = _variants(options, folder)
    own = () if base.tree else (*names, base.impl, head.impl)  # a tree has the user's modules
    words = [*filter(None, (*own, given.get("model"), options.cases))]
    trees = [it.tree or it.impls / "impls" for it in (base, head)]
    same = {
        "cases": [case_hash(case) for case in cases],
        "code": [*map(digest, trees)],
        "files": digest_of_own(words),
        "interpreters": [base.versions, head.versions],
        "folder": str(Path.cwd().relative_to(repository())) if base.tree else None,
        **conditions(),
    }
    return Plan(
        variants={"base": base, "head": head},
        cases={case.id: case.columns() for case in cases},
        names=names,
        whole_registry=sweep.whole_registry,
        setting=WorkerSettings(
            str(Path.cwd()),
            options.threads,
            options.cell_timeout,
            repository=repository(),
            deterministic=any(case.deterministic for case in cases),
        ),
        margin=options.margin,
        seed=random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed,
        same=same,
        words=words,
        allow_gone=listed(options.allow_gone),
        twins=twins(base.tree or base.impls, head.tree or head.impls, folder),
        folder=folder,
        same_code=bool(base.commit) and same_folders(*trees),
    )


def _from_here(name: str) -> str:
    """Return NAME=FILE:attr, or FILE, with the path of a file of the repository from the current folder: each variant has its
    own file there.
    """
    place = name.rpartition("=")[2]
    is_own = os.path.isabs(place) and Path(place).resolve().is_relative_to(repository())
    return name.removesuffix(place) + from_folder(place, os.getcwd()) if is_own else name


def digest_of_own(words: Iterable[str]) -> str:
    """Return a digest of the user's files that these words of the options name; a comparison has no copy of them."""
    return digest_of({str(file): file for word in words for file in with_imports(_files_of(word))})


def _files_of(word: str) -> Iterator[Path]:
    """Yield the code behind a word in the current folder, and, of NAME=module:attr, where Python finds the module; of an
    installed package the lists of its files.
    """
    yield from own_files([word], Path.cwd()).values()
    module, colon, _ = word.rpartition("=")[2].partition(":")
    top = module.partition(".")[0]
    if colon and top.isidentifier() and top not in sys.stdlib_module_names and (folder := folder_of(top)):
        yield from lists_of_files(top) if is_installed(folder) else own_files([word], folder).values()


def _variants(options: argparse.Namespace, folder: Path) -> tuple[Variant, Variant]:
    """Return both variants; raises `UsageError` for missing, incomplete or conflicting options."""
    kinds = ("base", "head"), ("base_impl", "head_impl"), ("base_python", "head_python"), ("self_test",)
    given = [kind for kind in kinds if any(getattr(options, name) for name in kind)]
    if len(given) != 1 or not getattr(options, given[0][0]) or (options.base_impl and not options.head_impl):
        raise UsageError(
            "give one comparison: --base REF, or --base-impl NAME --head-impl NAME, or --base-python PATH, or --self-test N"
        )
    if options.base:
        return _revision("base", options, folder), _revision("head", options, folder)
    here = copy_of_impls(folder / "working-tree")
    if options.self_test:
        there = copy_of_impls(folder / "another-copy")  # the folder's path may affect time, which must show
        name, share = options.inject
        in_base = {name: max(0.0, 1 / (1 + share) - 1)}  # where head is to be faster
        in_head = {name: max(0.0, share)}
        return Variant("the working tree", here, slower=in_base), Variant("a copy of it", there, slower=in_head)
    if options.base_python:
        first, second = options.base_python, options.head_python or sys.executable
        return Variant(first, here, *interpreter(first)), Variant(second, here, *interpreter(second))
    if options.impl:
        raise UsageError("--base-impl and --head-impl name what is compared: leave out --impl")
    if "," in options.base_impl + options.head_impl:
        raise UsageError("--base-impl and --head-impl take one name each")
    base, head = (Variant(it.partition("=")[0], here, impl=it) for it in (options.base_impl, options.head_impl))
    return base, head


def _revision(variant: str, options: argparse.Namespace, folder: Path) -> Variant:
    """Return a revision, or the working tree, of the suite or of the user's own repository with its modules."""
    root, place, given = repository(), folder / variant, getattr(options, variant)
    own = any("=" in name for name in listed(options.impl))
    if own and not Path.cwd().is_relative_to(root):
        raise UsageError(f"{Path.cwd()} is not in a git repository: start in your kernel's repository")
    if root != CHECKOUT and not own:
        raise UsageError(f"revisions are those of {root}: name a kernel in it, as in --impl mine=mine:mine")
    commit, label = given and commit_of(given), "the working tree"
    if commit:
        check_out(commit, place)
        label = commit[:10] if commit.startswith(given) else f"{given} ({commit[:10]})"
    else:
        copy_of_working_tree(place)
    return Variant(label, place if root == CHECKOUT else CHECKOUT, commit=commit, tree=place if own else None)


@cache
def interpreter(given: str) -> tuple[str, str]:
    """Return the path and the versions of an interpreter that can run a worker; raises `UsageError`."""
    path = shutil.which(given)
    if path is None:
        raise UsageError(f"there is no interpreter {given}: give the path of a `python` with torch, numpy and psutil")
    path = str(Path(path).absolute())
    try:
        done = subprocess.run([path, "-"], input=NEEDED, cwd=CHECKOUT, capture_output=True, text=True)
    except OSError as error:
        raise UsageError(f"{given} can't be started: {error.strerror}") from None
    if done.returncode:
        why = done.stderr.strip().rpartition("\n")[2]
        raise UsageError(
            f"{given} can't run the suite ({why}): `{shlex.quote(given)} -m pip install torch numpy psutil`"
        )
    return path, done.stdout


def conditions() -> Record:
    """Return the machine and procedure of a comparison, as they are saved."""
    machine = {fact: value for fact, value in fingerprint().items() if fact != "threads"}  # workers have their own
    machine["allocator"] = dict(sorted((machine["allocator"] | KEEP | HUGE_PAGES).items()))  # as in workers
    return machine | {"procedure": digest_of({path: CHECKOUT / path for path in PROCEDURE})}
