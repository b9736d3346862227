"""First contact: usage errors, full disks, closed pipes, missing compilers and devices."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch

import impls
from bench import __main__ as bench_main
from bench import console, terminal
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.sweep import SWEEPS
from bench.runs import saving
from bench.runs.begin import _command
from bench.runs.measuring import Measuring
from bench.runs.pool import WorkerPool
from bench.runs.progress import skips
from bench.runs.remaining import (
    END,
    remaining,
    seconds_of_check,
)
from bench.runs.rows import Found
from bench.runs.run import Run
from bench.selection.choice import _declared, impls_named, unsupported
from bench.selection.options import Selection
from bench.timing.engine import VISITS
from reports import __main__ as reports_main
from stats import arguments

from .conftest import CHECKOUT, environment, gated, run_of

CASE = Case.of(T=16, H=2, D_h=64)
BENCH = str(CHECKOUT / "bench")


@pytest.fixture
def at_a_shell(loaded: None, pytester: pytest.Pytester) -> Iterator[pytest.Pytester]:
    with mock.patch.dict(os.environ, environment(), clear=True):
        yield pytester


MISTAKEN = """
from torch import nn

class Sizes(nn.Module):
    def __init__(self, d_model, n_heads=8): ...

def unknown(q, k, v, **_): ...
def word(q, k, v, **_): ...
unknown.limits, word.limits = {"dtype": "float32"}, {"dtypes": ("half",)}
"""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--T", ""], "--T is empty: give it a value, or leave it out"),
        (["--dtype", "float23"], "'float23' is not one of float32, bfloat16, float16, float64; did you mean float32?"),
        (["--sweep", "heads", "--H", "3"], "d_model = 1024 is not divisible by H = 3"),
        (["--T", "64", "--case", "B1-T64-H9-D_h64-float32-cpu"], "; did you mean B1-T64-H8-D_h64-float32-cpu?"),
        (["--impl", "mine=nowhere:f"], "can't import nowhere"),
        (["--impl", "mine=math:pi"], "neither a function nor an nn.Module class"),
        (["--impl", "sdpa=math:sqrt"], "'sdpa' is already registered by impls.sdpa"),
        (["--resume", "x", "--benchmark-save=y"], "leave out --benchmark-save=y"),
        (["--T", "64", "128"], "unexpected argument '128': a kernel of your own is named by --impl mine=mine.py:FUNCTION"),
        (["--T", "16", "--T", "32"], "--T is given 2 times: give it once"),
        (["--case", "a", "--case", "b"], "--case is given 2 times: give it once"),
        (["--benchmark-min-rounds=3"], "--benchmark-min-rounds=3 changes nothing here: --cell-time and "),
        (["--swep", "quick"], "unrecognized arguments: --swep quick; did you mean --sweep?"),
        (["--gpu"], "did you mean --device cuda?"),
        (["--impl", "sdpa", "--baseline", "fused"], "--baseline fused: not among what runs: sdpa"),
        (["--impl", "x=../mine.py:word"], "../mine.py is outside the current folder"),
        (["--impl", "x=v1.2/mine.py:word"], "v1.2/mine.py: Python can't import from a path with a dot: rename it"),
        (["--impl", "x=wave:mine"], "module wave has no attribute 'mine'; it is /"),
        (["--mask", "sliding"], "did you mean --window?"),
        (["--impl", "x=mine:word"], "limits['dtypes']: 'half' is not one of float32, bfloat16, "),
        (["--impl", "x=builds:f"], "can't import builds: RuntimeError: Error building extension 'x'\n"),
        (["--impl", "x=bench/mine.py:f"], "No module named 'bench.mine'; bench is /"),
        (["--impl", "x=ends:f"], "can't import ends: SystemExit: 2"),
        (["--impl", "x=mine:unknown"], "limits has no 'dtype'; known: "),
        (["--impl", "x=mine:Sizes"], "Sizes(d_model, n_heads=8) takes sizes, but a layer is built from one LayerShape"),
        (["--resume", "nihgtly"], "no run 'nihgtly' to resume in {results}; --benchmark-save=nihgtly starts one"),
        (["--cell-time", "nan"], "argument --cell-time: 'nan' is not a positive number"),
        (["--benchmark-save", "a\nb"], r"'a\nb': a run's name has at most 200 bytes, all of them printed"),
    ],
)  # fmt: skip
def test_a_usage_error_is_one_line(at_a_shell: pytest.Pytester, options: list[str], says: str) -> None:
    from pytest_benchmark.utils import get_machine_id

    folder = at_a_shell.path / "results" / str(get_machine_id())
    (at_a_shell.path / "mine.py").write_text(MISTAKEN)
    (at_a_shell.path / "ends.py").write_text("raise SystemExit(2)")
    (at_a_shell.path / "builds.py").write_text("raise RuntimeError(\"Error building extension 'x'\\n[1/2] c++\")")
    done = at_a_shell.runpytest_inprocess(BENCH, *options)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in done.errlines + done.outlines if line.strip()]
    assert says.format(results=folder) in f"{line}\n"


LIMITS: dict[str, Any] = {
    "max_T": 64, "max_pairs": 4096, "heads": 8, "devices": "cpu", "dtypes": (torch.float16, "bf16"), "masks": ("none",),
    "modes": ["forward"], "scopes": ("core",), "sources": ("self",), "grouped": False, "wide_values": False, "dropout": False,
    "compiles": False, "autocasts": False, "beyond": (), "package": "flash_attn", "returns_lse": 2, "alone": True,
    "own_memory": True,
}  # fmt: skip


def test_every_documented_limit_can_be_declared() -> None:
    def kernel(*qkv: Any) -> None: ...

    kernel.limits = LIMITS  # type: ignore[attr-defined]
    expected = LIMITS | {"devices": ("cpu",), "dtypes": ("float16", "bfloat16"), "modes": ("forward",)}
    assert _declared(kernel) == impls.Limits(**expected)
    page = (CHECKOUT / "docs" / "kernels.md").read_text(encoding="utf-8").partition("## Declare what")[2]
    keys = re.findall(r"^\| (`.*?) \|", page.partition("\n## ")[0], re.MULTILINE)
    assert {*re.findall(r"`(\w+)`", " ".join(keys))} == LIMITS.keys()


def test_a_module_that_hides_the_one_of_the_current_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as an installed copy of what is being edited."""
    installed, here = (tmp_path / name / "hidden_kernel.py" for name in ("installed", "here"))
    for file in (installed, here):
        file.parent.mkdir()
        file.write_text("def f(q, k, v, **_): ...")
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed.parent)])
    impls_named(["f=hidden_kernel:f"], False, str(here.parent))
    assert f"hidden_kernel is {installed}, which is found before {here}\n" in capsys.readouterr().err


