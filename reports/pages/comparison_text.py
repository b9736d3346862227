"""Text of a comparison of two runs or of two interleaved variants: for the terminal, for Markdown, and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from stats import shares, verdict
from stats.arguments import as_typed, wrapped
from stats.estimate import grouped
from stats.verdict import BROKEN, CHANGED, IMPROVED, INCONCLUSIVE, REGRESSED, SLIGHT, UNCHANGED, WRONG, Verdict

from ..judging.comparison import Cell, Change, Comparison
from ..reading import command, units
from ..reading.runs import Object
from ..reading.words import AGAINST, listing, one_line, plural
from .tables import escape, filled, flat, in_markdown, of_lines

STYLES = {
    REGRESSED: "bold red",
    BROKEN: "bold red",
    WRONG: "bold red",
    IMPROVED: "green",
    verdict.GONE: "yellow",
    INCONCLUSIVE: "yellow",
}

MOST_LINES = 30
"""Most rows of the Markdown table, to be readable on a phone."""

RESULTS = {command.FINE: "Nothing regressed", command.NOT_JUDGED: "It could not be judged"}
"""Conclusions by exit code."""

WAYS = {REGRESSED: "slower", IMPROVED: "faster"}

EXAMPLES = 10
"""Cells listed of each verdict without a change; further ones are counted."""

FACTOR = 1.5
"""Ratio from which on a change is printed as a factor, and below as a percentage."""


def terminal(this: Comparison, named: str, whole: bool = False) -> RenderableType:
    """Render one sentence per implementation, the cells that changed (or all), and the conclusion.

    `named` is the argument of `python -m reports compare` that shows it. Nothing is interpreted as markup, since texts
    of implementations are included.
    """
    listed = [cell for cell in this.cells if whole or this.unjudged or _is_news(cell)]
    common = any(cell.verdict.word not in (verdict.NEW, verdict.GONE) for cell in this.cells)
    shown = listed if whole else examples(listed, EXAMPLES if common else 1)
    reasons = {} if whole else shared_reasons(shown)
    lines = [text for reason, text in reasons.items() if reason != this.unjudged]
    lines += [f"note: {one_line(note)}" for note in this.notes]
    if hidden := left_out(this.cells, shown):
        lines.append(f"{hidden} more: `python -m reports compare {named} --all` lists them")
    return Group(
        *(Text(one_line(sentence), "bold") for sentence in sentences(this)),
        *(part for cell in shown for part in _lines(cell, reasons)),
        *(Text(wrapped(as_typed(line)), overflow="ignore") for line in lines),
        Text(one_line(summary(this)), "bold"),
    )  # fmt: skip


def examples(cells: Iterable[Cell], most: int = EXAMPLES) -> list[Cell]:
    """Return the cells with a change, up to `most` of each other verdict, and the first of an implementation's cells that
    fail for one reason.
    """
    parts = grouped((_alike(cell), cell) for cell in cells)
    return [cell for alike, of in parts.items() for cell in of[: 1 if len(alike) > 1 else most]]


def _alike(cell: Cell) -> tuple[str, ...]:
    """Return what a cell shares with cells that it can stand for."""
    found = cell.verdict
    if cell.changes or found.way:
        return cell.impl, cell.id
    if found.word in (BROKEN, WRONG):
        return cell.impl, found.word, shares.without_numbers(found.reason)
    return (found.word,)


def left_out(cells: Iterable[Cell], shown: Iterable[Cell]) -> str:
    """Count the cells that are not shown: '30 UNCHANGED, 2 SLIGHT'; '' without any."""
    every, some = (Counter(cell.verdict.word for cell in of) for of in (cells, shown))
    return ", ".join(f"{count} {word}" for word, count in (every - some).items())


def shared_reasons(cells: Iterable[Cell]) -> dict[str, str]:
    """Return reasons for missing verdicts that several cells share, each with the line that explains it: '3 cells: ...'.
    Reasons that follow from a cell's own interval are not shared.
    """
    known = (cell.verdict for cell in cells if cell.verdict.word == INCONCLUSIVE)
    found = Counter(it.reason for it in known if it.reason == _reason(it))
    return {reason: f"{count} cells: {reason}" for reason, count in found.items() if reason and count > 1}


def sentences(this: Comparison) -> Iterator[str]:
    """Yield sentences on each implementation: 'sdpa is 2.0 % slower (1.7 to 2.3) in 16 of 16 cells'.

    Broken and regressed ones come first (in memory, if none is slower), then those whose code changed; equal implementations
    share a sentence.
    """
    counts = Counter(cell.impl for cell in this.cells)
    broken = Counter((cell.impl, cell.verdict.word.lower()) for cell in this.cells if cell.broken)
    yield from (
        f"{name} is {word} in {count} of {plural(counts[name], 'cell')}" for (name, word), count in broken.items()
    )
    larger = Counter(cell.impl for cell in this.cells if any(it.worse for it in cell.changes) and not this.slower)
    yield from (
        f"{name} needs more memory in {count} of {plural(counts[name], 'cell')}" for name, count in larger.items()
    )
    timed = grouped((cell.impl, cell) for cell in this.cells if math.isfinite(cell.verdict.ratio))
    by_impl = {name: timed.get(name, []) for name in (*this.of_interest, *timed)}
    said = ((_said(this, name, by_impl[name]), name) for name in sorted(by_impl, key=lambda it: it not in this.slower))
    for text, names in grouped((text, name.partition(AGAINST)[0]) for text, name in said if text).items():
        most = max(4, len({*names} & {*this.of_interest}))  # none whose code changed is left out
        yield f"{listing(names, most)} {'is' if len(names) == 1 else 'are'} {text}"


def _said(this: Comparison, name: str, cells: list[Cell]) -> str:
    """Return what an implementation is: '2.0 % slower (1.7 to 2.3) in 16 of 16 cells'; '' if there is nothing to say."""
    base = name.partition(AGAINST)[2]
    judged = sum(not math.isnan(cell.verdict.low) for cell in cells)
    than, every = f" than {base}" if base else "", plural(judged, "cell")
    words = Counter(cell.verdict.word for cell in cells)
    moved = {word: f"{way} in {words[word]} of {every}{_by(word, cells)}" for word, way in WAYS.items() if words[word]}
    found = this.implementations.get(name)
    if found is None and cells and name in this.of_interest and not this.unjudged:
        return f"not judged, although the code changed: {cells[0].verdict.reason}"
    unclear = found and {
        REGRESSED: found.low <= 1,
        IMPROVED: found.high >= 1,
        INCONCLUSIVE: not found.low < 1 < found.high,
    }.get(found.word)
    if found is None or (moved and unclear):  # cells changed, and the mean did not, or the other way
        return f"{' and '.join(moved.values())}{than}" if moved and not this.unjudged else ""
    others = [text for word, text in moved.items() if word != found.word]
    margin = shares.percent(this.margin)
    if found.word in (*CHANGED, SLIGHT):
        count = words[found.word]
        some = f" ({count} of them {found.word})" if count else ""
        where = f"in {count} of {every}" if count == judged else f"over {every}{some}"
        text = f"{_change(found, base)} {where}" + (f", within the margin of {margin}" if found.word == SLIGHT else "")
    elif found.word == UNCHANGED:
        text = f"as fast as {base or 'before'}, within {margin}"
    elif this.of_interest and name not in this.of_interest and not others:
        return ""
    else:
        text = shares.bound(found.low, found.high)
        if text != shares.UNRESOLVED:
            text = f"{'' if found.low < 1 < found.high else 'perhaps '}{text}{than}"
    return text + (f", but {' and '.join(others)}" if others else "")


def _by(word: str, cells: list[Cell]) -> str:
    """Return the range over the cells with this word: ' (7.2 % to 42 %)' or ' (7.2 % to 2.4×)'."""
    ratios = [cell.verdict.ratio for cell in cells if cell.verdict.word == word]
    ends = dict.fromkeys(_size(end(ratios, key=_factor)) for end in (min, max))
    return f" ({' to '.join(ends)})"


def summary(this: Comparison) -> str:
    """Return 'Nothing regressed: 23 UNCHANGED within 1 %, 1 INCONCLUSIVE; 1 cell with another kernel (0001_a →
    0002_b)'.
    """
    return f"{result(this)}: {counted(this)} ({this.base} → {this.head})"


def result(this: Comparison) -> str:
    """Return the conclusion: 'Nothing regressed'."""
    if this.exit_code in RESULTS:
        return RESULTS[this.exit_code]
    if this.slower:
        return "Something regressed"
    return "Something is broken" if any(cell.broken for cell in this.cells) else "Memory regressed"


def headline(this: Comparison) -> tuple[str, list[str]]:
    """Return the conclusion with the first sentence, and the other sentences."""
    lines = list(sentences(this))
    return ": ".join([result(this), *lines[:1]]), lines[1:]


def counted(this: Comparison) -> str:
    """Return the counts: '23 UNCHANGED within 1 %, 1 INCONCLUSIVE; 1 cell with another kernel'."""
    within = f" within {shares.percent(this.margin)}"
    counts = ", ".join(f"{count} {word}{within * (word == UNCHANGED)}" for word, count in this.counts.items())
    counts = counts or "no cell to compare"
    known = Counter(it.word for it in this.implementations.values())
    if len(this.implementations) > 1 or known[REGRESSED] > this.counts.get(REGRESSED, 0):
        of_impls = ", ".join(f"{known[word]} {word}" for word in verdict.WORDS if known[word])
        impls = plural(len(this.implementations), "timed implementation")
        counts = f"of {impls} {of_impls}; of {plural(len(this.cells), 'cell')} {counts}"
    facts = Counter(
        "more memory" if change.worse else f"another {change.column}"
        for cell in this.cells
        for change in cell.changes
        if change.worse or change.column in ("kernel", "error")
    )
    more = [f"{plural(count, 'cell')} with {part}" for part, count in facts.items()]
    return "; ".join(filter(None, [this.unjudged, counts, *more]))


def as_markdown(this: Comparison) -> str:
    """Return sentences, counts, a short table of changes, folded unchanged cells, the machine, and commands."""
    changed = [cell for cell in this.cells if _is_news(cell)]
    still = [cell for cell in this.cells if not _is_news(cell)]
    parts = [f"### attention-bench: {escape(summary(this))}"]
    if lines := [f"**{escape(sentence)}**" for sentence in sentences(this)]:
        parts.append("  \n".join(lines))
    if changed:
        parts.append(_table(examples(changed), len(changed)))
    if still:
        folded = f"<summary>{left_out(still, ())}</summary>\n\n{_table(still, len(still))}"
        parts.append(f"<details>{folded}\n\n</details>")
    if this.notes:
        parts.append("\n".join(f"- {escape(note)}" for note in this.notes))
    commands = "\n".join(f"    {one_line(command)}" for command in this.commands)
    known = ", ".join(f"{key} {text}" for key, text in flat(this.machine))
    parts += [f"Machine: {escape(known)}"] * bool(known) + [f"How to reproduce:\n\n{commands}"]
    return as_typed("\n\n".join(parts) + "\n", here=False)


def _table(cells: Sequence[Cell], count: int) -> str:
    """Return a table of the first MOST_LINES of `count` cells, without empty columns."""
    shown = cells[:MOST_LINES]
    more = f"\n\n… and {plural(count - len(shown), 'cell')} more" if count > len(shown) else ""
    lines = [*map(columns, shown)]
    return in_markdown(of_lines("", lines, filled(lines))) + more


def as_data(this: Comparison) -> Object:
    """Return data for JSON: ratios and seconds as plain numbers, NaN if missing."""
    return {
        "base": this.base,
        "head": this.head,
        "margin": this.margin,
        "exit_code": this.exit_code,
        "counts": this.counts,
        "unjudged": this.unjudged,
        "sentences": list(sentences(this)),
        "implementations": {name: _verdict_data(it) for name, it in this.implementations.items()},
        "notes": [as_typed(note, here=False) for note in this.notes],
        "machine": this.machine,
        "commands": [as_typed(command, here=False) for command in this.commands],
        "cells": [_cell_data(cell) for cell in this.cells],
    }


def _cell_data(cell: Cell) -> Object:
    return {
        "impl": cell.impl,
        "id": cell.id,
        "regressed": cell.regressed,
        "base_median": cell.base,
        "head_median": cell.head,
        **_verdict_data(cell.verdict),
        "changes": [{**vars(change), "text": changed(change)} for change in cell.changes],
    }


def _verdict_data(it: Verdict) -> Object:
    ratios = {"ratio": it.ratio, "ratio_low": it.low, "ratio_high": it.high}
    return {"verdict": it.word, "reason": it.reason, **ratios, "detectable": it.detectable}


def _reason(found: Verdict) -> str:
    """Return the reason without the interval, which `_moved` prints."""
    return found.reason.removeprefix(shares.bound(found.low, found.high)).lstrip(",; ")


def columns(cell: Cell, shared: Iterable[str] = ()) -> dict[str, str]:
    """Return a cell's texts by heading: `base` and `head` in seconds, `change` with its 95 % interval, and `why`, unless
    the reason is among the shared ones.
    """
    found, reason = cell.verdict, _reason(cell.verdict)
    texts = {
        "verdict": found.word,
        "implementation": cell.impl,
        "case": cell.id,
        "base": units.seconds(cell.base),
        "head": units.seconds(cell.head),
        "change": _moved(found),
        "min. detectable": units.detectable(found.detectable),
        "why": "; ".join([*map(changed, cell.changes), *[reason] * (reason not in ("", *shared))]),
    }
    return {heading: one_line(text) for heading, text in texts.items()}


def _lines(cell: Cell, shared: Iterable[str]) -> Iterator[RenderableType]:
    """Yield a cell's terminal lines: its name, and its result below, to avoid narrow columns."""
    line, word = columns(cell, shared), cell.verdict.word
    yield Text(f"{word:<13}", STYLES.get(word, "")).append(f"{line['implementation']} {line['case']}", "default")
    times = f"{line['base']} → {line['head']}" if units.MISSING not in (line["base"], line["head"]) else ""
    known = [part for part in (line["change"], times, as_typed(line["why"])) if part not in ("", units.MISSING)]
    yield Padding(Text("; ".join(known)), (0, 0, 0, 13), expand=False)


