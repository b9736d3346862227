"""Every global setting of torch and of the process that is watched, and how it is read and restored."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, overrides
from torch.autograd import set_detect_anomaly
from torch.backends import cuda, mha, opt_einsum
from torch.nn import functional
from torch.nn.modules import module as modules
from torch.utils import _python_dispatch
from torch.utils._config_module import _UNSET_SENTINEL


@dataclass(frozen=True)
class Setting:
    """Getter, setter and policy for one global setting."""

    get: Callable[[], Any]
    put: Callable[[Any], Any] | None
    """None for what is never restored."""
    cheap: bool = True
    """Whether reading it takes microseconds only, so that it can be read at every round."""
    on_change: str = "refused"
    """`refused`; `reported`, where a change is allowed and kept; `restored`, where it is undone silently."""


class Names(dict[str, Any]):
    """Values by name; names that are added later are no change."""

    def changed_to(self, now: Names) -> dict[str, Any]:
        """Return the names that changed value or were removed."""
        gone = object()
        return {name: it for name, it in self.items() if (new := now.get(name, gone)) is not it and new != it}


class Options(Names):
    """Values by name; names that are added are a change, too."""

    def changed_to(self, now: Names) -> dict[str, Any]:
        return super().changed_to(now) | {name: it for name, it in now.items() if name not in self}


class Folders(tuple[str, ...]):
    """Folders in the order in which they are searched."""

    def changed_to(self, now: Folders) -> set[str]:
        return {*self} ^ {*now} or {"order or repetitions"}


class Seeds(Names):
    """Seeds of torch's generators by device. Drawing is no change, and a GPU's generators exist only after its first use."""

    states: list[tuple[torch.Generator, Tensor]]


def _attribute(of: Any, name: str) -> Setting:
    return Setting(partial(getattr, of, name), partial(setattr, of, name))


def _pair(getter: str, setter: str) -> Setting | None:
    """Build a setting from a getter and a setter of torch's C module; None if this version lacks them."""
    get, put = getattr(torch._C, f"_get_{getter}", None), getattr(torch._C, f"_set_{setter}", None)
    return Setting(get, put) if get and put else None


def _fp32(backend: str, op: str) -> Setting:
    return Setting(
        partial(torch._C._get_fp32_precision_getter, backend, op),
        partial(torch._C._set_fp32_precision_setter, backend, op),
    )


def _methods() -> Names:
    """Return the methods and properties of tensors, inherited ones included."""
    found = Names()
    for owner in reversed(torch.Tensor.__mro__):
        found.update(vars(owner))
    return found


def _put_methods(methods: Names) -> None:
    for name, method in methods.changed_to(_methods()).items():
        if name in vars(torch.Tensor):
            delattr(torch.Tensor, name)
        if _methods().get(name) is not method:
            setattr(torch.Tensor, name, method)


def _folders() -> Folders:
    """Return the folders of modules, less the one that setuptools adds when torch's C++ extensions import it."""
    return Folders(it for it in sys.path if not it.endswith(os.path.join("setuptools", "_vendor")))


