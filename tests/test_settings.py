"""Changes of global settings by an implementation are reported, and restored before the next one is measured."""

import importlib
import inspect
import os
import pkgutil
import random
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import backends

import impls
from bench.ab.plan import digest_of_own
from bench.cases.case import Case
from bench.checks import settings, watched_settings
from bench.checks.impl_hash import impl_hash, sources_hash
from bench.checks.module_checks import check_case
from bench.selection.choice import impls_named
from bench.selection.errors import UsageError

from .conftest import registry_kept
from .global_settings import CHANGES, C

ALLOWED = {
    "filters of warnings",
    "state of Python's random numbers",
    "state of NumPy's random numbers",
    "working folder",
    "sys.path",
    "environment variables",
}
"""Settings that may change, or can't be distinguished from such."""


THERE = [name for name in CHANGES if name in watched_settings.SETTINGS]
"""An older torch lacks some."""


def test_every_setting_is_tried():
    assert CHANGES.keys() <= watched_settings._KNOWN.keys()
    assert watched_settings.SETTINGS.keys() >= ALLOWED
    assert [name for name in watched_settings.SETTINGS if name not in ALLOWED] == THERE


@pytest.mark.parametrize("name", THERE)
def test_a_change_is_reported_and_restored(name):
    if name == "CPUs that may be used" and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("there is one")
    before = settings.read()
    try:
        CHANGES[name]()
    except RuntimeError as unfit:
        pytest.skip(f"not on this machine: {unfit}")
    changes = settings.restore(before)
    assert any(change.startswith(f"{name}: ") for change in changes), changes
    assert settings.restore(before) == []
    assert torch.get_float32_matmul_precision() == "highest"  # raises where older and newer means are mixed
    assert torch.zeros(1).device.type == "cpu"


def test_cheap_settings_are_a_part_of_all():
    cheap, whole = settings.read(cheap=True), settings.read()
    assert cheap.keys() < whole.keys()
    assert settings.restore(cheap) == []
    torch.manual_seed(3)
    assert settings.restore(cheap) == []
    assert settings.restore(whole)


def test_the_precision_that_was_there_is_no_change():
    before = settings.read()
    torch.set_float32_matmul_precision("highest")  # which writes `ieee` where nothing was written
    assert settings.restore(before) == []


def test_what_the_compiler_wraps_when_it_is_imported_is_no_change(monkeypatch):
    before = settings.read()
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)
    assert settings.restore(before) == []


def test_drawing_is_no_change_and_the_state_of_other_generators_comes_back():
    before = settings.read()
    torch.rand(3), random.random(), np.random.rand(3)
    assert settings.restore(before) == []
    first = random.random(), np.random.rand()
    settings.restore(before)
    assert (random.random(), np.random.rand()) == first


def test_changes_that_are_only_reported_are_no_fault(monkeypatch, tmp_path):
    before = settings.read(never_restored=True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "by a first torch.compile")
    monkeypatch.syspath_prepend("/site-packages/setuptools/_vendor")  # by torch.utils.cpp_extension
    assert settings.reported_changes(before) == []
    monkeypatch.setenv("MINE", "1")
    monkeypatch.syspath_prepend("/somewhere")
    monkeypatch.chdir(tmp_path)
    noted = settings.reported_changes(before)
    assert [line.partition(":")[0] for line in noted] == ["working folder", "sys.path", "environment variables"]
    assert {"environment variables: MINE", "sys.path: /somewhere"} <= {*noted}
    assert settings.restore(before) == []
    assert os.environ["MINE"] == "1"
    before = settings.read(never_restored=True)
    for path in (sys.path[::-1], [*sys.path, *sys.path]):
        monkeypatch.setattr(sys, "path", path)
        assert settings.reported_changes(before) == ["sys.path: order or repetitions"]


