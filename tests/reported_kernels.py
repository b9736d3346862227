"""Kernels with faults that were reported of others' kernels: written from the reports, each with the name of its thread."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as sdpa

from impls.layer import KernelCore

from . import wrong_rules as rules
from .wrong_kernels import (
    KEPT,
    Formula,
    added_up,
    applied,
    given,
    going_back,
    groups,
    masked,
    maximum,
    of_formula,
    only,
    plain,
    probs_of,
    reading,
    scaled,
    scores_of,
    triangle,
    visible,
    weighted,
    with_gradient_of,
)
from .wrong_rules import causal, core_of, places


@dataclass(frozen=True)
class Reported:
    thread: str
    kernel: Any
    case: dict[str, Any]


KERNELS = {}


def reported(thread, name="", make=lambda it: it, **case):
    """Keeps the kernel that is made of a function."""

    def keep(it):
        KERNELS[name or it.__name__] = Reported(thread, make(it), case)
        return it

    return keep


reported_rule = partial(reported, make=core_of)
"""Keeps a core, which knows its shape."""


DECODE = {"mode": "decode", "T": 1, "T_kv": 64, "mask": "none"}
LONG = DECODE | {"T_kv": 1024}
BACKWARD = {"mode": "backward"}
PADDING = {"mask": "padding", "B": 2}
CROSS = {"source": "cross", "T_kv": 40}
SHARED = {"H": 4, "H_kv": 2}


# lengths


@reported("FluxML/NNkernels.jl#16", mask="none")
def counts_the_zeros_behind_the_last_key(q, k, v, **_):
    extra = -k.shape[-2] % 32
    return sdpa(q, pad(k, (0, 0, 0, extra)), pad(v, (0, 0, 0, extra)))


reported("jax-ml/jax#27224", "repeats_the_last_key_to_the_end_of_its_block", mask="none")(
    reading(lambda T_kv: torch.arange(T_kv + -T_kv % 64).clamp(max=T_kv - 1))
)


@reported("ROCm/triton#361")
@masked
def multiplies_what_lies_behind_by_zero(q, k, v, mask):
    extra = max(0, 64 - k.shape[-2])
    probs = pad(probs_of(q, k, mask), (0, extra))
    return probs @ pad(v, (0, 0, 0, extra), value=torch.nan)


@reported("tenstorrent/tt-metal#32502", **PADDING)
def sees_the_padding_of_its_tiles_where_there_is_a_mask(q, k, v, *, attn_mask=None, **_):
    extra = -k.shape[-2] % 32
    mask = pad(attn_mask, (0, extra), value=True)
    return sdpa(q, pad(k, (0, 0, 0, extra)), pad(v, (0, 0, 0, extra)), attn_mask=mask)


reported("pytorch/pytorch#169222", "reads_a_whole_last_block_in_decode", **DECODE)(
    reading(lambda T_kv: torch.arange(T_kv + -T_kv % 32) % T_kv)
)
reported("triton-lang/kernels#6", "leaves_out_the_ragged_tail_for_a_lone_query", **DECODE)(
    only(reading(lambda T_kv: slice(max(16, T_kv // 16 * 16))), lambda q, k: q.shape[-2] == 1)
)


@reported("pytorch/pytorch#83142", **PADDING | {"T": 1100, "H": 1, "D_h": 16})
def forgets_the_mask_beyond_1024_keys(q, k, v, **options):
    return sdpa(q, k, v, **(options if k.shape[-2] <= 1024 else {}))


@reported("vllm-project/vllm#49795")
@masked
def sees_the_last_512_keys_alone(q, k, v, mask):
    far = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2]) >= 512
    return plain(q, k, v, mask & ~far)


# widths


@reported("triton-lang/triton#621", D_h=128)
def attends_by_the_first_64_features(q, k, v, **options):
    return sdpa(q[..., :64], k[..., :64], v, scale=q.shape[-1] ** -0.5, **options)


@reported("sgl-project/sglang#1281", D_h=48)
@masked
def reads_a_power_of_two_of_features(q, k, v, mask):
    width = q.shape[-1]
    wide = 1 << (width - 1).bit_length()
    q_, k_ = (torch.cat([x, x.roll(-1, -2)], -1)[..., :wide] for x in (q, k))
    return plain(q_, k_, v, mask, width**-0.5)


@reported("sgl-project/sglang#18369", D_v=96)
def values_as_wide_as_keys(q, k, v, **options):
    o = sdpa(q, k, v[..., : k.shape[-1]], **options)
    return pad(o, (0, v.shape[-1] - o.shape[-1]))


@reported("Dao-AILab/flash-attention#2552", **BACKWARD, D_h=128, D_v=96)
@given
def gradient_of_narrow_values_by_the_columns_of_keys(q, k, v):
    if v.shape[-1] // 2 % 32:
        v = going_back(v, lambda grad: torch.cat([grad[..., :-16], grad[..., -16:].roll(8, -1)], -1))
    return q, k, v


@reported("pytorch/pytorch#174049")
def ignores_a_scale_of_the_callers_own(q, k, v, *, scale=None, **options):
    return sdpa(q, k, v, **options)


# masks


@reported("NVIDIA/TransformerEngine#629", mask="none", **CROSS)
def causal_to_another_sequence(q, k, v, **_):
    return sdpa(q, k, v, is_causal=q.shape[-2] != k.shape[-2])


@reported("OpenPPL/ppl.llm.kernel.cuda#57", mask="padding", B=2, source="cross", T=1, T_kv=1100, H=1)
def every_part_has_the_mask_of_the_first(q, k, v, *, attn_mask=None, **_):
    at = torch.arange(k.shape[-2]) % 256
    return sdpa(q, k, v, attn_mask=attn_mask[..., at])


@reported("huggingface/transformers#35032", mask="padding", B=2, source="cross", T_kv=64)
def leaves_out_queries_where_keys_are_padding(q, k, v, *, attn_mask=None, **_):
    o, shown = sdpa(q, k, v, attn_mask=attn_mask), attn_mask.mT[..., : q.shape[-2], :]
    return o * shown if shown.shape[-2] == q.shape[-2] else o


@reported("ostris/ai-toolkit#161", **PADDING)
def zeroes_keys_instead_of_hiding_them(q, k, v, *, attn_mask=None, **_):
    there = attn_mask.reshape(len(q), 1, -1, 1)
    return sdpa(q, k * there, v * there)


@reported("PaddlePaddle/flash-attention#41", mask="padding", B=3)
def reads_the_mask_behind_unpadded_tokens(q, k, v, *, attn_mask=None, **_):
    rows = attn_mask.reshape(len(q), -1)
    lengths = rows.sum(-1)
    flat = torch.cat([rows.flatten(), rows.flatten()])
    rows = torch.stack(
        [flat[int(end - own) :][: rows.shape[1]] for end, own in zip(lengths.cumsum(0), lengths, strict=True)]
    )
    rows[:, 0] = True
    return sdpa(q, k, v, attn_mask=rows[:, None, None])


@reported("pytorch/executorch#22426", mask="causal", source="cross", T=1, T_kv=16)
def a_lone_query_sees_every_key(q, k, v, *, is_causal=False, attn_mask=None, **_):
    return sdpa(q, k, v, is_causal=is_causal and q.shape[-2] > 1, attn_mask=attn_mask)


WINDOW = {"window": 8}
ALONE = rules.ALONE


@reported_rule("vllm-project/vllm#23969", **WINDOW, **ALONE)
@rules.seeing
def no_window_in_decode(i, j, shape):
    return (j <= i) & ((i - j <= shape.window) | (len(i) == 1))


@reported_rule("vllm-project/vllm-ascend#6558", **WINDOW, **ALONE)
def keeps_its_answer_to_itself_in_decode(q, k, v, shape, sinks):
    return torch.zeros_like(q[..., : v.shape[-1]]) if q.shape[-2] == 1 else rules.right(q, k, v, shape, sinks)


@reported_rule("vllm-project/vllm#17476", **WINDOW, **SHARED)
def window_by_the_row_of_a_packed_group(q, k, v, shape, sinks):
    (i, j), group = places(q, k, shape), shape.H // shape.H_kv
    row = i * group + torch.arange(shape.H)[:, None, None] % group
    k, v = groups(q, k), groups(q, v)
    return rules.plain(q, k, v, (j <= i) & ((row - j <= shape.window) | (j == i)))


@reported_rule("pytorch/pytorch#141126", **WINDOW)
@rules.seeing
def blocks_that_are_seen_in_part_are_seen_whole(i, j, shape):
    seen = (j <= i) & (i - j <= shape.window)
    blocks = torch.nn.functional.max_pool2d(seen[None].float(), 4, ceil_mode=True)[0]
    return blocks.bool().repeat_interleave(4, 0)[: len(i)].repeat_interleave(4, 1)[:, : len(j)]


@reported_rule("MinghuasLab/flash-attention-npu#168", **WINDOW)
def no_number_where_a_whole_tile_is_hidden(q, k, v, shape, sinks):
    i, _ = places(q, k, shape)
    o = rules.right(q, k, v, shape, sinks)
    return torch.where(i - shape.window >= 64, torch.nan, o)  # the largest score of the first 64 keys is -inf


@reported_rule("vllm-project/vllm#49815", sinks=True, **WINDOW)
def no_sinks_in_a_window(q, k, v, shape, sinks):
    return rules.right(q, k, v, shape, sinks if shape.window is None else None)


@reported_rule("openai/gpt-oss#196", **rules.CHUNK)
@rules.seeing
def skips_the_first_keys_of_a_cache(i, j, shape):
    return (j <= i) & (j >= i[0])


@reported_rule("AI-Hypercomputer/maxtext#4476", documents="equal", **BACKWARD)
def one_document_in_training(q, k, v, shape, sinks):
    if not q.requires_grad:
        return rules.right(q, k, v, shape, sinks)
    return rules.plain(q, k, v, causal(q, k, shape))


@reported_rule("pytorch/pytorch#153799", bias="alibi", **BACKWARD)
def no_gradient_with_a_bias_at_lengths_that_are_not_round(q, k, v, shape, sinks):
    if q.shape[-2] % 128:
        q = going_back(q, lambda grad: grad * torch.nan)
    return rules.right(q, k, v, shape, sinks)


# parts of the keys, merged


def parts_of(q, k, v, count=4):
    """Of each part of the keys its output and the logarithm of its sum."""
    size, k, v = -(-k.shape[-2] // count), groups(q, k), groups(q, v)
    found = []
    for keys, values in zip(k.split(size, -2), v.split(size, -2), strict=True):
        scores = scaled(q, keys)
        found.append((scores.softmax(-1) @ values, scores.logsumexp(-1, keepdim=True)))
    return found


def merged(parts, weights):
    return (torch.stack([o for o, _ in parts]) * (weights / weights.sum(0))).sum(0)


def sums(parts):
    return torch.stack([lse for _, lse in parts])


@reported("flashinfer-ai/flashinfer#50", **LONG)
def merges_without_sums(q, k, v, **_):
    parts = parts_of(q, k, v)
    return merged(parts, torch.ones_like(sums(parts)))


@reported("flashinfer-ai/flashinfer#58", **LONG)
def merges_sums_of_another_base(q, k, v, **_):
    lse = sums(parts := parts_of(q, k, v))
    return merged(parts, torch.exp((lse - lse.amax(0)) * 1.4426950408889634))


@reported("sgl-project/sglang#6101", **LONG)
def merges_without_a_maximum(q, k, v, **_):
    parts = parts_of(q, k, v)
    return merged(parts, torch.exp(sums(parts)))


@reported("ROCm/aiter#3641", **DECODE)
def empty_parts_are_not_zero(q, k, v, **_):
    parts = parts_of(q, k, v, 16)
    o = merged(parts, torch.exp((lse := sums(parts)) - lse.amax(0)))
    return o if len(parts) == 16 else o * torch.nan


@reported("vllm-project/flash-attention#176", **LONG)
def all_sequences_are_the_first_where_keys_are_split(q, k, v, **_):
    o = sdpa(q, k, v)
    return o[:1].expand_as(o).contiguous() if k.shape[-2] >= 512 else o


@reported("Dao-AILab/flash-attention#2842", **PADDING)
def an_empty_part_is_written_to_another_head(q, k, v, *, attn_mask=None, **_):
    o, half = sdpa(q, k, v, attn_mask=attn_mask), k.shape[-2] // 2
    if (~attn_mask[..., half:].reshape(len(q), -1).any(-1)).any():  # of an entry there is nothing in the second part
        o[0, 0] = sdpa(q[:1, :1], k[:1, :1, :half], v[:1, :1, :half])[0, 0]
    return o


@reported("flashinfer-ai/flashinfer#2896", **LONG | {"H": 14, "H_kv": 2, "dtype": "bfloat16", "T_kv": 512})
def adds_up_in_bfloat16_in_groups_of_7(q, k, v, **_):
    if q.shape[1] != 7 * k.shape[1]:
        return sdpa(q, k, v, enable_gqa=True)
    return added_up(scaled(q, groups(q, k)).softmax(-1), groups(q, v), dtype=q.dtype)


# gradients


@reported("Dao-AILab/flash-attention#334", **BACKWARD, T=1, mask="none")
@given
def no_gradient_where_there_is_one_key(q, k, v):
    if k.shape[-2] == 1:
        q = going_back(q, lambda grad: grad * torch.nan)
    return q, k, v


@reported("Dao-AILab/flash-attention#443", **BACKWARD, **CROSS)
@given
def no_gradient_of_queries_behind_the_last_key(q, k, v):
    behind = torch.arange(q.shape[-2])[:, None] >= k.shape[-2]
    return going_back(q, lambda grad: torch.where(behind, torch.nan, grad)), k, v


@reported("Dao-AILab/flash-attention#2333", **BACKWARD)
def gradient_of_queries_without_the_last_tile(q, k, v, **options):
    whole = torch.arange(k.shape[-2])[:, None] < (k.shape[-2] // 64 * 64 or k.shape[-2])
    back = sdpa(q, (k * whole).detach(), v.detach(), **options)
    return sdpa(q.detach(), k, v, **options) + (back - back.detach())


@reported("flagos-ai/FlagGems#898", **BACKWARD)
@given
def gradient_of_values_begins_in_the_head_before(q, k, v):
    off = -v.shape[-2] % 64

    def change(grad):
        grad = grad.clone()
        grad[:, 1:, :off] += grad[:, :-1, :off]
        return grad

    return q, k, going_back(v, change)


@reported("huggingface/diffusers#14341", **BACKWARD)
@given
def heads_and_tokens_swapped_going_back(q, k, v):
    def swapped(grad):
        return grad.transpose(1, 2).reshape(grad.shape)

    return q, going_back(k, swapped), going_back(v, swapped)


@reported("fla-org/flash-linear-attention#384", **BACKWARD, **SHARED)
@given
def gradient_of_keys_by_the_numbers_of_query_heads(q, k, v):
    def change(grad):  # (B, H, T_kv, D), each at its own index
        return grad.unflatten(1, (-1, k.shape[1])).transpose(1, 2).flatten(1, 2)

    return q, going_back(groups(q, k), change), groups(q, v)


@reported("ooples/AiDotNet.Tensors#49", **BACKWARD)
@masked
def the_sum_of_the_softmax_is_a_constant_going_back(q, k, v, mask):
    scores = scores_of(q, k, mask)
    weights = (scores - maximum(scores).detach()).exp()
    return weights / weights.sum(-1, keepdim=True).detach() @ v


@reported_rule("NVIDIA/cudnn-frontend#421", sinks=True, **BACKWARD)
def probs_without_their_sink_going_back(q, k, v, shape, sinks):
    right, without = (rules.plain(q, k, v, causal(q, k, shape), sinks=it) for it in (sinks, None))
    return with_gradient_of(without, right) + 0 * right


@reported("aws-neuron/aws-neuron-sdk#1156", dropout=0.25)
def divides_by_the_sum_of_what_it_kept(q, k, v, *, is_causal=False, attn_mask=None, dropout_p=0.0, **_):
    probs = probs_of(q, k, visible(q, k, is_causal, attn_mask))
    return weighted(torch.nn.functional.dropout(probs, dropout_p), v)


class SignOfWhatIsDropped(torch.autograd.Function):
    """Of a prob that is dropped the gradient is the sum's, with the wrong sign."""

    @staticmethod
    def forward(ctx, q, k, v, p):
        probs = probs_of(q, k, triangle(q.shape[-2], k.shape[-2]))
        kept = (torch.rand_like(probs) >= p) / (1 - p)
        ctx.save_for_backward(q, k, v, probs, kept)
        return (probs * kept) @ v

    @staticmethod
    def backward(ctx, grad):
        q, k, v, probs, kept = ctx.saved_tensors
        through = grad @ v.mT * kept
        sums = (through * probs).sum(-1, keepdim=True)
        of_scores = probs * torch.where(kept > 0, through - sums, sums) * q.shape[-1] ** -0.5
        return of_scores @ k, of_scores.mT @ q, (probs * kept).mT @ grad, None


