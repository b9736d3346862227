"""Finds and reads run files. A run is one saved file, `<machine>/NNNN_NAME.json`."""

from __future__ import annotations

import difflib
import glob
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from stats.arguments import INSTALLED

from .. import CHECKOUT
from .axes import KNOWN_AXES, axes_of

SCHEMA = 2
PUBLISHED, COMPARISONS = "published", "ab"
"""Folders of published runs, and below a machine's folder of comparisons."""

HOW_TO_MAKE_ONE = "make one with: pytest bench/ --benchmark-save=NAME"

_NUMBERED = re.compile(r"(\d{4,})_(.+)", re.DOTALL)
_KINDS = {"machine_info": dict, "commit_info": dict, "state": dict, "skipped": list,
          "registry": list, "baseline_impl": str, "notes": list, "axes": list, "asked": dict, "models": dict}  # fmt: skip
_REQUIRED = ("median", "q1", "q3")
_NUMBERS = ("peak_bytes", "error", "error_bound", "flops", "bytes")
"""Columns of a row that hold a number, if present."""


class RunError(Exception):
    """A run can't be found or read. The message is one line that names it and gives the correct usage."""


@dataclass(frozen=True)
class Run:
    """One validated file. `rows` are pytest-benchmark's benchmarks, with samples where they can be paired; `skipped`
    are the cells without numbers.
    """

    path: Path
    rows: list[dict[str, Any]]
    skipped: list[dict[str, Any]] = field(default_factory=list)
    registry: tuple[str, ...] = ()
    baseline_impl: str = ""
    sweep: str = ""
    command: str = ""
    asked: dict[str, Any] = field(default_factory=dict)
    """Options that selected its cells, as given."""
    date: str = ""
    complete: bool = True
    machine: dict[str, Any] = field(default_factory=dict)
    commit: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    rooflines: list[dict[str, Any]] = field(default_factory=list)
    workload: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Caveats on its numbers."""
    published: list[dict[str, Any]] = field(default_factory=list)
    """Published times of its cases: `id`, `seconds`, and text."""
    models: dict[str, str] = field(default_factory=dict)
    """Models whose layer a case is, by the case's id."""

    @property
    def name(self) -> str:
        """File name without its ending: `0001_x`."""
        return self.path.stem

    @property
    def commit_id(self) -> str:
        """First ten digits of the commit; empty if there was none, which pytest-benchmark calls `unversioned`."""
        known = str(self.commit.get("id") or "")
        return "" if known == "unversioned" else known[:10]

    @property
    def committed(self) -> str:
        """The commit that its code is; empty if some of it was not committed."""
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
        folder: max(f.stat().st_mtime_ns for f in files if f.parent == folder) for folder in {f.parent for f in files}
    }
    return sorted(files, key=lambda f: (written[f.parent], str(f.parent), int(_names(f)[1]), f.stem), reverse=True)


def nothing_in(results: Path) -> str:
    """Return a sentence on a folder without runs below it."""
    if any(map(is_numbered, results.glob("*.json"))):
        return f"{results} is the folder of one machine: give {results.resolve().parent}"
    return f"there is no run in {results} yet; {HOW_TO_MAKE_ONE}"


def is_numbered(path: Path) -> bool:
    """Whether a path has the form of the user's own runs: `MACHINE/NNNN_NAME.json`."""
    return _NUMBERED.fullmatch(path.stem) is not None and path.resolve().parent.name not in (PUBLISHED, COMPARISONS)


def find(name: str, results: Path) -> list[Path]:
    """Return the files matched by a RUN on the command line.

    A path; or `x`, `0001`, `0001_x`, `machine/0001_x`, or a prefix of a numbered name, as in pytest-benchmark: the
    newest match. A glob (`*_x`) matches all of them, oldest first.

    Raises:
        RunError: nothing matches; known names and the nearest are listed.
    """
    if Path(name).is_file():
        return [Path(name)]
    machine, _, wanted = name.removesuffix(".json").rpartition("/")
    known = newest_first(results) + sorted((results / PUBLISHED).rglob("*.json"))
    there = [f for f in known if not machine or f.parent.name == machine]
    if any(sign in wanted for sign in "*?["):
        matches = [f for f in there if f.match(f"{wanted}.json")]
        if matches:
            return matches[::-1]
    exact = [f for f in there if wanted in _names(f)]
    for candidates in (exact, [f for f in there if wanted and f.stem.startswith(wanted)]):
        if candidates:
            return candidates[:1]
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
        raise RunError(f"{path}: not a run file (no list of benchmarks in it)")
    if data.get("schema") != SCHEMA:
        raise RunError(f"{path}: unknown schema {data.get('schema')!r} (this suite reads {SCHEMA})")
    for key, kind in _KINDS.items():
        if data.get(key) is not None and not isinstance(data[key], kind):
            raise RunError(f"{path}: {key} is no {kind.__name__}")
    axes = axes_of(_dictionaries(data.get("axes")))
    rows = [_checked(row, axes, path) for row in data["benchmarks"]]
    skipped = [_cell(cell, path) for cell in data.get("skipped") or []]
    if not axes:
        raise RunError(f"{path}: not a run file (it describes no axes)")
    KNOWN_AXES.update(axes)
    return Run(
        path=path,
        rows=rows,
        skipped=skipped,
        registry=tuple(map(str, data.get("registry") or ())),
        baseline_impl=data.get("baseline_impl") or "",
        sweep=str(data.get("sweep") or ""),
        command=str(data.get("command") or ""),
        asked=data.get("asked") or {},
        date=str(data.get("datetime") or ""),
        complete=bool(data.get("complete", True)),
        machine=data.get("machine_info") or {},
        commit=data.get("commit_info") or {},
        state=data.get("state") or {},
        rooflines=[it for it in _dictionaries(data.get("roofs")) if {"device", "threads"} <= it.keys()],
        workload=_workload(data.get("controls")),
        notes=tuple(map(str, data.get("notes") or ())),
        published=[it for it in _dictionaries(data.get("published")) if positive(it.get("seconds"))],
        models={id_: str(name) for id_, name in (data.get("models") or {}).items()},
    )