ELSEWHERE = {
    "deterministic_algorithms": "torch.are_deterministic_algorithms_enabled",
    "float32_matmul_precision": "torch.get_float32_matmul_precision",
    "math_sdp_allow_fp16_bf16_reduction": "torch.backends.cuda",
    "cublas_allow_bf16_reduced_precision_reduction": "torch.backends.cuda.matmul",
    "cublas_allow_fp16_reduced_precision_reduction": "torch.backends.cuda.matmul",
    "cublas_allow_fp16_accumulation": "torch.backends.cuda.matmul",
    "cublas_allow_tf32": "fp32_precision",
    "cudnn_allow_tf32": "fp32_precision",
    "onednn_allow_tf32": "fp32_precision",
}
"""Pairs of a getter and a setter that are read by another name."""

HARMLESS = {
    "autograd_fallback_mode", "backcompat_broadcast_warn", "backcompat_keepdim_warn", "dispatch_mode",
    "dtensor_allow_implicit_replication", "graph_exec_group", "tensor_metadata", "thread_name", "torch_function_state",
    "tracing_state", "value_trace", "warnAlways",
}  # fmt: skip
"""Pairs that change neither numbers nor time: warnings, names, and what belongs to a thread's current context."""


def test_every_pair_of_a_getter_and_a_setter_of_torch_is_known():
    """Fails for a new flag of a new torch: decide whether it must be watched."""
    source = inspect.getsource(watched_settings)
    getters, setters = ({n[5:] for n in dir(C) if n.startswith(f"_{kind}_")} for kind in ("get", "set"))
    watched = {name for name in getters & setters if f'"{name}"' in source}
    assert getters & setters == watched | ELSEWHERE.keys() | HARMLESS


KNOWN_FLAGS = {
    "torch.backends.cudnn": {
        "allow_tf32", "benchmark", "benchmark_limit", "depthwise_kernel", "deterministic", "enabled", "fp32_precision"
    },  # how many kernels a convolution tries, `benchmark_limit`, is a flag of builds for CUDA alone
    "torch.backends.cudnn.rnn": {"fp32_precision"},
    "torch.backends.miopen": {"immediate"},
    "torch.backends.mkldnn": {"allow_tf32", "deterministic", "enabled", "fp32_precision"},
    "torch.backends.cuda": {"enable_cudnn_sdp", "enable_flash_sdp", "enable_math_sdp", "enable_mem_efficient_sdp",
                            "allow_fp16_bf16_reduction_math_sdp"},
    "torch.backends.mha": {"set_fastpath_enabled"},
    "torch.backends.nnpack": {"set_flags"},
    "torch.backends.python_native": {"all_dsls", "available_dsls", "enable_dispatch_keys", "enable_operations"},
}  # fmt: skip


def flags():
    """Yield each module of torch.backends with the properties and functions that set something."""
    for found in pkgutil.walk_packages(backends.__path__, "torch.backends."):
        try:
            module = importlib.import_module(found.name)
        except ImportError:
            continue
        kinds = {n: type(inspect.getattr_static(type(module), n, None)).__name__ for n in dir(type(module))}
        names = {name for name, kind in kinds.items() if kind in ("ContextProp", "property")}
        names |= {name for name in dir(module) if name.startswith(("set_f", "enable_", "allow_fp"))}
        if names:
            yield found.name, names


def test_every_flag_of_torch_backends_is_known():
    assert not {name: new for name, found in flags() if (new := found - KNOWN_FLAGS.get(name, set()))}


def test_settings_of_a_refused_kernel_are_restored():
    def lowers(q, k, v, **_):
        torch.set_float32_matmul_precision("high")
        raise RuntimeError("and then it fails")

    before = settings.read()
    with pytest.raises(RuntimeError, match="and then it fails"), torch.inference_mode():
        check_case(impls.make("lowers", lowers), Case.of(T=16, H=2, D_h=8, scope="core"))
    assert settings.restore(before) == []


