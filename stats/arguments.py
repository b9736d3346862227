"""Command-line rules shared by bench and reports."""

from __future__ import annotations

from argparse import ArgumentParser, _StoreAction
from collections.abc import Sequence


def refuse_repeated(parser: ArgumentParser, words: Sequence[str]) -> None:
    """End with the parser's error if an option is given twice of which only the last value would count."""
    given = [word.partition("=")[0] for word in words]
    for action in parser._actions:
        if isinstance(action, _StoreAction) and (times := sum(map(given.count, action.option_strings))) > 1:
            name = next(option for option in action.option_strings if option in given)
            parser.error(f"{name} is given {times} times: give it once")
