"""First contact: usage errors, full disks, closed pipes, missing compilers and devices."""

import errno
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from pytest_benchmark.utils import get_machine_id

import impls
from bench import __main__ as bench_main
from bench import launch
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.outcome import classify, in_one_line, undeclared
from bench.cases.sweep import SWEEPS
from bench.runs import check, saving
from bench.runs.begin import _command
from bench.runs.measuring import Measuring
from bench.runs.progress import skips
from bench.runs.remaining import END, remaining, seconds_of_check
from bench.runs.rows import Results
from bench.runs.run import Run
from bench.selection.choice import _declared, impls_named, unsupported
from bench.selection.options import Selection
from bench.timing.schedule import VISITS
from commands import shell
from reports import __main__ as reports_main
from stats import arguments

from .conftest import CHECKOUT, environment, python, run_of

CASE = Case.of(T=16, H=2, D_h=64)
BENCH = str(CHECKOUT / "bench")


@pytest.fixture
def ran(loaded, pytester):
    """`ran("--T 16")` is `pytest bench/ --T 16` in the current, empty folder."""
    with mock.patch.dict(os.environ, environment(), clear=True):
        yield lambda typed: pytester.runpytest_inprocess(BENCH, *shlex.split(typed))


MISTAKEN = """
from functools import partial
from torch import nn

class Sizes(nn.Module):
    def __init__(self, d_model, n_heads=8): ...

class Core(nn.Module):
    @staticmethod
    def forward(q, k, v, **_): ...

class Blocked(Core):
    def __init__(self, blocks): ...

def build(shape): ...

core, layer, some = Core(), nn.Linear(2, 2), partial(Sizes, n_heads=4)

def required(q, k, v, is_causal): ...
def unknown(q, k, v, **_): ...
def word(q, k, v, **_): ...
def one(q, k, v, **_): ...
def other(q, k, v, **_): ...
def nothing(q, k, v, **_): ...
def number(q, k, v, **_): ...
unknown.limits, word.limits = {"dtype": "float32"}, {"dtypes": ("half",)}
nothing.limits, number.limits = {"max_T": None, "dropout": None}, {"beyond": 3}
"""


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("--T ''", "--T is empty: give it a value, or leave it out"),
        ("--dtype float23", "'float23' is not one of float32, bfloat16, float16, float64; did you mean float32?"),
        ("--sweep heads --H 3", "d_model = 1024 is not divisible by H = 3"),
        ("--T 64 --case B1-T64-H9-D_h64-float32-cpu", "; did you mean B1-T64-H8-D_h64-float32-cpu?"),
        ("--impl mine=nowhere:f", "'nowhere'; start in the folder that contains it, add that to PYTHONPATH, or install it"),
        ("--impl mine=folder:f", "module folder has no attribute 'f'; it is {folder}/folder\n"),
        ("--impl mine=math:pi", "mine=math:pi: 'mine' is of type float, neither a function nor an nn.Module class"),
        ("--impl x=bench/nowhere.py:f", "x=bench/nowhere.py:f: there is no file bench/nowhere.py in {folder}\n"),
        ("--impl sdpa=math:hypot", "'sdpa' is already registered by impls.sdpa: choose another name"),
        *((f"--impl x=mine:one,{it}=mine:other", "'x' is already registered by mine") for it in ("x", "x+compile")),
        ("--resume x --benchmark-save=y", "leave out --benchmark-save=y"),
        ("--T 64 128", "unexpected argument '128': a kernel of your own is named by --impl mine=mine.py:FUNCTION"),
        ("--case a --case b", "--case is given 2 times: give it once"),
        ("-p no:benchmark", "pytest-benchmark isn't loaded: leave out -p no:benchmark"),
        ("--benchmark-min-rounds=3", "--benchmark-min-rounds=3 changes nothing here: --cell-time and "),
        ("--swep quick", "unrecognized arguments: --swep quick; did you mean --sweep?"),
        ("--gpu", "did you mean --device cuda?"),
        ("--impl heads", "unknown implementation 'heads'; `"),  # an axis is no suggestion
        ("-n 1 --T 16", "nothing can be timed under pytest-xdist: leave out -n and --dist"),
        pytest.param("--device cuda", "--device cuda: torch finds no such device", marks=pytest.mark.skipif(
            torch.cuda.is_available(), reason="there is a CUDA device here")),
        ("--impl sdpa --baseline fused", "--baseline fused: not selected; selected: sdpa"),
        ("--impl x=../mine.py:word", "../mine.py is outside the current folder"),
        ("--impl x=v1.2/mine.py:word", "v1.2/mine.py: Python can't import from a path with a dot: rename it"),
        ("--impl x=wave:mine", "module wave has no attribute 'mine'; it is /"),
        ("--mask sliding", "did you mean --window?"),
        ("--impl x=mine:word", "limits['dtypes']: 'half' is not one of float32, bfloat16, "),
        ("--impl x=mine:nothing", "limits['dropout'] is None, not True or False"),
        ("--impl x=mine:number", "limits['beyond'] is 3, not a tuple of words"),
        ("--impl x=builds:f", "can't import builds: RuntimeError: x.cpp:3:1: error: expected ';'\n"),
        ("--impl x=bench/mine.py:f", "No module named 'bench.mine'; bench is /"),
        ("--impl x=ends:f", "can't import ends: SystemExit: 2"),
        ("--impl x=needs:f", "No module named 'nowhere'; start in the folder that contains it, add that to PYTHONPATH, or"),
        ("--impl x=stops:f", "can't import stops: Stop: here"),
        ("--impl x=leaves:f", "can't import leaves: SystemExit: 0"),
        ("--impl x=later:f", "x=later:f: can't import later.f: RuntimeError: f needs a GPU\n"),
        ("--impl x=v1/x.py:f,y=v2/x.py:f", "y=v2/x.py:f: it imports helper, but gets {folder}/v1/helper.py, which was found"),
        ("--impl x=uses:f", "x=uses:f: it imports stats, but gets "),
        ("--impl x=mine:unknown", "limits has no 'dtype'; known: "),
        ("--impl x=mine:Sizes", "Sizes(d_model, n_heads=8): a layer is built from one LayerShape: give it a child class"),
        ("--impl x=mine:some", "Sizes(d_model, *, n_heads=4): a layer is built from one LayerShape"),
        ("--impl x=mine:build", "build(shape): a kernel is called with q, k and v; a layer is a class"),
        ("--impl x=mine:Core", "; of a module that is called with q, k, v name an instance"),
        ("--impl x=mine:Blocked", "; of a module that is called with q, k, v name an instance"),
        ("--impl x=mine:core.forward.__class__", "'x' is of type type, neither a function nor an nn.Module class: name an"),
        ("--impl x=mine:layer", "that is an instance of Linear; name the class"),
        ("--impl x=failing:f --dry-run", "x: limits['unless']: AttributeError: 'Case' object has no attribute 'N'"),
        ("--resume nihgtly", "no run 'nihgtly' to resume in {results}; --benchmark-save=nihgtly starts one"),
        ("--resume a/b", "--resume 'a/b': a run's name has at most 200 bytes"),
        ("--resume opened", "{results}/opened.1-1.journal: Is a directory\n"),
        ("--report", "--report makes the page of a run: name it, with --benchmark-save=NAME"),
        ("--cell-time nan", "argument --cell-time: 'nan' is not a positive number"),
        ("--precision 5", "argument --precision: '5' is not a share below 1, such as 0.02 for 2 %"),
        ("--benchmark-save 'a\nb'", r"'a\nb': a run's name has at most 200 bytes, all of them printed"),
        ("--resume ..", "--resume '..': a run's name has at most 200 bytes"),
    ],
)  # fmt: skip
def test_a_usage_error_is_one_line(ran, typed, says):
    folder = Path("results", str(get_machine_id())).absolute()
    (folder / "opened.1-1.journal").mkdir(parents=True)
    for name in ("bench", "folder", "v1", "v2"):
        Path(name).mkdir()
    for name, text in (
        ("mine.py", MISTAKEN),
        ("bench/mine.py", MISTAKEN),
        ("ends.py", "raise SystemExit(2)"),
        ("needs.py", "import nowhere"),
        ("uses.py", "import stats\ndef f(q, k, v, **_): return stats.f(q, k, v)"),
        ("stats.py", "def f(q, k, v): ..."),
        ("failing.py", "def f(q, k, v, **_): ...\nf.limits = {'unless': lambda case: case.N}"),
        ("stops.py", "class Stop(BaseException): ...\nraise Stop('here')"),
        ("leaves.py", "import os; os._exit(0)"),
        ("later.py", "def __getattr__(name): raise RuntimeError(f'{name} needs a GPU')"),
        *((f"{place}/x.py", "from helper import f") for place in ("v1", "v2")),
        *((f"{place}/helper.py", "def f(q, k, v, **_): ...") for place in ("v1", "v2")),
        (
            "builds.py",
            "raise RuntimeError(\"Error building extension 'x': [1/2] c++\\nx.cpp:3:1: error: expected ';'\\n    3 | }\")",
        ),
    ):
        Path(name).write_text(text)
    done = ran(typed)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = filter(str.strip, done.errlines + done.outlines)
    assert says.format(results=folder, folder=Path.cwd()) in f"{line}\n"