@pytest.mark.parametrize(
    ("then", "says"),
    [
        ("def mine(q, k, v, **_): return q", None),
        ("torch.no_such_thing", "can't import sets_at_import: AttributeError: module 'torch' has no attribute"),
        ("other = 1", "module sets_at_import has no attribute 'mine'"),
    ],
)
def test_a_setting_changed_at_import_is_restored(then, says, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sets_at_import", raising=False)
    sets = "import torch\ntorch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
    (tmp_path / "sets_at_import.py").write_text(sets + then)
    before = settings.read()
    with pytest.raises(UsageError, match=says) if says else nullcontext():
        impls_named(["sets_at_import=sets_at_import:mine"], False, str(tmp_path))
    assert settings.restore(before) == []
    printed = "sets_at_import modifies global torch settings when it is imported; they were restored: "
    assert printed + "precision of float32 products" in capsys.readouterr().err


def test_a_change_of_any_code_of_a_kernel_changes_its_hash(tmp_path, monkeypatch):
    """Of another language, in a subfolder, of the arguments of a function that makes the kernel, or imported from elsewhere."""
    for folder in ("inner_parts", "elsewhere"):
        (tmp_path / folder).mkdir()
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    files = {
        "made_here.py": "from inner_parts.makes import make\nmine = make(64)\n",
        "inner_parts/makes.py": "import tuned_kernels\ndef make(block):\n    return lambda q, k, v, **_: v\n",
        "kernel.cu": "\n",
        "elsewhere/tuned_kernels.py": "\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    impls_named(["mine_made=made_here:mine"], False, str(tmp_path))
    impl = impls.get("mine_made+compile")
    hashes = [(sources_hash([impl], []), impl_hash(impl, ""))]
    for name in files:
        (tmp_path / name).write_text(files[name] + "\n")
        hashes.append((sources_hash([impl], []), impl_hash(impl, "")))
    assert [len({*column}) for column in zip(*hashes, strict=True)] == [5, 5]


def test_another_build_of_an_installed_package_is_noticed_by_runs_and_comparisons(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    about = site / "built_kernel-1.dist-info"
    about.mkdir(parents=True)
    (site / "built_kernel.py").write_text("def mine(q, k, v, **_): return v\n")
    (about / "METADATA").write_text("Name: built-kernel\nVersion: 1\n")
    monkeypatch.syspath_prepend(site)
    found = set()
    for build in "ab":
        (about / "RECORD").write_text(
            f"built_kernel.py,,\nlibrary.so,sha256={build},\nbuilt_kernel-1.dist-info/RECORD,,\n"
        )
        with registry_kept():
            impls_named(["mine_built=built_kernel:mine"], False, str(tmp_path))
            sources_hash([impl := impls.get("mine_built")], [])  # reads it again
            found.add((impl_hash(impl, ""), digest_of_own(["mine_built=built_kernel:mine"])))
    assert [len({*hashes}) for hashes in zip(*found, strict=True)] == [2, 2]


def test_two_kernels_of_one_file_have_different_hashes(tmp_path):
    (tmp_path / "two_versions.py").write_text("def one(q, k, v, **_): return v\ndef two(q, k, v, **_): return v\n")
    found = set()
    for attr in ("one", "two"):
        with registry_kept():  # each in a run of its own
            impls_named([f"mine_either=two_versions:{attr}"], False, str(tmp_path))
            found |= {impl_hash(impls.get(name), "") for name in ("mine_either", "mine_either+compile")}
    assert len(found) == 4


def test_a_kernel_that_is_edited_during_a_run_has_the_hash_of_what_is_measured(tmp_path, tasks):
    (tmp_path / "edited_later.py").write_text(text := "def mine(q, k, v, **_): return v\n")
    tasks.cells(["mine_edited=edited_later:mine"], "cpu")
    (tmp_path / "edited_later.py").write_text(text + "\n")
    measured = impl_hash(impl := impls.get("mine_edited"), "")
    sources_hash([impl], [])  # reads it again
    assert measured != impl_hash(impl, "")
