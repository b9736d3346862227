"""Checks dropout: which probs a call kept is recovered from its output, tested statistically, and given to the reference.

Unit vectors as values make every prob visible in the output; a dropped output is visible itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor

from impls import Impl
from impls import weights as canonical

from ..cases.case import Case
from ..cases.counting import visible_pairs
from ..cases.outcome import Wrong
from . import probes, reference
from .attention_problems import output_of, problem_of
from .building import module_of, new_call
from .calls import recording
from .data import epsilon
from .inputs import inputs_of
from .problem import Problem
from .revealing_problems import showing_output, showing_probs, solved
from .verifying import verify

LENGTHS, PROBS = (16, 32), 1 << 13
"""Lengths of the probe whose output shows every prob twice, the first one within limits; its probs per head."""

LOWERED = 16.0
"""Factor by which a layer's scores are lowered there: training and evaluation may round them differently."""

SIGMAS = 6.0
"""Standard deviations by which the dropped share may differ from p."""

TILE = 32
"""Number of queries, or keys, whose dropped share is tested separately."""

SIGMAS_OF_LAGS, FEWEST_PAIRS, FEWEST_BOTH = 8.0, 1024, 8
"""Standard deviations allowed for the correlation at one of a million distances; pairs that the test needs, and how many of
them independent dropping would drop (or, for large p, keep) together: fewer are not normally distributed.
"""

CALLS_IN_TRAINING = 3
"""Calls whose kept probs are compared. A kernel that alternates between two sets of random numbers fails at the third."""

NEARLY = 0.7
"""Of the distances with at least this fraction of the largest deviation, the shortest is reported."""


def check_dropout(impl: Impl, case: Case) -> None:
    """Check dropout in training: each prob is zero with probability p, else scaled by 1 / (1 - p), anew in every call;
    raises `Wrong`.

    Values are two unit matrices side by side, so that the output shows every prob twice. Evaluation drops nothing; the
    rest of the gate compares it with the reference.
    """
    keep, probe = 1 - case.dropout, _shown_twice(impl, case)
    if probe is None:  # `check_training` has one within more limits
        return
    module, problem = module_of(impl, probe), showing_probs(probe)
    inputs = inputs_of(problem).tensors
    if "W_q" in problem.weights:
        problem.weights["W_q"] /= LOWERED
    canonical.load(module, problem.weights)
    with torch.no_grad():
        probs = module.eval()(*inputs).double()
        module.train()
        first, second = module(*inputs).double(), module(*inputs).double()
    kept, visible = kept_probs(first, probs, probe)
    once, again = kept.chunk(2, -1)
    check_independence([once], visible.chunk(2, -1)[0])
    check_share(kept, visible, case.dropout, "the probs", of_each=2)
    eps, there = epsilon(case), first != 0
    if not torch.allclose(first[there] * keep, probs[there], rtol=8 * eps, atol=float(probs.max()) * eps):
        raise Wrong(f"what dropout leaves is not 1 / (1 - p) = {1 / keep:.3f} times as large")
    if torch.equal(first, second):
        raise Wrong("drops the same probs in every call")
    if not torch.equal(once, again):
        raise Wrong("drops features of the output, not probs")


