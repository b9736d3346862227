"""Finds and reads run files. A run is one saved file, `<machine>/NNNN_NAME.json`."""

from __future__ import annotations

import difflib
import fnmatch
import glob
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from stats.arguments import INSTALLED

from .. import CHECKOUT
from . import run_format

SCHEMA = 2
PUBLISHED, COMPARISONS = "published", "ab"
"""Folders of published runs, and below a machine's folder of comparisons."""

HOW_TO_MAKE_ONE = "make one with: pytest bench/ --benchmark-save=NAME"

Object = dict[str, Any]
"""An object of JSON."""

_NUMBERED = re.compile(r"(\d{4,})_(.+)", re.DOTALL)


class RunError(Exception):
    """A run can't be found or read. The message is one line that names it and gives the correct usage."""


@dataclass(frozen=True)
class Run:
    """One validated file. `rows` are pytest-benchmark's benchmarks; `skipped` are the cells without numbers."""

    path: Path
    rows: list[Object]
    skipped: list[Object]
    registry: list[str]
    baseline_impl: str
    sweep: str
    command: str
    asked: Object
    """Options that selected its cells, as given."""
    date: str
    complete: bool
    machine: Object
    commit: Object
    state: Object
    rooflines: list[Object]
    controls: Object
    """The reference workload's samples and their drift."""
    drift: float
    """Drift of the reference workload's time."""
    notes: list[str]
    """Caveats on its numbers."""
    published: list[Object]
    """Published times of its cases: `id`, `seconds`, and text."""
    models: dict[str, str]
    """Models that have the layer of a case, by the case's id."""

    @property
    def name(self) -> str:
        """File name without its ending: `0001_x`."""
        return self.path.stem

    @property
    def given_name(self) -> str:
        """The name as it was given to `--benchmark-save`: `x`."""
        return _names(self.path)[-1]

    @property
    def when(self) -> str:
        """Date and time to the minute; empty if unknown."""
        return self.date[:16].replace("T", " ")

    @property
    def commit_id(self) -> str:
        """First ten digits of the commit, followed by `-dirty` if files had changes, as git describes it; empty if there was
        none (pytest-benchmark's `unversioned`: no repository, and `unknown`: no commit in it).
        """
        known = str(self.commit.get("id") or "")
        return "" if known in ("", "unversioned", "unknown") else known[:10] + "-dirty" * bool(self.commit.get("dirty"))

    @property
    def committed(self) -> str:
        """The commit whose code was measured; empty if some of it was not committed."""
        return str(self.commit["id"]) if self.commit_id and not self.commit.get("dirty") else ""

    @property
    def own(self) -> dict[str, str]:
        """The user's own implementations by name, as given: NAME=module:attr."""
        given = (name.strip() for text in self.asked.get("impl") or () for name in str(text).split(","))
        return {name.partition("=")[0]: name for name in given if "=" in name}

    @property
    def wrong(self) -> frozenset[str]:
        """Implementations with at least one cell that failed the correctness check; marked wherever they appear."""
        return frozenset(cell["impl"] for cell in self.skipped if cell["reason"] == "wrong")


def default_results() -> Path:
    """Return `./results` if it contains runs or the suite is installed, else the checkout's own."""
    here = Path.cwd() / "results"
    return here if INSTALLED or newest_first(here) else CHECKOUT / "results"


def one(name: str, results: Path) -> Run:
    """Return the run of a name; see `find`.

    Raises:
        RunError: there is none, there are several, or it can't be read.
    """
    paths = find(name, results)
    if len(paths) > 1:
        raise RunError(f"{name!r} means {len(paths)} runs: {', '.join(path.stem for path in paths[:12])}; name one")
    return read(paths[0])


def default_out(path: Path) -> Path:
    """Return the folder for reports: `reports/out` of the checkout for its own files, else of the current folder."""
    home = CHECKOUT if path.resolve().is_relative_to(CHECKOUT) else Path.cwd()
    return home / "reports" / "out"


def newest_first(results: Path) -> list[Path]:
    """Return numbered runs under `results`, newest first; published baselines are excluded.

    Numbers count per machine folder: the most recently written folder comes first, then its numbers downwards.
    """
    files = [f for f in results.glob("*/*.json") if is_numbered(f)]
    written = {
        folder: max(f.lstat().st_mtime_ns for f in files if f.parent == folder) for folder in {f.parent for f in files}
    }
    return sorted(files, key=lambda f: (written[f.parent], str(f.parent), int(_names(f)[1]), f.stem), reverse=True)


def nothing_in(results: Path) -> str:
    """Return a sentence on a folder without runs below it; raises OSError if it can't be read."""
    for folder in (results, *results.glob("*/")) if results.exists() else ():
        os.listdir(folder)  # unlike `glob`, which finds nothing there
    if any(map(is_numbered, results.glob("*.json"))):
        return f"{results} is the folder of one machine: give {results.resolve().parent}"
    where = f"run in {results} yet" if results.exists() else f"folder {results}, and so no run"
    return f"there is no {where}; {HOW_TO_MAKE_ONE}"


