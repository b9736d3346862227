"""Findings of `doctor` on simulated machines, and on real processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from bench.runs import doctor


@dataclass
class Process:
    """A process that uses a given share of a core."""

    pid: int
    share: float
    readings: int = 0

    @property
    def info(self) -> dict[str, str]:
        return {"name": f"of{self.pid}"}

    def cpu_percent(self) -> float:
        self.readings += 1
        return 100 * self.share if self.readings == 2 else 0.0  # psutil's first reading only starts the count


def test_the_busiest_are_named_and_doctor_itself_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {os.getpid(): 1.0, os.getppid(): 1.0, -1: 0.11, -2: 0.1, -3: 0.5, -4: 0.2, -5: 0.3, -6: 0.4, -7: 0.0}
    monkeypatch.setattr(doctor, "sleep", lambda _: None)
    monkeypatch.setattr(psutil, "process_iter", lambda _: [Process(*it) for it in shares.items()])
    (remark,) = doctor.others()
    named = ((-3, 50), (-6, 40), (-5, 30), (-4, 20), (-1, 11))
    assert remark.found == ", ".join(f"of{pid} (pid {pid}) {percent}% of a core" for pid, percent in named)
    assert remark.advice == "stop them, or measure when they are done"


def test_the_governor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CPUS", tmp_path)
    (folder := tmp_path / "cpu0/cpufreq").mkdir(parents=True)
    (tmp_path / "cpu1/cpufreq/scaling_governor").mkdir(parents=True)  # can't be read, as that of a CPU that is offline
    for kind, disturbs in (("powersave", True), ("performance", False)):
        (folder / "scaling_governor").write_text(f"{kind}\n")
        (remark,) = doctor.governor()
        assert (remark.found, bool(remark.advice)) == (kind, disturbs)


def test_the_exit_code_says_whether_something_disturbs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine, bad = doctor.Remark("memory", "9 GiB free"), doctor.Remark("turbo", "on", "switch it off")
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter([fine]),))
    assert doctor.main([]) == 0
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter([fine, bad]),))
    assert doctor.main([]) == 1
    assert "1 of 2 will disturb a measurement" in capsys.readouterr().out
