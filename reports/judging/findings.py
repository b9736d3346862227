"""What the numbers say, in sentences. Every word about an implementation is computed from the frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..reading import units, words
from ..reading.axes import axis_names, length_axes
from ..reading.words import COMPILED, base
from . import frame as fr
from . import processes, proofs, verdict

#: Settings that have a sentence of their own; points of an axis that are listed one by one.
_MOST_PLACES, _FEW_POINTS = 5, 4

#: A spread that no quiet machine shows, and the share of cells with it from which the page warns.
WIDE_SPREAD, TOO_MANY = 0.25, 0.10


#: What a minor page fault usually takes, page cleared: 0.5 on bare metal to 3 µs in a virtual machine; the part of a call
#: from which that is told; and the part from which the estimate says no more than that it is most.
FAULT_SECONDS, LARGE_PART, MOST_PART = 1e-6, 0.10, 0.75


@dataclass(frozen=True)
class Stretch:
    """Neighbouring points of one axis with a winner in common.

    `winners` share the first place at every point; `also` names those that do so at some, with these points.
    """

    points: tuple[Any, ...]
    winners: tuple[str, ...]
    also: tuple[tuple[str, tuple[Any, ...]], ...]


def findings(frame: pd.DataFrame, baseline_impl: str | None, skipped: pd.DataFrame) -> list[str]:
    """Three to about eight sentences, the most useful one first; at least one, also for a run without numbers."""
    wrongs = wrong(skipped)
    usable = fr.own_keys_unsaid(frame.dropna(subset=["median"]))
    if usable.empty:
        counts = skipped["reason"].value_counts()
        reasons = ", ".join(f"{count} {str(reason).replace('_', ' ')}" for reason, count in counts.items())
        nothing = f"No cell of this run has a number: {reasons}." if reasons else "This run holds no cells."
        return [nothing, *wrongs]
    headline, *others = places(usable) or [undecided(usable)]
    said = [
        headline,
        noisy(usable),
        *others,
        lean(usable),
        gain(usable, baseline_impl),
        compiled(usable),
        page_faults(usable),
        proofs.hidden_memory(usable),
        proofs.rounds(usable),
        *wrongs,
    ]
    return [sentence for sentence in said if sentence]


def places(frame: pd.DataFrame) -> list[str]:
    """Who is fastest, for each setting; the headline's first: most points, then most heads, then the file's order.

    Empty where nobody was shown to be faster than another, nor not to be.
    """
    along = along_axis(frame)
    axes = [axis for axis in fr.varying(frame) if axis != along]
    parts = [part for part in fr.groups(frame[frame["place"].notna()], axes) if part[1]["tied"].any()]
    if not parts:
        return []
    parts.sort(key=lambda part: (-_points(part[1], along), -part[0].get("H", 0)))
    said = [fastest_sentence(part, along, always=axes) for _, part in parts[:_MOST_PLACES]]
    return [_first(said[0]), *(f"At {sentence}" for sentence in said[1:]), *_rest(len(parts))]


def undecided(frame: pd.DataFrame) -> str:
    """Whose medians are the smallest, of a run that tells nothing more."""
    ranked = frame.sort_values("median").drop_duplicates("id")
    counts = ranked["impl"].value_counts()
    cases = words.plural(len(ranked), "case")
    told = words.listing(f"{_shown(frame, str(name))} in {count} of {cases}" for name, count in counts.items())
    return f"Nobody can be called the fastest, since {processes.NO_INTERVAL}. The smallest median is that of {told}."


def fastest_sentence(part: pd.DataFrame, along: str | None, always: list[str]) -> str:
    """'B=1 H=8 fp32 causal, x is fastest from T = 256 on; below it, y.' for rows that differ only along one axis."""
    values = fr.settings(part)
    where = words.place({axis: val for axis, val in values.items() if axis != along}, always=always)
    steps = stretches(part, along)
    wrong_names = set(part.loc[part["wrong"], "impl"])
    if along is None or _points(part, along) == 1:
        here = f"{where} {words.value(along, steps[0].points[0])}" if along else where
        return f"{here}, {_winners(steps[0], wrong_names, along)}{_runner_up(part, steps[0])}."
    told = [_stretch(step, index, steps, wrong_names, along) for index, step in enumerate(steps)]
    return f"{where}, {'; '.join(told)}."


def stretches(part: pd.DataFrame, along: str | None) -> list[Stretch]:
    """The axis cut into stretches with a common winner, from its far end down, each as long as it can be."""
    if along is None:
        names = tuple(fr.fastest(part)["impl"])
        return [Stretch((None,), names, ())]
    tied: dict[Any, list[str]] = {point: list(fr.fastest(rows)["impl"]) for point, rows in part.groupby(along)}
    points = sorted(tied, reverse=True)
    cut: list[list[Any]] = []
    common: list[str] = []
    for point in points:
        still = [name for name in common if name in tied[point]]
        if cut and still:
            cut[-1].append(point)
            common = still
        else:
            cut.append([point])
            common = tied[point]
    return [_describe(tuple(sorted(stretch)), tied) for stretch in cut]


def lean(frame: pd.DataFrame) -> str:
    """Who needs least memory at the largest case, and what the most wasteful one needs there."""
    known = frame.dropna(subset=["peak_bytes"])
    known = known.loc[known["peak_bytes"] > 0]
    if known["impl"].nunique() < 2:
        return ""
    case = known.sort_values("peak_bytes").iloc[-1]["id"]
    rows = known[known["id"] == case]
    least, most = fr.leanest(rows), rows.sort_values("peak_bytes").iloc[-1]
    names = words.listing(_shown(rows, name) for name in least["impl"])
    where = words.place(fr.settings(rows), always=fr.varying(frame))
    if len(least) == len(rows):
        return f"At {where} all need the same memory, {units.memory(least['peak_bytes'].iloc[0])}."
    verb = "needs" if len(least) == 1 else "need"
    ratio = most["peak_bytes"] / least["peak_bytes"].min()
    return (
        f"{names} {verb} least memory at {where}: {units.memory(least['peak_bytes'].iloc[0])}; "
        f"{_shown(rows, most['impl'])} needs {units.memory(most['peak_bytes'])}, "
        f"{units.significant(ratio, 2)} times as much."
    )


def gain(frame: pd.DataFrame, baseline_impl: str | None) -> str:
    """The largest speed-up over the baseline implementation that was shown, and where: whose interval begins highest."""
    others = frame[(frame["impl"] != baseline_impl) & frame["ratio_p"].notna()]
    if others.empty:
        return ""
    shown = others[(others["ratio_p"] <= verdict.CLAIM) & (others["ratio"] < 1)]
    best = fr.records((others if shown.empty else shown).sort_values("ratio_high"))[0]
    where = words.place({axis: best[axis] for axis in axis_names()}, always=fr.varying(frame))
    name = _shown(frame, best["impl"])
    much = speedup(best)
    if shown.empty:
        return f"Nothing here is shown to be faster than {baseline_impl}; {name} comes closest, {much} at {where}."
    return f"The largest speed-up over {baseline_impl} is {much}, by {name} at {where}."


def speedup(row: Mapping[str, Any]) -> str:
    """'1.96× (1.90 to 2.03)', with digits that its interval warrants; '1.9×' where it has none."""
    known = row["ratio_low"] > 0
    if not known or row["ratio_low"] == row["ratio_high"]:
        return units.times(row["speedup"])
    return units.bounded_times(1 / row["ratio"], 1 / row["ratio_high"], 1 / row["ratio_low"])


def noisy(frame: pd.DataFrame) -> str:
    """A warning when the machine was too busy for the ranking to mean much."""
    wide = int((frame["spread"] > WIDE_SPREAD).sum())
    if wide <= TOO_MANY * len(frame):
        return ""
    return (
        f"Noisy machine: in {wide} of {words.plural(len(frame), 'cell')} the spread exceeds {WIDE_SPREAD:.0%} of "
        "the median. Measure again with nothing else running for narrower intervals."
    )


def page_faults(frame: pd.DataFrame) -> str:
    """In how many cells the system's page faults take a large part of the time, and where they take most."""
    share = frame["page_faults"] * FAULT_SECONDS / frame["median"]
    large = frame.assign(share=share)[share >= LARGE_PART]
    if large.empty:
        return ""
    most = fr.records(large.sort_values("share"))[-1]
    where = words.place({axis: most[axis] for axis in axis_names()}, always=fr.varying(frame))
    part = f"about {most['share']:.0%}".replace("%", " %") if most["share"] < MOST_PART else "most"
    return (
        f"In {len(large)} of {words.plural(len(frame), 'cell')} the system maps fresh memory at every call, and page faults "
        f"take {LARGE_PART:.0%} of the time or more".replace("%", " %")
        + f" (at {units.seconds(FAULT_SECONDS, 1)} each): {part} of {_shown(frame, most['impl'])} at {where}, "
        f"{most['page_faults']:,.0f} a call."
    )