def _shown_twice(impl: Impl, case: Case) -> Case | None:
    """Return a case with every prob twice in its output, without a mask if possible; None if `impl` supports none."""
    H = impl.limits.heads or 2
    for mask, T in product(("none", "causal"), LENGTHS):
        probe = case.plain(
            mask=mask, B=max(1, PROBS // T**2), T=T, T_kv=T, H=H, H_kv=H, D_h=2 * T, D_v=2 * T, d_model=2 * H * T,
            source="self", qkv_bias=False, out_bias=False,
        )  # fmt: skip
        if impl.refusal(probe) is None:
            return replace(probe, mode="forward")
    return None


def check_training(impl: Impl, probe: Case) -> None:
    """Check that training outputs are finite in every pattern and match what was kept in that call: the probs, or the
    features of the output, bias included, if these are dropped; raises `Wrong`.
    """
    of_probs = showing_probs, probe.dropout, "the probs"
    make, p, what = of_probs if probe.dropout else (showing_output, probe.out_dropout, "the output")
    problem = solved(make, probe)
    call = new_call(impl, probe, problem_of(probe, input_set=1))
    call.module.train()
    with recording(probe):
        output = call.read(call.run())["output"]
    if not problem.output.compared_rows(output).isfinite().all():
        raise Wrong("in training, where scores are far from zero: NaN or Inf")
    canonical.load(call.module, problem.weights)
    call = call.on(inputs_of(problem))
    with recording(probe):
        several = [call.forward() for _ in range(CALLS_IN_TRAINING)]
        outputs = call.outputs(several[0])  # beside later forwards, which drop others
    shown = problem.output.reference * problem.output.is_compared[..., None]
    (first, visible), *others = (kept_probs(output, shown, probe) for output in several)
    check_independence([first, *(kept for kept, _ in others)], visible)
    check_shares(first, visible, p, what)
    verify(outputs, make(probe, first.double() / (1 - p)), f"in training, from {what} that it kept: ")


def kept_probs(o: Tensor, shown: Tensor, probe: Case) -> tuple[Tensor, Tensor]:
    """Return which probs were kept and which were visible, from an output in training and one in evaluation of
    `showing_probs`: (B, H, T, T_kv) each. Without dropout of probs, which features of the output: (B, 1, T, d_model).

    A prob of a masked pair counts as kept.
    """
    if probe.scope == "layer":
        o, shown = (x.unflatten(-1, (probe.H if probe.dropout else 1, -1)).transpose(1, 2) for x in (o, shown))
    kept, visible = o != 0, shown != 0
    return kept | ~visible, visible


def check_share(kept: Tensor, visible: Tensor, p: float, what: str, of_each: int = 1) -> None:
    """Check that a share p of the `visible` probs was dropped; raises `Wrong`."""
    n = int(visible.sum()) / of_each
    dropped = 1 - kept[visible].double().mean().item()
    if abs(dropped - p) > SIGMAS * (p * (1 - p) / n) ** 0.5:
        raise Wrong(f"drops {dropped:.1%} of {what}, not {p:.1%}")


def check_shares(kept: Tensor, visible: Tensor, p: float, what: str) -> None:
    """Check the dropped share of all probs, of each key, query and distance between the two, and of every `TILE` of keys and
    of queries; raises `Wrong`.
    """
    check_share(kept, visible, p, what)
    seen, dropped = (it.sum((0, 1)).flatten() for it in (visible, ~kept))  # of T * T_kv pairs
    i, j = torch.arange(kept.shape[-2])[:, None], torch.arange(kept.shape[-1])
    for name, place in (("key", j), ("query", i), ("distance", (i - j).abs())):
        at = place.expand(kept.shape[-2:]).flatten()
        pairs, lost = (torch.bincount(at, it.cpu()) for it in (seen, dropped))
        off = (lost / pairs - p).abs() > SIGMAS_OF_LAGS * (p * (1 - p) / pairs) ** 0.5
        for where in (off & (pairs >= FEWEST_PAIRS)).nonzero():
            raise Wrong(
                f"drops {lost[where].item() / pairs[where].item():.1%} of {what} at {name} {where.item()}, not {p:.1%}"
            )
    for axis, name in ((-1, "keys"), (-2, "queries")):
        first = 0
        for part, seen in zip(kept.split(TILE, axis), visible.split(TILE, axis), strict=True):
            end = first + part.shape[axis]
            if seen.any():
                check_share(part, seen, p, f"{what} at {name} {first} to {end - 1}")
            first = end


SIGMAS_OF_ROWS, FEWEST_ROWS = 8.0, 64
"""Standard deviations by which the mean slope of rows may differ from 1; rows that the test needs."""

ROUNDED = 0.005
"""Allowed deviation of the mean slope: FlashAttention drops by a threshold of 8 bits, and scales by 1 / (1 - p)."""

SCATTER, NARROWEST = 3.0, 16
"""Factor by which the scatter of rows may differ from p / (1 - p), that of values without a common part; width of a row
from which it is known. The values that a layer's query favours have a common part: they are projections of the tokens
that their scores favour.
"""

SAME_NOISE = 0.05
"""Allowed difference of two sums that are equal where a backward drops what its forward dropped, in units of the root of
the summed squares. Other noise gives 0.5 for p = 0.1.
"""


def check_scatter(o: Tensor, problem: Problem, case: Case) -> None:
    """Check an output in training at the case's own size, where no prob is visible; raises `Wrong`.

    Its rows scatter around those of evaluation. A row's slope has the mean 1, and at most the variance p / (1 - p), that
    of a single key.
    """
    expected = problem.output
    both = (expected.reference, expected.shown(o))
    exact, found = (it[expected.is_compared].detach().double() for it in both)  # (rows, width)
    if not found.isfinite().all():
        raise Wrong("in training: NaN or Inf")
    size, variance = exact.square().sum(-1).clamp_min(1e-30), 1 / ((1 - case.dropout) * (1 - case.out_dropout)) - 1
    slopes = (found * exact).sum(-1) / size
    n = len(slopes)
    if n < FEWEST_ROWS:
        return
    if abs(slopes.mean() - 1) > ROUNDED + SIGMAS_OF_ROWS * max(variance**0.5, float(slopes.std())) / n**0.5:
        raise Wrong(f"in training: outputs are on average {slopes.mean():.3f} times as large as in evaluation")
    scatter = ((found - exact).square().sum(-1) / size).mean() / variance
    known = n * variance >= FEWEST_ROWS and exact.shape[-1] >= NARROWEST and not (case.qkv_bias or case.out_bias)
    common = 0.0 if case.scope == "core" else case.T_kv / case.d_model
    if known and not 1 / (1 + common) / SCATTER < scatter < SCATTER:
        raise Wrong(f"in training: outputs scatter {scatter:.2f} times as widely as p = {case.dropout} makes them")


END, MOST_PARTS = 64, 32
"""Queries at the end of a long sequence, and keys in each part that is compared there; parts between the first and the last.
"""


def _edges(case: Case) -> list[int]:
    """Return the first key of every part but the first."""
    last = case.T_kv - END
    return [*range(END, last, max(END, -(-(last - END) // MOST_PARTS))), last]


@lru_cache(maxsize=4)
def _parts(case: Case) -> tuple[Tensor, ...]:
    """Return the last queries' output, and what each part of the keys adds to it."""
    edges = _edges(case)

    def parts(scores: Tensor, v: Tensor, _: Tensor | None) -> Tensor:  # of the output: (parts B, T, D_v)
        probs = torch.softmax(scores, -1)
        pairs = zip(probs.tensor_split(edges, -1), v.tensor_split(edges, -2), strict=True)
        return torch.cat([probs @ v, *(p @ values for p, values in pairs)])

    with reference.attending(parts):
        rows = torch.arange(case.T - END, case.T, device=case.device)
        return output_of(problem_of(case), rows=rows).chunk(2 + len(edges))


def check_parts(o: Tensor, case: Case) -> None:
    """Check that the last queries see every part of the keys, in training at the case's own size; raises `Wrong`.

    An output differs from that of evaluation at random: along what a part of the keys adds to it, by zero on average.
    """
    beyond_probes = min(case.T, case.T_kv) > probes.LENGTH_WITH_DROPOUT[case.scope]
    if case.padded or case.out_bias or case.does.cached or not beyond_probes:
        return
    (exact, *parts), edges = _parts(case), _edges(case)
    for part, first, end in zip(parts, [0, *edges], [*edges, case.T_kv], strict=True):
        off = ((o.detach()[..., -END:, :].double() - exact) * part).sum(-1)
        off /= (exact.norm(dim=-1) * part.norm(dim=-1)).clamp_min(1e-30)
        if off.mean().abs() > ROUNDED + SIGMAS_OF_ROWS * off.std() / off.numel() ** 0.5:
            raise Wrong(f"in training: keys {first} to {end - 1} count more or less than in evaluation")


def check_same_noise(outputs: dict[str, Tensor], problem: Problem) -> None:
    """Check at the case's own size that a backward drops what its forward dropped; raises `Wrong`.

    The output is linear in the values: they times their gradient equal the output times its own.
    """
    case, weights, grad = problem.case, problem.weights, problem.grad
    if grad is None or case.latent or case.out_bias:
        return
    given = (
        {"v": problem.inputs[-1]} if case.scope == "core" else {n: weights[n] for n in ("W_v", "b_v") if n in weights}
    )
    again = [outputs[f"gradient of {name}"].double() * it.double() for name, it in given.items()]
    through = torch.where(grad != 0, outputs["output"].detach() * grad, 0.0).double()
    if case.scope == "core":
        sums, squares = (it.unflatten(1, (case.H_kv, -1)).sum((2, 3, 4)) for it in (through, through.square()))
        off = sums - again[0].sum((-2, -1))  # (B, H_kv)
    else:
        squares, off = through.square().sum(), through.sum() - sum(it.sum() for it in again)
    if (off.abs() > SAME_NOISE * squares.sqrt()).any():
        raise Wrong("in training: a backward drops other probs than its forward")


def check_drops_anew(o: Tensor, before: Sequence[Tensor] | None, case: Case) -> None:
    """Check that an output in training differs from one `before`, where many probs or features may drop; raises `Wrong`."""
    probs, features = case.dropout * case.H * visible_pairs(case), case.out_dropout * case.T * case.d_model
    if before is not None and case.B * max(probs, features) >= FEWEST_PAIRS and torch.equal(o, before[0]):
        raise Wrong("in a timed call: drops the same in every call, or nothing")


AXES = ("batch entries", "heads", "queries", "keys")


def check_independence(calls: list[Tensor], visible: Tensor) -> None:
    """Check that dropping is independent between positions and between calls; raises `Wrong`.

    `calls`: which probs each call kept, (B, H, T, T_kv); only `visible` ones count. Correlates all pairs of positions at
    the same distance in memory, for every distance: if they are independent and a share p is dropped, the sum over n
    pairs has the variance n (p (1 - p))².
    """
    share = calls[0][visible].double().mean()
    variance = share * (1 - share)
    if variance == 0:
        return
    size = 2 * visible.numel()
    kept = [torch.fft.rfft(((k.double() - share) * visible).flatten(), size) for k in calls]
    there = torch.fft.rfft(visible.double().flatten(), size)
    pairs = torch.fft.irfft(there.conj() * there, size).round()
    for later, of in enumerate(kept):
        agreement = torch.fft.irfft(kept[0].conj() * of, size)
        sigmas = (agreement / (variance * pairs.clamp(min=1).sqrt())).abs()
        sigmas[pairs < max(FEWEST_PAIRS, FEWEST_BOTH / variance**2)] = 0.0
        if later == 0:
            sigmas[0] = 0.0  # with itself
        if sigmas.max() > SIGMAS_OF_LAGS:
            worst = int((sigmas > NEARLY * sigmas.max()).nonzero()[0])
            lag = worst if worst < size // 2 else worst - size
            alike = float(agreement[worst] / (variance * pairs[worst]))
            other = f"an earlier call, {later} before" if later else _describe_lag(lag, visible.shape)
            raise Wrong(f"what it drops depends on {other} (correlation {alike:.2f})")


def _describe_lag(lag: int, shape: torch.Size) -> str:
    """Describe a distance in memory: `other keys: 16 keys apart`."""
    apart = []
    for size, name in zip(reversed(shape), reversed(AXES), strict=True):
        step = lag % size if 2 * (lag % size) <= size else lag % size - size
        lag = (lag - step) // size
        apart += [(abs(step), name)] if step else []
    distance = ", ".join(f"{step} {name}" for step, name in reversed(apart))
    return f"other {apart[-1][1]}: {distance} apart"
