"""What an implementation sets for all of torch is told, and is put back before the next one is measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import impls
from bench import settings
from bench.choice import Mistake, impls_named
from bench.gate import check
from bench.outcome import Wrong
from bench.sweep import Case

CHANGES: dict[str, Callable[[], object]] = {
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "recording of gradients": lambda: torch.set_grad_enabled(False),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "precision of float32 products": lambda: torch.set_float32_matmul_precision("medium"),
    "precision of float32": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "precision of float32 products on CUDA": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "precision of float32 products on the CPU": lambda: setattr(
        torch.backends.mkldnn.matmul,
        "fp32_precision",
        "bf16",
    ),
    "reduced sums of bfloat16": lambda: setattr(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False
    ),
    "reduced sums of float16": lambda: setattr(
        torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False
    ),
    "reduced sums of SDPA's formula": lambda: torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True),
    "choice of SDPA's flash kernel": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "choice of SDPA's efficient kernel": lambda: torch.backends.cuda.enable_mem_efficient_sdp(False),
    "choice of SDPA's cuDNN kernel": lambda: torch.backends.cuda.enable_cudnn_sdp(False),
    "choice of SDPA's formula": lambda: torch.backends.cuda.enable_math_sdp(False),
}


def test_every_setting_is_tried() -> None:
    assert list(CHANGES) == list(settings.SETTINGS)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_told_and_put_back(name: str) -> None:
    before = settings.read()
    CHANGES[name]()
    assert any(change.startswith(f"{name}: ") for change in settings.put_back(before))
    assert settings.put_back(before) == []
    assert torch.get_float32_matmul_precision() == "highest"  # raises where older and newer means are mixed
    assert torch.zeros(1).device.type == "cpu"


def test_the_precision_that_was_there_is_no_change() -> None:
    before = settings.read()
    torch.set_float32_matmul_precision("highest")  # which writes `ieee` where nothing was written
    assert settings.put_back(before) == []


def test_what_a_refused_kernel_set_is_gone() -> None:
    def lowers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: object) -> torch.Tensor:
        torch.set_float32_matmul_precision("high")
        raise RuntimeError("and then it fails")

    before = settings.read()
    with pytest.raises(RuntimeError, match="and then it fails"), torch.inference_mode():
        check(impls.make("lowers", lowers), Case.of(T=16, H=2, D_h=8, scope="core"))
    assert settings.put_back(before) == []
    with pytest.raises(Wrong, match=r"default dtype: torch\.float32 → torch\.float64"), torch.inference_mode():
        check(impls.make("wide", _wide), Case.of(T=16, H=2, D_h=8, scope="core"))
    assert settings.put_back(before) == []


def _wide(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool, **_: object) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


@pytest.mark.parametrize(
    ("then", "says"),
    [
        ("def mine(q, k, v, **_): return q", None),
        ("torch.no_such_thing", "can't import sets_at_import: AttributeError: module 'torch' has no attribute"),
        ("other = 1", "module sets_at_import has no attribute 'mine'"),
    ],
)
def test_what_a_module_sets_when_it_is_imported_is_put_back(
    then: str, says: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sets_at_import", raising=False)
    sets = "import torch\ntorch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
    (tmp_path / "sets_at_import.py").write_text(sets + then)
    before = settings.read()
    with pytest.raises(Mistake, match=says) if says else nullcontext():
        impls_named(["sets_at_import=sets_at_import:mine"], False, str(tmp_path))
    assert settings.put_back(before) == []
    told = "sets_at_import changes torch's own settings when it is imported; they are everybody's, and were put back: "
    assert told + "precision of float32 products" in capsys.readouterr().err
