"""`python -m bench ab`: two sides, interleaved, and a verdict on each cell.

Two revisions (`--base REF [--head REF]`), two implementations (`--base-impl NAME --head-impl NAME`), or two interpreters with
two versions of torch (`--base-python PATH --head-python PATH`). What is measured is saved, and shown by `reports compare`.
"""

from __future__ import annotations

import argparse
import math
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from pytest_benchmark.utils import get_machine_id

import impls
from stats.verdict import MARGIN

from .. import CHECKOUT
from ..cases.axes import nearest
from ..cases.case import AXES
from ..cases.outcome import NoRow
from ..runs.saving import load, numbering, reports, results_root, save
from ..selection.command import Parser, complain, named, said
from ..selection.mistake import Mistake, count, positive
from ..selection.options import cases_of, clock_text, sweep_of
from ..workers.client import Setting, Side
from .comparison import Comparison, Plan, Unjudgeable, compare
from .pairing import SIDES
from .record import KIND, as_json, pairs_of
from .selftest import FILE, Log, Plant, planted, schedule, self_test, summary
from .sources import check_out, commit_of, copy_of_working_tree, digest, refuse_elsewhere, temporary_worktrees, twins

UNJUDGED, USAGE_ERROR = 2, 3

NEEDED = "import sys, torch, numpy, psutil; assert sys.version_info >= (3, 11), 'Python 3.11 or newer is needed'"
"""What an interpreter must be able to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 nothing regressed; 1 something did, in time or memory, is broken, or now fails the correctness check;
    2 it could not be judged; 3 a mistake of the user's.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNJUDGED))
    options = _parser().parse_args(arguments)
    command = said("ab", arguments)
    try:
        if options.to_continue:
            options, command, continued = _continued(options)
        else:
            continued = {}
        kind = _kind(options)
        for path in (options.json, options.markdown):
            _writable(path)
        options.save = named(options.save or time.strftime("%Y%m%d_%H%M%S"), "--save")
        with temporary_worktrees() as folder:
            sides = _sides(options, kind, folder)
            plan = replace(_plan(options, sides), twins=twins(sides[0].impls, sides[1].impls, folder))
            if options.self_test:
                return _self_test(options, plan)
            return _compared(options, _with_pairs_of(continued, plan), _again(command), continued.get("file"))
    except Mistake as mistake:
        return complain(mistake, USAGE_ERROR)
    except (Unjudgeable, NoRow) as why:
        print(f"bench: it could not be judged: {why}", file=sys.stderr)
        return UNJUDGED
    except KeyboardInterrupt:
        left = "the same command goes on" if options.self_test else "nothing is left behind"
        print(f"bench: interrupted; {left}", file=sys.stderr)
        return UNJUDGED


def _parser() -> argparse.ArgumentParser:
    parser = Parser("ab", USAGE_ERROR, description="Compare two sides, interleaved, in pairs of fresh processes.")
    sides = parser.add_argument_group("sides: two revisions, two implementations or two interpreters")
    sides.add_argument("--base", metavar="REF", help="git revision of this checkout whose impls/ are the base")
    sides.add_argument("--head", metavar="REF", help="... and the head (default: the working tree)")
    sides.add_argument(
        "--base-impl", metavar="NAME", help="an implementation, or NAME=package.module:attr for your own"
    )
    sides.add_argument("--head-impl", metavar="NAME", help="... that is compared with it")
    sides.add_argument("--base-python", metavar="PATH", help="an interpreter that has torch, numpy and psutil")
    sides.add_argument("--head-python", metavar="PATH", help="... that is compared with it (default: this one)")
    cells = parser.add_argument_group("cells, as in `pytest bench/`; VALUES, as 256,1024, replace the sweep's")
    cells.add_argument("--sweep", metavar="NAME", help="which cases (default: quick)")
    cells.add_argument("--impl", metavar="NAMES", action="append", default=[], help="exactly what runs, as NAME,NAME")
    for name, axis in AXES.items():
        if name != "threads":
            cells.add_argument(f"--{name}", metavar="VALUES", help=axis.about)
    cells.add_argument(
        "--threads", type=count, default=1, metavar="N", help="threads and cores of a process (default: 1)"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--margin", type=_share, default=MARGIN, metavar="SHARE",
                     help=f"what is shown to be within this is UNCHANGED (default: {MARGIN})")  # fmt: skip
    how.add_argument(
        "--budget", type=positive, default=3.0, metavar="MINUTES", help="about how long to measure (default: 3)"
    )
    how.add_argument("--cell-timeout", type=positive, default=300.0, metavar="SECONDS",
                     help="a cell whose proof or whose block takes longer is given up (default: 300)")  # fmt: skip
    how.add_argument("--seed", type=int, help="of the random order in which everything is timed")
    how.add_argument("--allow-gone", metavar="NAMES", action="append", default=[],
                       help="implementations that head may lack, a comma list; any other that it lacks is BROKEN")  # fmt: skip
    how.add_argument("--continue", type=Path, metavar="FILE", dest="to_continue",
                     help="go on, for --budget, with what is INCONCLUSIVE in a saved comparison")  # fmt: skip
    how.add_argument("--save", metavar="NAME", help="name of the file under results/ (default: the time)")
    how.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts for programs")
    how.add_argument("--markdown", type=Path, metavar="FILE", help="write the verdicts for a pull request")
    how.add_argument(
        "--self-test",
        type=count,
        metavar="N",
        help="N comparisons of unchanged code, and more with slow-downs planted: how often verdicts are right on this machine",
    )
    how.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)  # all of the budget, though all is settled
    how.add_argument("--plant", type=_plant, metavar="IMPL=SHARE", help=argparse.SUPPRESS)
    return parser


def _kind(options: argparse.Namespace) -> str:
    """`revisions`, `impls`, `pythons` or `self-test`; raises `Mistake` for none, for more than one, and for half of one."""
    asked = [
        kind
        for kind, given in (
            ("revisions", options.base or options.head),
            ("impls", options.base_impl or options.head_impl),
            ("pythons", options.base_python or options.head_python),
            ("self-test", options.self_test),
        )
        if given
    ]
    if len(asked) != 1:
        what = f"{' and '.join(asked)} together are too much" if asked else "nothing to compare"
        raise Mistake(
            f"{what}: give either --base REF, or --base-impl NAME --head-impl NAME, or --base-python PATH, or --self-test N"
        )
    if options.head and not options.base:
        raise Mistake("--head REF is compared with --base REF, which is missing")
    if asked == ["impls"] and not (options.base_impl and options.head_impl):
        raise Mistake("two implementations are compared: give both --base-impl NAME and --head-impl NAME")
    if asked == ["impls"] and options.impl:
        raise Mistake("--impl chooses among many; here --base-impl and --head-impl are the two")
    if asked == ["pythons"] and not options.base_python:
        raise Mistake("--head-python PATH is compared with --base-python PATH, which is missing")
    return asked[0]


def _sides(options: argparse.Namespace, kind: str, folder: Path) -> tuple[Side, Side]:
    if kind == "revisions":
        return _revisions(options, folder)
    here = copy_of_working_tree(folder / "working-tree")
    if kind == "impls":
        if options.base_impl == options.head_impl:
            raise Mistake(f"{options.base_impl} can't be compared with itself; --self-test N does that")
        base, head = (Side(name.partition("=")[0], here, impl=name) for name in (options.base_impl, options.head_impl))
        return base, head
    if kind == "pythons":
        pythons = (options.base_python, options.head_python or sys.executable)
        base, head = (Side(given, here, python=_interpreter(given)) for given in pythons)
        return base, head
    there = copy_of_working_tree(folder / "another-copy")  # what a path does to time must show, too
    return Side("the working tree", here), Side("a copy of it", there)


def _revisions(options: argparse.Namespace, folder: Path) -> tuple[Side, Side]:
    refuse_elsewhere()
    base = commit_of(options.base)
    head = commit_of(options.head) if options.head else None
    if base == head:
        raise Mistake(f"--base {options.base} and --head {options.head} are the same commit {base[:10]}; name another")
    of_base = Side(_label(options.base, base), check_out(base, folder / "base"), commit=base)
    if head is None:
        return of_base, Side("the working tree", copy_of_working_tree(folder / "head"))
    return of_base, Side(_label(options.head, head), check_out(head, folder / "head"), commit=head)


def _label(given: str, commit: str) -> str:
    """`main (0123456789)`, or the commit alone."""
    return commit[:10] if commit.startswith(given) else f"{given} ({commit[:10]})"


def _interpreter(given: str) -> str:
    """An interpreter that can run a worker; raises `Mistake`."""
    path = shutil.which(given)
    if path is None:
        raise Mistake(f"there is no interpreter {given}: give the path of a `python` with torch, numpy and psutil")
    path = str(Path(path).absolute())
    done = subprocess.run([path, "-c", NEEDED], cwd=CHECKOUT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Mistake(f"{given} can't run a side ({why}): `{given} -m pip install torch numpy psutil`")
    return path


def _plan(options: argparse.Namespace, sides: tuple[Side, Side]) -> Plan:
    asked = {
        name: value for name in ("sweep", *AXES) if name != "threads" and (value := getattr(options, name)) is not None
    }
    sweep, device, overrides = sweep_of(asked)
    names = _listed(options.impl)
    if options.impl and not names:
        raise Mistake("--impl names nothing")
    return Plan(
        sides=sides,
        cases=tuple(cases_of(sweep, device, overrides)),
        names=names,
        whole_registry=sweep.whole_registry,
        setting=Setting(str(Path.cwd()), options.threads, options.cell_timeout),
        margin=options.margin,
        seconds=60 * options.budget,
        seed=random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed,
        allow_gone=_listed(options.allow_gone),
        whole=options.whole,
    )


def _listed(given: Sequence[str]) -> tuple[str, ...]:
    """The names in comma lists."""
    return tuple(name.strip() for text in given for name in text.split(",") if name.strip())


def _compared(options: argparse.Namespace, plan: Plan, command: str, continues: str | None) -> int:
    """Compare, save, and let `python -m reports compare` tell what came out; the exit code."""
    _kept()
    found = compare(planted(plan, options.plant), _teller(plan.seconds))
    known = list(summary(_log().records(), plan.margin))
    saved = _saved(options.save, as_json(found, command, known, continues))
    code = _told(saved, options)
    print(f"saved: {saved}", flush=True)
    return code


def _told(saved: Path, options: argparse.Namespace) -> int:
    """The exit code of who told it."""
    files = [f"--{name}={path}" for name in ("json", "markdown") if (path := getattr(options, name))]
    return reports("compare", str(saved), *files)


def _continued(options: argparse.Namespace) -> tuple[argparse.Namespace, str, dict[str, Any]]:
    """The options, the command and the contents of the comparison that is continued; raises `Mistake`."""
    file = options.to_continue
    data = load(file)
    if data.get("kind") != KIND:
        raise Mistake(f"--continue {file}: not a comparison that `python -m bench ab` saved, as in results/*/ab/")
    again = _parser().parse_args(shlex.split(data["command"])[4:])
    for name in ("budget", "json", "markdown", "save"):
        setattr(again, name, getattr(options, name))
    again.seed = data["seed"]
    return again, data["command"], data | {"file": str(file.resolve())}


def _with_pairs_of(continued: dict[str, Any], plan: Plan) -> Plan:
    """With the pairs that there are already; raises `Mistake` where the code is another by now."""
    if not continued:
        return plan
    for side, of_plan in zip(SIDES, plan.sides, strict=True):
        if continued["sides"][side]["code"] != digest(of_plan.impls):
            raise Mistake(f"{side} ({of_plan.label}) is other code than it was: compare anew, without --continue")
    return replace(plan, before=pairs_of(continued))


def _saved(name: str, data: dict[str, Any]) -> Path:
    """Where it was written to: `results/MACHINE/ab/NNNN_NAME.json`."""
    folder = _kept()
    with numbering(folder):
        return save(folder, name, data, indent=None)


def _kept() -> Path:
    """Where comparisons are kept; raises `Mistake` where nothing can be written."""
    folder = _results() / "ab"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise Mistake(f"results can't be written to {folder}: {error.strerror}") from None
    return folder


def _again(command: str) -> str:
    """The same without the files that it writes, and their name."""
    words, kept = iter(shlex.split(command)), []
    for word in words:
        name, is_whole, _ = word.partition("=")
        if name not in ("--json", "--markdown", "--save"):
            kept.append(word)
        elif not is_whole:
            next(words)
    return shlex.join(kept)


def _self_test(options: argparse.Namespace, plan: Plan) -> int:
    tell = _teller(None)
    names = [name.partition("=")[0] for name in plan.names]
    registry = names or [impl.name for impl in impls.registered() if impl.common]
    if options.plant and options.plant[0] not in registry:
        raise Mistake(
            f"--plant {options.plant[0]}: not among {', '.join(registry)}{nearest(options.plant[0], registry)}"
        )

    def one(plan: Plan) -> Comparison:
        return compare(plan, _teller(plan.seconds))

    def keep(found: Comparison, plant: Plant | None) -> None:
        name = "self-test" + (f"_{plant[0]}_{plant[1]:+g}" if plant else "")
        _saved(name, as_json(found, f"python -m bench ab --self-test: {plant or 'unchanged'}"))

    self_test(plan, schedule(options.self_test, registry, options.plant), _log(), one, tell, keep)
    for sentence in summary(_log().records(), plan.margin):
        print(sentence)
    return 0


def _log() -> Log:
    return Log(_results() / FILE)


def _results() -> Path:
    """Of this machine."""
    return results_root(Path.cwd(), None) / str(get_machine_id())


def _teller(seconds: float | None) -> Any:
    """Prints a line of progress, with the time that is left of the budget."""
    began = monotonic()

    def tell(text: str) -> None:
        left = "" if seconds is None else f"[{clock_text(max(0.0, seconds - (monotonic() - began)))} left] "
        print(f"{left}{text}", file=sys.stderr, flush=True)

    return tell


def _writable(path: Path | None) -> None:
    """Raises `Mistake` now, rather than when everything is measured."""
    if path is None:
        return
    try:
        path.open("a").close()
    except OSError as error:
        raise Mistake(f"{path} can't be written: {error.strerror}") from None


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share like 0.01")
    return share


def _plant(text: str) -> Plant:
    name, _, share = text.partition("=")
    try:
        number = float(share)
    except ValueError:
        number = math.nan
    if not name or not number > -1:
        raise argparse.ArgumentTypeError(f"{text!r} is not IMPL=SHARE, as in sdpa=0.05")
    return name, number