def _variables() -> Options:
    """Return the environment variables, less the one that torch sets at its first `torch.compile`."""
    return Options({name: it for name, it in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"})


COMPILER = ("torch.compiler.config", "torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")
"""Modules of the options of `torch.compile`."""


def _options() -> Options:
    """Return the options of `torch.compile`; none of modules that aren't imported, which takes seconds."""
    found = Options()
    for module in COMPILER:
        for name, entry in getattr(sys.modules.get(module), "_config", {}).items():
            value = entry.user_override
            value = value.get() if isinstance(value, ContextVar) else value  # from torch 2.13 on
            if value is not _UNSET_SENTINEL and value != entry.default:
                found[f"{module}.{name}"] = copy(value)
    found.pop("torch._inductor.config.deterministic", None)  # which torch.use_deterministic_algorithms sets
    for limit in ("recompile_limit", "accumulated_recompile_limit"):  # which `module_of` sets
        found.pop(f"torch._dynamo.config.{limit}", None)
    return found


def _put_options(before: Options) -> None:
    for path in before.changed_to(_options()):
        module = next(name for name in COMPILER if path.startswith(f"{name}."))
        config, name = sys.modules[module], path.removeprefix(f"{module}.")
        setattr(config, name, before[path] if path in before else deepcopy(config._config[name].default))


METHODS = {"Module.__call__": (nn.Module, "__call__")} | {
    f"{name}.forward": (it, "forward")
    for name, it in vars(nn).items()
    if isinstance(it, type) and "forward" in vars(it)
}
"""Methods by which torch's modules compute, and their classes. The compiler replaces others of `nn.Module`."""


def _methods_of_modules() -> Names:
    return Names({name: getattr(owner, method) for name, (owner, method) in METHODS.items()})


def _put_methods_of_modules(methods: Names) -> None:
    for name, method in methods.changed_to(_methods_of_modules()).items():
        owner, attribute = METHODS[name]
        setattr(owner, attribute, method)


def _put_filters(filters: tuple[Any, ...]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]  # a list, whatever its type says


def _names(module: ModuleType, but: str = "") -> Setting:
    """Build a setting from a module's attributes, `but` one."""

    def get() -> Names:
        found = Names(vars(module))
        found.pop(but, None)
        return found

    return Setting(get, vars(module).update, cheap=False)


def _open(depth: Callable[[], int], close: Callable[[], object]) -> Setting:
    """Build a setting from the number of contexts that are open, and what closes the latest one."""

    def put(before: int) -> None:
        while depth() > before:
            close()

    return Setting(depth, put)


def _hooks_of_saved() -> int:
    """Return 1 if hooks pack the tensors that autograd saves, whatever their number, which torch doesn't tell."""
    return int(torch._C._autograd._top_saved_tensors_default_hooks(True) is not None)


HOOKS = tuple(name for name, it in vars(modules).items() if name.startswith("_global_") and isinstance(it, dict))
"""Names of the hooks that every module calls."""


def _hooks_of_modules() -> Names:
    return Names((name, {**getattr(modules, name)}) for name in HOOKS)


def _put_hooks_of_modules(before: Names) -> None:
    for name, hooks in before.items():
        registered = getattr(modules, name)
        registered.clear()
        registered.update(hooks)


_held: list[Any] = []
"""Guards that end an inference mode which was left open: they act as long as they exist."""


def _set_inference_mode(on: bool) -> None:
    recorded = torch.is_grad_enabled()
    _held.append(torch._C._InferenceMode(on))
    _held[-1].__enter__()
    torch.set_grad_enabled(recorded)  # which the guard changes, too


def _kernels() -> Options:
    """Return the kernels of torch's own operators, on the CPU and on CUDA, that Python code has registered:
    `aten/_softmax/CPU`.
    """
    return _kernels_among(frozenset(torch.library._impls))


@lru_cache(maxsize=1)
def _kernels_among(known: frozenset[str]) -> Options:
    return Options((it, True) for it in known if it.startswith("aten/") and it.endswith(("/CPU", "/CUDA")))


def _withdraw(before: Options) -> None:
    """Destroy the libraries that have registered kernels since."""
    added = before.changed_to(_kernels()).keys()
    for it in gc.get_objects():
        if type(it) is torch.library.Library and it._op_impls & added:
            it._destroy()


def _autocast(device: str) -> dict[str, Setting]:
    return {
        f"autocast on {device}": Setting(
            partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device)
        ),
        f"autocast's dtype on {device}": Setting(
            partial(torch.get_autocast_dtype, device), partial(torch.set_autocast_dtype, device)
        ),
    }


def _depth() -> int:
    """Return how many contexts of autocast are open."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _set_depth(depth: int) -> None:
    change = torch.autocast_decrement_nesting if _depth() > depth else torch.autocast_increment_nesting
    while _depth() != depth:
        change()
    torch.clear_autocast_cache()  # as the last context does when it closes


def _precision() -> str | None:
    """Return the precision of float32 products; None if set by the newer API, which the older one can't represent."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _set_precision(precision: str | None) -> None:
    if precision:
        torch.set_float32_matmul_precision(precision)


def _seeds() -> Seeds:
    devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    generators = (torch.default_generator, *devices)
    found = Seeds((str(it.device), it.initial_seed()) for it in generators)
    found.states = [(it, it.get_state()) for it in generators]
    return found


def _set_seeds(before: Seeds) -> None:
    for generator, state in before.states:
        generator.set_state(state)


def _denormals() -> bool:
    """Whether denormal numbers are kept, found by adding two of them, since torch has no getter."""
    return sum([5e-324, 5e-324]) != 0.0


def _anomalies() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _rounds_to_nearest() -> bool:
    """Whether sums are rounded to nearest, found by adding: `fegetround` of x86 reads the mode of x87 alone."""
    return sum([1.0, 1e-20]) == 1.0 == sum([1.0, -1e-20])


_LIBC: Any = ctypes.CDLL(None)

_KNOWN: dict[str, Setting | str | None] = {
    "number of threads": Setting(torch.get_num_threads, torch.set_num_threads),
    "CPUs that may be used": Setting(partial(os.sched_getaffinity, 0), partial(os.sched_setaffinity, 0))
    if hasattr(os, "sched_setaffinity")
    else None,  # on Linux alone
    "default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype),
    "default device": Setting(torch.get_default_device, lambda device: torch.set_default_device(None)),  # as initially
    "recording of gradients": Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    "inference mode": Setting(torch.is_inference_mode_enabled, _set_inference_mode),
    "hooks of saved tensors": _open(_hooks_of_saved, torch._C._autograd._pop_saved_tensors_default_hooks),
    "hooks of all modules": Setting(_hooks_of_modules, _put_hooks_of_modules),
    "open modes of torch's functions": _open(torch._C._len_torch_function_stack, overrides._pop_mode),
    "open modes of torch's dispatcher": _open(torch._C._len_torch_dispatch_stack, _python_dispatch._pop_mode),
    "detection of anomalies": Setting(_anomalies, lambda both: set_detect_anomaly(*both)),
    "threads of the backward": Setting(torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled),
    "deterministic algorithms": Setting(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "filling of uninitialised memory": "deterministic_fill_uninitialized_memory",
    "denormal numbers": Setting(_denormals, lambda kept: torch.set_flush_denormal(not kept)),
    "rounding to nearest": Setting(_rounds_to_nearest, lambda _: _LIBC.fesetround(0))
    if hasattr(_LIBC, "fesetround")
    else None,
    "precision of float32 products": Setting(_precision, _set_precision),  # first: it changes the next ones
    "precision of float32": _fp32("generic", "all"),
    "precision of float32 products on CUDA": _fp32("cuda", "matmul"),
    "precision of float32 in cuDNN": _fp32("cuda", "all"),
    "precision of float32 convolutions in cuDNN": _fp32("cuda", "conv"),
    "precision of float32 recurrences in cuDNN": _fp32("cuda", "rnn"),
    "precision of float32 in oneDNN": _fp32("mkldnn", "all"),
    "precision of float32 products on the CPU": _fp32("mkldnn", "matmul"),
    "precision of float32 convolutions on the CPU": _fp32("mkldnn", "conv"),
    "precision of float32 recurrences on the CPU": _fp32("mkldnn", "rnn"),
    "reduced sums of bfloat16": _attribute(cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    "reduced sums of float16": _attribute(cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    "float16 sums of products": _attribute(cuda.matmul, "allow_fp16_accumulation"),
    "reduced sums of float16 on the CPU": "cpu_allow_fp16_reduced_precision_reduction",
    "reduced sums of SDPA's formula": Setting(
        cuda.fp16_bf16_reduction_math_sdp_allowed,
        cuda.allow_fp16_bf16_reduction_math_sdp,
    ),
    "choice of SDPA's flash kernel": Setting(cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    "choice of SDPA's third flash kernel": _pair("fa3_sdp_enabled", "sdp_use_fa3"),
    "choice of SDPA's efficient kernel": Setting(cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    "choice of SDPA's cuDNN kernel": Setting(cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    "choice of SDPA's formula": Setting(cuda.math_sdp_enabled, cuda.enable_math_sdp),
    "choice of SDPA's own kernel of a device": _pair("overrideable_sdp_enabled", "sdp_use_overrideable"),
    "order of SDPA's kernels": "sdp_priority_order",
    "fast path of nn.MultiheadAttention": Setting(
        partial(getattr, mha, "_is_fastpath_enabled"), mha.set_fastpath_enabled
    ),
    "use of oneDNN": "mkldnn_enabled",
    "deterministic oneDNN": "mkldnn_deterministic",
    "use of NNPACK": "nnpack_enabled",
    "use of cuDNN": "cudnn_enabled",
    "benchmarking by cuDNN": "cudnn_benchmark",
    "deterministic cuDNN": "cudnn_deterministic",
    "depthwise kernel of cuDNN": "cudnn_depthwise_kernel",
    "immediate mode of MIOpen": "miopen_immediate",
    "library of products on CUDA": "blas_preferred_backend",
    "library of linear algebra on CUDA": "linalg_preferred_backend",
    "library of grouped products on CUDA": "cublaslt_prefer_grouped_gemm",
    "library of SDPA on ROCm": "rocm_fa_preferred_backend",
    "multiprocessors left free": "sm_carveout_experimental",
    "engine of quantised operators": "qengine",
    "optimisation of TorchScript": "graph_executor_optimize",
    "options of torch.compile": Setting(_options, _put_options, cheap=False),
    "optimised einsum": _attribute(opt_einsum, "enabled"),
    "strategy of optimised einsum": _attribute(opt_einsum, "strategy"),
    **_autocast("cpu"),
    **_autocast("cuda"),
    "autocast's cache": Setting(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    "open contexts of autocast": Setting(_depth, _set_depth),
    "garbage collection": Setting(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "thresholds of garbage collection": Setting(gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    "torch's profiler": _open(torch._C._autograd._profiler_enabled, torch._C._autograd._disable_profiler),
    "profiling of Python code": Setting(sys.getprofile, sys.setprofile),
    "tracing of Python code": Setting(sys.gettrace, sys.settrace),
    "thread switch interval": Setting(sys.getswitchinterval, sys.setswitchinterval),
    "seed of torch's random numbers": Setting(_seeds, _set_seeds, cheap=False),
    "names of torch": _names(torch, but="manual_seed"),  # which the compiler wraps
    "names of torch.nn.functional": _names(functional),
    "names of torch.autograd": _names(torch.autograd),
    "names of torch.linalg": _names(torch.linalg),
    "names of time": _names(time),
    "methods of torch.Tensor": Setting(_methods, _put_methods, cheap=False),
    "methods of torch.nn's modules": Setting(_methods_of_modules, _put_methods_of_modules, cheap=False),
    "replaced operators of torch": Setting(_kernels, _withdraw, cheap=False),
    "NumPy's handling of errors": Setting(np.geterr, lambda how: np.seterr(**how)),
    "filters of warnings": Setting(lambda: tuple(warnings.filters), _put_filters, cheap=False, on_change="restored"),
    "state of Python's random numbers": Setting(random.getstate, random.setstate, cheap=False, on_change="restored"),
    "state of NumPy's random numbers": Setting(
        np.random.get_state, np.random.set_state, cheap=False, on_change="restored"
    ),
    "working folder": Setting(os.getcwd, os.chdir, on_change="reported"),
    "sys.path": Setting(_folders, None, on_change="reported"),
    "environment variables": Setting(_variables, None, cheap=False, on_change="reported"),
}
"""Every setting by name, those with a getter and a setter of one name in torch's C module by that name; None for what this
version or platform lacks.
"""

SETTINGS = {
    name: it for name, known in _KNOWN.items() if (it := _pair(known, known) if isinstance(known, str) else known)
}
