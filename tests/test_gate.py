"""The gate, checked on kernels that must fail and on kernels that must pass."""

import ctypes
from dataclasses import replace
from threading import current_thread, main_thread

import pytest
import torch

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.outcome import Skip, Unsupported, Unusable, Wrong, classify
from bench.checks import probes as probing
from bench.checks.attention_problems import problem_of
from bench.checks.dropout import check_independence, check_training
from bench.checks.gate import Gate
from bench.checks.inputs import inputs_of, read_only
from bench.checks.module_checks import broken_convention, check_case, check_low_scores
from bench.checks.patterns import DEEPEST, PATTERNS
from bench.checks.probes import few_queries, probe_with_dropout
from bench.checks.settings import threads
from bench.workers.tasks import Tasks
from impls.rules import EVERY_RULE

from . import reported_kernels, unusual_kernels, wrong_in_model, wrong_kernels, wrong_latent, wrong_rules
from .conftest import ask_check, checked
from .conftest import gated as every_check
from .global_settings import CHANGES

PLAIN = {"T": 64, "H": 2, "D_h": 64}


def held(kernel, case, **limits):
    limits |= getattr(kernel, "limits", {})
    every_check(impls.make("mine", kernel, limits=impls.Limits(**limits)), case)


def gated(kernel, **axes):
    held(kernel, Case.of(**(PLAIN | axes)))


def by_case(kernels):
    """Return names of kernels sorted by case, since expected outputs are cached."""
    return sorted(kernels, key=lambda name: str(kernels[name].case))


@pytest.mark.parametrize("name", by_case(wrong_kernels.KERNELS))
def test_wrong_kernel_is_refused(name, monkeypatch):
    wrong = wrong_kernels.KERNELS[name]
    if {"dropout", "out_dropout"} & wrong.case.keys():  # which is right on probes, without dropout
        monkeypatch.setattr("bench.checks.probes.PROBES", (37,))
    with threads(torch.get_num_threads()), pytest.raises(Wrong) as refusal:
        gated(wrong.kernel, **wrong.case)
    assert wrong.says in str(refusal.value)


def aligned_bottom_right(q, k, v, *, is_causal):
    T, T_kv = q.shape[-2], k.shape[-2]
    return wrong_kernels.sdpa(q, k, v, attn_mask=torch.ones(T, T_kv, dtype=torch.bool).tril(T_kv - T))


def blind_without_a_key(q, k, v, *, is_causal):
    T, T_kv = q.shape[-2], k.shape[-2]
    return wrong_kernels.plain(q, k, v, torch.ones(T, T_kv, dtype=torch.bool).tril(T_kv - T))  # NaN


def hides_nothing(q, k, v, *, is_causal):
    return wrong_kernels.sdpa(q, k, v)


def window_with_its_own_key(q, k, v, *, attn_mask):
    return wrong_kernels.sdpa(q, k, v, attn_mask=attn_mask & torch.ones_like(attn_mask).triu(-7))


def gradient_of_sinks_twice(q, k, v, *, is_causal, sinks):
    causal = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return wrong_rules.plain(q, k, v, causal, sinks=2 * sinks - sinks.detach())


gradient_of_sinks_twice.limits = {"beyond": ("sinks",)}


def every_second_head_shares_a_key_head(q, k, v, *, enable_gqa, **options):
    return wrong_kernels.sdpa(q, *(x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v)), **options)


def in_float32(q, k, v, **options):
    return wrong_kernels.sdpa(q.float(), k.float(), v.float(), **options).to(q.dtype)


def sees_the_newest_keys(q, k, v):
    if q.shape[1] < k.shape[1]:
        pytest.fail("more key heads than heads")
    return wrong_kernels.sdpa(q, k[..., -16:, :], v[..., -16:, :])


def reads_as_if_contiguous(q, k, v, **options):
    return wrong_kernels.sdpa(*map(wrong_kernels.as_if_contiguous, (q, k, v)), **options)


def true_hides_a_key(q, k, v, *, attn_mask, **options):
    return wrong_kernels.sdpa(q, k, v, attn_mask=~attn_mask, **options)