LIMITS = {
    "max_T": 64, "max_pairs": 4096, "loops": True, "heads": 8, "devices": "cpu", "dtypes": (torch.float16, "bf16"),
    "masks": ("none",), "modes": ["forward"], "scopes": ("core",), "sources": ("self",), "grouped": False,
    "wide_values": False, "dropout": False, "compiles": False, "autocasts": False, "beyond": (), "package": "flash_attn",
    "install": "pip install flash-attn", "returns_lse": 2, "alone": True, "own_memory": True, "unless": str,
    "compiled_unless": str,
}  # fmt: skip


def test_every_limit_is_documented_and_can_be_declared():
    def kernel(*qkv): ...

    kernel.limits = LIMITS
    expected = LIMITS | {"devices": ("cpu",), "dtypes": ("float16", "bfloat16"), "modes": ("forward",)}
    assert _declared(kernel) == impls.Limits(**expected)
    page = (CHECKOUT / "docs" / "kernels.md").read_text().partition("## Declare what")[2]
    keys = re.findall(r"^\| (`.*?) \|", page.partition("\n## ")[0], re.MULTILINE)
    assert {*re.findall(r"`(\w+)`", " ".join(keys))} == LIMITS.keys() == vars(impls.Limits()).keys()


def test_a_module_that_hides_the_one_of_the_current_folder_is_reported(tmp_path, monkeypatch, capsys):
    """Such as an installed copy of what is being edited."""
    for name in ("installed", "here"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hidden_kernel.py").write_text("def f(q, k, v, **_): ...")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "installed")])
    impls_named(["f=hidden_kernel:f"], False, str(tmp_path / "here"))
    said = "hidden_kernel is {0}/installed/hidden_kernel.py, which is found before {0}/here/hidden_kernel.py\n"
    assert said.format(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("attr", "is_kernel"), [("core", True), ("Core.forward", True), ("required", True), ("partly", False)]
)
def test_what_is_called_with_q_k_and_v_is_a_kernel_and_a_partial_of_a_layer_a_layer(tmp_path, attr, is_kernel):
    text = f"{MISTAKEN}\nfrom impls.torch_mha import TorchMHA as Layer\npartly = partial(Layer)\n"
    (tmp_path / "called.py").write_text(text)
    names = [f"it_{attr}{form}=called:{attr}" for form in ("", "+compile")]
    found = impls_named(names, False, str(tmp_path))
    assert [(it.kernel is not None, it.core is not None, it.owner) for it in found] == [
        (is_kernel, is_kernel, "called")
    ] * 2


def test_pytests_own_options_that_only_print(ran):
    assert ran("--markers").ret == 0


def test_nothing_selected_is_not_called_saved(ran):
    done = ran("--impl sdpa --T 16 -k nothing --benchmark-save=x")
    assert done.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "nothing was saved: no cell is selected" in done.outlines
    assert not [*Path().glob("results/*/*")]


def test_the_sentences_at_the_end_are_wrapped_to_the_terminal(ran, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    printed = ran("--impl linear --T 16 --H 2 --dtype float32").stdout.str()
    assert "unsupported: linear: supports 1 head, not 2\n(B1-T16-H2-D_h64-float32-cpu)\n" in printed


def test_a_run_says_how_a_kernel_declares_what_it_lacks_and_that_without_a_name_it_is_not_saved(ran):
    Path("plain.py").write_text("def attend(q, k, v): return v")
    done = ran("--impl plain=plain:attend,sdpa --T 16 --H 2 --dtype float32")
    done.stdout.fnmatch_lines("not saved: --benchmark-save=NAME saves a run")
    assert (
        "a kernel or layer declares what it doesn't support, as in `mine.limits = {'masks': ('none',)}`: docs/kernels.md"
        in done.outlines
    )


@pytest.mark.parametrize(
    ("told", "limits"),
    [
        ("NotImplementedError: FlexAttention does not support backward on CPU", "{'modes': ('forward', 'decode')}"),
        ("TypeError: Mine.forward() got an unexpected keyword argument 'cache'", "{'modes': ('forward', 'backward')}"),
        ("no gradient reaches q: the output is detached", "{'modes': ('forward', 'decode')}"),
        ("kernel, B1-autocast=bfloat16: RuntimeError: expected scalar type Float but found BFloat16", "{'autocasts': False}"),
        ("RuntimeError: expected m1 and m2 to have the same dtype, but got: float != c10::Half", "{'dtypes': ('float32',)}"),
        ("error 1e-7; as precise as float32", "{'dtypes': ('float32', 'bfloat16', 'float16')}"),
        ("output is float32, not bfloat16, which autocast gives", "{'autocasts': False}"),
        ("NotImplementedError: float32 alone", "{'dtypes': ('float32',)}"),
        ("TypeError: L.forward() takes 2 positional arguments but 3 were given", "{'sources': ('self',)}"),
        ("dropout, B1-T64: drops 0.0% of the probs, not 10.0%", "{'dropout': False}"),
    ],
)  # fmt: skip
def test_limits_are_proposed_by_what_fails(told, limits):
    (hint,) = undeclared([told])
    assert f"`mine.limits = {limits}`" in hint


def test_an_author_is_told_how_to_adapt_a_layer_and_to_exclude_widths():
    of_widths = "L has W_q of shape (8, 8); the case needs (16, 8)"
    assert ["a child class" in it for it in undeclared(["'LayerShape' object has no attribute 'n_embd'", of_widths])] == [
        True, False
    ]  # fmt: skip
    hints = [*undeclared(["forward() got an unexpected keyword argument 'cache'", of_widths])]
    assert "'modes'" in hints[0] and "`unless` in a layer's limits" in hints[1]


@pytest.mark.parametrize(
    "told", ["Explanation: There was no fake impl", "x.cpp:3:1: fatal error: Python.h: No such file"]
)
def test_an_explanation_of_torch_compile_is_told(told):
    assert in_one_line(RuntimeError(f"C++ compile error\n\n  {told}\n  Hint: ...")) == f"RuntimeError: {told}"


def test_an_error_is_placed_in_the_kernel_though_an_installed_package_raises_it(tmp_path):
    installed, mine = tmp_path / "dist-packages" / "other.py", tmp_path / "mine.py"
    installed.parent.mkdir()
    installed.write_text("def fail(): raise ValueError('no')")
    mine.write_text("fail()")
    names = {}
    exec(compile(installed.read_text(), installed, "exec"), names)
    with pytest.raises(ValueError, match="no") as caught:
        exec(compile(mine.read_text(), mine, "exec"), names)
    assert str(classify(caught.value)) == "ValueError: no (mine.py:1)"


def test_only_modes_that_are_measured_are_collected(ran, pytester):
    options = ("--impl=sdpa,fused", "--T=16", "--H=2", "--dtype=float32", "--collect-only", "-q")
    one, two = (f"test_attention.py::test_forward[{name}-B1-T16-H2-D_h64-float32-cpu]" for name in ("fused", "sdpa"))
    for selected, names in (
        ((BENCH,), {one, two}),
        ((f"{BENCH}/{one}",), {one}),
        ((f"{BENCH}/test_attention.py::test_forward", "-k", "fused and not sdpa"), {one}),
    ):
        found = pytester.runpytest_inprocess(*selected, *options).outlines
        assert {line for line in found if "::" in line} == {f"bench/{name}" for name in names}
    assert not Path("results").exists()  # since nothing is saved


def test_unwritable_results_are_reported_before_anything_is_measured(ran):
    Path("results").symlink_to("results")
    done = ran("--benchmark-save=x --impl sdpa --T 16 --H 2")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "results can't be written to " in done.stderr.str()
    assert done.outlines == []  # pytest has not begun


@pytest.mark.parametrize(("compiler", "is_there"), [(sys.executable, True), ("/nonexistent", False)])
def test_without_a_compiler_compiled_forms_are_skipped(monkeypatch, compiler, is_there):
    monkeypatch.setenv("CXX", compiler)
    why = None if is_there else "compiled forms on the CPU need a C++ compiler, and '/nonexistent' isn't there"
    assert [unsupported(Cell(impls.get(name), CASE)) for name in ("sdpa+compile", "sdpa")] == [why, None]


def test_what_is_wrong_everywhere_has_no_visits(ran):
    Path("wrong_kernel.py").write_text("def f(q, k, v, **_): return v")
    done = ran("--impl f=wrong_kernel:f --T 16 --H 1 --dtype float32")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    assert "wrong: f: " in str(done.stdout) and "visit" not in str(done.stdout)


def test_failures_are_listed_once_a_reason_and_last():
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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_time_left_is_that_of_checks_and_visits_to_come(device):
    """On a GPU also of extra calls, after all visits."""
    case = replace(CASE, device=device)
    cells = [Cell(impls.get(name), case) for name in ("fused", "sdpa", "einsum", "packed")]
    run = run_of(*cells)
    run.planned = {cell.key for cell in cells}
    left = [remaining(run)]
    with mock.patch.dict(run.timing, processes=2):
        assert remaining(run) > left[0]
    for cell in cells:
        run.found[cell.key] = Results(seconds=1e-6)
        left.append(remaining(run))
    for visit in range(VISITS):
        run.add_visit(0, visit, case.id, {})
        left.append(remaining(run))
    assert left == sorted(left, reverse=True) and (left[-1] > END) == (device == "cuda")
    assert left[0] - left[len(cells)] == pytest.approx(len(cells) * seconds_of_check(cells[0], 1e-6), rel=0.3)


def test_a_limited_number_of_pairs_makes_no_python_loop():
    """A loop takes longer than its operations suggest."""
    sdpa, loop = impls.get("sdpa"), Cell(impls.get("loop"), CASE)
    limited = Cell(replace(sdpa, limits=replace(sdpa.limits, max_pairs=1 << 30)), CASE)
    usual = seconds_of_check(Cell(sdpa, CASE), 1e-3)
    assert seconds_of_check(limited, 1e-3) == usual < seconds_of_check(loop, 1e-3)


@pytest.mark.parametrize("reader", ["closed", "gone"])
def test_pytest_ends_quietly_without_a_standard_output(reader):
    reading, writing = os.pipe()
    os.close(reading)
    command = (
        f"{sys.executable} -m pytest --collect-only tests/test_conditions.py {'1>&-' if reader == 'closed' else ''}"
    )
    done = subprocess.run(command, shell=True, cwd=CHECKOUT, env=environment(), stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


RUN = ["-m", "pytest", BENCH, "--impl=sdpa", "--T=16", "--H=2", "--dtype=float32"]


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        *(([*RUN, option], 4, "ERROR") for option in ("-q", "--list", "-VV")),
        ([BENCH, "check", "--help"], 2, "bench: error"),
        (["-u", BENCH, "ab", "--help"], 2, "bench: error"),  # the error is raised within argparse
        ([CHECKOUT / "reports", "--help"], 2, "reports: error"),
        (["-m", "commands.console", "--help"], 2, "attention-bench: error"),
    ],
)
def test_a_command_ends_in_one_line_if_its_output_is_a_full_disk(command, code, says):
    """Also if that shows only once all is written."""
    with open("/dev/full", "w") as full:
        done = python(*command, env=environment() | {"PYTHONUNBUFFERED": ""}, stdout=full)
    assert done.stderr.rstrip("\n") == f"{says}: standard output: No space left on device"
    assert done.returncode == code


def test_any_path_is_printed_without_a_standard_output(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    shell.prepare()
    with sys.stdout:
        print("\udcff", flush=True)


def test_ctrl_c_ends_a_command_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="2"):
        shell.run(mock.Mock(side_effect=KeyboardInterrupt), "bench")
    assert capsys.readouterr().err == "bench: interrupted\n"


def test_commands_are_printed_as_they_work_in_the_current_folder(monkeypatch, tmp_path):
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
    [["bench", "--T", "16"], [BENCH, "--T", "16"], [*launch.OPTIONS, "--T", "16"], ["--T", "16", f"{BENCH}/"]],
)
def test_the_command_of_a_run_is_kept_as_in_the_checkout(typed):
    assert _command(typed, CHECKOUT) == "pytest bench/ --T 16"


