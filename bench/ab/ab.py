"""Measures and saves interleaved comparisons of two variants, as requested by the options of `python -m bench ab`.

Two revisions (`--base REF [--head REF]`), two implementations (`--base-impl NAME --head-impl NAME`), or two
interpreters with two versions of torch (`--base-python PATH --head-python PATH`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, strftime
from typing import Any

from pytest_benchmark.utils import get_machine_id

import impls

from ..cases.case_hash import case_hash
from ..runs.journal import Journal, newest
from ..runs.saving import load, results_root, save, writable
from ..selection.choice import listed
from ..selection.errors import UsageError
from ..selection.options import clock_text
from . import selftest
from .comparison import KIND, Plan, Unjudgeable, compare
from .options import EACH_TIME, asked, command, defaults
from .planning import code_of, plan_of
from .replicates import VARIANTS, Replicate
from .sources import repository, temporary_worktrees


def measure(options: argparse.Namespace, results: Path | None = None) -> Path:
    """Measure the comparison that the options (`parser`) describe, and save it under `results` (default: the user's);
    returns the file.

    Reuses replicates that a killed process of the same comparison has measured.

    Raises:
        UsageError: the options or files are invalid.
        Unjudgeable, Skip: nothing can be compared.
        SameCode: both variants have the same code.
    """
    folder = comparisons(results)
    continued = _load_comparison(options.to_continue) if options.to_continue else {}
    if continued:
        options = argparse.Namespace(**defaults() | continued["asked"] | {it: getattr(options, it) for it in EACH_TIME})
    with temporary_worktrees(repository()) as place:
        plan = plan_of(options, place)
        cases = [case_hash(case) for case in plan.cases]
        if continued:
            if continued.get("case_hashes", cases) != cases:
                raise UsageError("the cases have changed since then: compare anew, without --continue")
            for variant, now, of_plan in zip(VARIANTS, plan.code, plan.variants, strict=True):
                if continued["sides"][variant]["code"] != now:
                    what = f"{variant} ({of_plan.label})"
                    raise UsageError(
                        f"{what} is other code or another torch than it was: compare anew, without --continue"
                    )
            known = [it for it in continued["fingerprints"].values() if it]  # none if head was broken
            plan = replace(plan, before=tuple(continued["pairs"]), seed=continued["seed"], fingerprints=known)
        source = str(options.to_continue.resolve()) if continued else None
        about = {"asked": asked(options), "continues": source, "case_hashes": cases}
        journal = _journal(folder, about | {"code": plan.code} | selftest.conditions(), plan.seed)
        try:
            before = [line["pair"] for line in journal.lines]
            spent = sum(replicate["seconds"] for replicate in before)
            left = max(0.0, plan.seconds - spent)
            plan = replace(plan, before=(*plan.before, *before), seconds=left, seed=journal.header["seed"])
            found = compare(plan, _progress_printer(left), partial(_keep, journal, plan))
            tested = list(selftest.summary(selftest.kept(folder), plan.margin))
            seconds = found["seconds"] + spent + continued.get("seconds", 0.0)
            whole = found | about | {"seconds": seconds, "command": command(asked(options)), "self_test": tested}
            saved = save(folder, options.save or strftime("%Y%m%d_%H%M%S"), whole, indent=None)
        except BaseException:
            if journal.lines:
                journal.close()
            else:
                journal.delete()
            raise
        journal.delete()
        return saved


def _keep(journal: Journal, plan: Plan, replicate: Replicate) -> None:
    """Save a replicate; raises `Unjudgeable` if code that isn't a copy, the user's own, has changed meanwhile."""
    if plan.variants[0].tree is None and code_of(plan.variants, plan.names) != plan.code:
        raise Unjudgeable("code of yours has changed meanwhile: the same command compares it as it is now")
    journal.add({"pair": replicate})


def _journal(folder: Path, begun: Mapping[str, Any], seed: int) -> Journal:
    """Return the journal of a killed process of the comparison, else a new one; raises `UsageError`."""
    name = f"ab-{hashlib.sha256(json.dumps(begun).encode()).hexdigest()[:10]}"
    path = newest(folder, name)
    journal = Journal(path) if path else Journal.start(folder, name, {"seed": seed})
    if journal.lines:
        print(f"continues after {len(journal.lines)} saved replicates", file=sys.stderr)
    return journal


def _load_comparison(file: Path) -> dict[str, Any]:
    """Return the comparison to continue; raises `UsageError`."""
    data = load(file)
    if data.get("kind") != KIND or "asked" not in data:
        raise UsageError(
            f"--continue {file}: not a comparison that this `python -m bench ab` saved, as in results/*/ab/"
        )
    return data


def comparisons(results: Path | None = None) -> Path:
    """Return this machine's folder of comparisons, by default among the user's results; raises `UsageError`."""
    return writable((results or results_root(Path.cwd(), None)) / str(get_machine_id()) / "ab")


def self_test(options: argparse.Namespace) -> None:
    """Run the comparisons of `--self-test`, and print the summary; raises as `measure`."""
    folder, tell = comparisons(), _progress_printer(None)
    names = [name.partition("=")[0] for name in listed(options.impl)]
    registry = names or [impl.name for impl in impls.registered() if impl.common]
    settings = asked(options) | {"self_test": None, "budget": options.budget}
    wanted = selftest.schedule(options.self_test, registry)
    left = selftest.missing(wanted, [it for it in selftest.kept(folder) if it["settings"] == settings])
    with temporary_worktrees(repository()) as place:
        plan = plan_of(options, place)
        if left:
            about = clock_text(60 * len(left) * options.budget)
            tell(f"self-test: {about}; finished comparisons are kept, and the same command continues")
        for i, injection in enumerate(left, len(wanted) - len(left)):
            what = f"{injection[0]} {injection[1]:+.3g} of its time" if injection else "unchanged code"
            tell(f"self-test: run {i + 1} of {len(wanted)}, {what}")
            found = compare(
                replace(selftest.injected(plan, injection), seed=plan.seed + i), _progress_printer(plan.seconds)
            )
            selftest.keep(folder, found, injection, settings)
    for sentence in selftest.summary(selftest.kept(folder), options.margin):
        print(sentence)


def _progress_printer(seconds: float | None) -> Any:
    """Return a function that prints a line of progress with the time left of the budget."""
    began = monotonic()

    def tell(text: str) -> None:
        left = "" if seconds is None else f"[{clock_text(max(0.0, seconds - (monotonic() - began)))} left] "
        print(f"{left}{text}", file=sys.stderr, flush=True)

    return tell