def roof(frame: pd.DataFrame) -> str:
    """Who comes nearest to what this machine was measured to do, and where."""
    reached = pd.to_numeric(frame["roof"], errors="coerce") if "roof" in frame else pd.Series(dtype=float)
    known = frame.assign(roof=reached).dropna(subset=["roof"])
    if known.empty:
        return ""
    best = fr.records(known.sort_values("roof"))[-1]
    where = words.place({axis: best[axis] for axis in axis_names()}, always=fr.varying(frame))
    name = _shown(frame, best["impl"])
    return f"By medians, {name} comes nearest to this machine's roof: {units.percent(best['roof'])} of it, at {where}."


def compiled(frame: pd.DataFrame) -> str:
    """What compiling brings: the range of compiled over eager time, over the cases where a difference was shown."""
    told = []
    for name in dict.fromkeys(frame["impl"]):
        if not name.endswith(COMPILED):
            continue
        eager, own = _by_case(frame, base(name)), _by_case(frame, name)
        both = [fr.ratio(own[case], eager[case]) for case in own if case in eager]
        shown = [one.value for one in both if one.resolved]
        if shown:
            times = (
                f"{_shown(frame, name)} takes {_span(min(shown), max(shown))} the time of {_shown(frame, base(name))}"
            )
            few = len(shown) < len(both)
            told.append(
                f"{times} in {len(shown)} of {words.plural(len(both), 'case')}, no difference shown in the rest"
                if few
                else times
            )
    return f"Compiled: {'; '.join(told)}." if told else ""