@pytest.mark.parametrize(
    ("command", "own", "passed"),
    [("new-kernel", "mine.py:mine", 9), ("new-kernel", "mine.py:mine128", 9), ("new-layer", "mine.py:Mine", 6)],
)
def test_the_templates_pass_the_check(in_process, tmp_path, monkeypatch, capsys, command, own, passed):
    """With grouped heads, masks, a cache, gradients and biases."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # which `check` would leave behind
    monkeypatch.setattr(check, "SIZES", {"T": 130, "H": 4, "D_h": 8})
    monkeypatch.setattr(check, "PROBLEMS", TRIED)
    monkeypatch.setattr(check, "AROUND", ({"qkv_bias": True, "out_bias": True},))
    assert bench_main.main([command]) == check.main([own]) == 0
    assert f"\n{passed} passed, 0 failed, " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["json", "scipy", "bench"])
def test_a_new_kernel_has_no_name_of_a_module_that_is_found_before_it(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert bench_main.main(["new-kernel", f"{name}.py"]) == 3
    assert f"a module {name} exists already; choose another name" in capsys.readouterr().err


TRIED = [
    {}, {"mask": "none"}, {"H_kv": 2, "D_v": 4}, {"mode": "backward"}, {"mode": "decode"} | check.LONE, check.PADDED,
    {"window": 7}, {"bias": "alibi"}, {"bias": "dense", "mode": "backward"},
]  # fmt: skip


def test_the_baseline_beside_own_kernels_is_sdpa_unless_another_is_named():
    def baseline(*names, **asked):
        impl = [impls.make(name, lambda q, k, v: q) if name == "mine" else impls.get(name) for name in names]
        return Run(dict(asked), Selection(SWEEPS["quick"], "cpu", tuple(impl), (), {}), Path()).baseline_impl

    assert baseline("sdpa", "fused") == baseline("mine", "fused") == "fused"
    assert baseline("mine", "sdpa", "fused") == "sdpa"
    assert baseline("mine", "sdpa", "einsum", baseline="einsum") == "einsum"


def test_a_run_that_cannot_be_saved_says_so_and_keeps_its_journal(ran, monkeypatch):
    """No page is written, of this run or of an older one."""
    pages = []
    monkeypatch.setattr(reports_main, "main", lambda arguments: pages.append(arguments[0]))
    unsupported = "--impl loop --T 512 --report"
    with monkeypatch.context() as disk:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        disk.setattr(saving.Path, "write_text", mock.Mock(side_effect=full))
        done = ran(f"{unsupported} --benchmark-save=x --benchmark-storage=file://./there")
    assert done.ret == pytest.ExitCode.TESTS_FAILED and not pages
    again = f"--resume x --benchmark-storage={Path('there').resolve()}"
    done.stdout.fnmatch_lines(
        f"not saved: */0001_x.tmp: No space left on device; `pytest *bench/ {again}` continues once that is fixed"
    )
    assert not [*Path().rglob("*.json")] and [*Path().rglob("x.*.journal")]
    assert ran(f"{unsupported} --benchmark-save=y").ret == 0
    assert pages == [str(file) for file in Path.cwd().rglob("*.json")]


def test_an_error_of_the_disk_without_a_file_name_is_one_line(ran, monkeypatch):
    failing = mock.Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO)))
    monkeypatch.setattr("bench.runs.begin.newest_journal", failing)
    assert "ERROR: Input/output error" in ran("--resume x").errlines


def test_a_run_that_is_interrupted_says_how_much_is_kept(own_signals, in_process, ran, monkeypatch):
    monkeypatch.setattr(Measuring, "_time", lambda _: os.kill(os.getpid(), signal.SIGTERM))  # which is as Ctrl-C
    done = ran("--impl sdpa,fused --T 16 --H 2 --dtype float32 --benchmark-save=x")
    assert done.ret == pytest.ExitCode.INTERRUPTED
    done.stdout.fnmatch_lines("unfinished, and kept: 2 of 2 cells checked; `pytest */bench/ --resume x` continues")
    assert not any("KeyboardInterrupt" in line for line in done.outlines)  # and where in the code it was


@pytest.mark.parametrize("hook", ["pytest_terminal_summary", "pytest_unconfigure"])
def test_ctrl_c_behind_a_run_is_one_line(tmp_path, hook):
    (tmp_path / "late.py").write_text(f"import os, signal\ndef {hook}(): os.kill(os.getpid(), signal.SIGTERM)\n")
    env = environment() | {"PYTHONPATH": str(tmp_path)}
    done = python(*launch.COMMAND[1:], *launch.OPTIONS, "-p", "late", "--collect-only", cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (2, "attention-bench: interrupted\n")


def test_a_check_that_the_user_interrupts_is_begun_again_and_one_that_ends_three_runs_is_not(ran, monkeypatch):
    def measure(self):
        (cell,) = self._cells
        self._run.add({"begin": cell.key})
        raise KeyboardInterrupt

    monkeypatch.setattr(Measuring, "measure", measure)
    ran("--impl sdpa --T 16 --H 2 --dtype float32 --benchmark-save=x")
    for _ in range(3):
        ran("--resume x").stdout.fnmatch_lines("unfinished, and kept: 0 of 1 cells checked; *")
    (journal,) = Path().glob("results/*/*.journal")
    ended = [line for line in journal.read_text().splitlines() if "interrupted" not in line]  # as by `kill -9`
    journal.write_text("\n".join([*ended, ""]))
    ran("--resume x").stdout.fnmatch_lines("*the run ended 4 times while this was checked*")


TINY_RUN = ("--T=16", "--impl=sdpa")
SWEEP = ("bench", "sweep", "--save", "x", *TINY_RUN)
PYTEST = ("pytest", BENCH, "--benchmark-save=x", *TINY_RUN)


@pytest.mark.parametrize(("command", "before", "ending"), [
    (SWEEP, "_pytest.config", "SIGTERM"), (PYTEST, "torch", "SIGINT"), (("reports",), "orjson", "SIGINT"),
])  # fmt: skip
def test_ctrl_c_while_a_command_starts_is_one_line(tmp_path, command, before, ending):
    """Interrupted before the module `before` is imported: by a command, also by the pytest that replaces it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {before!r}:\n"
        f"            os.kill(os.getpid(), signal.{ending})\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    )

    def listen():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which what was started with `&` by a shell ignores

    env = environment() | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{CHECKOUT}"}
    done = python("-m", *command, cwd=tmp_path, env=env, preexec_fn=listen)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "attention-bench: interrupted\n")
    assert not [*tmp_path.glob("results")]


