"""A sweep on many machines, from its first line in the journal to its run files."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_benchmark.utils import get_commit_info

from ..cases.outcome import FAILURES
from ..runs import journal as journals
from ..runs.journal import Journal, Line
from ..runs.progress import skips
from ..runs.saving import load, numbering, run_files, save
from ..selection.command import complain
from ..selection.mistake import Mistake
from ..terminal import as_typed
from .archive import pack
from .driver import Driver, Engine, tell
from .merging import merged

FOLDER = "cluster"
"""Where journals lie, under results/."""

UNFINISHED = 2


@dataclass
class Sweep:
    """What was asked for, the code, and the journal."""

    results: Path
    name: str
    header: Line
    """`arguments` of a run, `kinds` of nodes, `command` line, `digest` of the code."""
    archive: bytes
    journal: Journal | None = None
    """None until there are nodes."""

    @classmethod
    def new(cls, results: Path, name: str, asked: Line) -> Sweep:
        if journals.newest(results / FOLDER, name):
            again = f"`python -m bench sweep --cluster ... --resume {name}` goes on"
            raise Mistake(f"sweep {name} was begun and not finished: {again}")
        archive = _archive(asked["arguments"])
        return cls(results, name, asked | {"digest": hashlib.sha256(archive).hexdigest()}, archive)

    @classmethod
    def resumed(cls, results: Path, name: str) -> Sweep:
        path = journals.newest(results / FOLDER, name)
        if path is None:
            raise Mistake(f"no sweep {name} was begun in {results / FOLDER}: --save {name} begins one")
        if (pid := journals.writer(path)) is not None:
            raise Mistake(f"sweep {name} is being measured right now, by process {pid}")
        header = journals.header_of(path)
        archive = _archive(header["arguments"])
        if header["digest"] != hashlib.sha256(archive).hexdigest():
            raise Mistake(f"the code has changed since sweep {name} was begun; begin another one: --save NAME")
        return cls(results, name, header, archive, Journal.reopen(path))

    def measure(self, engine: Engine) -> int:
        """Measure all that is left and write the run files; gives the exit code."""
        with closing(engine):
            kinds = self.header["kinds"] = self.header["kinds"] or dict.fromkeys(engine.nodes().values())
            if not kinds:
                raise Mistake("the cluster has no node")
            journal = self.journal or Journal.start(self.results / FOLDER, self.name, self.header)
            driver = Driver(engine, journal, self.header["arguments"], kinds)
            try:
                driver.run()
            except KeyboardInterrupt:
                tell(f"unfinished; `--resume {self.name}` goes on")
                raise
            except Mistake as mistake:
                if not driver.answers:
                    journal.delete()
                    raise
                return complain(f"{mistake}; `--resume {self.name}` goes on", UNFINISHED)
        return self._save(journal, driver)

    def _save(self, journal: Journal, driver: Driver) -> int:
        """A run file for each type of node, once."""
        of_all = {"commit_info": get_commit_info(), "command": self.header["command"], "journal": journal.path.name}
        code, files = 0, []
        for kind in self.header["kinds"]:
            if not any(job.kind == kind for job in driver.answers):
                why = [*driver.given_up(kind).values()]
                code = complain(f"{kind}: nothing was measured: {why[0]}", 1)
                continue
            data = merged(driver, kind) | of_all
            files.append(self._file(kind, data))
            for line in (*data["notes"], *skips(data["skipped"]), f"saved: {files[-1]}"):
                print(f"{kind}: {line}")
            code = max(code, any(entry["reason"] in FAILURES for entry in data["skipped"]))
        if len(files) > 1:
            print(as_typed(f"side by side: python -m reports {' '.join(map(str, files))}"))
        journal.delete()
        return code

    def _file(self, kind: str, data: dict[str, Any]) -> Path:
        """Save the run of a type, unless a driver that was killed right after has saved it."""
        folder = self.results / re.sub(r"[^\w.+-]+", "_", kind)
        folder.mkdir(parents=True, exist_ok=True)
        with numbering(folder):
            there = [path for path in run_files(folder, self.name) if load(path).get("journal") == data["journal"]]
            return there[0] if there else save(folder, self.name, data, indent=None)


def engine_of(name: str, address: str | None, options: Mapping[str, str], sweep: Sweep) -> Engine:
    """Reach the cluster; raises `Mistake` where that fails."""
    try:
        if name == "ray":
            from .on_ray import OnRay

            return OnRay(address, sweep.archive)
        from .on_slurm import OnSlurm

        return OnSlurm(address, sweep.archive, sweep.header["kinds"], options, sweep.results / FOLDER / sweep.name)
    except ModuleNotFoundError as error:
        package = {"ray": "ray", "slurm": "submitit"}[name]
        raise Mistake(f"--cluster {name} needs {error.name}: python -m pip install {package}") from None


def _archive(arguments: list[str]) -> bytes:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--impl", action="append", default=[])
    given = parser.parse_known_args(arguments)[0].impl
    return pack(Path.cwd(), [name.strip() for text in given for name in text.split(",")])