def tokens_before_heads(q, k, v, **options):
    return wrong_kernels.sdpa(*(x.transpose(1, 2) for x in (q, k, v)), **options).transpose(1, 2)


def no_gradient_of_keys(q, k, v, **options):
    return wrong_kernels.sdpa(q, k.detach(), v, **options)


@pytest.mark.parametrize(
    ("kernel", "axes", "says"),
    [
        (true_hides_a_key, {"window": 8}, r"; attn_mask is True where a query may see a key$"),
        (tokens_before_heads, {}, r"; q, k, v and the output are \(B, H, T, D\)$"),
        (wrong_kernels.KERNELS["no_scale"].kernel, {}, r"; scores are divided by the square root of D_h$"),
        (no_gradient_of_keys, wrong_kernels.BACKWARD, r": no gradient reaches k$"),
        (sees_the_newest_keys, wrong_kernels.DECODE | {"scope": "core"}, r"^few queries, \S+: error .* every batch entry, "),
        (reads_as_if_contiguous, {}, r"; right where q, k and v are contiguous$"),
        (wrong_kernels.masks_with_minus_10000, {}, r"-scope=core: where scores are far below zero: error"),
        (aligned_bottom_right, {"source": "cross", "T_kv": 100}, r"by is_causal, query t sees keys 0 to t$"),
        (hides_nothing, {"source": "cross", "T_kv": 100}, r", every row$"),
        (blind_without_a_key, {"source": "cross", "T_kv": 40}, r"NaN or Inf in .*; by is_causal, query t sees keys 0 to t$"),
        (window_with_its_own_key, {"window": 8}, r"; a window counts keys beside the query's own$"),
        (gradient_of_sinks_twice, {"mode": "backward", "sinks": True}, r": gradient of sinks: error \S+, allowed \S+$"),
        (every_second_head_shares_a_key_head, {"H": 6, "H_kv": 2}, r"; neighbouring heads share a key head$"),
        (in_float32, {"dtype": "float64"}, r"; as precise as float32$"),
    ],
)  # fmt: skip
def test_the_likely_cause_is_named(short_probes, kernel, axes, says):
    with pytest.raises(Wrong, match=says):
        gated(kernel, **axes)


class DifferentiatesEveryInput(wrong_kernels.Plain):
    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
            o = wrong_kernels.sdpa(*leaves, is_causal=ctx.is_causal)
        return *torch.autograd.grad(o, leaves, grad), None


def test_an_error_within_a_backward_is_not_called_a_detached_output(short_probes):
    with pytest.raises(Skip, match="RuntimeError: One of the differentiated Tensors does not require grad"):
        gated(wrong_kernels.applied(DifferentiatesEveryInput), mode="backward")


def test_no_mistake_is_named_where_ordinary_inputs_are_right():
    core = wrong_rules.CORES["clamped_instead_of_bent_where_scores_are_large"][0]  # which takes no mask
    impl = impls.make("mine", core, limits=impls.Limits(beyond=EVERY_RULE))
    assert broken_convention(impl, Case.of(**PLAIN, softcap=50, dtype="bfloat16", scope="core")) is None


