"""Measures and saves interleaved comparisons of two variants, as requested by the options of `python -m bench ab`.

Two revisions (`--base REF [--head REF]`), two implementations (`--base-impl NAME --head-impl NAME`), or two
interpreters with two versions of torch (`--base-python PATH --head-python PATH`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, strftime
from typing import Any

from pytest_benchmark.utils import get_machine_id

import impls
from stats.verdict import MARGIN, as_margin

from .. import CHECKOUT
from ..cases.axes import nearest
from ..cases.case import AXES
from ..runs import journal
from ..runs.journal import Journal
from ..runs.saving import load, results_root, save
from ..selection.choice import listed
from ..selection.command import Parser
from ..selection.errors import UsageError, count, positive
from ..selection.options import OPTIONS, cases_of, clock_text, sweep_of
from ..timing.machine import fingerprint
from ..workers.client import Setting, Side
from .comparison import KIND, Plan, Record, compare
from .pairing import SIDES, Pair
from .selftest import FILE, Injection, Log, injected, schedule, self_test, summary
from .sources import (
    check_out,
    commit_of,
    copy_of_impls,
    copy_of_working_tree,
    digest,
    repository,
    same_files,
    temporary_worktrees,
    twins,
    untracked,
)

USAGE_ERROR = 3

NEEDED = "import sys, torch, numpy, psutil; assert sys.version_info >= (3, 11), 'Python 3.11 or newer is needed'"
"""Requirements on an interpreter."""

EACH_TIME = ("budget", "json", "markdown", "save", "to_continue")
"""Options that a continued comparison does not inherit."""


class Same(Exception):
    """Both variants have the same code, so that nothing is measured."""

    def __init__(self, base: Side, head: Side):
        super().__init__(f"no difference in code between {base.label} and {head.label}")
        self.sides = base.label, head.label


def measured(options: argparse.Namespace, results: Path | None = None) -> Path:
    """Measure the comparison described by the options (`parser`), save it under `results` (default: the user's), return
    the file.

    Reuses replicates that a killed process of the same comparison has measured.

    Raises:
        UsageError: the options or files are invalid.
        Unjudgeable, Skip: nothing can be compared.
        Same: both variants have the same code.
    """
    folder = comparisons(results)
    continued = _continued(options.to_continue) if options.to_continue else {}
    if continued:
        options = argparse.Namespace(**defaults() | continued["asked"] | {it: getattr(options, it) for it in EACH_TIME})
    with temporary_worktrees(repository()) as place:
        plan = _plan(options, place)
        code = [digest(side.code) for side in plan.sides]
        if continued:
            for side, now, of_plan in zip(SIDES, code, plan.sides, strict=True):
                if continued["sides"][side]["code"] != now:
                    raise UsageError(
                        f"{side} ({of_plan.label}) is other code than it was: compare anew, without --continue"
                    )
            plan = replace(plan, before=tuple(continued["pairs"]), seed=continued["seed"])
        about = {"asked": asked(options), "continues": str(options.to_continue.resolve()) if continued else None}
        begun = about | {"code": code, "machine": fingerprint()}
        with _journaled(folder, begun, injected(plan, options.injection)) as (plan, keep):
            found = compare(plan, _teller(plan.seconds), keep)
            known = list(summary(Log(folder.parent / FILE).records(), plan.margin))
            whole = found | about | {"command": command(asked(options)), "self_test": known}
            return save(folder, options.save or strftime("%Y%m%d_%H%M%S"), whole, indent=None)


def asked(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that define a comparison: those that differ from their defaults."""
    usual = defaults()
    return {name: value for name, value in vars(options).items() if name not in EACH_TIME and value != usual[name]}


def command(asked: Mapping[str, Any]) -> str:
    """Return `python -m bench ab ...` with the options that differ from their defaults."""
    words = ["python", "-m", "bench", "ab"]
    for name, value in asked.items():
        words.append(spelt(name))
        if value is not True:
            words.append(",".join(value) if isinstance(value, list) else str(value))
    return shlex.join(words)


def spelt(name: str) -> str:
    """Return an option by its name among the options: `base_impl` -> `--base-impl`."""
    return f"--{name if name in AXES else name.replace('_', '-')}"


@contextmanager
def _journaled(folder: Path, begun: Mapping[str, Any], plan: Plan) -> Iterator[tuple[Plan, Callable[[Pair], None]]]:
    """Yield the plan with the replicates of a killed process of the comparison, and a function that stores more."""
    name = f"ab-{hashlib.sha256(json.dumps(begun).encode()).hexdigest()[:10]}"
    path = journal.newest(folder, name)
    left_behind = path is not None and journal.writer(path) is None
    kept = Journal.reopen(path) if path and left_behind else Journal.start(folder, name, {"seed": plan.seed})
    pairs = [line["pair"] for line in kept.lines]
    if pairs:
        print(f"goes on after {len(pairs)} pairs that were kept", file=sys.stderr)
    left = max(0.0, plan.seconds - sum(pair["seconds"] for pair in pairs))

    def keep(pair: Pair) -> None:
        kept.add({"pair": pair})
        pairs.append(pair)

    try:
        yield replace(plan, before=(*plan.before, *pairs), seconds=left, seed=kept.header["seed"]), keep
    except BaseException:
        if pairs:
            kept.close()
        else:
            kept.delete()
        raise
    kept.delete()


def parser() -> argparse.ArgumentParser:
    """Build the parser of `python -m bench ab`."""
    parser = Parser("ab", USAGE_ERROR, description="Compare two sides, interleaved, in pairs of fresh processes.")
    sides = parser.add_argument_group("sides: two revisions, two implementations or two interpreters")
    sides.add_argument("--base", metavar="REF", help="git revision that is the base, of the repository that you are in")
    sides.add_argument("--head", metavar="REF", help="... and the head (default: the working tree)")
    sides.add_argument(
        "--base-impl", metavar="NAME", help="an implementation, or NAME=package.module:attr for your own"
    )
    sides.add_argument("--head-impl", metavar="NAME", help="... that is compared with it")
    sides.add_argument("--base-python", metavar="PATH", help="an interpreter that has torch, numpy and psutil")
    sides.add_argument("--head-python", metavar="PATH", help="... that is compared with it (default: this one)")
    add_cells(parser)
    how = parser.add_argument_group("how much, and where to")
    how.add_argument(
        "--budget", type=positive, default=3.0, metavar="MINUTES", help="about how long to measure (default: 3)"
    )
    how.add_argument("--continue", type=Path, metavar="FILE", dest="to_continue",
                     help="go on, for --budget, with what is INCONCLUSIVE in a saved comparison")  # fmt: skip
    how.add_argument("--save", metavar="NAME", help="name of the file under results/ (default: the time)")
    how.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts for programs")
    how.add_argument("--markdown", type=Path, metavar="FILE", help="write the verdicts for a pull request")
    how.add_argument(
        "--self-test",
        type=count,
        metavar="N",
        help="N comparisons of unchanged code, and more with slow-downs injected: how often verdicts are right on this machine",
    )
    how.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)  # spend all, though decided
    how.add_argument("--inject", type=_injection, dest="injection", metavar="IMPL=SHARE", help=argparse.SUPPRESS)
    return parser


