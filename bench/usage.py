"""pytest plugin that is loaded before others: an error in the command line is one line, also in their options; standard
output may be closed, or on a full disk.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from importlib import import_module
from typing import Any, NoReturn

import pytest

from stats.arguments import nearest


@pytest.hookimpl(tryfirst=True)
def pytest_addoption(parser: pytest.Parser) -> None:
    """Make pytest report command-line errors without its usage text and folders."""
    # before pytest's capture keeps the stream, to put it back
    import_module("commands.shell").prepare(lambda error: pytest.UsageError(f"standard output: {error.strerror}"))

    def error(message: str) -> NoReturn:
        own = [name for option in parser.getgroup("attention").options for name in option.names()]
        unknown = re.match("unrecognized arguments: (--[^ =]+)", message)
        near = nearest(unknown[1], [*own, "--benchmark-save"]) if unknown else ""
        raise pytest.UsageError(f"{message}{near} (--help shows the options)")

    optparser = parser.optparser
    optparser.error = error  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main() -> Generator[None, Any, Any]:
    """Write all output while pytest still reports an error of standard output."""
    code = yield
    sys.stdout.flush()
    return code