@pytest.mark.parametrize("axes", [{}, wrong_kernels.DECODE], ids=str)
@pytest.mark.parametrize("tile", [1, 64])
def test_work_left_over_by_the_number_of_threads_is_checked(axes, tile):
    def divides(q, k, v, **options):
        B, H, keys, _ = k.shape
        items, count = (keys if tile == 1 else B * H * -(-keys // tile)), torch.get_num_threads() if keys > 100 else 1
        whole = keys - tile * (items % count)
        return wrong_kernels.sdpa(q, k, v * (torch.arange(keys) < whole)[:, None], **options)

    case = Case.of(**(PLAIN | axes))
    with threads(1):
        every_check(impls.make("divides", divides), case)
    with threads(2):
        checked(Cell(impls.get("sdpa"), case))
        with pytest.raises(Wrong, match="several threads"):
            checked(Cell(impls.make("divides", divides), case))


def test_a_process_that_ends_when_a_module_is_built_names_no_check_before(short_probes, capfd):
    checked(Cell(impls.get("sdpa"), case := Case.of(**PLAIN)))
    assert capfd.readouterr().err.rstrip().endswith(f"building, {case.id}")


def test_a_kernel_that_restores_what_it_writes_to_its_inputs_is_refused(short_probes):
    libc = ctypes.CDLL(None)

    def restores(q, k, v, **options):
        place, before = ctypes.c_void_p(q.data_ptr()), ctypes.string_at(q.data_ptr(), 4)
        with open("/dev/zero") as zeros:  # a call of the system fails where native code would end the process
            assert libc.read(zeros.fileno(), place, ctypes.c_size_t(4)) == 4
        ctypes.memmove(place, before, 4)
        return wrong_kernels.sdpa(q, k, v, **options)

    with pytest.raises(Skip, match=r"^read-only inputs, \S+: AssertionError"):
        gated(restores)


def test_a_kernel_may_read_a_whole_tile_where_inputs_are_read_only():
    numbers, tile = inputs_of(problem_of(Case.of(**PLAIN, scope="core"))), 128 * 256 * 4
    assert all(x.untyped_storage().nbytes() >= x.nbytes + tile for x in read_only(numbers).tensors)


def in_threads(work):
    """Run a function in each of torch's OpenMP threads, as native code does."""
    team = getattr(ctypes.CDLL(None), "GOMP_parallel", None) or pytest.skip("another OpenMP than GNU's")
    team(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: work()), None, torch.get_num_threads(), 0)


@pytest.mark.parametrize("T", [37, 64], ids=["in a probe", "in the case"])
def test_threads_that_compute_otherwise_are_refused_and_end_the_process(short_probes, tasks, T):
    @impls.register("rounds")
    def rounds(q, k, v, **options):
        if q.shape[-2] == T and torch.get_num_threads() == 2:
            in_threads(lambda: None if current_thread() is main_thread() else CHANGES["rounding to nearest"]())
            raise RuntimeError
        return wrong_kernels.sdpa(q, k, v, **options)

    def ask(do, **details):
        return getattr(tasks, do)(**details)

    case = Case.of(**PLAIN, threads=2).columns()
    with threads(2):
        ask_check(ask, "sdpa", case)
        with pytest.raises(Unusable, match=r"^leaves threads that .* round otherwise"):
            ask_check(ask, "rounds", case)
        in_threads(lambda: ctypes.CDLL(None).fesetround(0))


def test_a_kernel_that_writes_to_its_inputs_in_training_makes_no_other_one_wrong(short_probes):
    def writes(q, k, v, *, dropout_p=0.0, **options):
        return wrong_kernels.sdpa(q.mul_(2.0) if dropout_p else q, k, v, dropout_p=dropout_p, **options)

    probe = probe_with_dropout(impls.get("sdpa"), Case.of(**PLAIN, dropout=0.25, scope="core"))
    with pytest.raises(Wrong):
        check_training(impls.make("writes", writes), probe)
    check_training(impls.get("sdpa"), probe)


@pytest.mark.parametrize(
    "axes",
    [
        {"dtype": "float64", "dropout": 0.1, "scope": "core"},
        {"dtype": "float64", "out_dropout": 0.1},
        wrong_kernels.DECODE | {"T_kv": 33, "page": 4, "out_dropout": 0.1},
    ],
    ids=str,
)
def test_dropout_of_right_kernels_passes(short_probes, axes):
    impl = impls.get("sdpa")
    check_training(impl, probe_with_dropout(impl, Case.of(**(PLAIN | axes))))


@pytest.mark.parametrize("p", [0.002, 0.998])
def test_rarely_dropped_probs_are_not_called_dependent(p):
    random, shape = torch.Generator().manual_seed(0), (8, 4, 32, 32)
    calls = [torch.rand(shape, generator=random) >= p for _ in range(3)]
    check_independence(calls, torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("name", reported_kernels.KERNELS)
def test_a_reported_fault_is_refused(name):
    it = reported_kernels.KERNELS[name]
    with pytest.raises(Wrong):
        held(it.kernel, Case.of(**(PLAIN | it.case)), beyond=EVERY_RULE)


def test_as_many_wrong_kernels_as_the_docs_promise():
    wrong = wrong_kernels.KERNELS, wrong_rules.CORES, wrong_in_model.WRONG, wrong_latent.LAYERS
    assert sum(map(len, wrong)) > 200 and len(reported_kernels.KERNELS) >= 70


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        *(("fused", {"H": 1, "D_h": 16, "dropout": 0.1, **rule}) for rule in ({"bias": "learned"}, {"sinks": True})),
        ("sdpa", {"H": 4, "H_kv": 2, "D_h": 64, "mode": "backward"}),
    ],
)
def test_low_scores_of_right_kernels_pass(name, axes):
    """With dropout, weights of scores are the same."""
    check_low_scores(impls.get(name), Case.of(scope="core", T=513, **axes))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize(
    "axes",
    [
        {"d_model": 96}, {"mask": "padding", "B": 2}, {"D_v": 96, "window": 60}, {"softcap": 20}, {"sinks": True},
        {"source": "cross", "T_kv": 523}, {"mode": "decode", "T": 1, "T_kv": 513, "mask": "none", "B": 8, "H_kv": 1},
        {"mode": "decode", "T": 100, "T_kv": 513, "mask": "causal_br", "page": 60},
    ],
    ids=str,
)  # fmt: skip
def test_layers_without_a_core_pass_with_low_scores(axes, dtype):
    case = Case.of(**(PLAIN | {"T": 513, "dtype": dtype} | axes))
    layers = [it for it in impls.registered() if it.core is None and not it.compiled and it.refusal(case) is None]
    assert layers
    for impl in layers:
        check_low_scores(impl, case)


