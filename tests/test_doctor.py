"""Findings of `doctor` on simulated machines, and on real processes."""

import os
from types import SimpleNamespace

import psutil
import pytest
import torch

from bench.runs import doctor
from bench.timing.devices import cpu


def processes(used):
    return [SimpleNamespace(pid=pid, info={"name": f"of{pid}", "cpu_percent": it}) for pid, it in used.items()]


def test_the_busiest_are_named_and_doctor_itself_is_not(monkeypatch):
    used = {os.getpid(): 100.0, os.getppid(): 100.0, -1: 11.0, -2: 10.0} | {-pid: 10.0 * pid for pid in range(3, 7)}
    readings = [processes(dict.fromkeys(used)), processes(used)]  # psutil's first one starts the count
    monkeypatch.setattr(doctor, "sleep", lambda _: None)
    monkeypatch.setattr(psutil, "process_iter", lambda attrs: readings.pop(0))
    remark = doctor.others()
    named = ((-6, 60), (-5, 50), (-4, 40), (-3, 30), (-1, 11))
    assert remark.found == ", ".join(f"of{pid} (pid {pid}) {percent}% of a core" for pid, percent in named)
    assert remark.advice


def test_the_governor(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "CPUS", tmp_path)
    (folder := tmp_path / "cpu0/cpufreq").mkdir(parents=True)
    (tmp_path / "cpu1/cpufreq/scaling_governor").mkdir(parents=True)  # can't be read, as that of a CPU that is offline
    for kind, disturbs in (("powersave", True), ("performance", False)):
        (folder / "scaling_governor").write_text(f"{kind}\n")
        remark = doctor.governor()
        assert (remark.found, bool(remark.advice)) == (kind, disturbs)


@pytest.mark.parametrize(
    ("quota", "usable"), [("max 100000", 2), ("50000 100000", 1), ("150000 100000", 1), ("900000 100000", 2)]
)
def test_a_containers_quota_limits_the_cores_that_threads_share(tmp_path, monkeypatch, quota, usable):
    """Torch starts as many threads as the machine has cores."""
    monkeypatch.setattr(cpu, "CGROUP", tmp_path)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: [0, 1], raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    remark = doctor.threads()
    assert remark.found == f"2 on {usable} cores"
    assert bool(remark.advice) == (usable < 2) and (remark.advice or "").endswith("OMP_NUM_THREADS=1" * (usable < 2))


def test_every_finding_is_reported(monkeypatch):
    monkeypatch.setattr(doctor, "sleep", lambda _: None)
    monkeypatch.setattr(doctor, "WATCH", 0.01)
    assert [it.about for it in doctor.remarks()][:4] == ["other load", "evenness", "threads", "governor"]


@pytest.mark.parametrize(("advice", "code", "says"), [(None, 0, "none of 2"), ("switch it off", 1, "1 of 2")])
def test_the_exit_code_says_whether_something_disturbs(monkeypatch, capsys, advice, code, says):
    found = [doctor.Remark("memory", "9 GiB free"), doctor.Remark("turbo", "on", advice)]
    monkeypatch.setattr(doctor, "remarks", lambda: found)
    assert doctor.main([]) == code
    assert f"\n{says} will disturb a measurement" in capsys.readouterr().out


def test_lines_fit_the_terminal_and_a_command_stays_whole(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(doctor, "sleep", lambda _: None)
    monkeypatch.setattr(doctor, "UNEVEN", 0.0)
    used = {-pid: 10.0 * pid for pid in range(2, 7)}
    monkeypatch.setattr(psutil, "process_iter", lambda attrs: processes(used))
    doctor.main([])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("`python -m bench ab`" in line for line in lines)
