"""Checks every implementation against a float64 reference before it is timed; no row is written without this check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module

from impls import Impl
from impls.weights import left_out

from ..cases.case import Case
from ..cases.outcome import Skip, Wrong, classify, name_check
from . import settings
from .attention_problems import SMALL
from .bounds import WIDE
from .building import eager_form, keeping_settings, module_of
from .dropout import check_dropout, check_training
from .gradient_checks import check_later_forwards, check_uses
from .module_checks import (
    broken_convention,
    check_buffers,
    check_case,
    check_few_queries,
    check_low_scores,
    check_lse,
    check_probe,
    check_probe_after_another_mask,
    check_read_only,
    check_scale,
    check_sequence_first,
    check_sums,
)
from .patterns import possible
from .probes import (
    FEW_QUERIES,
    LARGEST_CACHE,
    LONG_PROBE,
    cached_numbers,
    few_queries,
    odd,
    padded,
    probe_with_dropout,
    probes,
    ragged,
)

FEW = 1 << 15
"""Pairs of a query and a key up to which a core is checked without its layer in the case itself, not only on probes."""

Check = tuple[str, Impl, Case, Callable[[Impl, Case], object]]
"""What is checked, in which case, and how."""


class Gate:
    """Checks implementations, and skips what has `passed` already."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        """Checks passed in this process, or in another one of the run: implementation, check and case."""

    def check(self, impl: Impl, case: Case) -> tuple[Case, ...]:
        """Run all checks except that of the timed module, and return the probes; raises `Wrong` with a sentence, or the
        implementation's exception.
        """
        eager, case = eager_form(impl), replace(case, threads=None)
        if impl.limits.package:
            _import(impl.limits.package)
        probed = probes(impl, case)
        for check in (*_checks_of_case(eager, case), *_checks_of_probes(impl, eager, case, probed)):
            self._once(*check)
        if case.drops:
            with keeping_settings():
                for check in _checks_of_dropout(impl, eager, case):
                    self._once(*check)
        return probed

    def check_threads(self, impl: Impl, case: Case) -> None:
        """Check probes with the threads set now, among which a kernel may divide its work; raises as `check`."""
        eager = eager_form(impl)
        probed = probes(impl, replace(case, threads=None))
        several = probed[2:3] or probed[:1]  # of 127 tokens: kernels may compute 37 with one thread
        for probe in (*several, *odd(impl, probed)):
            self._once("several threads", eager, probe if eager.core is None else probe.core, check_case)

    def _once(self, what: str, impl: Impl, case: Case, check: Callable[[Impl, Case], object]) -> None:
        key = f"{impl.name}: {what}, {case.id}"
        if key in self.passed:
            return
        name_check(f"{what}, {case.id}")
        try:
            check(impl, case)
        except Exception as error:
            outcome = classify(error)
            raise type(outcome)(f"{what}, {case.id}: {outcome}{_likely_cause(what, impl, case, outcome)}") from error
        self.passed.add(key)


def _import(packages: str) -> None:
    """Import the packages that an implementation declares, and restore settings that they change, as the import of a user's
    module does: in the first call these would count as the kernel's (zentorch sets options of torch.compile).
    """
    before = settings.read()
    try:
        for package in packages.split():
            import_module(package)
    finally:
        settings.restore(before)


def _likely_cause(what: str, impl: Impl, case: Case, outcome: Skip) -> str:
    """Return the likely cause of a wrong result: weights that the reference doesn't have, such as a norm's; strided tensors,
    if a kernel is right on contiguous ones; or a convention that the kernel or layer doesn't follow. Empty if unknown.
    """
    if not isinstance(outcome, Wrong):
        return ""
    with suppress(Exception):
        if impl.core is None and (others := left_out(module_of(impl, case))):
            return f"; the reference has no {', '.join(others)}"
        if what == "kernel (probe)" and str(outcome).startswith("NaN or Inf"):  # between the numbers of strided tensors
            check_case(impl, case)
            return "; right where q, k and v are contiguous"
        own = case.scope == "core" or impl.core is None
        if own and "gradient" not in str(outcome) and (convention := broken_convention(impl, case)):
            return f"; {convention}"
    return ""


def _checks_of_case(eager: Impl, case: Case) -> Iterator[Check]:
    """Yield the checks in the case itself.

    A core is checked on q, k, v built by the gate, whatever the case's scope. Beyond `FEW` pairs it is checked on the
    probes alone: in the case itself its rows are checked through the layer.
    """
    if eager.core is not None and case.scope == "layer" and case.H * case.T * case.T_kv <= FEW:
        yield "kernel", eager, case.core, check_case
    if (entries := few_queries(eager, case)) is not None:
        yield "few queries", eager, entries, check_few_queries


def _checks_of_probes(impl: Impl, eager: Impl, case: Case, probed: tuple[Case, ...]) -> Iterator[Check]:
    """Yield the checks on probes of ragged length with several heads and batch entries, since sweeps often contain round
    sizes only.

    In a model, a core is probed at the first length alone: length-dependent faults show in the core's own check. A
    log-sum-exp is checked after the output, also in the case itself: what makes an output wrong makes it wrong as well.
    All but one follow a call with another mask; 127 tokens, or another ragged length, follow a call of another length.
    """
    ends = *probed[:1], *sorted(probed, key=lambda it: (it.max_T <= LONG_PROBE, it.max_T))[-1:]  # ragged, and round
    used, what, check = (
        (ends, "gradients", check_uses) if case.does.gradients else (probed[:1], "outputs", check_buffers)
    )
    for probe in probed:
        own = probe if eager.core is None else probe.core
        after_another_mask = probe is probed[0] or probe.max_T > LONG_PROBE or not ragged([probe])
        of_own = check_probe_after_another_mask if after_another_mask else check_probe
        if eager.core is not None:
            yield "kernel (probe)", eager, own, of_own
            if probe is probed[0] and case.device == "cpu" and not case.does.gradients:
                yield "read-only inputs", eager, own, check_read_only
            if probe in ends:
                yield "scale", eager, own, check_scale
            if probe.T_kv > LONG_PROBE and (own.D_v > 1 or not case.does.gradients):  # which other features show
                yield "low scores", eager, own, check_low_scores
                if case.dtype not in WIDE:
                    yield "sums", eager, own, check_sums
        elif probe.T_kv > LONG_PROBE and probe.latent is None and possible(probe):
            in_mode = replace(probe, mode="forward" if case.does.gradients else case.mode)
            if eager.refusal(in_mode) is None:
                yield "low scores", eager, in_mode, check_low_scores
        if eager.limits.returns_lse:
            yield "log-sum-exp", eager, own, check_lse
        if eager.core is None or impl.compiled or (case.in_model and probe is probed[0]):
            of_probe = check_probe if eager.core or impl.compiled else of_own
            yield f"{'kernel' if probe.scope == 'core' else probe.scope} (probe)", impl, probe, of_probe
        if probe in used and probe.T_kv <= LONG_PROBE:
            yield what, eager, own, check
            if probe is probed[0] and case.does.gradients:
                yield "later forwards", eager, own, check_later_forwards
        if eager.core is None and probe is probed[0]:
            yield "sequence first", eager, probe, check_sequence_first
    for probe in padded(impl, probed):
        yield f"{case.scope} (probe)", eager, probe, check_probe
    few = case.T <= FEW_QUERIES and cached_numbers(case.core) <= LARGEST_CACHE
    if eager.limits.returns_lse and (few or case.pairs <= SMALL):
        yield "log-sum-exp", eager, case.core, check_lse


def _checks_of_dropout(impl: Impl, eager: Impl, case: Case) -> Iterator[Check]:
    """Yield the checks of dropout of probs and of the output separately: each is visible only while the other is off."""
    of_output, of_probs = replace(case, dropout=0.0), replace(case, out_dropout=0.0)
    if case.dropout:
        yield "dropout", impl, of_probs, check_dropout
    of_probs = of_probs if eager.core is None else of_probs.core
    for what, part in (("dropout (probe)", of_probs), ("dropout of the output", of_output)):
        if part.drops and (probe := probe_with_dropout(eager, part)) is not None:
            yield what, eager, probe, check_training