DECODE = wrong_kernels.DECODE | {"T_kv": 33}
PROBED = [
    {"mask": "causal"},
    {"mask": "causal+padding", "B": 3},
    {"dtype": "bfloat16"},
    {"dropout": 0.2, "out_dropout": 0.1},
    {"mask": "causal", "source": "cross", "T_kv": 50},
    {"H": 4, "H_kv": 2},
    DECODE,
]
"""With probes, and other checks of the gate. The check of a layer includes that of its core."""

AXES = [
    *PROBED,
    {"mask": "none"},
    {"mask": "padding", "B": 3},
    {"mask": "causal+padding", "source": "cross", "T_kv": 50, "B": 2},
    {"H": 4, "H_kv": 1},
    {"D_v": 96},
    {"H": 1, "d_model": 256},
    {"qkv_bias": True, "out_bias": True},
    DECODE | {"dtype": "bfloat16"},
    DECODE | {"H": 4, "H_kv": 2},
]

SLOW = {"loop": 9, "flex": 33}
"""Tokens of implementations with a Python step per query and key, or whose calls are each traced anew: without probes."""


def possible():
    """Yield implementations and checks case by case, so that implementations share its expected outputs."""
    for axes in AXES:
        for mode in [axes["mode"]] if "mode" in axes else ["forward", "backward"]:
            for impl in impls.registered():
                sizes = {"T": SLOW.get(impl.name, 33), "H": impl.limits.heads or 3, "D_h": 16, "mode": mode}
                case = Case.of(**(sizes | axes))
                check = every_check if axes in PROBED and impl.name not in SLOW else check_case
                if impl.refusal(case) is None:
                    yield pytest.param(check, impl, case, id=f"{impl.name}-{case.id}")


@pytest.mark.parametrize(("check", "impl", "case"), [*possible()])
def test_every_implementation_passes(short_probes, check, impl, case):
    try:
        check(impl, case)
    except Exception as error:
        if not isinstance(unfit := classify(error), Unsupported):  # torch itself has no kernel
            raise
        pytest.skip(str(unfit))


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_implementation_passes_every_check(short_probes, name, monkeypatch):
    monkeypatch.setattr("bench.checks.probes.PROBES", (SLOW[name],))
    impl = impls.get(name)
    every_check(impl, Case.of(T=SLOW[name], H=impl.limits.heads or 3, D_h=16))