def test_nothing_selected_is_not_called_saved(at_a_shell: pytest.Pytester) -> None:
    done = at_a_shell.runpytest_inprocess(BENCH, "--impl", "sdpa", "--T", "16", "-k", "nothing", "--benchmark-save=x")
    assert done.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "nothing was saved: no cell is selected" in done.outlines
    assert not [*at_a_shell.path.glob("results/*/*")]


def test_only_modes_that_are_measured_are_collected(at_a_shell: pytest.Pytester) -> None:
    options = ("--impl", "sdpa,fused", "--T", "16", "--H", "2", "--dtype", "float32", "--collect-only")
    assert "collected 2 items" in at_a_shell.runpytest_inprocess(BENCH, *options).outlines
    one = "test_attention.py::test_forward[fused-B1-T16-H2-D_h64-float32-cpu]"
    for selected in ((f"{BENCH}/{one}",), (f"{BENCH}/test_attention.py::test_forward", "-k", "fused and not sdpa")):
        found = at_a_shell.runpytest_inprocess(*selected, *options, "-q").outlines
        assert [line for line in found if "::" in line] == [f"bench/{one}"]
    assert not (at_a_shell.path / "results").exists()  # since nothing is saved


def test_unwritable_results_are_reported_before_anything_is_measured(at_a_shell: pytest.Pytester) -> None:
    (at_a_shell.path / "results").symlink_to("results")
    done = at_a_shell.runpytest_inprocess(BENCH, "--benchmark-save=x", "--impl", "sdpa", "--T", "16", "--H", "2")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "results can't be written to " in "\n".join(done.errlines)
    assert done.outlines == []  # pytest has not begun


