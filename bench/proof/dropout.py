"""Dropout can't be compared number by number: it is checked by its statistics, and without it (p = 0) like everything else."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from impls import Impl
from impls import weights as canonical

from ..cases.outcome import Wrong
from ..cases.case import Case

B, T = 32, 16
"""Size of the probe."""

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
    _check_independence(shown[..., 0, :] if case.scope == "core" else shown[..., 0, :].transpose(1, 2))
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


def _check_independence(kept: Tensor) -> None:
    """Neighbours along every axis agree as often as two independent draws do; raises `Wrong`.

    `kept` (B, H, T, T), True where a prob was kept. Two neighbouring pairs share a draw, which the variance takes into account.
    """
    found: list[tuple[float, str]] = []
    keep = kept.double().mean().item()
    agree = keep**2 + (1 - keep) ** 2
    variance = agree * (1 - agree) + 2 * (keep**3 + (1 - keep) ** 3 - agree**2)
    for axis, name in enumerate(("batch entries", "heads", "queries", "keys")):
        n = kept.shape[axis]
        if n == 1:
            continue
        same = kept.narrow(axis, 1, n - 1) == kept.narrow(axis, 0, n - 1)
        share = same.double().mean().item()
        if abs(share - agree) > SIGMAS * (variance / same.numel()) ** 0.5:
            sentence = f"neighbours agree in {share:.1%} of cases, and independent draws in {agree:.1%}"
            found.append((abs(share - agree), f"what it drops depends on other {name}: {sentence}"))
    if found:
        raise Wrong(max(found)[1])


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