def add_cells(parser: argparse.ArgumentParser) -> None:
    """Add the options that select cells and configure how they are judged."""
    cells = parser.add_argument_group("cells, as in `pytest bench/`; VALUES, as 256,1024, replace the sweep's")
    cells.add_argument("--sweep", metavar="NAME", help="which cases (default: quick)")
    cells.add_argument("--model", metavar="NAMES", help="... or those of models, by name or by a config.json")
    cells.add_argument("--impl", metavar="NAMES", action="append", default=[], help="exactly what runs, as NAME,NAME")
    for name in OPTIONS:
        if name != "threads":
            cells.add_argument(f"--{name}", metavar="VALUES", help=AXES[name].about)
    cells.add_argument(
        "--threads", type=count, default=1, metavar="N", help="threads and cores of a process (default: 1)"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--margin", type=as_margin, default=MARGIN, metavar="SHARE",
                     help=f"what is shown to be within this is UNCHANGED (default: {MARGIN})")  # fmt: skip
    how.add_argument("--cell-timeout", type=positive, default=300.0, metavar="SECONDS",
                     help="a cell whose check or whose block takes longer is given up (default: 300)")  # fmt: skip
    how.add_argument("--seed", type=int, help="of the random order in which everything is timed")
    how.add_argument("--allow-gone", metavar="NAMES", action="append", default=[],
                       help="implementations that head may lack, a comma list; any other that it lacks is BROKEN")  # fmt: skip