def test_a_journal_that_cant_be_opened_is_named(at_a_shell: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_benchmark.utils import get_machine_id

    journal = at_a_shell.path / "results" / str(get_machine_id()) / "x.1-1.journal"
    journal.mkdir(parents=True)
    monkeypatch.setattr(terminal, "close", lambda: None)
    done = at_a_shell.runpytest_inprocess(BENCH, "--resume", "x")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert f"{journal}: Is a directory" in "\n".join(done.errlines)


def test_without_a_compiler_compiled_forms_are_skipped_with_one_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = [Cell(impls.get(f"{name}+compile"), CASE) for name in ("fused", "sdpa")]
    monkeypatch.setenv("CXX", sys.executable)  # something that is there
    assert [unsupported(cell) for cell in compiled] == [None, None]
    monkeypatch.setenv("CXX", "/nonexistent")
    (why,) = {unsupported(cell) for cell in compiled}
    assert why == "compiled forms on the CPU need a C++ compiler, and /nonexistent isn't there"
    assert unsupported(Cell(impls.get("fused"), CASE)) is None


def test_failures_are_listed_once_a_reason_and_last() -> None:
    told = [
        ("timeout", "mine", "a", "took longer"),
        ("timeout", "mine", "b", "took longer"),
        ("wrong", "layer", "B1-T9", "layer (probe), B1-T9-scope=core: error 2"),
        ("wrong", "layer", "B1-T16", "layer (probe), B1-T16-H2-bfloat16-scope=core: error 1.5e-01"),
        ("wrong", "layer", "B1-T8", "layer (probe), B1-T9-dtype=x: returns None"),
        ("wrong", "other", "B1-T9", "layer (probe), B1-T9-scope=core: error 2"),
    ]
    assert skips([dict(zip(("reason", "impl", "id", "detail"), entry, strict=True)) for entry in told]) == [
        "timeout: mine: took longer (2 cells; the first: a)",
        "wrong: layer: layer (probe), B1-T9-scope=core: error 2 (2 cells)",  # names its case
        "wrong: layer: layer (probe), B1-T9-dtype=x: returns None (B1-T8)",
        "wrong: other: layer (probe), B1-T9-scope=core: error 2",
    ]


def beginning(*cells: Cell, processes: int = 1) -> Run:
    """Return a run of given cells that begins."""
    run = run_of(*cells)
    run.timing["processes"], run.planned = processes, {cell.key for cell in cells}
    return run


def test_the_time_left_is_that_of_checks_and_visits_to_come() -> None:
    cells = [Cell(impls.get(name), CASE) for name in ("fused", "sdpa", "einsum", "packed")]
    run = beginning(*cells)
    left = [remaining(run)]
    for cell in cells:
        run.found[cell.key] = Found(seconds=1e-6)
        left.append(remaining(run))
    for visit in range(VISITS):
        run.add_visit(0, visit, CASE.id, {})
        left.append(remaining(run))
    assert left == sorted(left, reverse=True) and left[-1] == pytest.approx(END)
    assert left[0] - left[len(cells)] == pytest.approx(len(cells) * seconds_of_check(cells[0], 1e-6), rel=0.3)


@pytest.mark.parametrize("reader", ["closed", "gone"])
def test_pytest_ends_quietly_without_a_standard_output(reader: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pytest", "--collect-only", "tests/test_conditions.py"]
    close = (lambda: os.close(1)) if reader == "closed" else None
    done = subprocess.run(
        command, cwd=CHECKOUT, env=environment(), stdout=writing, stderr=subprocess.PIPE, preexec_fn=close, text=True
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_and_a_full_disk_end_a_command_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends(with_what: BaseException) -> tuple[int, str]:
        def main() -> int:
            raise with_what

        monkeypatch.setattr(bench_main, "main", main)
        monkeypatch.setattr(terminal, "close", lambda: None)
        monkeypatch.setattr(os, "_exit", sys.exit)
        try:
            return bench_main.run_from_shell(), capsys.readouterr().err
        except SystemExit as ended:
            return int(str(ended.code)), capsys.readouterr().err

    assert ends(KeyboardInterrupt()) == (2, "bench: interrupted\n")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert ends(full) == (2, "bench: error: standard output: No space left on device\n")


def test_commands_are_printed_as_they_work_in_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "python -m bench ab, python -m reports advise, python -m reports, pytest bench/ --T 16"
    monkeypatch.chdir(CHECKOUT)
    assert arguments.as_typed(text) == text
    monkeypatch.chdir(tmp_path)
    by_path = arguments.as_typed(text)
    assert by_path.replace(f"{CHECKOUT}/", "").replace("python ", "python -m ") == text
    assert by_path.count(f"{CHECKOUT}/") == 4
    monkeypatch.setenv("ATTENTION_BENCH_COMMAND", "run")  # an editable installation
    installed = "attention-bench ab, attention-bench advise, attention-bench report, attention-bench run --T 16"
    assert arguments.as_typed(text) == installed
    monkeypatch.delenv("ATTENTION_BENCH_COMMAND")
    monkeypatch.setattr(arguments, "INSTALLED", True)
    assert arguments.as_typed(text) == installed


@pytest.mark.parametrize(
    "typed",
    [["bench", "--T", "16"], [BENCH, "--T", "16"], [*console.PYTEST[2:], "--T", "16"], ["--T", "16", f"{BENCH}/"]],
)
def test_the_command_of_a_run_is_kept_as_in_the_checkout(typed: list[str]) -> None:
    assert _command(typed, CHECKOUT) == "pytest bench/ --T 16"


@pytest.mark.parametrize(
    ("command", "attr"), [("new-kernel", "mine"), ("new-kernel", "mine128"), ("new-layer", "Mine")]
)
def test_the_templates_pass_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_probes: None, command: str, attr: str
) -> None:
    """With grouped heads, masks, a cache, gradients and biases."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert bench_main.main([command]) == 0
    (impl,) = impls_named([f"mine=mine:{attr}"], False, str(tmp_path))
    cases = [Case.of(**{"T": 130, "H": 4, "D_h": 8} | axes) for axes in BEGUN]
    possible = [case for case in cases if impl.refusal(case) is None]
    assert len(possible) >= 6
    for case in possible:
        gated(impl, case)


BEGUN: list[dict[str, Any]] = [
    {}, {"mask": "none"}, {"H_kv": 2, "D_v": 4}, {"mode": "backward"}, {"qkv_bias": True, "out_bias": True},
    {"T": 1, "T_kv": 32, "mode": "decode", "mask": "none"}, {"B": 2, "mask": "causal+padding"}, {"window": 7},
    {"bias": "alibi"}, {"bias": "dense", "mode": "backward"},
]  # fmt: skip


def test_the_baseline_beside_own_kernels_is_sdpa_unless_another_is_named() -> None:
    def baseline(*names: str, **asked: str) -> str | None:
        impl = [impls.make(name, lambda q, k, v: q) if name == "mine" else impls.get(name) for name in names]
        return Run(dict(asked), Selection(SWEEPS["quick"], "cpu", tuple(impl), ()), Path()).baseline_impl

    assert baseline("sdpa", "fused") == baseline("mine", "fused") == baseline("sdpa") == "fused"
    assert baseline("mine", "sdpa", "fused") == "sdpa"
    assert baseline("mine", "sdpa", "einsum", baseline="einsum") == "einsum"


def completed(script: str, *words: str) -> list[str]:
    asked = f"COMP_WORDS=(attention-bench {' '.join(words)}); COMP_CWORD={len(words)}; _attention_bench; echo ${{COMPREPLY[@]}}"
    return subprocess.run(["bash", "-c", script + asked], capture_output=True, text=True).stdout.split()


def test_completion_has_commands_options_and_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_options", lambda command: ["--html", "--json"] if command == "compare" else [])
    assert console.main(["completion"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "b") == ["bisect", "baseline"]
    assert completed(script, "compare", "--h") == ["--html"]
    assert completed(script, "run", "--sweep", "q") == ["quick"]
    assert completed(script, "run", "--impl", "sdpa,fu") == ["sdpa,fused"]


def test_a_run_that_cannot_be_saved_says_so_and_keeps_its_journal(
    at_a_shell: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No page is written, of this run or of an older one."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    pages: list[str] = []
    monkeypatch.setattr(reports_main, "main", lambda arguments: pages.append(arguments[0]))
    unsupported = ("--impl", "loop", "--T", "512", "--report")
    with monkeypatch.context() as disk:
        disk.setattr(saving.Path, "write_text", full)
        done = at_a_shell.runpytest_inprocess(BENCH, *unsupported, "--benchmark-save=x")
    assert done.ret == pytest.ExitCode.TESTS_FAILED and not pages
    done.stdout.fnmatch_lines("not saved: *No space left on device; `--resume x` continues once that is fixed")
    assert not [*at_a_shell.path.rglob("*.json")] and [*at_a_shell.path.rglob("x.*.journal")]
    assert at_a_shell.runpytest_inprocess(BENCH, *unsupported, "--benchmark-save=y").ret == 0
    assert pages == [str(file) for file in at_a_shell.path.rglob("*.json")]
    done = at_a_shell.runpytest_inprocess(BENCH, *unsupported)
    done.stderr.fnmatch_lines("*--report makes the page of a run: name it, with --benchmark-save=NAME*")


def test_ctrl_c_in_a_run_says_how_much_is_kept(
    in_process: None, at_a_shell: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(measuring: Measuring) -> None:
        with closing(WorkerPool(measuring._run, 0, measuring._start, measuring._rng)) as pool:
            measuring._pools = [pool]
            pool.wait_until_ready()
            measuring._check()
        raise KeyboardInterrupt

    monkeypatch.setattr(Measuring, "measure", interrupted)
    small = ("--impl", "sdpa,fused", "--T", "16", "--H", "2", "--dtype", "float32")
    done = at_a_shell.runpytest_inprocess(BENCH, *small, "--benchmark-save=x")
    assert done.ret == pytest.ExitCode.INTERRUPTED
    assert "unfinished, and kept: 2 of 2 cells checked; `--resume x` continues" in done.outlines
    assert not any("KeyboardInterrupt" in line for line in done.outlines)  # and where in the code it was


SWEEP, PYTEST = ("bench", "sweep", "--save", "x"), ("pytest", BENCH, "--benchmark-save=x")


@pytest.mark.parametrize(
    ("command", "before"),
    [(SWEEP, "_pytest.config"), (PYTEST, "torch")],
)
def test_ctrl_c_while_a_run_starts_is_one_line(tmp_path: Path, command: tuple[str, ...], before: str) -> None:
    """Interrupted before the module `before` is imported: by a command, and by the pytest that replaces it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {before!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    )

    def listen() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which what was started with `&` by a shell ignores

    done = subprocess.run(
        [sys.executable, "-m", *command, "--T", "16", "--impl", "sdpa"], preexec_fn=listen, capture_output=True, text=True,
        cwd=tmp_path, env=environment() | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{CHECKOUT}"}, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "bench: interrupted\n")
    assert not [*tmp_path.glob("results")]


@pytest.mark.parametrize("commands", [bench_main, reports_main])
def test_an_option_is_given_once_and_with_a_value(commands: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands.COMMANDS:
        with suppress(SystemExit):
            commands.main([command, "--help"])
        with_value = {*re.findall(r"^ .*?(--[\w-]+) [A-Z]", capsys.readouterr().out, re.MULTILINE)}
        for option in with_value - {"--impl", "--allow-gone", "--slurm-option"}:
            with pytest.raises(SystemExit) as ended:
                commands.main([command, option, "1", f"{option}=2"])
            assert ended.value.code in (3, 4), (command, option)
            assert f"{option} is given 2 times: give it once" in capsys.readouterr().err
            for empty in ([option, ""], [f"{option}="]):
                with pytest.raises(SystemExit) as ended:
                    commands.main([command, *empty])
                assert ended.value.code in (3, 4), (command, option)
                assert f"{option} is empty: give it a value" in capsys.readouterr().err
