"""Cases, their public names, and what is counted for them."""

from itertools import product

import pytest
from torch.utils.flop_counter import FlopCounterMode

import impls
from bench.cases import counting
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.sweep import SWEEPS
from bench.checks import reference
from bench.checks.attention_problems import problem_of
from bench.runs.rows import Results, Sample, row
from impls.paged import WHOLE


def test_ids_are_a_public_format():
    """Saved runs are matched by ids: a change of these lines breaks every saved run."""
    assert Case.of(T=256, H=8, D_h=64, mask="causal", threads=None, d_model=512).id == "B1-T256-H8-D_h64-float32-cpu"
    other = Case.of(
        B=2, T=8, T_kv=9, H=4, H_kv=2, D_h=3, D_v=5, dtype="bfloat16", device="cuda", mask="none", source="cross"
    )
    assert other.id == "B2-T8-H4-D_h3-bfloat16-cuda-T_kv=9-H_kv=2-D_v=5-mask=none-source=cross"
    assert Case.of(T=8, H=1, D_h=64, d_model=256, threads=1).id == "B1-T8-H1-D_h64-float32-cpu-d_model=256-threads=1"


def test_a_gpu_has_its_own_sizes_and_dtypes():
    """They exclude none of SDPA's kernels."""
    cases = {name: sweep.cases("cuda") for name, sweep in SWEEPS.items()}
    for impl, sweep in product(("sdpa_flash", "sdpa_efficient", "sdpa_cudnn"), ("quick", "length", "decode")):
        assert not any(map(impls.get(impl).refusal, cases[sweep]))
    assert all(len({case.id for case in its}) == len(its) for its in cases.values())


def test_some_pages_on_a_gpu_fit_varlen_attn():
    assert any(case.page and case.page % WHOLE == 0 for case in SWEEPS["paged"].cases("cuda"))


def test_list_shows_no_grid_of_another_device():
    shown = SWEEPS["published"].grids_on("cpu")
    assert shown and all(grid["device"] == ("cpu",) for grid in shown)


def test_a_sweep_of_models_names_the_models_of_each_case():
    of_models = SWEEPS["llm"].cases("cpu", {"dtype": ("float32",)})
    assert {*of_models.values()} == {"gpt2", "qwen2.5-0.5b", "llama3-8b"}
    assert {*SWEEPS["quick"].cases("cpu").values()} == {""}


def test_in_decode_t_counts_all_tokens():
    (case,) = SWEEPS["decode"].cases("cpu", {"B": (1,), "T": (300,), "dtype": ("float32",), "mode": ("decode",)})
    assert (case.T, case.T_kv, case.mask) == (1, 300, "none")
    assert case.id == "B1-T1-H8-D_h64-float32-cpu-T_kv=300-mask=none-mode=decode"


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ({"mode": "decode", "mask": "causal"}, "decode sees every key in its cache: leave out --mask and --source"),
        ({"mode": "decode", "T_kv": 8}, "decode has one new token: --T 1 beside --T_kv 8, or --T alone"),
        ({"mode": "decode", "mask": "none", "window": 4}, "biases need the positions of queries"),
        ({"mask": "padding"}, "a batch of one has nothing to pad: --mask padding needs --B 2 or more"),
        ({"scope": "core", "d_model": 64}, "a core has no projections: leave out --d_model"),
        ({"T_kv": 8}, "T_kv = 8 with T = 64 needs --source cross"),
        ({"H_kv": 3}, "H = 8 is not divisible by H_kv = 3"),
        ({"mask": "none", "prefix": 4}, "--prefix needs --mask causal, not none"),
        ({"window_right": 4}, "--window_right needs --mask none, not causal"),
        ({"mask": "causal+padding", "B": 2, "window": 4}, "--window and --documents have no padding"),
        ({"mask": "causal_br", "source": "cross", "T_kv": 8}, "every query is one of the keys, but T = 64, T_kv = 8"),
        ({"latent": 8, "scope": "core"}, "--latent is part of a layer: leave out --scope core"),
        ({"latent": 8, "H_kv": 1}, "leave out --H_kv 1"),
        ({"latent": 8, "dropout": 0.1}, "leave out --qkv_bias, --dropout and --out_dropout"),
        ({"rope": 8}, "--rope needs --latent"),
        ({"latent": 8, "rope": 7}, "--rope 7: rotary features are a part of a head, in pairs"),
        ({"page": 4}, "--page needs --mode decode"),
    ],
)
def test_axes_that_do_not_fit_together(axes, says):
    with pytest.raises(ValueError, match=says):
        SWEEPS["quick"].cases("cpu", {name: (value,) for name, value in ({"T": 64, "H": 8} | axes).items()})


