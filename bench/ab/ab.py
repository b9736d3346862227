"""Measures and saves interleaved comparisons of two variants, as requested by the options of `python -m bench ab`.

Two revisions (`--base REF [--head REF]`), two implementations (`--base-impl NAME --head-impl NAME`), or two
interpreters with two versions of torch (`--base-python PATH --head-python PATH`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic, strftime

from pytest_benchmark.utils import get_machine_id

import impls

from ..runs.journal import Journal, newest
from ..runs.saving import load, results_root, run_files, save, writable
from ..selection.choice import listed
from ..selection.errors import UsageError
from ..selection.options import clock_text
from . import selftest
from .comparison import compare
from .options import EACH_TIME, asked, command, defaults
from .plan import Record, Unjudgeable
from .planning import digest_of_own, plan_of
from .replicates import Replicate
from .selftest import Injection
from .sources import temporary_folder


def measure(
    options: argparse.Namespace, results: Path | None = None, once: str = "", injection: Injection | None = None
) -> Path:
    """Measure the comparison that the options (`parser`) describe, and save it under `results` (default: the user's);
    returns the file.

    Reuses replicates that a killed process of the same comparison has measured; with `once`, the beginning of the file's
    name, the file of a finished one, too.

    Raises:
        UsageError: the options or files are invalid.
        Unjudgeable, Skip: nothing can be compared, for example because both variants have the same code.
    """
    folder = comparisons(results)
    earlier = _earlier(options.to_continue) if options.to_continue else {}
    if earlier:
        options = argparse.Namespace(**defaults() | earlier["asked"] | {it: getattr(options, it) for it in EACH_TIME})
    with temporary_folder() as place:
        injection = earlier.get("injection", injection)
        plan = selftest.injected(plan_of(options, place), injection)
        if earlier and (changed := [name for name in plan.same if earlier["same"].get(name) != plan.same[name]]):
            raise UsageError(f"changed since then: {', '.join(changed)}; start another comparison, without --continue")
        source = str(options.to_continue.resolve()) if earlier else None
        about = {"asked": asked(options), "continues": source, "injection": injection}
        if once:
            options.save = f"{once}-{_digest([about, plan.same, options.budget])}"
            if there := run_files(folder, options.save):
                return there[-1]
        journal = _journal(folder, f"ab-{_digest([about, plan.same])}", earlier.get("seed", plan.seed))
        saved = None
        try:
            again = [line["pair"] for line in journal.lines]
            spent = sum(replicate["seconds"] for replicate in again)
            left = max(0.0, plan.seconds - spent)
            plan = replace(plan, seconds=left, seed=journal.header["seed"])

            def keep(replicate: Replicate) -> None:
                if digest_of_own(plan.words) != plan.same["files"]:
                    raise Unjudgeable("your code has changed meanwhile: the same command compares the new code")
                journal.add({"pair": replicate})

            found = compare(plan, _progress_printer(left), [*earlier.get("pairs", ()), *again], keep)
            found["seconds"] += spent + earlier.get("seconds", 0.0)
            tested = [*selftest.summary(selftest.kept(folder), plan.margin)]
            whole = found | about | {"command": command(asked(options)), "self_test": tested}
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
    wanted = selftest.schedule(options.self_test, names or [impl.name for impl in impls.registered() if impl.common])
    tell = _progress_printer(None)
    about = clock_text(60 * len(wanted) * options.budget)
    tell(f"self-test: at most {about}; finished comparisons are kept, and the same command continues")
    for i, injection in enumerate(wanted):
        what = "{} {:+.3g} of its time".format(*injection) if injection else "unchanged code"
        tell(f"self-test: run {i + 1} of {len(wanted)}, {what}")
        once = selftest.NAME + ("_{}_{:+g}".format(*injection) if injection else "")
        seed = (options.seed or 0) + wanted[:i].count(injection)
        given = vars(options) | {"seed": seed, "self_test": 1}  # however many they are
        measure(argparse.Namespace(**given), once=once, injection=injection)
    for sentence in selftest.summary(selftest.kept(comparisons()), options.margin):
        print(sentence)


def comparisons(results: Path | None = None) -> Path:
    """Return this machine's folder of comparisons, by default among the user's results; raises `UsageError`."""
    return writable((results or results_root(Path.cwd(), None)) / str(get_machine_id()) / "ab")


def _earlier(file: Path) -> Record:
    """Return the comparison to continue; raises `UsageError`."""
    data = load(file)
    if not {"asked", "same", "pairs"} <= data.keys():
        raise UsageError(
            f"--continue {file}: not a comparison that this `python -m bench ab` saved, as in results/*/ab/"
        )
    return data


def _journal(folder: Path, name: str, seed: int) -> Journal:
    """Return the journal of a killed process of the comparison, else a new one; raises `UsageError`."""
    path = newest(folder, name)
    journal = Journal(path) if path else Journal.start(folder, name, {"seed": seed})
    if journal.lines:
        print(f"continues after {len(journal.lines)} saved replicates", file=sys.stderr)
    return journal


def _digest(of: object) -> str:
    return hashlib.sha256(json.dumps(of).encode()).hexdigest()[:10]


def _progress_printer(seconds: float | None) -> Callable[[str], None]:
    """Return a function that prints a line of progress with the time left of the budget."""
    began = monotonic()

    def tell(text: str) -> None:
        left = "" if seconds is None else f"[{clock_text(max(0.0, seconds - (monotonic() - began)))} left] "
        print(f"{left}{text}", file=sys.stderr, flush=True)

    return tell