def _moved(found: Verdict) -> str:
    """Format a change: '+5.2 % (+4.1 to +6.3 %)', with as many digits as the interval warrants."""
    if not math.isfinite(found.ratio):
        return units.MISSING
    large = _factor(found.ratio) >= FACTOR
    if not math.isfinite(found.low):
        return _times(found.ratio) if large else units.change(found.ratio)
    if not found.way and shares.too_wide(found.low, found.high):
        return shares.UNRESOLVED
    if large:
        return _change(found)
    digits = shares.decimals(found.low, found.high)
    low, high = units.change(found.low, digits).removesuffix(" %"), units.change(found.high, digits)
    return f"{units.change(found.ratio, digits)} ({low} to {high})"


def _factor(ratio: float) -> float:
    return max(ratio, 1 / ratio)


def _size(ratio: float) -> str:
    """Format a ratio's size: '7.2 %', or '2.4×'."""
    return f"{units.ratio(_factor(ratio))}×" if _factor(ratio) >= FACTOR else shares.percent(abs(ratio - 1))


def _times(ratio: float) -> str:
    """Format a ratio: '2.1× as slow'."""
    return f"{_size(ratio)} as {'slow' if ratio > 1 else 'fast'}"


def _change(found: Verdict, base: str = "") -> str:
    """Format a change: '2.0 % slower (1.7 to 2.3)', or '2.1× as slow (2.0 to 2.2)'."""
    if _factor(found.ratio) >= FACTOR:
        factors = sorted(ratio if found.ratio > 1 else 1 / ratio for ratio in (found.low, found.high))
        return f"{_times(found.ratio)}{f' as {base}' if base else ''} ({units.interval(*factors)})"
    ends = sorted(abs(ratio - 1) for ratio in (found.low, found.high))
    digits = shares.decimals(found.low, found.high)
    size, low, high = (f"{share * 100:.{digits}f}" for share in (abs(found.ratio - 1), *ends))
    return f"{size} % {'slower' if found.ratio > 1 else 'faster'}{f' than {base}' if base else ''} ({low} to {high})"


def changed(change: Change) -> str:
    """Format a changed fact: 'kernel flash → math'."""
    if change.column == "peak_bytes":
        size = ""
        if change.base and change.head:
            ratio = change.head / change.base
            size = f" ({units.change(ratio) if _factor(ratio) < FACTOR else f'{units.ratio(ratio)}×'})"
        before, after = map(units.memory, (change.base, change.head))
        if before == after:  # it changed all the same
            before, after, size = f"{change.base:,.0f}", f"{change.head:,.0f} B", ""
        return f"memory {before} → {after}{size}"
    if change.column == "error":
        digits = 4 if f"{change.base:.4g}" != f"{change.head:.4g}" else 9
        return f"error {change.base:.{digits}g} → {change.head:.{digits}g}"
    return f"{change.column} {change.base} → {change.head}"


def _is_news(cell: Cell) -> bool:
    quiet = cell.verdict.word in (SLIGHT, UNCHANGED) or (cell.verdict.word == INCONCLUSIVE and cell.verdict.ratio > 0)
    return bool(cell.changes) or not quiet  # an INCONCLUSIVE cell without a ratio fails in both variants
