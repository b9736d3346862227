"""What the page says of traces: the operators and the memory of a call, as TensorBoard's own plugin tells them."""

from __future__ import annotations

import gzip
import html
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import synthetic_runs as synthetic

from reports.drawing import inside
from reports.pages import page
from reports.reading import runs, traces
from reports.reading.traces import TraceError

GOLDEN = Path(__file__).parent / "data" / "traces"
IMPLS = ("fused", "sdpa")
PATIENCE = 45.0  # seconds

needs_parser = pytest.mark.skipif(
    not importlib.util.find_spec("torch_tb_profiler"), reason=f"{traces.PARSER} is not installed"
)


def golden(name: str) -> Path:
    """The trace of one call on B=1 T=16 H=2 D_h=16 in float32, as `pytest bench/ --save-traces` took it."""
    return GOLDEN / f"{name}.pt.trace.json.gz"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder's `traces`, with one for each of two cells."""
    folder = tmp_path_factory.mktemp("results") / "traces"
    for name in IMPLS:
        (folder / "x" / name).mkdir(parents=True)
        shutil.copy(golden(name), folder / "x" / name / "call.pt.trace.json.gz")
    return folder


def page_of(paths: dict[str, str], results: Path) -> str:
    """The page of a run, given each implementation's trace."""
    at = synthetic.case(T=16, H=2, D_h=16)
    rows = [synthetic.row(name, at, [1e-3], trace=path) for name, path in paths.items()]
    run = runs.read(synthetic.save(synthetic.document(rows, registry=list(paths)), results, "0001_x"))
    return page.write(run, results / "out").read_text(encoding="utf-8")


def section(text: str) -> str:
    """What the page folds under `More`."""
    return text.partition('<section aria-labelledby="more">')[2].partition("</section>")[0]


def table(text: str, name: str) -> list[list[str]]:
    """What an implementation's table of operators says, line by line, without its heading."""
    (found,) = re.findall(rf'aria-label="Operators of {name}".*?<tbody>(.*?)</tbody>', text, re.DOTALL)
    lines = re.findall(r"<tr>(.*?)</tr>", found)
    return [[html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line)] for line in lines]


@needs_parser
def test_operators_by_time_of_their_own() -> None:
    operators = traces.read(golden("fused")).operators
    assert list(operators) == ["name", "shapes", "calls", "host_s", "device_s"]
    assert operators["host_s"].is_monotonic_decreasing
    assert operators["device_s"].isna().all()  # it ran on a CPU
    projections = operators[(operators["name"] == "aten::mm") & (operators["shapes"] == "16×32 · 32×32")]
    assert list(projections["calls"]) == [4]
    products = operators[operators["name"] == "aten::bmm"]
    assert set(products["shapes"]) == {"2×16×16 · 2×16×16"}
    assert 0 < operators["host_s"].sum() < 1


@needs_parser
def test_memory_over_the_call() -> None:
    memory = traces.read(golden("fused")).memory
    O = 16 * 32 * 4  # noqa: E741 - of the output: B T H D_h, 4 bytes each
    assert memory["at"].is_monotonic_increasing
    assert memory["at"].iloc[0] == memory["bytes"].iloc[0] == 0
    assert (memory["bytes"] >= 0).all()
    assert memory["bytes"].iloc[-1] == O  # nothing but the answer is left
    assert memory["bytes"].max() == 6 * O  # as the row of this cell says: q, k, v, and the scores three times


def test_what_was_there_before_makes_no_room_when_it_is_freed() -> None:
    changes = [(1.0, 50, 1), (2.0, -400, 9), (3.0, 100, 2), (4.0, -50, 1)]
    assert list(traces._held(changes)["bytes"]) == [0, 50, 50, 150, 100]


@needs_parser
def test_lists_of_tensors_have_shapes_too() -> None:
    assert traces._shapes("[[[2, 3], [2, 4]], [], [5]]") == "2×3 · 2×4 · 5"
    assert traces._shapes("[]") == traces._shapes("None") == traces._shapes("[2") == ""


