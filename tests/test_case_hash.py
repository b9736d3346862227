"""`case_hash` changes if the test problem changes, and only then."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.cases import models
from bench.cases.case import Case
from bench.cases.case_hash import case_hash
from bench.checks.attention_problems import problem_of

NUMBERS = [
    ({"T": 16}, 10.22688, 111.7104),
    ({"T": 16, "mode": "backward", "bias": "dense", "sinks": True}, 5.918617, 128.6029),
    ({"T": 1, "T_kv": 40, "B": 2, "mode": "decode", "mask": "none", "page": 8}, 61.70916, 139.0703),
    ({"T": 16, "latent": 8, "rope": 4}, -21.80119, -2.28935),
]


@pytest.mark.parametrize(("axes", "of_inputs", "of_weights"), NUMBERS)
def test_inputs_and_weights_are_those_of_earlier_runs(axes, of_inputs, of_weights):
    """If cells change their meaning, change `MEASUREMENT` in bench/cases/case_hash.py, too."""
    problem = problem_of(Case.of(**({"H": 2, "D_h": 8} | axes)))
    drawn = (*problem.inputs, *([] if problem.grad is None else [problem.grad]))
    assert total(drawn) == pytest.approx(of_inputs, rel=1e-5)
    assert total(problem.weights.values()) == pytest.approx(of_weights, rel=1e-5)


def total(tensors):
    """Return a weighted sum, which depends on the order of the numbers."""
    flat = torch.cat([it.double().flatten().nan_to_num() for it in tensors])
    return float(flat.clamp(-10, 10) @ torch.linspace(1, 2, len(flat), dtype=torch.float64))


def test_hashes_of_earlier_runs_stay():
    """The hashes were computed when they still covered the sources."""
    assert case_hash(Case.of(T=64, H=1, D_h=64)) == "bf6ad737dea5"
    assert case_hash(Case.of(T=64, H=8, D_h=64, mode="backward", dtype="bfloat16")) == "4a089d7117ce"


def test_a_model_is_known_by_its_configuration_and_not_by_the_path_of_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = Case.of(T=64, H=1, D_h=64, scope="block", model="config.json")
    hashes = []
    for width in (128, 256, 128):
        monkeypatch.setattr(models, "_read", {})  # as in another process
        Path("config.json").write_text(json.dumps({"model_type": "llama", "intermediate_size": width}))
        hashes.append(case_hash(case))
    assert hashes[0] == hashes[2] != hashes[1]


def test_every_axis_is_in_the_hash_unless_it_is_off():
    case = Case.of(T=16, H=2, D_h=8, B=2)
    others = [{"T": 24}, {"H_kv": 1}, {"dtype": "float64"}, {"mask": "none"}, {"mode": "backward"}, {"threads": 1}]
    assert len({case_hash(it) for it in (case, *(replace(case, **other) for other in others))}) == 1 + len(others)
    wider = type("Wider", (), {"columns": lambda self: case.columns() | {"window": None, "sinks": 0}})()
    assert case_hash(wider) == case_hash(case)