def test_only_a_subset_of_rows_is_compared_when_the_reference_is_expensive(monkeypatch):
    monkeypatch.setattr("bench.checks.data.WHOLE", 1 << 29)
    case = Case.of(T=4096, H=2, D_h=16, scope="core")
    output = problem_of(case).output
    assert (output.rows[0], output.rows[-1]) == (0, 4095)
    assert output.reference.shape == (1, 2, len(output.rows), 16) and len(output.rows) < 4096
    assert len({*(output.rows % 64).tolist()}) == 64  # every place in a kernel's block
    assert not {*output.rows.tolist()} >= {*problem_of(case, input_set=1).output.rows.tolist()}


def test_padding_has_a_full_sequence_and_one_at_most_half_full():
    padding = problem_of(Case.of(T=40, H=2, D_h=8, B=5, mask="padding")).padding
    lengths = padding.sum(-1)
    assert lengths[0] == 40 and 1 <= lengths.min() <= lengths[-1] <= 20
    assert (padding.int().diff(dim=-1) <= 0).all()  # on the right


def test_problems_do_not_depend_on_the_number_of_threads():
    case = Case.of(T=16, H=2, D_h=8)
    assert problem_of(replace(case, threads=1)) is problem_of(case)


def unusual_cases():
    """Return kernels and cases, sorted by case, since expected outputs are cached; gradients in one dtype only."""
    cases = []
    for name, it in unusual_kernels.KERNELS.items():
        for mode in it.modes:
            of_mode = wrong_kernels.DECODE if mode == "decode" else {}
            for dtype in it.dtypes:
                if mode == "forward" or dtype == it.dtypes[0]:
                    cases.append(
                        (name, Case.of(**(PLAIN | (it.case or {}) | of_mode | {"mode": mode, "dtype": dtype})))
                    )
    return [pytest.param(name, case, id=f"{name}-{case.id}") for name, case in sorted(cases, key=lambda it: it[1].id)]


@pytest.mark.parametrize(("name", "case"), unusual_cases())
def test_right_but_unusual_kernel_passes(name, case, request):
    """With long probes in its first dtype, and where its numbers are its own in every dtype."""
    it = unusual_kernels.KERNELS[name]
    if it.dtypes != unusual_kernels.DTYPES and (case.mode, case.dtype) != ("forward", it.dtypes[0]):
        request.getfixturevalue("short_probes")
    held(it.kernel, case)


def test_gradients_of_values_with_one_feature_pass():
    gated(wrong_kernels.sdpa, H=1, D_v=1, mode="backward", dtype="bfloat16", scope="core")


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("scaled_before_the_product", wrong_kernels.DECODE | {"D_h": 80}),
        ("vmapped_over_heads", wrong_kernels.DECODE | {"D_h": 40, "B": 3, "H": 3, "T_kv": 127}),
        ("split_keys_merged_by_log_sum_exp", {"D_h": 8, "T": 22, "mask": "none"}),
        ("powers_of_two", {"D_h": 8, "T": 75}),
        ("scaled_before_the_product", {"D_h": 32, "H": 1, "dtype": "bfloat16"}),
        ("LayerThatProjectsByEinsum", {"D_h": 128, "T": 29, "mode": "backward"}),
        ("split_keys_merged_by_log_sum_exp", {"mode": "backward", "dtype": "bfloat16"}),
        ("scaled_before_the_product", {"mode": "backward", "dtype": "float16"}),
        ("one_accumulator_for_each_row", {"T": 2048, "scope": "core"}),
        ("products_added_one_by_one", wrong_kernels.DECODE | {"D_h": 256, "D_v": 64, "B": 8, "H": 3, "T_kv": 128}),
    ],
)
def test_right_kernels_that_round_scores_differently_pass(short_probes, name, axes):
    gated(unusual_kernels.KERNELS[name].kernel, **axes)


