"""A plugin of pytest's, for a node that is asked what there is to measure: `plan.json`, the cells and the machine."""

from __future__ import annotations

import json

import pytest

from ..timing.machine import fingerprint


def pytest_collection_finish(session: pytest.Session) -> None:
    params = [item.callspec.params for item in session.items if hasattr(item, "callspec")]
    cells = [(it["impl"], it["case"]) for it in params]
    plan = {"cells": cells, "machine": fingerprint()}
    (session.config.invocation_params.dir / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