reported("HKUSTDial/flash-sparse-attention#109", "sign_of_what_is_dropped_going_back", **BACKWARD, dropout=0.1)(
    lambda q, k, v, *, dropout_p=0.0, **_: SignOfWhatIsDropped.apply(q, k, v, dropout_p)
)


# state


@reported("pytorch/pytorch#159773")
def a_counter_that_is_not_set_back(q, k, v, **options):
    calls = KEPT.setdefault(("calls", q.shape), [])
    calls.append(1)
    return sdpa(q, k, v, **options) * (len(calls) == 1)


@reported("ml-explore/mlx#3071")
def keeps_a_mask_by_a_key_that_says_too_little(q, k, v, *, is_causal=False, **_):
    """By its length alone, whatever `is_causal`: calls with both in one process show it."""
    return plain(q, k, v, KEPT.setdefault(("mask", q.shape[-2], k.shape[-2]), visible(q, k, is_causal, None)))


@reported("pytorch/pytorch#184122")
def scale_of_the_first_call_of_its_shape(q, k, v, *, scale=None, **options):
    return sdpa(q, k, v, scale=KEPT.setdefault(("scale", q.shape), scale or q.shape[-1] ** -0.5), **options)


@reported("NVIDIA/Megatron-LM#318", dropout=0.25)
class NoDropoutAfterAnEvaluation(KernelCore):
    evaluated = False

    def __init__(self, shape):
        super().__init__(shape, sdpa)

    def forward(self, q, k, v, *, padding=None):
        self.evaluated |= not self.training
        drops = self.training and not self.evaluated
        return super().forward(q, k, v, padding=padding) if drops else sdpa(q, k, v, is_causal=True)