@pytest.mark.parametrize("axes", [{}, {"source": "cross", "T_kv": 5}, {"H_kv": 1}, {"D_v": 3}])
def test_operations_against_torchs_own_counter(axes):
    """`FlopCounterMode` counts the products of the plain formula, including the masked half."""
    case = Case.of(**{"B": 2, "T": 7, "H": 2, "D_h": 4, "mask": "none"} | axes)
    problem = problem_of(case)
    with FlopCounterMode(display=False) as counter:
        reference.layer(problem.inputs[0], problem.inputs[-1], problem.weights, case.layer_shape)
    assert counting.flops(case) == counter.get_total_flops()


def test_a_step_back_has_two_products_for_each_of_the_forward():
    forward, back = (Case.of(T=3, H=2, D_h=4, mode=mode) for mode in ("forward", "backward"))
    assert counting.flops(back) == 3 * counting.flops(forward)


def columns_of(name, seconds=0.5, **axes):
    """Return the columns of a row whose calls took this long."""
    found = [Sample(seconds, seconds, 0, 0, 0, 0.0, 1, 0.0, 0.0, 0.0)]
    return row(Cell(impls.get(name), Case.of(**axes)), Results(samples=found), ())["extra_info"]


def test_columns_of_documents():
    """By hand: 22 tokens, one document of 8, the others of 2."""
    of = {"B": 2, "T": 22, "H": 3, "D_h": 4, "D_v": 6, "documents": "one_long", "scope": "core"}
    found, padded = columns_of("one_by_one", **of), columns_of("padded", mask="none", **of)
    assert found["flops"] == 2 * 2 * 3 * (36 + 7 * 3) * (4 + 6)
    assert padded["flops"] == 2 * 2 * 3 * (64 + 7 * 4) * (4 + 6)
    assert found["bytes"] == padded["bytes"] == 4 * 2 * 3 * 22 * (4 + 4 + 6 + 6)
    assert (found["padding_share"], padded["padding_share"]) == (0, 1 - 22 / (8 * 8))
    assert (found["tokens_per_s"], found["cache_bytes_per_token"]) == (2 * 22 / 0.5, None)


def test_columns_of_requests():
    """By hand: a prompt of 5 tokens, and three requests of 2, 1 and 1 new tokens."""
    of = {"requests": "1x5:5+1x2:8+2x1:4", "mask": "causal_br", "source": "cross", "scope": "core"}
    found = columns_of("padded_requests", T=5 + 2 + 1 + 1, T_kv=5 + 8 + 4 + 4, H=4, D_h=3, **of)
    assert (found["padding_share"], found["tokens_per_s"]) == (1 - 9 / (4 * 5), 9 / 0.5)


def test_pages_cost_what_a_contiguous_cache_does():
    """Neither block tables nor copies are counted."""
    of = {"B": 3, "T": 2, "T_kv": 50, "H": 4, "H_kv": 2, "D_h": 8, "mask": "causal_br", "mode": "decode"}
    paged, plain = columns_of("page_by_page", page=16, **of), columns_of("sdpa", **of)
    assert paged["bytes"] == 4 * (3 * 2 * 32 * 2 + 2 * (32 * 32) + 2 * (32 * 16) + 3 * 50 * 2 * 16)
    assert all(paged[name] == plain[name] for name in ("flops", "bytes", "cache_bytes_per_token", "tokens_per_s"))