def wrong(skipped: pd.DataFrame) -> list[str]:
    """A warning for every implementation that failed the gate."""
    cells = skipped[skipped["reason"] == "wrong"].groupby("impl", sort=False).size()
    return [
        f"{name} {words.WRONG} gave a wrong answer in {words.plural(count, 'cell')}: "
        "no numbers there, and doubt about all its others."
        for name, count in cells.items()
    ]


def dtypes(frame: pd.DataFrame) -> str:
    """How often one dtype was shown to beat another, in cases that differ in nothing else."""
    kinds = list(dict.fromkeys(frame["dtype"].dropna()))
    told = []
    for other in kinds[1:]:
        both = [one for one, _ in fr.quotients(frame, "dtype", other, kinds[0]) if one.known]
        if both:
            a, b = words.value("dtype", other), words.value("dtype", kinds[0])
            won, lost = sum(one.faster for one in both), sum(one.slower for one in both)
            pairs = words.plural(len(both), "pair")
            told.append(f"{a} is faster than {b} in {won} of {pairs} of cells, slower in {lost}")
    return f"{words.listing(told)}." if told else ""


def front(rows: pd.DataFrame) -> list[str]:
    """Names that nobody is shown to beat in time without more memory, or in memory without more time; by median."""
    known = fr.records(rows.dropna(subset=["median", "peak_bytes"]).sort_values(["median", "peak_bytes"]))
    return [row["impl"] for row in known if not any(_beats(other, row) for other in known)]


def unbeaten(frame: pd.DataFrame) -> str:
    """Who stands on the front of time and memory in the largest case; empty where nothing is shown of time."""
    known = frame[frame["peak_bytes"] > 0]
    case = known.sort_values("peak_bytes").iloc[-1]["id"]
    rows = known[known["id"] == case]
    if rows["place"].isna().all():
        return ""
    names = [_shown(rows, name) for name in front(rows)]
    where = words.place(fr.settings(rows), always=fr.varying(frame))
    best = rows[rows["tied"]]
    if len(names) == 1 and list(best["impl"]) == front(rows) and best.index.isin(fr.leanest(rows).index).all():
        return f"At {where}, {names[0]} is both the fastest and the leanest."
    return f"At {where}, nobody is shown to beat {words.listing(names)} in both time and memory."


def growth(frame: pd.DataFrame, axis: str) -> str:
    """How much the least and the most affected implementation change from one end of an axis to the other, as far as a
    change was shown."""
    low, high = frame[axis].min(), frame[axis].max()
    if frame[axis].nunique() < 2:
        return ""
    shown = [(row["impl"], one.value) for one, row in fr.quotients(frame, axis, high, low) if one.resolved]
    if not shown:
        return ""
    typical = pd.DataFrame(shown, columns=["impl", "times"]).groupby("impl")["times"].median().sort_values()
    a, b = words.value(axis, low, equals=" = "), words.value(axis, high, equals=" = ")
    first, last = (_shown(frame, str(typical.index[end])) for end in (0, -1))
    told = f"From {a} to {b}, {first} takes {units.significant(typical.iloc[0], 2)} times as long"
    return f"{told}." if first == last else f"{told}, {last} {units.significant(typical.iloc[-1], 2)} times."


def along_axis(frame: pd.DataFrame) -> str | None:
    """The axis along which winners are told: T if it varies, else heads, else threads."""
    axes = fr.varying(frame)
    return next((axis for axis in length_axes() if axis in axes), None)


