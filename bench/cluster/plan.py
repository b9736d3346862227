"""A pytest plugin that writes the cells of a run into `cells.json`, for a node that lists them."""

from __future__ import annotations

import json

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    params = [item.callspec.params for item in session.items if hasattr(item, "callspec")]
    cells = [(it["impl"], it["case"]) for it in params]
    (session.config.invocation_params.dir / "cells.json").write_text(json.dumps(cells), encoding="utf-8")
