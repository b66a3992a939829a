"""Whether programs of our own may stand for torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from qkv.parts.device import OLDEST
from qkv.parts.spec import depends_on


def unwatched(x: Tensor) -> bool:
    """Whether only the answer matters: neither a compiler nor a mode that counts or pretends asks for an operator.

    Nor does a tracer, or a transform of functions such as `torch.vmap`, whose tensors look like any other.
    """
    return (
        type(x) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
        and not is_in_torch_dispatch_mode()
        and not torch.jit.is_tracing()
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def is_itself(module: nn.Module) -> bool:
    """Whether the forward of a module is what its class says, of nothing but what its class declares: nobody watches,
    replaced or compiled it, and it was given nothing more."""
    own = module.__dict__  # quicker than the attributes: blocks are asked at each pass
    watched = own["_forward_hooks"] or own["_forward_pre_hooks"]
    if watched or "forward" in own or own.get("_compiled_call_impl") is not None:
        return False
    if torch.compiler.is_compiling():
        return True
    says = depends_on(type(module))
    return says is not None and says.undeclared(module) is None


def runs_our_own(x: Tensor) -> bool:
    """Whether x is where programs in Triton run, which is the current device, and nobody watches."""
    return is_served(x) and unwatched(x) and x.device.index == torch.cuda.current_device()


def is_served(x: Tensor) -> bool:
    """Whether x lies on a device that programs of our own were made for."""
    return x.is_cuda and are_for(x.device)


def are_for(device: torch.device) -> bool:
    """Whether they are: GPUs by NVIDIA, of this generation at least. One that is not here is taken for such a one."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return not torch.cuda.is_available() or _generation(device, torch.cuda.get_device_properties) >= OLDEST


are_for._dynamo_marked_constant = True  # type: ignore[attr-defined]  # for compilers: a fact, not to be traced


def is_counted(x: Tensor) -> bool:
    """Whether x is a shape that stands for a tensor on a GPU, in a step whose programs are counted and none is run.

    There are no such tensors but while `train/cost` counts a step.
    """
    return x.is_cuda and not torch.compiler.is_compiling() and getattr(type(x), "counts_programs", False)


def runs_or_counts(x: Tensor) -> bool:
    """Whether programs in Triton run on x, or are counted where they would."""
    return runs_our_own(x) or is_counted(x)


def runs_operators(x: Tensor) -> bool:
    """Whether programs may run, by themselves or inside of operators that a compiler knows and who counts sees."""
    return (x.is_cuda and torch.compiler.is_compiling() and are_for(x.device)) or runs_or_counts(x)


def is_plain(x: Tensor) -> bool:
    """Whether x is a tensor of torch's own, or stands for one, and no other kind that only looks like it."""
    return type(x) in (Tensor, nn.Parameter) or is_counted(x)


def is_plain_parameter(x: Tensor) -> bool:
    return type(x) is nn.Parameter or (is_counted(x) and isinstance(x, nn.Parameter))


def has_copy_engine(device: torch.device) -> bool:
    return _generation(device, torch.cuda.get_device_properties) == 9


has_copy_engine._dynamo_marked_constant = True  # type: ignore[attr-defined]


def may_begin_early(device: torch.device) -> bool:
    """Whether a device lets programs begin before the one before them has ended."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return _generation(device, torch.cuda.get_device_properties) >= 9


@lru_cache(maxsize=64)  # by who is asked, too: for a while it may be someone who pretends
def _generation(device: torch.device, properties: Callable[[torch.device], Any]) -> int:
    found: int = properties(device).major
    return found


def multiprocessors(device: torch.device) -> int:
    """Of a GPU; two, where programs are interpreted without one."""
    return _multiprocessors(device, torch.cuda.get_device_properties) if device.type == "cuda" else 2


multiprocessors._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=64)
def _multiprocessors(device: torch.device, properties: Callable[[torch.device], Any]) -> int:
    found: int = properties(device).multi_processor_count
    return found
