"""Fixtures for the tests of reports: a small stored run with numbers that can be checked by hand, and a results folder."""

import json
import re
from pathlib import Path

import pytest
import synthetic_runs as synthetic

from reports import CHECKOUT
from reports.__main__ import main
from reports.reading import runs
from stats import arguments

TINY = Path(__file__).parent / "data" / "tiny.json"
EVIL = [
    'a"b', "<script>alert(1)</script>", "$x_1$ 'q'", "注意力", "_hidden", "new\nline\x07", "naïve & co|</script>${x}\\",
    "x" * 60,
]  # fmt: skip
"""Names of implementations that could break out of their places."""


@pytest.fixture(scope="session", autouse=True)
def at_the_root():
    """Print commands as in the checkout's root, whichever folder a test stands in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "_HOME", ".")
        yield


@pytest.fixture
def documented():
    """Keys of each object of JSON, by docs/commands.md."""
    section = (CHECKOUT / "docs" / "commands.md").read_text().partition("## Read JSON\n")[2]
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", section.partition("\n## ")[0], re.MULTILINE)
    return {of: {*re.findall(r"`(\w+)`", keys)} for of, keys in rows}


@pytest.fixture
def tiny_data():
    return json.loads(TINY.read_text())


@pytest.fixture
def tiny():
    return runs.read(TINY)


@pytest.fixture
def interleaved_data(tiny_data):
    """The small stored run as if its implementations had been interleaved in three processes."""
    for row in tiny_data["benchmarks"]:
        synthetic.interleaved(row)
    return tiny_data


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """From a folder of the user's own: a test that forgets --out must not write into the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def printed(capsys):
    """Runs a command, which ends with this exit code; returns what it printed."""

    def of(*arguments, code=0):
        capsys.readouterr()
        assert main([*map(str, arguments)]) == code
        return capsys.readouterr().out

    return of


@pytest.fixture
def refusal(capsys):
    """Runs a command that is refused in one line on stderr, by default as a usage error; returns the line."""

    def of(*arguments, code=3):
        capsys.readouterr()
        try:
            found = main([*map(str, arguments)])
        except SystemExit as stopped:
            found = stopped.code
        said = capsys.readouterr()
        assert (found, said.out, said.err.count("\n")) == (code, "", 1), said
        return said.err

    return of


@pytest.fixture
def as_run(tmp_path):
    """Saves a document and reads it back."""
    return lambda data: runs.read(synthetic.save(data, tmp_path / "made-up", "0001_x"))
