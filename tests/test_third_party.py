"""Kernels of torch and of packages that need a GPU: how they are declared, and that they are called as their documentation
says, on the CPU with the plain formula instead.
"""

import sys
from dataclasses import replace
from importlib.metadata import version
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import impls
from bench.cases.case import Case
from bench.cases.outcome import Wrong
from bench.checks import impl_hash, settings
from bench.checks.module_checks import check_case

NEEDED = {
    "sdpa_fa3": "flash_attn_interface",
    "sdpa_fa4": "flash_attn.cute",
    "flash_attn_4": "flash_attn.cute",
    "flashinfer": "flashinfer",
    "cudnn_frontend": "cudnn",
}
SMALL = {"T": 16, "H": 4, "H_kv": 2, "D_h": 16, "dtype": "bfloat16"}


def on_cpu(name):
    """Return the implementation with limits that allow the CPU, and without its package."""
    impl = impls.get(name)
    return replace(impl, limits=replace(impl.limits, devices=None, package=None), dispatches=None)


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_package_is_named_with_how_to_install_it(name):
    why = impls.get(name).refusal(Case.of(**SMALL, device="cuda"))
    if why is None:
        pytest.skip("it is installed")
    assert why.startswith(f"{name} needs the package {NEEDED[name]}: ")
    assert impls.get(name).limits.alone


def test_the_version_of_a_module_that_is_called_otherwise_than_its_package():
    assert impl_hash._versioned("yaml") == f"yaml {version('PyYAML')}"
    assert impl_hash._versioned("yaml.loader") == f"yaml.loader {version('PyYAML')}"
    assert impl_hash._versioned("no_such_module") == "no_such_module"


def test_another_version_of_a_needed_package_refuses_a_resumed_run(monkeypatch):
    onnx = [impls.get("onnxruntime")]
    before = impl_hash.sources_hash(onnx, [])
    monkeypatch.setattr(impl_hash, "_versioned", "{} 99".format)
    assert impl_hash.sources_hash(onnx, []) != before


# Flash attention of another version


def test_torchs_settings_are_restored(monkeypatch):
    """A fake package registers kernels in torch's own registry; they are removed afterwards."""
    made_up = ModuleType("flash_attn_interface")
    monkeypatch.setitem(sys.modules, "flash_attn_interface", made_up)
    ops = SimpleNamespace(fwd=None, bwd=None)
    monkeypatch.setattr(torch.ops, "flash_attn_3", ops, raising=False)
    before, kernel = settings.read(), impls.get("sdpa_fa3").kernel
    for _ in range(2):
        with kernel.around():
            assert torch._C._get_fa3_sdp_enabled()
            assert torch.nn.attention.current_flash_attention_impl() == "FA3"
        assert settings.restore(before) == []
        assert torch.nn.attention.current_flash_attention_impl() is None


# `varlen_attn`


def by_sequence(
    q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *,
    scale = None, window_size = (-1, -1), enable_gqa = False,
    seqused_k = None, block_table = None,
):  # fmt: skip
    """`varlen_attn` as torch documents it: sequence by sequence, causal masks aligned bottom right, keys read from pages."""
    assert {cu_seq_q.dtype, cu_seq_k.dtype} == {torch.int32}
    assert (max_q, max_k) == (int(cu_seq_q.diff().max()), int(cu_seq_k.diff().max()))
    found = []
    for n in range(len(cu_seq_q) - 1):
        queries = q[cu_seq_q[n] : cu_seq_q[n + 1]].transpose(0, 1)  # (H, T, D)
        if block_table is None:
            keys, values = (x[cu_seq_k[n] : cu_seq_k[n + 1]] for x in (k, v))
        else:
            assert seqused_k is not None and seqused_k.dtype == block_table.dtype == torch.int32
            keys, values = (x[block_table[n]].flatten(0, 1)[: seqused_k[n]] for x in (k, v))
        T, T_kv = queries.shape[1], len(keys)
        visible = torch.ones(T, T_kv, dtype=torch.bool)
        visible = visible.tril(T_kv - T) if window_size == (-1, 0) else visible
        o = scaled_dot_product_attention(
            queries, keys.transpose(0, 1), values.transpose(0, 1), attn_mask=visible, scale=scale, enable_gqa=enable_gqa
        )
        found.append(o.transpose(0, 1))
    return torch.cat(found)


def top_left(*inputs, window_size, **options):
    """`by_sequence` without the mask."""
    return by_sequence(*inputs, **options)


VARLEN = {
    "varlen_requests": Case.of(
        T=6, T_kv=11, H=4, H_kv=2, D_h=16, dtype="bfloat16", mask="causal_br", source="cross", scope="core",
        requests="1x3:3+1x2:5+1x1:3",
    ),
    "varlen": Case.of(T=23, B=2, H=4, H_kv=2, D_h=16, dtype="bfloat16", documents="lognormal"),
    "varlen_paged": Case.of(
        T=3, T_kv=300, B=2, H=4, H_kv=2, D_h=16, dtype="bfloat16", mode="decode", mask="causal_br", page=256
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VARLEN)
def test_varlen_attn_is_called_as_it_documents(name, monkeypatch):
    import torch.nn.attention.varlen as module

    monkeypatch.setattr(module, "varlen_attn", by_sequence)
    check_case(on_cpu(name), VARLEN[name])
    monkeypatch.setattr(module, "varlen_attn", top_left)
    with pytest.raises(Wrong):
        check_case(on_cpu(name), VARLEN[name])


# Packages


def test_flash_attn_4_and_flashinfer_are_given_their_layout(monkeypatch):
    def dense(q, k, v, softmax_scale, causal):
        o = scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal, scale=softmax_scale, enable_gqa=True
        )
        return o.transpose(1, 2), None

    class Ragged:
        def __init__(self, workspace, layout):
            assert (workspace.dtype, layout) == (torch.uint8, "NHD")

        def plan(self, first, last, H, H_kv, D, *, causal, sm_scale,
                 q_data_type):  # fmt: skip
            self.ends, self.causal, self.scale = (first, last), causal, sm_scale

        def run(self, q, k, v):
            longest = (int(it.diff().max()) for it in self.ends)
            window = (-1, 0 if self.causal else -1)
            return by_sequence(q, k, v, *self.ends, *longest, scale=self.scale, window_size=window, enable_gqa=True)

    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", SimpleNamespace(flash_attn_func=dense))
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(BatchPrefillWithRaggedKVCacheWrapper=Ragged))
    for axes in ({"B": 2}, {"mask": "none", "T_kv": 24, "source": "cross", "scope": "core"}):
        check_case(on_cpu("flash_attn_4"), Case.of(**SMALL | axes))
        check_case(on_cpu("flashinfer"), Case.of(**SMALL | axes))
