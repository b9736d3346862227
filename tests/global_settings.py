"""Changes of each global setting that the checks watch, by the setting's name."""

import ctypes
import gc
import importlib
import os
import platform
import sys
import time

import numpy as np
import torch
from torch import Tensor, backends
from torch.nn import functional
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import BaseTorchDispatchMode

C = torch._C


def attribute(of, name, value):
    return lambda: setattr(of, name, value)


def fp32(backend, op, precision):
    return lambda: C._set_fp32_precision_setter(backend, op, precision)


def compiler_option():
    importlib.import_module("torch._inductor.config").max_autotune = True  # which takes a second to import


def round_upwards():
    """Change the mode of SSE alone, as native code does, or that of ARM."""
    libc, environment = ctypes.CDLL(None), (ctypes.c_uint32 * 8)()
    libc.fegetenv(environment)
    if platform.machine() == "x86_64":
        environment[7] |= 0x4000
        assert libc.fesetenv(environment) == 0
    else:
        assert libc.fesetround(0x400000) == 0


KEPT = []


def entering(make):
    """Enter a new context in every call, and leave none."""

    def enter():
        KEPT.append(make())
        KEPT[-1].__enter__()

    return enter


def replace_softmax():
    """As a library does that replaces torch's operators by its own."""
    library = torch.library.Library("aten", "IMPL")
    if "aten/_softmax/CPU" not in torch.library._impls:
        library.impl("_softmax", lambda x, *rest: torch.ops.aten._log_softmax(x, *rest).exp(), "CPU")
        KEPT.append(library)


