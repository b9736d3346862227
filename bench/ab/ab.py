"""Measures and saves interleaved comparisons of two variants, as requested by the options of `python -m bench ab`; and its
self-test, of unchanged code and of injected regressions.

Two revisions (`--base REF [--head REF]`), two implementations (`--base-impl NAME --head-impl NAME`), or two
interpreters with two versions of torch (`--base-python PATH --head-python PATH`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import strftime

from pytest_benchmark.utils import get_machine_id

import impls
from stats.estimate import grouped
from stats.verdict import CHANGED, IMPROVED, INCONCLUSIVE, REGRESSED

from ..cases.outcome import Skip
from ..runs.saving import Journal, load, newest_journal, results_root, run_files, save, writable
from ..selection.choice import listed
from ..selection.errors import UsageError
from ..selection.options import clock_text
from ..terminal import warn
from .comparison import compare
from .options import UNCHANGED_CODE, asked, command, defaults
from .plan import Record, conditions, digest_of_own, plan_of
from .replicates import Replicate
from .sources import PREFIX

SHARES = {0.01: 3, 0.02: 3, 0.05: 3, 0.10: 3, -0.02: 6, -0.05: 6}
"""Shares by which an implementation in head is slowed down, or made faster if negative; each in one comparison for this
number of comparisons of unchanged code.
"""

SELF_TEST = "self-test"
"""Beginning of the names of a self-test's comparisons."""


def measure(given: Record, results: Path | None = None, once: str = "") -> Path:
    """Measure the comparison that these options of `parser` describe, and save it under `results` (default: the user's);
    returns the file.

    Reuses replicates that a killed process of the same comparison has measured; with `once`, the beginning of the file's
    name, the file of a finished one, too.

    Raises:
        UsageError: the options or files are invalid.
        Skip: nothing can be compared, for example because both variants have the same code.
    """
    folder = comparisons(results)
    earlier = _earlier(file) if (file := given.get("to_continue")) else {}
    options = argparse.Namespace(**defaults() | given | earlier.get("asked", {}))
    commits = {variant: it["commit"] for variant, it in earlier.get("sides", {}).items() if it.get("commit")}
    with TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as place:
        plan = plan_of(argparse.Namespace(**vars(options) | commits), Path(place))  # HEAD~1 may be another commit now
        if earlier and (changed := [name for name in plan.same if earlier["same"].get(name) != plan.same[name]]):
            raise UsageError(f"changed since then: {', '.join(changed)}; start another comparison, without --continue")
        if file and all(cell["word"] != INCONCLUSIVE for cell in earlier["cells"]):
            return Path(file)
        about: Record = {"asked": asked(options), "continues": file and str(file.resolve())}
        if once:
            options.save = f"{once}-{digest([about, plan.same, options.budget])}"
            if there := run_files(folder, options.save):
                return there[-1]
        journal = _journal(folder, f"ab-{digest([about, plan.same])}")
        saved = None
        try:
            left = 60 * options.budget - sum(replicate["seconds"] for replicate in journal.lines)

            def keep(replicate: Replicate) -> None:
                if digest_of_own(plan.words) != plan.same["files"]:
                    raise Skip("your code has changed meanwhile: the same command compares the new code")
                journal.add(replicate)

            found = compare(plan, left, [*earlier.get("pairs", ()), *journal.lines], keep)
            tested = [*summary(folder, plan.margin)]
            ids = {variant: it.commit[:10] for variant, it in plan.variants.items() if it.commit}
            again = command(argparse.Namespace(**vars(options) | ids))  # HEAD may be another commit later
            whole = found | about | {"command": earlier.get("command", again), "self_test": tested}
            saved = save(folder, options.save or strftime("%Y%m%d_%H%M%S"), whole, indent=None)
            return saved
        finally:
            if saved or not journal.lines:
                journal.delete()
            else:
                journal.close()


def self_test(options: argparse.Namespace) -> None:
    """Run the comparisons of `--self-test` that are not saved yet, and print the summary; raises as `measure`."""
    names = [name.partition("=")[0] for name in listed(options.impl)]
    names = names or [impl.name for impl in impls.registered() if impl.common]
    wanted = [UNCHANGED_CODE] * options.self_test
    for share, part in SHARES.items():
        wanted += [(names[i % len(names)], share) for i in range(math.ceil(options.self_test / part))]
    about = clock_text(60 * len(wanted) * options.budget)
    warn(f"self-test: {about}, beside checks; finished comparisons are kept, and the same command continues")
    for i, (name, share) in enumerate(wanted):
        what = f"injected: {name} {share:+.0%}" if name else "unchanged code"
        warn(f"self-test: run {i + 1} of {len(wanted)}, {what}")
        seed = (options.seed or 0) + wanted[:i].count((name, share))
        measure(vars(options) | {"seed": seed, "self_test": 1, "inject": (name, share)}, once=SELF_TEST)
    for sentence in summary(comparisons(), options.margin):
        print(sentence)


def summary(folder: Path, margin: float) -> Iterator[str]:
    """Yield sentences on the saved comparisons of self-tests with this margin, on this machine and by the current
    procedure.
    """
    records, now = map(load, sorted(folder.glob(f"*_{SELF_TEST}*.json"))), conditions().items()
    by_share = grouped(
        (share, (name, record["cells"]))
        for record in records
        if now <= record.get("same", {}).items() and record["margin"] == margin
        for name, share in [record["asked"].get("inject", UNCHANGED_CODE)]
    )
    for share in sorted(by_share, key=abs):
        right = IMPROVED if share < 0 else REGRESSED
        found = [cell["word"] == right for name, cells in by_share[share] for cell in cells if cell["impl"] == name]
        alarms = [[it["word"] in CHANGED for it in cells if it["impl"] != name] for name, cells in by_share[share]]
        flagged = f"{sum(map(sum, alarms))} of {sum(map(len, alarms))}"
        if share:
            its = f"{sum(found)} of {len(found)} cells found"
            yield f"self-test, {share * 100:+.3g} % injected: {its}, {flagged} others flagged"
        else:
            raised = f"{sum(map(any, alarms))} of {len(alarms)} runs of unchanged code"
            yield f"self-test of this machine: {raised} raised a false alarm ({flagged} cells)"


def comparisons(results: Path | None = None) -> Path:
    """Return this machine's folder of comparisons, by default among the user's results; raises `UsageError`."""
    return writable((results or results_root(Path.cwd(), None)) / str(get_machine_id()) / "ab")


def _earlier(file: Path) -> Record:
    """Return the comparison to continue; raises `UsageError` for one of a version that did not save what must be equal."""
    data = load(file)
    if not {"asked", "same"} <= data.keys():
        raise UsageError(
            f"--continue {file}: not a comparison that this `python -m bench ab` saved, as in results/*/ab/"
        )
    return data


def _journal(folder: Path, name: str) -> Journal:
    """Return the journal of a killed process of the comparison, else a new one; raises `UsageError`."""
    path = newest_journal(folder, name)
    journal = Journal(path) if path else Journal.start(folder, name, {})
    if count := len(journal.lines):
        warn(f"continues after {count} saved replicate{'s' if count != 1 else ''}")
    return journal


def digest(of: object) -> str:
    """Return a digest of JSON data."""
    return hashlib.sha256(json.dumps(of).encode()).hexdigest()[:10]