def is_numbered(path: Path) -> bool:
    """Whether a path has the form of the user's own runs: `MACHINE/NNNN_NAME.json`."""
    return _NUMBERED.fullmatch(path.stem) is not None and path.resolve().parent.name not in (PUBLISHED, COMPARISONS)


def find(name: str, results: Path) -> list[Path]:
    """Return the files matched by a RUN on the command line.

    A path; or `x`, `0001`, `1`, `0001_x`, `machine/0001_x`, or a prefix of a numbered name, as in pytest-benchmark: the
    newest match. A glob (`*_x`) matches all of them, the oldest first, published ones before all.

    Raises:
        RunError: nothing matches; known names and the nearest are listed.
    """
    if Path(name).is_file():
        return [Path(name)]
    machine, _, wanted = name.removesuffix(".json").rpartition("/")
    known = newest_first(results) + sorted((results / PUBLISHED).rglob("*.json"))
    there = [f for f in known if not machine or f.parent.name == machine]
    if any(sign in wanted for sign in "*?[") and (matches := [f for f in there if fnmatch.filter(_names(f), wanted)]):
        return matches[::-1]
    exact = [f for f in there if wanted in _names(f)]
    if found := exact or [f for f in there if wanted and f.stem.startswith(wanted)]:
        return found[:1]
    raise RunError(_unknown(name, wanted, known, results))


def read(path: Path) -> Run:
    """Read and validate one file.

    Raises:
        RunError: it can't be opened, is truncated, is not JSON, or is not a run of this suite.
    """
    return checked(parse(path), path)


def checked(data: Any, path: Path) -> Run:
    """Build a run from a file's contents; raises as `read` does."""
    if not isinstance(data, dict) or not isinstance(data.get("benchmarks"), list):
        other = isinstance(data, dict) and "pairs" in data
        why = "a comparison, which `python -m reports compare FILE` shows" if other else "no list of benchmarks in it"
        raise RunError(f"{path}: not a run file ({why})")
    if data.get("schema") != SCHEMA:
        raise RunError(f"{path}: unknown schema {data.get('schema')!r} (this suite reads {SCHEMA})")
    if where := run_format.misfit(data):
        raise RunError(f"{path}: invalid value of {where}")
    of: Object = {key: data.get(key) or run_format.empty(shape) for key, shape in run_format.RUN.items()}
    of["skipped"] = [{**cell, "detail": str(cell.get("detail") or "")} for cell in of["skipped"]]
    return Run(
        path=path,
        rows=of["benchmarks"],
        date=of["datetime"],
        complete=data.get("complete", True),
        machine=of["machine_info"],
        commit=of["commit_info"],
        rooflines=of["roofs"],
        drift=of["controls"].get("drift") or 0.0,
        **{key: it for key, it in of.items() if key in Run.__dataclass_fields__},
    )


def parse(path: Path) -> Any:
    """Parse a JSON file; raises `RunError` for others, and for a name that no page can show."""
    if not path.name.isprintable():
        raise RunError(f"{path.name!a}: not a file name of printable UTF-8: rename it")
    try:
        text = path.read_bytes()
        return orjson.loads(text)
    except OSError as error:
        raise RunError(f"{path}: can't be read ({error.strerror})") from None
    except orjson.JSONDecodeError as error:
        number = re.match("NaN|Infinity", error.doc[error.pos :])
        what = f"{number[0]}, which JSON doesn't have: write null" if number else "not JSON, or truncated"
        why = f"{what}, in line {error.lineno}" if text else "empty"
        raise RunError(f"{path}: {why}") from None


def _names(file: Path) -> tuple[str, ...]:
    """Return the names of a file: '0001_x', '0001', '1', 'x'."""
    match = _NUMBERED.fullmatch(file.stem)
    return (file.stem, match[1], str(int(match[1])), match[2]) if match else (file.stem,)


def _unknown(name: str, wanted: str, known: Iterable[Path], results: Path) -> str:
    if wanted and [*results.glob(f"*/{glob.escape(wanted)}.*.journal")]:
        return f"run {name!r} is not finished: `pytest bench/ --resume {shlex.quote(wanted)}` finishes it"
    stems = list(dict.fromkeys(f.stem for f in known))
    if not stems:
        return f"no run {name!r}: {nothing_in(results)}"
    by_alias = {alias: f.stem for f in known for alias in _names(f)}
    near = difflib.get_close_matches(wanted, by_alias, n=1, cutoff=0.5)
    hint = f"; did you mean {by_alias[near[0]]!r}?" if near else ""
    more = f" and {len(stems) - 12} more" if len(stems) > 12 else ""
    return f"no run {name!r} in {results}; known: {', '.join(stems[:12])}{more}{hint}"