WHOLE = golden("fused").read_bytes()
BAD = {
    "half": (WHOLE[: len(WHOLE) // 2], "is cut off"),
    "plain": (gzip.decompress(WHOLE), "is not gzip"),
    "empty": (b"", "is empty"),
    "no_json": (gzip.compress(b"[1, 2"), "holds no trace of torch's profiler"),
    "half_json": (gzip.compress(gzip.decompress(WHOLE)[:5000]), "holds no trace of torch's profiler"),
    "other": (gzip.compress(b'{"traceEvents": [{"ph": "X", "name": 3}]}'), "holds no trace of torch's profiler"),
    "none": (gzip.compress(b'{"traceEvents": []}'), "holds no operator"),
    "missing": (None, "is not there"),
}


@needs_parser
def test_a_trace_that_cant_be_read_is_told_in_a_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.gz").write_bytes(WHOLE)
    for name, (content, says) in BAD.items():
        if content is not None:
            (tmp_path / f"{name}.gz").write_bytes(content)
        with pytest.raises(TraceError, match=says):
            traces.read(tmp_path / f"{name}.gz")
    text = html.unescape(section(page_of({name: f"{name}.gz" for name in ("good", *BAD)}, tmp_path)))
    assert table(text, "good")
    for says in ("is cut off", "is not gzip", "is empty", "holds no operator", "is not there"):
        assert f"It {says} (" in text
    assert "It holds no trace of torch's profiler (no_json at B1-T16" in text
    assert "Traceback" not in "".join(capfd.readouterr())


def test_without_the_parser_the_page_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("torch_tb_profiler")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch_tb_profiler", None)  # an import of it fails
    shutil.copy(golden("fused"), tmp_path / "a.gz")
    assert f"pip install {traces.PARSER}" in section(page_of({"fused": "a.gz"}, tmp_path))
    at = synthetic.case()
    untraced = runs.read(synthetic.save(synthetic.document([synthetic.row("fused", at, [1e-3])]), tmp_path, "0002_y"))
    assert "Operators of" not in page.write(untraced, tmp_path / "out").read_text(encoding="utf-8")


@needs_parser
def test_the_page_has_a_curve_for_the_largest(logdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(logdir, tmp_path / "traces")
    paths = {name: f"traces/x/{name}/call.pt.trace.json.gz" for name in IMPLS}
    both = section(page_of(paths, tmp_path))
    assert both.count('aria-label="Memory during the call') == 2
    monkeypatch.setattr(inside, "MOST_CURVES", 1)
    one = section(page_of(paths, tmp_path))
    assert one.count('aria-label="Memory during the call') == 1
    assert 'aria-label="Memory during the call: 12.4 KiB at most, after ' in one


@needs_parser
def test_hostile_names_are_letters(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'
    data = json.loads(gzip.decompress(golden("sdpa").read_bytes()))
    for event in data["traceEvents"]:
        if event.get("name") == "aten::mm":
            event["name"] = evil
    (tmp_path / "evil.gz").write_bytes(gzip.compress(json.dumps(data).encode()))
    text = page_of(
        {evil: "evil.gz", "sdpa": "../../../../nowhere", "long": "x" * 5000, "pipe": "/dev/zero", "nul": "\0"}, tmp_path
    )
    assert evil not in text
    assert html.escape(evil).replace("&quot;", "&#34;") in section(text)


@pytest.fixture(scope="module")
def plugin(logdir: Path) -> Iterator[Callable[..., Any]]:
    """`plugin("runs")` asks a TensorBoard on this machine, which has loaded both traces, for one of its plugin's data."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    if not importlib.util.find_spec("torch_tb_profiler"):
        pytest.skip(f"{traces.PARSER} is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        str(logdir),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, start_new_session=True, **quiet)  # its parsers are processes of its own

    def ask(what: str, **query: str) -> Any:
        with urlopen(
            f"http://127.0.0.1:{port}/data/plugin/pytorch_profiler/{what}?{urlencode(query)}", timeout=10
        ) as answer:
            body = answer.read()
        return json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)

    try:
        _wait_for(lambda: server.poll() is not None or len(ask("runs")["runs"]) == len(IMPLS))
        yield ask
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (URLError, OSError):
            pass  # it doesn't listen yet
        time.sleep(0.2)
    pytest.fail(f"TensorBoard did not load two traces within {PATIENCE:g} s")


def test_tensorboard_finds_a_run_for_every_cell(plugin: Callable[..., Any]) -> None:
    assert plugin("runs")["runs"] == ["x/fused", "x/sdpa"]
    for run in plugin("runs")["runs"]:
        assert {"Operator", "Trace", "Memory"} <= set(plugin("views", run=run))
        assert plugin("workers", run=run, view="Operator") == ["call"]
        assert plugin("spans", run=run, worker="call") == ["default"]


@pytest.mark.parametrize("name", IMPLS)
def test_our_operators_are_the_plugins(plugin: Callable[..., Any], logdir: Path, name: str) -> None:
    query = {"run": f"x/{name}", "worker": "call", "span": "default", "group_by": "OperationAndInputShape"}
    theirs = plugin("operation/table", **query)["data"]
    ours = traces.read(logdir / "x" / name / "call.pt.trace.json.gz").operators
    assert [(op["name"], op["calls"]) for op in theirs] == list(zip(ours["name"], ours["calls"], strict=True))
    assert [op["host_self_duration"] for op in theirs] == [round(seconds * 1e6) for seconds in ours["host_s"]]
    text = section(page_of({name: f"traces/x/{name}/call.pt.trace.json.gz"}, logdir.parent))
    for (operator, _, own, calls, shapes), op in zip(table(text, name), theirs, strict=False):
        assert (operator, int(calls)) == (op["name"], op["calls"])
        assert abs(_microseconds(own) - op["host_self_duration"]) <= 0.5 + 0.005 * op["host_self_duration"]
        assert shapes == " · ".join("×".join(map(str, shape)) for shape in json.loads(op["input_shape"]) if shape)
    assert len(table(text, name)) == inside.MOST_OPERATORS
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in {op["name"] for op in theirs} or name == "fused"


def _microseconds(text: str) -> float:
    """'12.3 µs' -> 12.3"""
    number, unit = text.split()
    return float(number) * {"s": 1e6, "ms": 1e3, "µs": 1, "ns": 1e-3}[unit]


@pytest.mark.parametrize("name", IMPLS)
def test_our_curve_is_the_plugins(plugin: Callable[..., Any], name: str) -> None:
    query = {"run": f"x/{name}", "worker": "call", "span": "default", "memory_metric": "B"}
    theirs = [
        allocated for _, allocated, _ in plugin("memory_curve", **query)["rows"]["CPU"][::2]
    ]  # between: its steps
    ours = list(traces.read(golden(name)).memory["bytes"])[1:-1]  # without the beginning and the end of the call
    before = theirs[0] - ours[0]
    assert [allocated - before for allocated in theirs] == ours