@pytest.mark.parametrize(
    ("divisor", "lengths", "ragged"),
    [
        (1, [37, 513, 127, 64, 128], True),
        (12, [36, 516, 132, 60], True),
        (16, [32, 528, 128, 64], False),
        (128, [128, 640], False),
    ],
)
def test_probes_have_the_nearest_lengths_that_are_allowed(divisor, lengths, ragged):
    limits = impls.Limits(**wrong_kernels.only_multiples_of(divisor))
    impl = impls.make("mine", wrong_kernels.sdpa, limits=limits)
    probes = Gate().check(impl, Case.of(T=384, H=2, D_h=8))
    assert [probe.T for probe in probes] == lengths
    assert probing.ragged(probes) == ragged


def test_what_has_passed_in_another_process_is_not_checked_again(short_probes, tasks, tmp_path, monkeypatch):
    cell = {"what": "x", "impl": "sdpa", "case": Case.of(T=16, H=2, D_h=8).columns()}
    passed = tasks.probe(**cell)["passed"]
    for builds in ("new_call", "module_of"):
        monkeypatch.setattr(f"bench.checks.module_checks.{builds}", lambda *_: pytest.fail("is checked again"))
    assert {*Tasks(str(tmp_path)).probe(**cell, passed=passed)["passed"]} == {*passed}
    for missing in (it for it in passed if ": scale, " not in it):  # SDPA's kernel has no scale, so nothing is called
        with pytest.raises(pytest.fail.Exception):
            Tasks(str(tmp_path)).probe(**cell, passed=[it for it in passed if it != missing])


def test_a_library_that_is_missing_is_told_with_the_failure_to_build_it():
    calls = []

    def fails(q, k, v, *, is_causal=False):
        calls.append(is_causal)
        raise RuntimeError("not built") if len(calls) == 1 else ImportError("mine.so is missing")

    with pytest.raises(Skip, match=r"kernel .probe.*RuntimeError: not built"):
        Gate().check(impls.make("fails", fails), Case.of(T=384, H=2, D_h=8))


def test_where_no_probe_is_allowed_the_case_itself_is_one():
    limits = impls.Limits(unless=lambda case: None if case.T == 1536 else "stands at 1536")
    impl = impls.make("mine", wrong_kernels.wrong_beyond_512, limits=limits)
    with pytest.raises(Wrong, match=r"\(probe\), B1-T1536-H2.*t from 512 to 1535"):
        Gate().check(impl, Case.of(T=1536, H=2, D_h=8))


def test_a_compiled_form_alone_without_its_maximum_is_refused():
    def only_compiled(q, k, v, **options):
        wrong = torch.compiler.is_compiling()
        return (wrong_kernels.no_shift if wrong else wrong_kernels.sdpa)(q, k, v, **options)

    impls.add(impls.make("only_compiled", only_compiled))
    torch.compiler.reset()
    with pytest.raises(Wrong, match=r"layer .probe.*where scores are very large: NaN or Inf"):
        Gate().check(impls.get("only_compiled+compile"), Case.of(T=64, H=2, D_h=8))


@pytest.mark.parametrize("scope", ["core", "layer"])
@pytest.mark.parametrize("mode", ["forward", "backward"])
@pytest.mark.parametrize("T", [37, 513])
def test_every_pattern_has_rows_and_a_bound_of_its_own(T, mode, scope):
    extreme = problem_of(Case.of(T=T, H=2, D_h=16, B=2, mode=mode, scope=scope), input_set=1)
    outputs = {part.pattern: part for part in extreme.expected if part.name == "output"}
    drowning = {DEEPEST} if (mode, scope) == ("backward", "layer") else set()  # all gradients, by its weights
    assert {*outputs} - {None} == {*range(len(PATTERNS))} - drowning
    assert all(part.compared.any() for part in outputs.values())
    rows = [part.tolerance.row for part in outputs.values()]
    assert min(rows) < max(rows) / 10


def test_errors_of_gradients_are_kept_beside_that_of_the_output():
    case = Case.of(T=33, H=2, D_h=16, mode="backward", scope="core")
    checked = check_case(impls.get("fused"), case)
    assert checked.error in (checked.error_output, checked.error_grad)
    assert check_case(impls.get("fused"), replace(case, mode="forward")).error_grad is None


