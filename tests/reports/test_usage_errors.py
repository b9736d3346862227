"""A mistake on the command line is one line that says what would be right, with exit code 3."""

import shlex

import pytest
import synthetic_runs as synthetic
from conftest import TINY

from stats.arguments import ONE_COMMAND

OF_RUNS = [
    ("compare", "HEAD"),
    ("compare base 0001_base", "BASE and HEAD are both 0001_base"),
    ("compare base heat", "did you mean"),
    ("compare base nothing", "known: 0002_head, 0001_base"),
    ("compare base head --margin 0.5", "from 0 to below 0.5"),
    ("compare head", "no baseline; set one with: python -m reports baseline set RUN"),
    ("compare '*' head", "means 2 runs: 0001_base, 0002_head"),
    ("compare base head --json 0001/x.json", "0001/x.json"),
    ("compare base head --json -", "error: --json -: give the name of a file"),
    *(
        (f"compare base head --{form} /dev/full", "/dev/full: No space left on device")
        for form in ("json", "markdown", "html")
    ),
    ("bas", "did you mean '0001_base'?"),
    (f"base --out {TINY}/out", "out/0001_base: Not a directory"),
    ("'a killed one'", "`pytest bench/ --resume 'a killed one'` finishes it"),
    ("history run", ""),
    ("baseline", ""),
    ("baseline set", ""),
    ("baseline move x", ""),
    ("baseline set base --accept ' '", ""),
    ("baseline set nope", "nope"),
]
OTHERS = [
    ("--nonsense", "--nonsense"),
    ("advise --dtyp bf16", "unrecognized arguments: --dtyp bf16; did you mean --dtype? "),
    ("--results nowhere", "pytest bench/ --benchmark-save=NAME"),
    ("--results empty", "pytest bench/ --benchmark-save=NAME"),
    (f"--results {TINY}", f"{TINY}: Not a directory"),
    ("history --results nowhere", "there is no folder nowhere, and so no run; make one with"),
    (f"export {TINY} -o a.json", "its ending should be one of .parquet, .csv"),
    (f"export {TINY} -o /dev/null/a.csv", "/dev/null"),
    (f"export {TINY} -o /nowhere/a.csv", "error: Cannot save file into"),
    ("advise --run nope", "no run 'nope'"),
]
ADVISE = [
    ("--dtype fp16", "dtype = float16 was not measured here; measured: bfloat16"),
    ("--model gpt2 --scope block", "--model names attention layers, and a block is none: leave out --model"),
    ("--T x", "argument --T: 'x' is not a positive whole number"),
    ("--dtype float8", "argument --dtype: 'float8' is not one of float32, "),
    ("--window none --T 7", "T = 7 was not measured here; measured: 512"),
    ("--T 512..64", "argument --T: '512..64' is not a range from a smaller number to a larger one"),
    ("--T 1024", "T = 1024 was not measured here; measured: 512"),
    ("--T 1024..4096", "T = 1024..4096 was not measured here; measured: 512"),
    ("--dropout nan", "argument --dropout: 'nan' is not a probability: 0 or more, and less than 1"),
    ("--qkv_bias x", "argument --qkv_bias: 'x' is not one of on, off"),
    ("--model llama3", "--model llama3: unknown; known: gpt2, "),
    ("--model gpt2", "no global layer of gpt2 was measured here; measure it with `pytest bench/ --model gpt2 "),
]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(f"{of} --results results", said) for of, said in OF_RUNS]
    + OTHERS
    + [(f"advise --results results --run head {of}", said) for of, said in ADVISE],
)
def test_a_mistake_is_one_line(arguments, said, results, refusal):
    for name in ("0001_base", "0002_head"):
        path = synthetic.save(synthetic.by_length({"sdpa": 1e-3}, (512,), dtype="bfloat16"), results, name)
    path.with_name("a killed one.20261126T0915-1.journal").touch()
    results.with_name("empty").mkdir()
    assert said in refusal(*shlex.split(arguments))


def test_an_error_names_the_command_that_was_typed(monkeypatch, refusal):
    monkeypatch.setenv(ONE_COMMAND, "attention-bench")
    for words in (["compare"], ["baseline", "set"]):
        assert refusal(*words).startswith("attention-bench: error: the following arguments are required")


@pytest.mark.parametrize("command", ["history", "advise", "report"])
def test_a_current_folder_that_was_removed_is_named(command, tmp_path, monkeypatch, refusal):
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the current folder: No such file or directory" in refusal(command)