CHANGES = {
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "CPUs that may be used": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "recording of gradients": lambda: torch.set_grad_enabled(False),
    "inference mode": entering(torch.inference_mode),
    "hooks of saved tensors": entering(lambda: torch.autograd.graph.saved_tensors_hooks(Tensor.clone, Tensor.clone)),
    "hooks of all modules": lambda: torch.nn.modules.module.register_module_forward_hook(lambda *_: None),
    "open modes of torch's functions": entering(BaseTorchFunctionMode),
    "open modes of torch's dispatcher": entering(BaseTorchDispatchMode),
    "detection of anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "threads of the backward": lambda: C._set_multithreading_enabled(False),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "filling of uninitialised memory": attribute(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "denormal numbers": lambda: torch.set_flush_denormal(True),
    "rounding to nearest": round_upwards,
    "precision of float32 products": lambda: torch.set_float32_matmul_precision("medium"),
    "precision of float32": attribute(backends, "fp32_precision", "tf32"),
    "precision of float32 products on CUDA": attribute(backends.cuda.matmul, "fp32_precision", "tf32"),
    "precision of float32 in cuDNN": attribute(backends.cudnn, "fp32_precision", "tf32"),
    "precision of float32 convolutions in cuDNN": attribute(backends.cudnn.conv, "fp32_precision", "ieee"),
    "precision of float32 recurrences in cuDNN": attribute(backends.cudnn.rnn, "fp32_precision", "ieee"),
    "precision of float32 in oneDNN": attribute(backends.mkldnn, "fp32_precision", "bf16"),
    "precision of float32 products on the CPU": attribute(backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "precision of float32 convolutions on the CPU": fp32("mkldnn", "conv", "bf16"),
    "precision of float32 recurrences on the CPU": fp32("mkldnn", "rnn", "bf16"),
    "reduced sums of bfloat16": attribute(backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    "reduced sums of float16": attribute(backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
    "float16 sums of products": attribute(backends.cuda.matmul, "allow_fp16_accumulation", True),
    "reduced sums of float16 on the CPU": lambda: C._set_cpu_allow_fp16_reduced_precision_reduction(True),
    "reduced sums of SDPA's formula": lambda: backends.cuda.allow_fp16_bf16_reduction_math_sdp(True),
    "choice of SDPA's flash kernel": lambda: backends.cuda.enable_flash_sdp(False),
    "choice of SDPA's third flash kernel": lambda: C._set_sdp_use_fa3(True),
    "choice of SDPA's efficient kernel": lambda: backends.cuda.enable_mem_efficient_sdp(False),
    "choice of SDPA's cuDNN kernel": lambda: backends.cuda.enable_cudnn_sdp(False),
    "choice of SDPA's formula": lambda: backends.cuda.enable_math_sdp(False),
    "choice of SDPA's own kernel of a device": lambda: C._set_sdp_use_overrideable(False),
    "order of SDPA's kernels": lambda: C._set_sdp_priority_order([0, 1, 2, 3, 4]),
    "fast path of nn.MultiheadAttention": lambda: backends.mha.set_fastpath_enabled(False),
    "use of oneDNN": attribute(backends.mkldnn, "enabled", False),
    "deterministic oneDNN": attribute(backends.mkldnn, "deterministic", True),
    "use of NNPACK": lambda: backends.nnpack.set_flags(False),
    "use of cuDNN": attribute(backends.cudnn, "enabled", False),
    "benchmarking by cuDNN": attribute(backends.cudnn, "benchmark", True),
    "deterministic cuDNN": attribute(backends.cudnn, "deterministic", True),
    "depthwise kernel of cuDNN": lambda: C._set_cudnn_depthwise_kernel("cudnn"),
    "immediate mode of MIOpen": attribute(backends.miopen, "immediate", True),
    "library of products on CUDA": lambda: backends.cuda.preferred_blas_library("cublaslt"),
    "library of linear algebra on CUDA": lambda: C._set_linalg_preferred_backend(C._LinalgBackend.Cusolver),
    "library of grouped products on CUDA": lambda: C._set_cublaslt_prefer_grouped_gemm(True),
    "library of SDPA on ROCm": lambda: C._set_rocm_fa_preferred_backend(C._ROCmFABackend.AOTriton),
    "multiprocessors left free": lambda: C._set_sm_carveout_experimental(4),
    "engine of quantised operators": lambda: C._set_qengine(min({*C._supported_qengines()} - {C._get_qengine()})),
    "optimisation of TorchScript": lambda: C._set_graph_executor_optimize(False),
    "options of torch.compile": compiler_option,
    "optimised einsum": attribute(backends.opt_einsum, "enabled", not backends.opt_einsum.enabled),
    "strategy of optimised einsum": attribute(backends.opt_einsum, "strategy", "greedy"),
    "autocast on cpu": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast's dtype on cpu": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "autocast on cuda": lambda: torch.set_autocast_enabled("cuda", True),
    "autocast's dtype on cuda": lambda: torch.set_autocast_dtype("cuda", torch.bfloat16),
    "autocast's cache": lambda: torch.set_autocast_cache_enabled(False),
    "open contexts of autocast": torch.autocast_increment_nesting,
    "garbage collection": gc.disable,
    "thresholds of garbage collection": lambda: gc.set_threshold(7),
    "torch's profiler": entering(torch.autograd.profiler.profile),
    "profiling of Python code": lambda: sys.setprofile(lambda *_: None),
    "tracing of Python code": lambda: sys.settrace(lambda *_: None),
    "thread switch interval": lambda: sys.setswitchinterval(1.0),
    "seed of torch's random numbers": lambda: torch.manual_seed(7),
    "names of torch": attribute(torch, "softmax", torch.special.softmax),
    "names of torch.nn.functional": attribute(functional, "softmax", torch.softmax),
    "names of torch.autograd": attribute(torch.autograd, "grad", torch.autograd.backward),
    "names of torch.linalg": attribute(torch.linalg, "vector_norm", torch.linalg.norm),
    "names of time": attribute(time, "perf_counter", time.monotonic),
    "methods of torch.Tensor": attribute(torch.Tensor, "masked_fill", torch.Tensor.where),
    "methods of torch.nn's modules": attribute(torch.nn.Linear, "forward", lambda self, x: x @ self.weight.mT),
    "replaced operators of torch": replace_softmax,
    "NumPy's handling of errors": lambda: np.seterr(all="raise"),
}
