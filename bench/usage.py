"""pytest plugin that is loaded before others: an error in the command line is one line, also in their options; standard
output may be closed, or on a full disk.
"""

from __future__ import annotations

import re
from typing import NoReturn

import pytest

from . import terminal
from .cases.axes import nearest


def _full(error: OSError) -> pytest.UsageError:
    """Return the error that ends pytest in one line, from that of standard output."""
    return pytest.UsageError(f"standard output: {error.strerror}")


@pytest.hookimpl(tryfirst=True)
def pytest_addoption(parser: pytest.Parser) -> None:
    """Make pytest report command-line errors without its usage text and folders."""
    terminal.prepare(_full)  # before pytest's capture keeps the stream, to put it back

    def error(message: str) -> NoReturn:
        own = [name for option in parser.getgroup("attention").options for name in option.names()]
        unknown = re.match("unrecognized arguments: (--[^ =]+)", message)
        near = nearest(unknown[1], [*own, "--benchmark-save"]) if unknown else ""
        raise pytest.UsageError(f"{message}{near} (--help shows the options)")

    optparser = parser.optparser
    optparser.error = error  # type: ignore[method-assign]
