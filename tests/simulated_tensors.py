"""Tensors that are said to be on a GPU, with numbers on the CPU: operators refuse to mix them with others, as on a GPU."""

from contextlib import contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

ATEN = torch.ops.aten
BOTH = {ATEN.copy_.default, ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default}
"""Operators that take tensors of both devices."""

NUMBERS = {ATEN.where.self, ATEN.fill_.Tensor}
"""Those that are called with a number on the CPU; most others would take one, too, but not all (`torch.gcd`)."""


class OnGpu(Tensor):
    """A tensor whose numbers are `held` by another one."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: torch.device("cuda:0"))

    @staticmethod
    def __new__(cls, held):
        made = Tensor._make_wrapper_subclass(
            cls, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype, device="cpu"
        )
        made.held = held.detach()
        return made

    def cpu(self):
        return self.held

    def tolist(self):
        return self.held.tolist()

    def untyped_storage(self):
        return self.held.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return computed(operator, args, kwargs or {})


def computed(operator, args, kwargs):
    """Return what an operator computes: on the GPU if one of its tensors is there."""
    given = [x for x in tree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    others = [x for x in given if not isinstance(x, OnGpu)]
    numbers = operator in NUMBERS and all(x.dim() == 0 for x in others)
    args_of, kwargs_of = tree.tree_map(lambda x: x.held if isinstance(x, OnGpu) else x, (args, kwargs))
    if "device" in kwargs:
        kwargs_of["device"] = "cpu"
    if len(others) == len(given):
        return operator(*args_of, **kwargs_of)
    if others and not (numbers or operator in BOTH):
        raise RuntimeError(f"Expected all tensors to be on the same device: {operator}")
    found = tree.tree_map(moved, operator(*args_of, **kwargs_of))
    return return_and_correct_aliasing(operator, args, kwargs, found)


def moved(x):
    return OnGpu(x) if isinstance(x, Tensor) and not isinstance(x, OnGpu) else x


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return computed(operator, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Makes and moves tensors where a function names the device."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is Tensor.to:
            return self.to(*args, **kwargs)
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
            with torch.inference_mode(False):
                return moved(function(*args, **kwargs))
        return function(*args, **kwargs)

    @staticmethod
    def to(x, *wanted, **named):
        wanted = [*wanted, *named.values()]
        wanted += [of for it in wanted if isinstance(it, Tensor) for of in (it.device, it.dtype)]
        dtype = next((it for it in wanted if isinstance(it, torch.dtype)), x.dtype)
        device = next((torch.device(it) for it in wanted if isinstance(it, str | torch.device)), x.device)
        cast = x if x.dtype == dtype else x.type(dtype)
        if device.type == cast.device.type:
            return cast
        return OnGpu(cast.detach().clone()) if device.type == "cuda" else cast.cpu()


@contextmanager
def on_a_simulated_gpu():
    """Context in which "cuda" is a device of `OnGpu` tensors."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with _Functions(), _Operators():
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
