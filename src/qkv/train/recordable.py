"""Which steps can be recorded, which are without being asked for, and why not."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from qkv.errors import QkvError
from qkv.parts.programs import are_for
from qkv.parts.reversible import ReversibleStack
from qkv.train.settings import TrainSettings
from qkv.train.standing import HostAsks

# What a step says that cannot be recorded. What is an error of the plain step too is said again by that.
UNRECORDABLE = (
    HostAsks, QkvError, RuntimeError, TypeError, ValueError, AttributeError, AssertionError, LookupError,
    ArithmeticError, ImportError, OSError,
)  # fmt: skip
VALUES = (bool, int, float, str, type(None))
KNOWN = ("qkv.", "torch.nn.")  # where the code is defined that was looked through for what records cannot follow
ALIEN = ("torch.nn.parallel.",)


def why_plain(
    model: nn.Module,
    objective: Any,
    settings: TrainSettings,
    device: torch.device,
    ranks: int = 1,
    adjusted: bool = False,
) -> str | None:
    """Why steps of a training are not recorded, as far as that is known before the first; None: they are."""
    if settings.record is False:
        return "nobody wants it"
    why_not = reason_against(model, objective, settings, device, ranks, adjusted)
    return why_not if why_not or settings.record else reason_to_doubt(model, objective, settings)


def reason_against(
    model: nn.Module,
    objective: Any,
    settings: TrainSettings,
    device: torch.device,
    ranks: int = 1,
    adjusted: bool = False,
) -> str | None:
    """Why steps of a training cannot be recorded at all."""
    if device.type != "cuda":
        return "there is no GPU"
    if not are_for(device):
        return "the GPU is older than those that records were tried on"
    if ranks > 1:
        return "several ranks train together"
    # Both set the random numbers back on the way back, which a graph being recorded does not allow.
    if settings.recompute:
        return "blocks are computed twice"
    if any(isinstance(module, ReversibleStack) for module in model.modules()):
        return "layers are computed from those after them"
    if adjusted:
        return "numbers of the model change between updates"
    if getattr(objective, "decides_on_host", False):
        return "the objective waits for the device to decide on the host"
    return None


def reason_to_doubt(model: nn.Module, objective: Any, settings: TrainSettings) -> str | None:
    """Why steps are recorded only where somebody asks for it.

    A record repeats what the device did, and nothing of what the host did: code of others may count, change a number
    of its own or look at what passes. And sums may be added in another order than in the plain steps around it.
    """
    if settings.deterministic:
        return "answers must repeat bit for bit"
    for each in parts_of(model, objective):
        kind = each if isinstance(each, FunctionType) else type(each)
        name = f"{kind.__module__}."
        if not name.startswith(KNOWN) or name.startswith(ALIEN):
            return f"{kind.__qualname__} is defined elsewhere"
        if isinstance(each, nn.Module) and any(_hooks_of(each)):
            return f"somebody watches a {kind.__qualname__}"
    if any(map(_watched, model.parameters())):
        return "somebody watches gradients"
    return None


class Watchers:
    """Whether somebody looks on while modules compute, which in a replay they do not."""

    def __init__(self, modules: Iterable[nn.Module], parameters: list[nn.Parameter]) -> None:
        # The very mappings, which are quicker to ask than the modules.
        self._hooks = [hooks for module in modules for hooks in _hooks_of(module)]
        self._parameters = parameters

    def __bool__(self) -> bool:
        if any(self._hooks) or _has_any_global_hook() or any(map(_watched, self._parameters)):
            return True
        return is_in_torch_dispatch_mode() or torch.is_anomaly_enabled()


def _hooks_of(module: nn.Module) -> tuple[Mapping[int, Any], ...]:
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks


def _watched(parameter: nn.Parameter) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def numbers_of(objective: Any, depth: int = 3) -> Hashable:
    """What an objective holds on the host. Where one of these changes, a record of before is not meant."""
    if isinstance(objective, VALUES):
        return type(objective), objective
    if depth == 0 or isinstance(objective, nn.Module | Tensor):
        return None
    if isinstance(objective, list | tuple):
        return tuple(numbers_of(each, depth - 1) for each in objective)
    if isinstance(objective, Mapping):
        return tuple((str(name), numbers_of(value, depth - 1)) for name, value in objective.items())
    return tuple((name, numbers_of(value, depth - 1)) for name, value in getattr(objective, "__dict__", {}).items())


def parts_of(*given: Any) -> Iterator[Any]:
    """Modules, functions and objects that a loss is made by."""
    seen: set[int] = set()
    waiting = list(given)
    while waiting:
        each = waiting.pop()
        if isinstance(each, (*VALUES, Tensor, torch.dtype, torch.device)) or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, nn.Module):
            yield from each.modules()
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each
        elif isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, MethodType):
            waiting += [each.__self__, each.__func__]
        else:
            yield each
            if not isinstance(each, FunctionType):
                waiting += getattr(each, "__dict__", {}).values()


@contextmanager
def no_waiting(device: torch.device) -> Iterator[None]:
    """Inside, an operator that waits for the device raises an error, as it would in a record; but nothing is broken."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it does not notice everything, and says so; a record does
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def why_of(error: Exception) -> str:
    """The first line of an error, and the last place of ours that it came from."""
    own = [at for at in traceback.extract_tb(error.__traceback__) if "qkv" in Path(at.filename).parts]
    said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}, says '{said}'" if own else f"torch says '{said}'"
