"""`attention-bench` installed from a wheel, run in a folder whose modules are named like the suite's and Python's."""

import ast
import os
import re
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest
from _pytest.config.argparsing import Parser

from bench import __main__ as bench_main
from bench.ab import options as of_ab
from bench.cases.case import AXES
from bench.selection.options import pytest_addoption
from commands import console
from reports import __main__ as reports_main

from .conftest import CHECKOUT, environment, python, run_files, started


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder into which the wheel is installed, without its dependencies, which exist already."""
    site = tmp_path_factory.mktemp("site")
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    started(site, *pip, "wheel", CHECKOUT, "--no-deps", "--no-build-isolation")
    (wheel,) = site.glob("*.whl")
    started(site, *pip, "install", "--no-deps", "--target", "packages", wheel)
    return site / "packages"


def test_every_line_of_the_help_fits_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("ATTENTION_BENCH_COMMAND", "attention-bench")
    monkeypatch.setenv("COLUMNS", "80")
    print(console._help())
    for commands in (bench_main, reports_main):
        for name in commands.COMMANDS:
            with suppress(SystemExit):
                commands.main([name, "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_advise_shows_no_defaults_of_axes(capsys):
    with suppress(SystemExit):
        reports_main.main(["advise", "--help"])
    axes = capsys.readouterr().out.partition("only cases with this value")[2]
    assert "--device VALUE" in axes and "default" not in axes


@pytest.fixture
def hostile(tmp_path):
    for name in ("bench/__init__.py", "impls/__init__.py", "reports/__init__.py", "json.py", "profile.py", "pandas.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise RuntimeError('of the user')\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    return tmp_path


def run(site, folder, typed):
    where = environment() | {"PYTHONPATH": str(site)}
    return python(site / "bin" / "attention-bench", *typed.split(), cwd=folder, env=where)


def test_the_wheel_installs_a_single_package(site, tmp_path):
    assert {it.name for it in site.iterdir() if not it.name.endswith(".dist-info")} == {"attention_bench", "bin"}
    code = "import sys; sys.path.append(sys.argv[1]); from attention_bench import frame; print(frame.__module__)"
    assert started(tmp_path, "-c", code, site) == "reports.pages.notebook\n"


def test_a_new_kernel_is_measured_and_reported_whatever_lies_around(site, hostile):
    assert "attention-bench run --smoke --impl mine=mine:mine" in run(site, hostile, "new-kernel").stdout
    again = run(site, hostile, "new-kernel")
    assert again.returncode == 3 and "error: mine.py exists already" in again.stderr
    options = "--T 16 --H 2 --dtype float32 -v --cell-time 0.01 --benchmark-save=mine --report"
    done = run(site, hostile, f"run --impl mine=mine:mine,sdpa {options}")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "::" not in done.stdout  # -v adds tables, and no ids of tests
    (file,) = run_files(hostile)
    page = Path(done.stdout.splitlines()[-1])
    assert "95 % interval" in done.stdout
    assert page.is_file() and page.is_relative_to(hostile) and page.parent.name == file.stem


def test_a_checkout_is_started_as_a_module(tmp_path):
    there = environment() | {"PYTHONPATH": str(CHECKOUT)}
    assert python("-m", "attention_bench", "--version", cwd=tmp_path, env=there).stdout.startswith("attention-bench ")


@pytest.mark.parametrize("name", [name for name in console.COMMANDS if name not in ("list", "run")])
def test_every_command_is_there(name, monkeypatch):
    monkeypatch.setattr(os, "execv", execv := mock.Mock())
    monkeypatch.setattr(console.signal, "pthread_sigmask", mock.Mock())
    console.main([name, "--help"])
    _, path, *rest = execv.call_args.args[1]
    assert Path(path).parent == CHECKOUT
    assert rest == [name, "--help"]  # with `report` in front, a run may be named like another command


def test_no_command_starts_in_a_folder_that_was_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "execv", mock.Mock())
    monkeypatch.setattr(console.signal, "pthread_sigmask", mock.Mock())
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError):
        console.main(["run"])


def test_an_unknown_command_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("ATTENTION_BENCH_COMMAND", "attention-bench")
    assert console.main(["rum"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("attention-bench: error: unknown command 'rum'; did you mean run?")
    assert console.main([]) == console.main(["list", "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in console.COMMANDS)
    assert "\nusage: attention-bench list\n" in printed


@pytest.fixture
def options(pytestconfig, capsys):
    """Return the options of every command; those of `run` include pytest's and pytest-benchmark's."""
    parser = Parser(_ispytest=True)
    pytest_addoption(parser)
    of_run = {*parser.optparser._option_string_actions, *pytestconfig._parser.optparser._option_string_actions}
    found = {"run": of_run, "list": set()}
    for commands, names in ((bench_main, bench_main.COMMANDS), (reports_main, ["report", *reports_main.COMMANDS])):
        for name in names:
            for words in ([name], [name, "set"]) if name == "baseline" else ([name],):
                with suppress(SystemExit):
                    commands.main([*words, "--help"] if name != "report" else ["--help"])
                shown = re.findall(r"^ .*?(--[A-Za-z][\w-]*)", capsys.readouterr().out, re.MULTILINE)
                found.setdefault(name, set()).update(shown)
    found["sweep"] |= of_run
    found["ab"] |= {*of_ab.parser()._option_string_actions}  # those that its help leaves out, too
    found["bisect"] |= found["ab"]
    found["advise"] |= {f"--{name}" for name in AXES}
    found["report"] -= {"--T"}  # of another command, which its help names
    return found


TYPED = re.compile(
    r"(pytest(?: PATH/TO/| )bench/?|python -m (?:bench|reports)|python PATH/TO/(?:bench|reports)|attention-bench) ?([^`\n#;|]*)"
)
SOURCES = [path for folder in ("bench", "commands", "reports", "stats") for path in (CHECKOUT / folder).rglob("*.py")]
OPTION = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")


def test_every_command_that_is_shown_has_the_options_that_it_is_shown_with(options):
    for path in (CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md"), *SOURCES):
        for before, after in TYPED.findall(path.read_text()):
            first = next(iter(after.split()), "")
            command = first if first in options else "run" if before.startswith("pytest") else "report"
            assert {*OPTION.findall(after)} <= options[command], f"{path.name}: {before} {after}"


def test_every_option_that_a_sentence_names_is_one(options):
    others = {"--unshallow", "--format", "--logdir", "--resources", "--look", "--c"}  # of git, TensorBoard, Ray and CSS
    known = others.union(*options.values())
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and " " in str(node.value):
                assert {*OPTION.findall(str(node.value))} <= known, f"{path.name}:{node.lineno}"


def test_every_option_of_ab_that_a_run_lacks_is_documented(capsys):
    with suppress(SystemExit):
        of_ab.parser().parse_args(["--help"])
    shown = re.findall(r"^  (--[a-z][\w-]*)", capsys.readouterr().out, re.MULTILINE)
    page = (CHECKOUT / "docs" / "tracking.md").read_text()
    assert {it for it in shown if it[2:] not in AXES} <= {*OPTION.findall(page)}
