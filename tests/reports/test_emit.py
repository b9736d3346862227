"""The table of a dispatcher, and the module that holds it, as text: tests/test_dispatcher.py calls it."""

import ast
import math

import pytest
import synthetic_runs as synthetic

from reports.judging.dispatcher import MAY_LOSE, key_ranges
from stats.ratios import UNKNOWN, Ratio


def ratio(value, width=1.01):
    return Ratio(value, value / width, value * width)


def chosen(by_length):
    return list(key_ranges(by_length))


def test_a_range_ends_where_the_interpolated_ratio_may_lose_too_much():
    def end(share, at_256):
        """Where a straight line in log-log, from 0.5 at 64, comes to some share."""
        return int(64 * 4 ** (math.log(share / 0.5) / math.log(at_256 / 0.5)))

    for at_256, last in ((ratio(2.2, 1.0), end(1, 2.2)), (ratio(0.99, 2.2), end(1 + MAY_LOSE, 0.99 * 2.2))):
        assert chosen({64: {"einsum": ratio(0.5, 1.0)}, 256: {"einsum": at_256}}) == [(64, last, "einsum")]


def test_the_fastest_of_several_kernels_is_chosen():
    by_length = {64: {"einsum": ratio(0.5), "fused": ratio(0.8)}, 256: {"einsum": ratio(0.8), "fused": ratio(0.4)}}
    assert chosen(by_length) == [(64, 112, "einsum"), (113, 256, "fused")]


def test_a_kernel_that_was_not_measured_at_a_length_is_not_chosen_around_it():
    for unknown in ({"einsum": UNKNOWN}, {}):
        known = {64: {"einsum": ratio(0.5)}, 256: unknown, 1024: {"einsum": ratio(0.5)}}
        assert chosen(known) == [(64, 64, "einsum"), (1024, 1024, "einsum")]


def run_of(faster, *of, **axes):
    """SDPA takes a second a token; others as given."""
    return synthetic.by_length({"sdpa": 1.0, **faster}, *of, **axes)


@pytest.fixture
def emitted(as_run, tmp_path, printed):
    """The module of a run."""

    def of(data, *arguments):
        path = tmp_path / "here.py"
        said = printed("advise", "--run", as_run(data).path, "--emit", path, *arguments)
        assert said.startswith(f"{path} is written: ")
        text = path.read_text()
        compile(text, path.name, "exec")
        return text

    return of


def test_the_module_says_where_it_comes_from(emitted):
    text = emitted(run_of({"fused": 0.5, "sdpa_math": 0.7, "einsum": 2.0}), "--T", "64..256")
    about = ast.get_docstring(ast.parse(text))
    for expected in ("AMD EPYC 9B14", "2.13.0+cpu", "0001_x of 2026-11-20, commit 0123abc", "here.py --T 64..256"):
        assert expected in about
    assert "('cpu', 2, torch.float32, False, 'causal', 1, 8, 8, 64, 64, None)" in text
    assert "(64, 256, fused),\n" in text
    assert "def fused" in text and "def einsum" not in text and "sdpa_kernel" not in text


@pytest.mark.parametrize("axes", [{"dropout": 0.1}, {"mode": "prefill"}, {"softcap": 50}])
def test_a_case_without_an_equivalent_plain_call_is_not_in_the_table(axes, as_run, tmp_path, refusal):
    data = run_of({"fused": 0.5}, **axes)
    refusal("advise", "--run", as_run(data).path, "--emit", tmp_path / "here.py")
    assert not (tmp_path / "here.py").exists()


@pytest.mark.parametrize(
    ("axes", "mask"),
    [
        ({"mask": "padding"}, "keys"),
        ({"mask": "causal+padding"}, "batch"),
        ({"window": 8}, "pairs"),
        ({"mask": "causal_br"}, "pairs"),
    ],
)
def test_with_a_boolean_mask_sdpas_own_kernels_are_chosen(axes, mask, emitted):
    text = emitted(run_of({"fused": 0.5, "sdpa_math": 0.8}, B=2, **axes))
    assert f"('cpu', 2, torch.float32, False, '{mask}', 2, 8, 8, 64, 64, None)" in text
    assert "(64, 256, sdpa_math)" in text and "def fused" not in text


