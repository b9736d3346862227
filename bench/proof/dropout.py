"""Dropout can't be compared number by number: it is checked by its statistics, and without it (p = 0) like everything else."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from impls import Impl
from impls import weights as canonical

from ..cases.case import Case
from ..cases.outcome import Wrong
from .calls import call_of, recording
from .problem import Problem, inputs_of

B, T = 32, 16
"""Size of the probe."""

LENGTH = 160
"""Of the probe that has a case's own mask, groups and gradients: more than one tile of 64, or of 128."""

LAGS = (1, 16, 32, 64, 128)
"""How far apart two probs are that must be dropped independently: neighbours, and what lies at the same place of two tiles."""

SIGMAS = 6.0
"""Standard deviations that the share of dropped probs may be off."""


def check_dropout(impl: Impl, case: Case) -> None:
    """In training each prob is zero in a share p of cases, else 1 / (1 - p) times as large, anew in every call; raises `Wrong`.

    Values are two unit matrices side by side, so that the output shows every prob twice. Dropout after the output projection
    multiplies in. In evaluation nothing is dropped, and the rest of the gate holds that to the reference.
    """
    module, inputs = _probe(impl, case)
    keep = (1 - case.dropout) * (1 - case.out_dropout)
    with torch.no_grad():
        probs = module.eval()(*inputs).double()
        module.train()
        first, second = module(*inputs).double(), module(*inputs).double()
    kept = first != 0
    shown = kept.unflatten(-1, (-1, 2, T))  # (..., heads, twice, T)
    of_heads = shown[..., 0, :] if case.scope == "core" else shown[..., 0, :].transpose(1, 2)
    _check_independence(of_heads, torch.ones_like(of_heads))
    dropped = 1 - kept.double().mean().item()
    if abs(dropped - (1 - keep)) > SIGMAS * (keep * (1 - keep) / (probs.numel() / 2)) ** 0.5:
        raise Wrong(f"drops {dropped:.1%} of the probs, not {1 - keep:.1%}")
    eps = torch.finfo(getattr(torch, case.dtype)).eps
    if not torch.allclose(first[kept] * keep, probs[kept], rtol=8 * eps, atol=float(probs.max()) * eps):
        raise Wrong(f"what dropout leaves is not 1 / (1 - p) = {1 / keep:.3f} times as large")
    if torch.equal(first, second):
        raise Wrong("drops the same probs in every call")
    if not case.out_dropout and not torch.equal(shown[..., 0, :], shown[..., 1, :]):
        raise Wrong("drops features of the output, not probs")


def check_probs_dropped(probe: Case, module: nn.Module, problem: Problem) -> tuple[dict[str, Tensor], Tensor]:
    """One call in training: its answers, and which probs it kept (B, H, T, T_kv); raises `Wrong` where they aren't independent.

    A prob that no query may see counts as kept.
    """
    call = call_of(module.train(), probe, inputs_of(problem))
    with recording(probe):
        answers = call.read(call.run())
    kept, visible = (_by_head(x, probe) != 0 for x in (answers["output"], problem.output.reference))
    if problem.output.compared is not None:
        visible = visible & problem.output.compared[:, None, :, None]
    _check_independence(kept, visible)
    return answers, kept | ~visible


def spanning(impl: Impl, case: Case) -> Case | None:
    """The case's kind of probs over more than one tile, in a size that shows them; None where `impl` can do none."""
    grouped = case.H_kv != case.H
    H = impl.limits.heads or (4 if grouped else 3)
    H_kv = H if not grouped else 2 if case.H_kv > 1 else 1
    mode = "forward" if case.does.cached else case.mode
    plain = replace(case, B=2, H=H, H_kv=H_kv, mode=mode, qkv_bias=False, out_bias=False, out_dropout=0.0, threads=None)
    lengths = sorted(range(2, 2 * LENGTH), key=lambda length: abs(length - LENGTH))
    sizes = [(L - apart, L) for apart in ((0,) if case.source == "self" else (33, 0)) for L in lengths if apart < L]
    probes = (replace(plain, T=T, T_kv=L, D_h=L, D_v=L, d_model=H * L) for T, L in sizes)
    return next((probe for probe in probes if impl.refusal(probe) is None), None)


def _by_head(o: Tensor, probe: Case) -> Tensor:
    """(B, H, T, T_kv)"""
    return o if probe.scope == "core" else o.unflatten(-1, (probe.H, -1)).transpose(1, 2)


def _check_independence(kept: Tensor, visible: Tensor) -> None:
    """Probs that are apart along an axis agree as often as two independent draws do; raises `Wrong`.

    `kept` (B, H, T, T_kv), True where a prob was kept; only those that are `visible` count. Two pairs may share a draw, which
    the variance takes into account.
    """
    found: list[tuple[float, str]] = []
    keep = kept[visible].double().mean().item()
    agree = keep**2 + (1 - keep) ** 2
    variance = agree * (1 - agree) + 2 * (keep**3 + (1 - keep) ** 3 - agree**2)
    for axis, name in enumerate(("batch entries", "heads", "queries", "keys")):
        n = kept.shape[axis]
        for lag in (lag for lag in LAGS if lag < n):
            both = visible.narrow(axis, lag, n - lag) & visible.narrow(axis, 0, n - lag)
            same = (kept.narrow(axis, lag, n - lag) == kept.narrow(axis, 0, n - lag))[both]
            share = same.double().mean().item()
            if abs(share - agree) > SIGMAS * (variance / same.numel()) ** 0.5:
                who = "neighbours" if lag == 1 else f"those {lag} apart"
                sentence = f"{who} agree in {share:.1%} of cases, and independent draws in {agree:.1%}"
                found.append((abs(share - agree), f"what it drops depends on other {name}: {sentence}"))
    if found:
        raise Wrong(max(found, key=lambda it: it[0])[1])


def _probe(impl: Impl, case: Case) -> tuple[nn.Module, list[Tensor]]:
    """A module whose output is every head's probs, twice, and its inputs."""
    dtype = getattr(torch, case.dtype)
    H, D = impl.limits.heads or 2, 2 * T
    small = replace(
        case, B=B, T=T, T_kv=T, H=H, H_kv=H, D_h=D, D_v=D, d_model=H * D, mask="none", source="self",
        qkv_bias=False, out_bias=False,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    twice = torch.eye(T, device=case.device, dtype=dtype).repeat(1, 2)  # (T, D)
    if case.scope == "core":
        assert impl.core is not None
        q, k = (torch.randn(B, H, T, D, generator=generator).to(case.device, dtype) for _ in range(2))
        return impl.core(small.layer_shape).to(case.device, dtype), [q, k, twice.expand(B, H, T, D)]
    layer = impl.layer(small.layer_shape).to(case.device, dtype)
    weights = canonical.draw(small.layer_shape, generator, case.device)
    weights["W_v"] = torch.cat([twice.T] * H).repeat(1, 2 * H) / (2 * H)  # (H * D, d_model)
    weights["W_o"] = torch.eye(H * D, device=case.device)
    with torch.no_grad():
        canonical.load(layer, {name: w.to(dtype) for name, w in weights.items()})
    return layer, [torch.eye(T, device=case.device, dtype=dtype).repeat(1, 2 * H).expand(B, T, H * D)]