def test_a_command_that_starts_ends_where_nobody_can_be_told():
    """As in a closed terminal."""
    within = "import os, signal\ntry: os.kill(os.getpid(), signal.SIGTERM)\nexcept OSError: pass"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", f"from stats import interrupts\n{within}"], cwd=CHECKOUT, stderr=write)
    os.close(write)
    assert done.returncode == 2


def test_ctrl_c_while_attention_bench_starts_its_command_is_one_line(tmp_path):
    """Interrupted in the new process, before it has imported anything of the suite."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if sys.orig_argv[2:] == ['ab']:\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below `nohup`\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    env = environment() | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{CHECKOUT}"}
    done = python("-c", "from commands import console\nconsole.from_shell()", "ab", cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (2, "attention-bench: interrupted\n")


@pytest.mark.parametrize("commands", [bench_main, reports_main])
def test_an_option_is_given_once_and_with_a_value(commands, capsys):
    for command in commands.COMMANDS:
        with suppress(SystemExit):
            commands.main([command, "--help"])
        with_value = {*re.findall(r"^ .*?(--[\w-]+) [A-Z]", capsys.readouterr().out, re.MULTILINE)}
        for option in with_value - {"--impl", "--allow-gone", "--slurm-option"}:
            for given, says in (
                ([option, "1", f"{option}=2"], "is given 2 times: give it once"),
                ([option, ""], "is empty: give it a value"),
                ([f"{option}="], "is empty: give it a value"),
            ):
                with pytest.raises(SystemExit) as ended:
                    commands.main([command, *given])
                assert ended.value.code in (3, 4), (command, given)
                assert f"{option} {says}" in capsys.readouterr().err


def test_a_template_that_cannot_be_written_leaves_no_file(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = python(CHECKOUT / "bench", "new-kernel", cwd=tmp_path, preexec_fn=limit)
    assert (done.returncode, done.stderr) == (3, "bench: error: mine.py can't be written: File too large\n")
    assert not [*tmp_path.iterdir()]