def test_runs_of_one_machine_make_one_table(results, tmp_path, printed, refusal):
    synthetic.save(run_of({"fused": 0.5}), results, "0001_a")
    synthetic.save(run_of({"fused": 0.5}, dtype="bfloat16"), results, "0002_a")
    synthetic.save(run_of({"fused": 0.5}, top={"machine_info": {**synthetic.MACHINE, "cores": 64}}), results, "0003_b")
    asked = ["advise", "--results", results, "--emit", tmp_path / "here.py", "--run"]
    assert printed(*asked, "*_a") == f"{tmp_path / 'here.py'} is written: fused in 2 of 2 settings, else SDPA\n"
    text = (tmp_path / "here.py").read_text()
    assert "torch.float32" in text and "torch.bfloat16" in text and "0001_a" in text and "0002_a" in text
    refusal(*asked, "*")


def test_a_kernel_that_was_wrong_in_one_of_the_runs_is_not_chosen(results, tmp_path, printed):
    wrong = [{"impl": "fused", "id": "x", "reason": "wrong", "detail": "off"}]
    synthetic.save(run_of({"fused": 0.5, "einsum": 0.8}), results, "0001_a")
    synthetic.save(run_of({"einsum": 0.8}, mask="none", top={"skipped": wrong}), results, "0002_a")
    printed("advise", "--results", results, "--emit", tmp_path / "here.py", "--run", "*_a")
    text = (tmp_path / "here.py").read_text()
    assert "fused" not in text and text.count("(64, 256, einsum)") == 2


@pytest.mark.parametrize("beside", [{}, {"mine": 0.5}])
@pytest.mark.parametrize("reasons", [[], ["wrong"], ["error"]])
def test_a_later_run_without_another_kernel_replaces_nothing(reasons, beside, results, tmp_path, printed):
    """Unless one failed there."""
    ids = [synthetic.case_id(synthetic.case(T=T)) for T in (64, 256)]
    gone = [{"impl": "fused", "id": id_, "reason": reason, "detail": ""} for reason in reasons for id_ in ids]
    synthetic.save(run_of({"fused": 0.5}), results, "0001_a")
    synthetic.save(run_of({"sdpa_math": 0.5}, dtype="bfloat16"), results, "0002_a")
    synthetic.save(run_of(beside, top={"skipped": gone}), results, "0003_a")
    printed("advise", "--results", results, "--emit", tmp_path / "here.py", "--run", "*_a")
    text = (tmp_path / "here.py").read_text()
    assert "(64, 256, sdpa_math)" in text and ("(64, 256, fused)" in text) == (not reasons)


def test_text_of_a_run_file_never_becomes_code(emitted):
    """Untrusted text reaches a docstring, a string and a number only."""
    evil = '"""\nraise SystemExit(1)\n"""\\'
    machine = {**synthetic.MACHINE, "cpu": evil, "gpu": evil, "torch": "'+str(1/0)+'"}
    data = run_of({"fused": 0.5}, device="cuda", top={"machine_info": machine, "commit_info": {"id": evil}})
    data["benchmarks"] += run_of({"fused": 0.5}, dtype="float32;x")["benchmarks"]
    tree = ast.parse(emitted(data, "--results", evil))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "SystemExit"]
    assert {type(node).__name__ for node in tree.body} == {"Expr", "ImportFrom", "Import", "Assign", "FunctionDef"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("here.txt", "give a Python module with a new name, without `flash`"), ("my-kernel.py", "a Python module"),
     ("torch.py", "a new name"), ("my_flash.py", "a new name"), ("none/here.py", "No such file"),
     ("taken.py", "another file of that name")],
)  # fmt: skip
def test_a_usage_error_is_one_line(name, expected, as_run, tmp_path, refusal):
    (tmp_path / "taken.py").write_text("mine = 1\n")
    run = as_run(run_of({"fused": 0.5}))
    assert expected in refusal("advise", "--run", run.path, "--emit", tmp_path / name)
    assert (tmp_path / "taken.py").read_text() == "mine = 1\n"


def test_options_select_the_settings_of_the_module(emitted):
    data = run_of({"fused": 0.5})
    data["benchmarks"] += run_of({"fused": 0.5}, dtype="bfloat16")["benchmarks"]
    assert "torch.float32" in emitted(data)
    text = emitted(data, "--dtype", "bfloat16")  # over its own
    assert "torch.bfloat16" in text and "torch.float32" not in text


def test_a_core_takes_precedence_over_its_layer(emitted):
    core, layer = run_of({"fused": 0.5}, scope="core"), run_of({"fused": 2.0})
    layer["benchmarks"] = core["benchmarks"] + layer["benchmarks"]
    assert "(64, 256, fused),\n" in emitted(layer)