def _shown(frame: pd.DataFrame, impl: str) -> str:
    """The name, marked if it was wrong anywhere."""
    return words.marked(impl, frame.loc[frame["wrong"], "impl"])


def _by_case(frame: pd.DataFrame, impl: str) -> dict[str, dict[str, Any]]:
    """An implementation's rows by case id."""
    return {row["id"]: row for row in fr.records(frame[frame["impl"] == impl].drop_duplicates("id"))}


def _beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Less time and no more memory, or less memory and a place no worse; by medians where nothing is shown of time."""
    less = one["peak_bytes"] < other["peak_bytes"]
    if one.get("samples") is None or other.get("samples") is None:
        return bool(one["median"] <= other["median"] and less) or bool(
            one["median"] < other["median"] and one["peak_bytes"] <= other["peak_bytes"]
        )
    return bool(fr.ratio(one, other).faster and one["peak_bytes"] <= other["peak_bytes"])


def _points(part: pd.DataFrame, along: str | None) -> int:
    return int(part[along].nunique()) if along else 1


def _first(sentence: str) -> str:
    return f"On this machine, at {sentence}"


def _rest(count: int) -> list[str]:
    left = count - _MOST_PLACES
    return [f"{words.plural(left, 'more setting')} in the tables below."] if left > 0 else []


def _describe(points: tuple[Any, ...], tied: dict[Any, list[str]]) -> Stretch:
    # The order of names is that of the largest point, where differences matter most.
    common = [name for name in tied[points[-1]] if all(name in tied[point] for point in points)]
    others: dict[str, list[Any]] = {}
    for point in points:
        for name in tied[point]:
            if name not in common:
                others.setdefault(name, []).append(point)
    return Stretch(points, tuple(common), tuple((name, tuple(where)) for name, where in others.items()))


def _stretch(step: Stretch, index: int, steps: list[Stretch], wrong_names: set[str], along: str) -> str:
    first, last = words.number(step.points[0]), words.number(step.points[-1])
    if len(steps) == 1:
        few = len(step.points) <= _FEW_POINTS
        every = words.listing(map(words.number, step.points)) if few else f"every measured value from {first} to {last}"
        return _winners(step, wrong_names, along, f"at {along} = {every}" if few else f"at {every} of {along}")
    if index == 0:
        where = f"from {along} = {first} on" if len(step.points) > 1 else f"at {along} = {first}"
        return _winners(step, wrong_names, along, where)
    if index == len(steps) - 1 and index > 0:
        where = "below it"
    else:
        where = f"at {along} = {first}" if len(step.points) == 1 else f"from {along} = {first} to {last}"
    tie = " tie" if len(step.winners) > 1 else ""
    return f"{where}, {_names(step, wrong_names)}{tie}{_also(step, wrong_names, along)}"


def _winners(step: Stretch, wrong_names: set[str], along: str | None, where: str = "") -> str:
    names, where = _names(step, wrong_names), f" {where}" if where else ""
    verb = "tie for fastest" if len(step.winners) > 1 else "is fastest or tied" if step.also else "is fastest"
    return f"{names} {verb}{where}{_also(step, wrong_names, along)}"


def _names(step: Stretch, wrong_names: set[str]) -> str:
    return words.listing(words.marked(name, wrong_names) for name in step.winners)


def _also(step: Stretch, wrong_names: set[str], along: str | None) -> str:
    """Those that tie at some points only: '(tied with b at T = 64)'."""
    if not step.also:
        return ""
    by_points: dict[tuple[Any, ...], list[str]] = {}
    for name, points in step.also:
        by_points.setdefault(points, []).append(words.marked(name, wrong_names))
    told = [
        f"{words.listing(names, most=2)} at {along} = {', '.join(map(words.number, points))}"
        for points, names in by_points.items()
    ]
    return f" ({'with' if len(step.winners) == 1 else 'and'} {words.listing(told)})"


def _runner_up(part: pd.DataFrame, step: Stretch) -> str:
    """', 1.8 (1.7 to 1.9) times as fast as the next, b' where there is one winner and somebody shown to be slower."""
    rows = part.sort_values("median")
    behind = rows[~rows["impl"].isin(step.winners)]
    if len(step.winners) != 1 or behind.empty:
        return ""
    next_ = fr.records(behind)[0]
    lead = fr.ratio(next_, fr.records(rows[rows["impl"] == step.winners[0]])[0])
    if not lead.slower:
        return ""
    return (
        f", {units.bounded(lead.value, lead.low, lead.high)} times as fast as the next, {_shown(part, next_['impl'])}"
    )


def _span(low: float, high: float) -> str:
    a, b = units.significant(low, 2), units.significant(high, 2)
    return f"{a}×" if a == b else f"{a} to {b}×"
