"""`attention-bench`, installed from a wheel, in a folder that holds modules of the suite's and of Python's names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import console

from .conftest import CHECKOUT, environment, run_files

Installed = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is installed, without its dependencies: those are there."""
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", str(CHECKOUT), "--no-deps", "--no-build-isolation", "-w", str(site)], check=True)
    (wheel,) = site.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site / "packages"), str(wheel)], check=True)
    return site / "packages"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    for name in ("bench/__init__.py", "impls/__init__.py", "reports/__init__.py", "json.py", "profile.py", "pandas.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise RuntimeError('of the user')\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    return tmp_path


def run(site: Path, folder: Path, *arguments: str) -> Installed:
    command = [str(site / "bin" / "attention-bench"), *arguments]
    where = environment() | {"PYTHONPATH": str(site)}
    return subprocess.run(command, cwd=folder, env=where, capture_output=True, text=True, timeout=300)


def test_only_one_name_lands_among_the_installed_packages(site: Path) -> None:
    assert {it.name for it in site.iterdir() if not it.name.endswith(".dist-info")} == {"attention_bench", "bin"}


def test_the_public_names_are_those_of_what_is_installed(site: Path, tmp_path: Path) -> None:
    asked = "from attention_bench import LayerShape, frame; print(LayerShape.__module__, frame.__module__)"
    done = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, env=environment() | {"PYTHONPATH": str(site)},
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout == "impls.layer reports.pages.notebook\n"


def test_a_new_kernel_is_measured_and_reported_whatever_lies_around(site: Path, hostile: Path) -> None:
    assert "attention-bench run --impl mine=mine:mine" in run(site, hostile, "new-kernel").stdout
    again = run(site, hostile, "new-kernel")
    assert (again.returncode, again.stderr) == (2, "attention-bench: mine.py can't be written: File exists\n")
    done = run(site, hostile, "run", "--impl", "mine=mine:mine,sdpa", "--T", "16", "--H", "2", "--dtype", "float32",
               "--cell-time", "0.01", "--benchmark-save=mine", "--report")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    (file,) = run_files(hostile)
    page = Path(done.stdout.splitlines()[-1])
    assert page.is_file() and page.is_relative_to(hostile) and page.parent.name == file.stem


@pytest.mark.parametrize("name", [name for name in console.COMMANDS if name not in ("list", "run", *console.OWN)])
def test_every_command_is_there(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, command: called.append(command))
    console.main([name, "--help"])
    ((_, path, *rest),) = called
    assert Path(path).parent == CHECKOUT
    assert [*rest] in ([name, "--help"], ["--help"])  # `report` is what the room does by itself


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["rum"]) == 2
    assert "unknown command 'rum'; did you mean run?" in capsys.readouterr().err
    assert console.main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in console.COMMANDS)
    assert max(map(len, printed.splitlines())) <= 80


def test_list_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["list", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: attention-bench list\n")