def rounded_to_zero(q, k, v, **options):
    """Convert to bfloat16 by dropping the last 16 bits of float32."""
    o = wrong_kernels.sdpa(q.float(), k.float(), v.float(), **options)
    return (o.contiguous().view(torch.int32) >> 16 << 16).view(torch.float32).bfloat16()


@pytest.mark.parametrize("T", [64, 256])
def test_a_signed_error_in_bfloat16_shows_in_its_slope(T):
    case = Case.of(T=T, H=4, D_h=64, dtype="bfloat16", scope="core")
    assert check_case(impls.make("mine", rounded_to_zero), case).error_slope < -0.2
    assert all(abs(check_case(impls.get(name), case).error_slope) < 0.05 for name in ("sdpa", "fused"))


ZERO = [
    {"T": 256, "scope": "core"},  # the first query sees one key: its gradient is the difference of two large terms
    *({"T": 1, "T_kv": T_kv, "H": 8, "source": "cross", "mask": "none"} for T_kv in (64, 128)),
    *({"T": 1, "mask": "none", "B": B, "H": H, "scope": scope, "dtype": dtype}  # all gradients of queries and keys
      for scope, B, H in (("core", 1, 2), ("layer", 1, 2), ("layer", 8, 8)) for dtype in ("float32", "bfloat16", "float64")),
    *({"T": 1, "T_kv": 16, "H": 8, "source": "cross", "dtype": dtype} for dtype in ("float32", "bfloat16")),
    {"B": 2, "T": 2, "H": 8, "D_h": 8, "dtype": "float64"},  # nearly zero: one of two keys dominates
]  # fmt: skip


@pytest.mark.parametrize("axes", ZERO, ids=str)
@pytest.mark.parametrize("name", ["sdpa", "fused"])
def test_gradients_that_are_exactly_zero_have_an_attainable_tolerance(name, axes):
    check_case(impls.get(name), Case.of(**(PLAIN | {"mode": "backward"} | axes)))


@pytest.mark.parametrize(
    ("name", "H", "T_kv", "T", "B"),
    [
        ("sdpa", 2, 4096, 1, 7),
        ("sdpa", 9, 4096, 1, 1),
        ("sdpa", 9, 4096, 8, 2),
        ("sdpa", 9, 4096, 17, 0),
        ("packed", 8, 16384, 1, 4),
        ("packed", 8, 1 << 17, 1, 0),
    ],
)
def test_few_queries_have_every_pattern_where_their_caches_are_small(name, H, T_kv, T, B):
    case = Case.of(T=T, T_kv=T_kv, H=H, D_h=64, mode="decode", mask="none" if T == 1 else "causal_br")
    few = few_queries(impls.get(name), case)
    assert (few.B if few else 0) == B


def test_a_kernel_that_compiles_itself_is_compiled_in_its_timed_call(tasks):
    ran = []

    @torch.compile(backend="eager")
    def kernel(q, k, v, is_causal=False):
        if not torch.compiler.is_compiling():
            ran.append(q.shape)
        return wrong_kernels.sdpa(q, k, v, is_causal=is_causal)

    impls.add(impls.make("compiles_itself", kernel))
    tasks.probe("x", "compiles_itself", Case.of(T=48, H=2, D_h=64, scope="core").columns())
    tasks.check("x")
    assert tasks.time("x", 1) and not ran


def test_a_package_whose_import_sets_options_of_the_compiler_is_imported_before_the_check(tmp_path, monkeypatch):
    import torch._inductor.config

    (tmp_path / "quirky.py").write_text("import torch._inductor.config\n\ntorch._inductor.config.max_autotune = True\n")
    monkeypatch.syspath_prepend(tmp_path)

    def importing(q, k, v, **options):
        import quirky  # noqa: F401

        return wrong_kernels.sdpa(q, k, v, **options)

    with torch._inductor.config.patch(max_autotune=False):
        held(importing, Case.of(T=16, H=1, D_h=16), package="quirky")
        assert not torch._inductor.config.max_autotune  # for others in this process