def parse(path: Path) -> Any:
    """Parse a JSON file with orjson, or with the standard library if orjson refuses it."""
    try:
        data = path.read_bytes()
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            return json.loads(data.decode("utf-8"))
    except OSError as error:
        raise RunError(f"{path}: can't be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        # A truncated run fails at its very end; other failures mean that the file is no JSON.
        if not error.doc.strip():
            raise RunError(f"{path}: truncated (the file is empty)") from None
        cut = error.pos >= len(error.doc.rstrip()) - 1 or error.msg.startswith("Unterminated string")
        what = "truncated" if cut and error.doc.lstrip()[0] in "{[" else "not JSON"
        raise RunError(f"{path}: {what} (line {error.lineno}: {error.msg})") from None
    except (UnicodeDecodeError, RecursionError):
        raise RunError(f"{path}: not JSON") from None


def _checked(row: Any, axes: Iterable[str], path: Path) -> Any:
    extra, stats = (row.get("extra_info"), row.get("stats")) if isinstance(row, dict) else (None, None)
    if not isinstance(extra, dict) or not isinstance(stats, dict) or not {"impl", "id"} <= extra.keys():
        name = row.get("name") if isinstance(row, dict) else row
        raise RunError(f"{path}: benchmark {name!r} has no implementation and case in its extra_info")
    unfit = [key for key in _REQUIRED if not positive(stats.get(key))]
    unfit += [key for key in _NUMBERS if not isinstance(extra.get(key), int | float | None)]
    unfit += [axis for axis in axes if isinstance(extra.get(axis), list | dict)]
    if unfit:
        raise RunError(f"{path}: benchmark {row.get('name')!r} has an invalid value of {', '.join(unfit)}")
    of_samples = (extra.get(f"sample_{what}") for what in ("rounds", "visits", "processes"))
    lists: list[Any] = [stats.get("data"), extra.get("process_medians"), *of_samples]
    times, medians, *places = lists
    listed = all(it and isinstance(it, list) for it in lists)
    if not listed or not all(map(positive, (*times, *medians))) or {*map(len, places)} != {len(times)}:
        raise RunError(f"{path}: benchmark {row.get('name')!r} has no samples, or not the round and visit of each")
    return row


def _cell(cell: Any, path: Path) -> dict[str, Any]:
    if not isinstance(cell, dict) or not {"impl", "id", "reason"} <= cell.keys():
        raise RunError(f"{path}: a skipped cell without impl, id and reason: {cell!r:.80}")
    return {"detail": "", **cell}


def _workload(value: Any) -> dict[str, Any]:
    """Return the record of the reference workload; empty if the format is unknown."""
    samples = value.get("looks") if isinstance(value, dict) else None
    lists = list(samples.values()) if isinstance(samples, dict) else [None]
    known = all(
        isinstance(of, list) and all(isinstance(it, dict) and positive(it.get("seconds")) for it in of) for of in lists
    )
    return value if known else {}


def positive(value: Any) -> bool:
    """Whether a value is a positive finite number, valid as a time or a rate."""
    return isinstance(value, int | float) and 0 < value < math.inf


def _dictionaries(value: Any) -> list[dict[str, Any]]:
    """Return the dictionaries in a list; other entries are ignored."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _names(file: Path) -> tuple[str, ...]:
    """Return the names of a file: '0001_x', '0001', 'x'."""
    match = _NUMBERED.fullmatch(file.stem)
    return (file.stem, *match.groups()) if match else (file.stem,)


def _unknown(name: str, wanted: str, known: Iterable[Path], results: Path) -> str:
    if wanted and [*results.glob(f"*/{glob.escape(wanted)}.*.journal")]:
        return f"run {name!r} is not finished: `pytest bench/ --resume {wanted}` finishes it"
    stems = list(dict.fromkeys(f.stem for f in known))
    if not stems:
        return f"no run {name!r}: {nothing_in(results)}"
    by_alias = {alias: f.stem for f in known for alias in _names(f)}
    near = difflib.get_close_matches(wanted, by_alias, n=1, cutoff=0.5)
    hint = f"; did you mean {by_alias[near[0]]!r}?" if near else ""
    more = f" and {len(stems) - 12} more" if len(stems) > 12 else ""
    return f"no run {name!r} in {results}; known: {', '.join(stems[:12])}{more}{hint}"
