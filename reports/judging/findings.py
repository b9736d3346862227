"""What the numbers say, in sentences. Every word about an implementation is computed from the frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from stats import ratios, shares

from ..reading import units, words
from ..reading.axes import axis_names
from ..reading.words import COMPILED, base
from . import frame as fr
from . import proofs, regret

#: What a minor page fault usually takes, page cleared: 0.5 on bare metal to 3 µs in a virtual machine; the part of a call
#: from which that is said; and the part from which the estimate says no more than that it is most.
FAULT_SECONDS, LARGE_PART, MOST_PART = 1e-6, 0.10, 0.75


def findings(frame: pd.DataFrame, baseline_impl: str | None, skipped: pd.DataFrame) -> list[str]:
    """What is worth a sentence beside the answer, the most useful one first."""
    wrongs = wrong(skipped)
    usable = fr.own_keys_unsaid(frame.dropna(subset=["median"]))
    if usable.empty:
        counts = skipped["reason"].value_counts()
        reasons = ", ".join(f"{count} {str(reason).replace('_', ' ')}" for reason, count in counts.items())
        nothing = f"No cell of this run has a number: {reasons}." if reasons else "This run holds no cells."
        return [nothing, *wrongs]
    said = [
        *wrongs,
        lean(usable),
        thrifty(usable),
        gain(usable, baseline_impl),
        compiled(usable),
        regret.finding(usable),
        page_faults(usable),
        proofs.hidden_memory(usable),
        proofs.rounds(usable),
        proofs.unrepeated(usable),
    ]
    return [sentence for sentence in said if sentence]


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
        f"{shares.significant(ratio, 2)} times as much."
    )


def thrifty(frame: pd.DataFrame) -> str:
    """Who takes least energy at the largest case, and who takes most; '' where none was read."""
    known = frame.dropna(subset=["energy_j"]) if "energy_j" in frame else frame.iloc[:0]
    if known["impl"].nunique() < 2:
        return ""
    case = known.sort_values("energy_j").iloc[-1]["id"]
    rows = known[known["id"] == case].sort_values("energy_j")
    if len(rows) < 2:
        return ""
    least, most = rows.iloc[0], rows.iloc[-1]
    where = words.place(fr.settings(rows), always=fr.varying(frame))
    return (
        f"{_shown(rows, least['impl'])} takes least energy at {where}: {units.energy(least['energy_j'])} a call, of the whole "
        f"package; {_shown(rows, most['impl'])} takes {units.energy(most['energy_j'])}."
    )


def gain(frame: pd.DataFrame, baseline_impl: str | None) -> str:
    """The largest speed-up over the baseline implementation that was shown, and where: whose interval begins highest."""
    judged = frame["over"].map(bool).astype(bool)
    resolved = judged & (frame["ratio_high"] <= shares.TOO_WIDE * frame["ratio_low"])
    others = frame[(frame["impl"] != baseline_impl) & resolved & ~frame["wrong"].astype(bool)]
    if others.empty:
        return ""
    shown = others[others["ratio_high"] < 1]
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
    parts = []
    for name in dict.fromkeys(frame["impl"]):
        if not name.endswith(COMPILED):
            continue
        eager, own = _by_case(frame, base(name)), _by_case(frame, name)
        both = [fr.ratio(own[case], eager[case]) for case in own if case in eager]
        shown = [one.value for one in both if one.resolved]
        if shown:
            span = units.between(min(shown), max(shown))
            times = f"{_shown(frame, name)} takes {span} the time of {_shown(frame, base(name))}"
            few = len(shown) < len(both)
            parts.append(
                f"{times} in {len(shown)} of {words.plural(len(both), 'case')}, no difference shown in the rest"
                if few
                else times
            )
    return f"Compiled: {'; '.join(parts)}." if parts else ""


def wrong(skipped: pd.DataFrame) -> list[str]:
    """A warning for every implementation that failed the gate."""
    cells = skipped[skipped["reason"] == "wrong"].groupby("impl", sort=False).size()
    return [
        f"{name} {words.WRONG} did not pass the correctness check in {words.plural(count, 'cell')}: "
        "there are no numbers there, and its others are in doubt."
        for name, count in cells.items()
    ]


def dtypes(frame: pd.DataFrame) -> str:
    """How often one dtype was shown to beat another, in cases that differ in nothing else."""
    kinds = list(dict.fromkeys(frame["dtype"].dropna()))
    parts = []
    for other in kinds[1:]:
        both = [one for one, _ in fr.quotients(frame, "dtype", other, kinds[0]) if one.known]
        if both:
            a, b = words.value("dtype", other), words.value("dtype", kinds[0])
            won, lost = sum(one.faster for one in both), sum(one.slower for one in both)
            pairs = words.plural(len(both), "pair")
            parts.append(f"{a} is faster than {b} in {won} of {pairs} of cells, slower in {lost}")
    return f"{words.listing(parts)}." if parts else ""


def front(rows: pd.DataFrame) -> list[str]:
    """Names that nobody is shown to beat in time without more memory, or in memory without more time; by median."""
    known = fr.records(rows.dropna(subset=["median", "peak_bytes"]).sort_values(["median", "peak_bytes"]))
    return [row["impl"] for row in known if not any(_beats(other, row) for other in known)]


def unbeaten(frame: pd.DataFrame) -> str:
    """Who stands on the front of time and memory in the largest case; empty where nothing is shown of time."""
    known = frame[frame["peak_bytes"] > 0]
    case = known.sort_values("peak_bytes").iloc[-1]["id"]
    rows = known[known["id"] == case]
    if not rows["leads"].any():
        return ""
    names = [_shown(rows, name) for name in front(rows)]
    where = words.place(fr.settings(rows), always=fr.varying(frame))
    best = rows[rows["standing"] == ratios.FASTEST]
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
    parts = f"From {a} to {b}, {first} takes {shares.significant(typical.iloc[0], 2)} times as long"
    parts += "" if first == last else f", {last} {shares.significant(typical.iloc[-1], 2)} times"
    return f"{parts}." if len(shown) == len(typical) else f"{parts} (median over the settings where a change is shown)."


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