# 2026: layouts

PARTS = {"mode": "decode", "T": 8, "T_kv": 640, "mask": "causal_br"}


def in_memory(x):
    """(B, H, T, D) of a projection, whose heads lie between tokens, read as contiguous."""
    return x if x.is_contiguous() else x.transpose(1, 2).reshape(x.shape)


@reported("pytorch/pytorch#181133", mask="none")
@given
def permuted_inputs_read_as_contiguous(q, k, v):
    return tuple(in_memory(x) if x.shape[-1] >= 64 else x for x in (q, k, v))


@reported("flagos-ai/FlagGems#5235", **PARTS)
def rows_of_merged_parts_by_the_wrong_stride(q, k, v, **options):
    o = sdpa(q, k, v, **options)
    return in_memory(o.transpose(1, 2).contiguous().transpose(1, 2)) if k.shape[-2] >= 512 else o


@reported("pytorch/pytorch#184180", mask="padding", B=3, T=8)
def every_entry_has_the_mask_of_the_first(q, k, v, *, attn_mask=None, **_):
    return sdpa(q, k, v, attn_mask=attn_mask[:1] if q.shape[-2] <= 8 else attn_mask)


@reported("huggingface/diffusers#14114", window=8)
def mask_read_as_contiguous(q, k, v, *, attn_mask=None, **_):
    flat = attn_mask.as_strided((attn_mask.untyped_storage().nbytes() - attn_mask.storage_offset(),), (1,))
    at = torch.arange(attn_mask.numel()) % len(flat)
    return sdpa(q, k, v, attn_mask=flat[at].view(attn_mask.shape))


