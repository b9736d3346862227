"""All charts: every module here brings its own, as CHARTS."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ..chart import Chart

_found = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
CHARTS: tuple[Chart, ...] = tuple(sorted((one for it in _found for one in it.CHARTS), key=lambda chart: chart.order))
