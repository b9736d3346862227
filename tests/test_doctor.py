"""What the doctor finds, on machines that are made up and on this one with a busy loop beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.runs import doctor

from .conftest import CHECKOUT


def test_a_busy_process_is_named() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            (remark,) = doctor.others()
        finally:
            busy.kill()
    assert f"pid {busy.pid}" in remark.found
    assert remark.advice == "stop them, or measure when they are done"


def test_a_process_that_sleeps_is_not_named() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as idle:
        try:
            (remark,) = doctor.others()
        finally:
            idle.kill()
    assert f"pid {idle.pid}" not in remark.found


@pytest.mark.parametrize(
    ("seconds", "found", "disturbs"),
    [
        ([0.2, 0.21] * 50, "takes 1.05 times its shortest, 1.05 or more", False),
        ([0.2, 0.2, 0.2, 0.2, 0.4] * 20, "takes 1.00 times its shortest, 2.00 or more", True),
    ],
)
def test_work_that_is_slow_by_turns(seconds: list[float], found: str, disturbs: bool) -> None:
    (remark,) = doctor.evenness(lambda: seconds)
    assert found in remark.found
    assert bool(remark.advice) is disturbs


def test_pieces_of_work_are_timed() -> None:
    assert all(seconds > 0 for seconds in doctor.pieces())
    (remark,) = doctor.evenness()
    assert "times its shortest" in remark.found


@pytest.mark.parametrize(("kind", "disturbs"), [("powersave", True), ("performance", False)])
def test_the_governor(tmp_path: Path, kind: str, disturbs: bool) -> None:
    folder = tmp_path / "devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_governor").write_text(f"{kind}\n")
    (folder.parents[1] / "cpufreq").mkdir()
    (folder.parents[1] / "cpufreq/boost").write_text("1\n")
    found = {remark.about: remark for remark in doctor.governor(tmp_path)}
    assert found["governor"].found == kind
    assert bool(found["governor"].advice) is disturbs
    assert found["turbo"].found == "on"


def test_huge_pages(tmp_path: Path) -> None:
    path = tmp_path / "kernel/mm/transparent_hugepage/enabled"
    path.parent.mkdir(parents=True)
    path.write_text("always madvise [never]\n")
    (remark,) = doctor.huge_pages(tmp_path)
    assert (remark.found, bool(remark.advice)) == ("never", True)


def test_a_compiler_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    (remark,) = doctor.compiler()
    assert remark.advice == "compiled forms on the CPU need one: install g++"


def test_the_exit_code_says_whether_something_disturbs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine, bad = doctor.Remark("memory", "9 GiB free"), doctor.Remark("turbo", "on", "switch it off")
    monkeypatch.setattr(doctor, "LOOKS", (lambda: iter([fine]),))
    assert doctor.main([]) == 0
    monkeypatch.setattr(doctor, "LOOKS", (lambda: iter([fine, bad]),))
    assert doctor.main([]) == 1
    assert "1 of 2 will disturb a measurement" in capsys.readouterr().out


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "bench", "--help"]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listing:
        assert listing.stdout and listing.stderr
        listing.stdout.close()
        assert listing.stderr.read() == b""
    assert listing.returncode == 0


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        doctor.main(["--fast"])
    assert left.value.code == 3
    assert capsys.readouterr().err == "bench: error: unrecognized arguments: --fast (--help shows the options)\n"