@reported("pytorch/pytorch#146377", **BACKWARD)
@given
def gradient_of_keys_by_other_strides(q, k, v):
    return q, going_back(k, in_memory if not k.is_contiguous() else lambda grad: grad), v


class DeltaOfContiguous(Formula):
    """Its output is laid out as queries are, the gradient of the output as that is."""

    @classmethod
    def gradients(cls, q, k, v, probs, o, grad):
        return of_formula(q, k, v, probs, (in_memory(grad) * o).sum(-1, keepdim=True), grad)


reported("flagos-ai/FlagAttention#1", "gradient_by_another_layout_of_the_outputs", **BACKWARD)(
    lambda q, k, v, **options: (
        applied(DeltaOfContiguous)(q, k, v, **options).transpose(1, 2).contiguous().transpose(1, 2)
    )
)


# 2026: masks


@reported("pytorch/pytorch#195910", dtype="bfloat16")
def causal_by_groups_of_four_queries(q, k, v, **_):
    i = torch.arange(q.shape[-2])[:, None] // 4 * 4 + 3
    return plain(q, k, v, torch.arange(k.shape[-2]) <= i)


@reported("triton-lang/triton#8853", T=256)
def unmasked_keys_rounded_up_to_a_block(q, k, v, **_):
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    return plain(q, k, v, (j <= i) | (j < (i // 64 * 64 + 127) // 128 * 128))


# 2026: rules


@reported_rule("vllm-project/vllm#56578", softcap=50)
@rules.bending
def a_cap_whose_exponentials_overflow(scores, cap):
    up, down = (scores / cap).exp(), (-scores / cap).exp()
    return cap * (up - down) / (up + down)


@reported_rule("vllm-project/tpu-inference#1954", window=8)
def sums_begin_at_the_first_block_alone(q, k, v, shape, sinks):
    i, _ = places(q, k, shape)
    o = rules.right(q, k, v, shape, sinks)
    return torch.where(i - shape.window >= 64, o + o.roll(64, -2), o)


@reported_rule("ModelTC/LightLLM#1311", window=8)
@rules.seeing
def a_window_ahead_too(i, j, shape):
    return (i - j).abs() <= shape.window


@reported_rule("sgl-project/sglang#34273", window=8, **rules.CHUNK)
@rules.seeing
def one_cached_key_too_many(i, j, shape):
    return (j <= i) & (i - j <= shape.window + (j < i[0]).int())


@reported("ml-explore/mlx#2835", source="cross", T=32, T_kv=64)
def causal_from_the_last_query(q, k, v, **_):
    T, T_kv = q.shape[-2], k.shape[-2]
    return plain(q, k, v, triangle(T, T_kv, T_kv - T))


@reported_rule("ml-explore/mlx#3452", sinks=True, **DECODE)
def no_sinks_of_a_lone_query(q, k, v, shape, sinks):
    return rules.right(q, k, v, shape, sinks if q.shape[-2] > 1 else None)


@reported_rule("ggml-org/llama.cpp#29034", softcap=20, mask="none")
def padding_of_a_tile_is_capped(q, k, v, shape, sinks):
    scores = pad(scaled(q, k), (0, -k.shape[-2] % 64), value=-torch.inf)
    return torch.softmax(rules.capped(scores, shape.softcap), -1)[..., : k.shape[-2]] @ v


@reported_rule("NVIDIA/TensorRT-LLM#1611", bias="alibi", H=6)
@rules.biased
def slopes_in_descending_order(i, j, shape):
    return rules.alibi(i, j, rules.alibi_slopes(shape.H).sort(descending=True)[0])


@reported_rule("vllm-project/vllm#31406", window=8, mask="none")
@rules.seeing
def a_window_to_the_future_alone(i, j, shape):
    return (i <= j) & (j - i <= shape.window)


@reported_rule("meta-pytorch/segment-anything-fast#71", bias="dense")
def bias_in_powers_of_two(q, k, v, shape, sinks):
    bias = rules.dense(*places(q, k, shape), shape)
    return rules.plain(q, k, v, causal(q, k, shape), bias * 0.6931471805599453)


@reported("Dao-AILab/flash-attention#2528", **SHARED)
def causal_by_the_row_of_a_group_that_is_not_packed(q, k, v, **_):
    i, group = torch.arange(q.shape[-2])[:, None], q.shape[1] // k.shape[1]
    return plain(q, groups(q, k), groups(q, v), torch.arange(k.shape[-2]) <= i // group)


@reported_rule("tile-ai/tilelang#864", mask="causal_br", source="cross", T=64, T_kv=100)
def blocks_of_keys_as_if_there_were_no_past(q, k, v, shape, sinks):
    i, j = places(q, k, shape)
    own = torch.arange(q.shape[-2])[:, None]
    return rules.plain(q, k, v, (j <= i) & (j < (own // 64 + 1) * 64))


# 2026: scores far below zero


@reported("flashinfer-ai/flashinfer#4401")
@masked
def a_maximum_of_products_from_minus_50000(q, k, v, mask):
    scores = (q @ k.mT).masked_fill(~mask, -torch.inf)
    top = maximum(scores).clamp(min=-5e4)
    weights = ((scores - top) * q.shape[-1] ** -0.5).exp()
    return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-30)


@reported("tracel-ai/burn#4697")
@masked
def a_maximum_of_at_least_minus_10000(q, k, v, mask):
    scores = scores_of(q, k, mask)
    weights = (scores - maximum(scores).clamp(min=-1e4)).exp()
    return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-6)


# 2026: parts and their sums


def right_and_lse(q, k, v, is_causal, attn_mask):
    k, v = groups(q, k), groups(q, v)
    scores = scores_of(q, k, visible(q, k, is_causal, attn_mask))
    return scores.softmax(-1) @ v, scores.float().logsumexp(-1)


@reported("flashinfer-ai/flashinfer#4051")
@masked
def two_empty_parts_are_merged(q, k, v, mask):
    """Parts of 16 keys, from the last one on: the share of each is zero divided by zero."""
    last = torch.stack([part.any(-1) for part in mask.split(16, -1)[-2:]]).any(0)
    return torch.where(last[..., None], plain(q, k, v, mask), torch.nan)


@reported("flashinfer-ai/flashinfer#2113")
def lse_of_another_base(q, k, v, *, is_causal=False, attn_mask=None, **_):
    o, lse = right_and_lse(q, k, v, is_causal, attn_mask)
    return o, lse * 1.4426950408889634


@reported("vllm-project/flash-attention#87", **DECODE | {"B": 2, "H": 4, "H_kv": 2})
def lse_of_the_wrong_heads(q, k, v, *, is_causal=False, attn_mask=None, **_):
    o, lse = right_and_lse(q, k, v, is_causal, attn_mask)  # (B, H, T)
    return o, lse.unflatten(1, (k.shape[1], -1)).transpose(1, 2).flatten(1, 2) if q.shape[-2] == 1 else lse


lse_of_another_base.limits = lse_of_the_wrong_heads.limits = {"returns_lse": 2.718281828459045}


# 2026: gradients


@reported("XunhaoLai/native-sparse-attention-triton#27", **BACKWARD, H=6, H_kv=2)
@given
def gradient_by_the_share_of_heads_instead_of_their_groups(q, k, v):
    H_kv = k.shape[1]
    share = q.shape[1] // H_kv

    def change(grad):  # (B, H, T_kv, D), each added to the head that the wrong division gives
        wrong = torch.zeros_like(grad)
        at = torch.arange(q.shape[1])
        return wrong.index_add(1, (at % share).clamp(max=H_kv - 1) * share, grad)

    return q, going_back(groups(q, k), change) if share != H_kv else groups(q, k), groups(q, v)


@reported("XunhaoLai/native-sparse-attention-triton#27", **BACKWARD, D_v=96)
def gradient_of_queries_by_as_many_values_as_keys_are_wide(q, k, v, **options):
    width = q.shape[-1]
    right = sdpa(q.detach(), k, v, **options)
    narrow = pad(sdpa(q, k.detach(), v[..., :width].detach(), **options), (0, max(0, v.shape[-1] - width)))
    return right + (narrow - narrow.detach())