def defaults() -> dict[str, Any]:
    """Return the defaults of all options of `parser`."""
    return vars(parser().parse_args([]))


def _sides(options: argparse.Namespace, folder: Path) -> tuple[Side, Side]:
    """Return both variants; raises `UsageError` for missing, incomplete or conflicting options."""
    kinds = {
        "revisions": (options.base, options.head),
        "impls": (options.base_impl, options.head_impl),
        "pythons": (options.base_python, options.head_python),
        "self-test": (options.self_test, None),
    }
    asked = [kind for kind, given in kinds.items() if any(given)]
    if len(asked) != 1:
        what = f"{' and '.join(asked)} together are too much" if asked else "nothing to compare"
        raise UsageError(
            f"{what}: give either --base REF, or --base-impl NAME --head-impl NAME, or --base-python PATH, or --self-test N"
        )
    first, second = kinds[asked[0]]
    if asked == ["revisions"]:
        return _revisions(options, folder)
    if asked == ["impls"]:
        if not (first and second):
            raise UsageError("two implementations are compared: give both --base-impl NAME and --head-impl NAME")
        if options.impl:
            raise UsageError("--impl chooses among many; here --base-impl and --head-impl are the two")
        if first == second:
            raise UsageError(f"{first} can't be compared with itself; --self-test N does that")
    if not first:
        raise UsageError("--head-python PATH is compared with --base-python PATH, which is missing")
    here = copy_of_impls(folder / "working-tree")
    if asked == ["self-test"]:
        there = copy_of_impls(folder / "another-copy")  # the folder's path may affect time, which must show
        return Side("the working tree", here), Side("a copy of it", there)
    if asked == ["impls"]:
        base, head = (Side(name.partition("=")[0], here, impl=name) for name in (first, second))
    else:
        base, head = (Side(given, here, python=_interpreter(given)) for given in (first, second or sys.executable))
    return base, head


def _revisions(options: argparse.Namespace, folder: Path) -> tuple[Side, Side]:
    if not options.base:
        raise UsageError("--head REF is compared with --base REF, which is missing")
    root = repository()
    if root != CHECKOUT and not any("=" in name for name in listed(options.impl)):
        raise UsageError(f"revisions of {root} are compared: name a kernel in it, as in --impl mine=mine:mine")
    commits = commit_of(options.base, root), options.head and commit_of(options.head, root)
    if commits[0] == commits[1]:
        raise UsageError(
            f"--base {options.base} and --head {options.head} are the same commit {commits[0][:10]}; name another"
        )
    base, head = (
        _side(given, commit, folder / name, root)
        for name, given, commit in zip(SIDES, (options.base, options.head), commits, strict=True)
    )
    if not options.injection and digest(base.code) == digest(head.code) and same_files(*commits, root):
        raise Same(base, head)
    return base, head


def _side(given: str, commit: str | None, place: Path, root: Path) -> Side:
    """Return a variant: a revision of the user's repository or of the suite, or the working tree."""
    own = root != CHECKOUT
    if commit is None:
        label = f"the working tree{untracked(root, '.' if own else 'impls')}"
        place = copy_of_working_tree(place, root) if own else copy_of_impls(place)
    else:
        short = commit[:10]
        label, place = short if commit.startswith(given) else f"{given} ({short})", check_out(commit, place, root)
    return Side(label, commit=commit, tree=place) if own else Side(label, place, commit=commit)


def _interpreter(given: str) -> str:
    """Return an interpreter that can run a worker; raises `UsageError`."""
    path = shutil.which(given)
    if path is None:
        raise UsageError(f"there is no interpreter {given}: give the path of a `python` with torch, numpy and psutil")
    path = str(Path(path).absolute())
    done = subprocess.run([path, "-c", NEEDED], cwd=CHECKOUT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UsageError(f"{given} can't run a side ({why}): `{given} -m pip install torch numpy psutil`")
    return path


def _plan(options: argparse.Namespace, folder: Path) -> Plan:
    asked = {
        name: value
        for name in ("sweep", "model", *OPTIONS)
        if name != "threads" and (value := getattr(options, name)) is not None
    }
    sweep, device, overrides = sweep_of(asked)
    names = tuple(listed(options.impl))
    if options.impl and not names:
        raise UsageError("--impl names nothing")
    cases = tuple(cases_of(sweep, device, overrides))
    base, head = _sides(options, folder)
    return Plan(
        sides=(base, head),
        cases=cases,
        names=names,
        whole_registry=sweep.whole_registry,
        setting=Setting(str(Path.cwd()), options.threads, options.cell_timeout, repository=repository()),
        margin=options.margin,
        seconds=60 * options.budget,
        seed=random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed,
        allow_gone=tuple(listed(options.allow_gone)),
        whole=options.whole,
        twins=twins(base.tree or base.impls, head.tree or head.impls, folder),
    )


def _continued(file: Path) -> dict[str, Any]:
    """Return the comparison to continue; raises `UsageError`."""
    data = load(file)
    if data.get("kind") != KIND:
        raise UsageError(f"--continue {file}: not a comparison that `python -m bench ab` saved, as in results/*/ab/")
    if "asked" not in data:
        raise UsageError(
            f"--continue {file}: an older version saved it, without its options: compare anew: {data['command']}"
        )
    return data


def comparisons(results: Path | None = None) -> Path:
    """Return this machine's folder of comparisons, by default among the user's results; raises `UsageError`."""
    folder = (results or results_root(Path.cwd(), None)) / str(get_machine_id()) / "ab"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(f"results can't be written to {folder}: {error.strerror}") from None
    return folder


def self_tested(options: argparse.Namespace) -> None:
    """Run the comparisons of `--self-test`, and print the summary; raises as `measured`."""
    folder = comparisons()
    log, tell = Log(folder.parent / FILE), _teller(None)
    names = [name.partition("=")[0] for name in listed(options.impl)]
    registry = names or [impl.name for impl in impls.registered() if impl.common]
    if options.injection and options.injection[0] not in registry:
        raise UsageError(
            f"--inject {options.injection[0]}: not among {', '.join(registry)}{nearest(options.injection[0], registry)}"
        )

    def measure(plan: Plan, injection: Injection | None) -> Record:
        found = compare(plan, _teller(plan.seconds))
        name = "self-test" + (f"_{injection[0]}_{injection[1]:+g}" if injection else "")
        save(
            folder,
            name,
            found | {"command": f"python -m bench ab --self-test: {injection or 'unchanged'}"},
            indent=None,
        )
        return found

    with temporary_worktrees(repository()) as place:
        self_test(_plan(options, place), schedule(options.self_test, registry, options.injection), log, measure, tell)
    for sentence in summary(log.records(), options.margin):
        print(sentence)


def _teller(seconds: float | None) -> Any:
    """Return a function that prints a line of progress with the time left of the budget."""
    began = monotonic()

    def tell(text: str) -> None:
        left = "" if seconds is None else f"[{clock_text(max(0.0, seconds - (monotonic() - began)))} left] "
        print(f"{left}{text}", file=sys.stderr, flush=True)

    return tell


def _injection(text: str) -> Injection:
    name, _, share = text.partition("=")
    try:
        number = float(share)
    except ValueError:
        number = math.nan
    if not name or not number > -1:
        raise argparse.ArgumentTypeError(f"{text!r} is not IMPL=SHARE, as in sdpa=0.05")
    return name, number
