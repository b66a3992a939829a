"""What a part depends on, said beside its forward, and the guard of those who run parts in another way.

A part's forward is its meaning. Whoever computes the same in another way (one call for a whole step, a custom kernel, a
part in another's place, heads divided among ranks) must have understood all that this forward depends on. So each class
of parts names it, `depends_on = Depends("heads", …, rotary=None)`: attributes, parameters, buffers and children, those
with a neutral value by that value. `spec` reads it live, because parts change after they are built. A faster way lists
what it honours (`Known`, `Honoured`). Whatever else is not neutral, was not declared, or is watched by a hook makes it
refuse, by name, and the part runs as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

_BASE = frozenset(nn.Module().__dict__) | {"_compiled_call_impl"}
_NOTHING = object()  # a field that has no neutral value
_NUMBERS = (bool, int, float, str, type(None))
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class NotUnderstood(Exception):
    """A part depends on something that nobody declared."""


class Depends:
    """The names of all that a forward depends on: first those that have no neutral value, then those that have one.

    `unread` changes nothing: sizes that the shapes of weights say again. `children` of any name are steps in order.
    """

    def __init__(self, *always: str, unread: Collection[str] = (), children: bool = False, **neutral: Any) -> None:
        self.fields: dict[str, Any] = {**dict.fromkeys(always, _NOTHING), **neutral}
        self.unread, self.children = frozenset(unread), children
        self._named = self.unread | self.fields.keys()
        self._own = _BASE | self._named | {"forward"}  # another forward is told apart by `changed_from_outside`

    def also(self, *always: str, unread: Collection[str] = (), **neutral: Any) -> Depends:
        """The same and more, for a class made from this one."""
        new = Depends(*always, **neutral).fields
        had = [name for name, value in self.fields.items() if value is _NOTHING and name not in new]
        kept = {name: value for name, value in self.fields.items() if value is not _NOTHING and name not in new}
        return Depends(*had, *always, unread=self.unread | {*unread}, children=self.children, **kept, **neutral)

    def undeclared(self, part: nn.Module) -> str | None:
        """The name of something that a part has and nobody declared."""
        own, named = part.__dict__, self._named
        if not own.keys() <= self._own:
            return next(iter(own.keys() - self._own))
        if not own["_buffers"].keys() <= named:
            return next(iter(own["_buffers"].keys() - named))
        for held in () if self.children else (own["_parameters"], own["_modules"]):
            if not held.keys() <= named:
                return next(iter(held.keys() - named))
        return None


CONVOLUTION = Depends(
    "weight", "stride", "padding", "dilation", "groups", "padding_mode", bias=None,
    unread=("in_channels", "out_channels", "kernel_size", "transposed", "output_padding",
            "_reversed_padding_repeated_twice"),
)  # fmt: skip
# What torch's own modules depend on.
_OF_TORCH: dict[type[nn.Module], Depends] = {
    nn.Linear: Depends("weight", bias=None, unread=("in_features", "out_features")),
    nn.Dropout: Depends(p=0.0, inplace=False),
    nn.Identity: Depends(),
    nn.ModuleList: Depends(children=True),
    nn.Conv1d: CONVOLUTION,
    nn.Conv2d: CONVOLUTION,
    nn.ConvTranspose2d: CONVOLUTION,
    nn.GroupNorm: Depends("weight", "bias", "num_groups", "eps", unread=("num_channels", "affine")),
    nn.ModuleDict: Depends(children=True),
    nn.ParameterList: Depends(children=True, unread=("_size",)),
    nn.GRU: Depends(
        "num_layers",
        "batch_first",
        "bidirectional",
        "weight_ih_l0",
        "weight_hh_l0",
        "bias_ih_l0",
        "bias_hh_l0",
        dropout=0.0,
        unread=(
            "mode",
            "input_size",
            "hidden_size",
            "bias",
            "proj_size",
            "_flat_weight_refs",
            "_flat_weights_names",
            "_all_weights",
            "_flat_weights",
        ),
    ),
}


def depends_on(kind: type[nn.Module]) -> Depends | None:
    """What a class says; None: nothing. One that is made from another says it anew: it may compute something else."""
    return _OF_TORCH.get(kind) or kind.__dict__.get("depends_on")


@dataclass(frozen=True)
class TensorForm:
    """A tensor, but for its numbers."""

    kind: type
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Spec:
    """All that a part depends on, as it is now, but for the numbers in its tensors."""

    part: type[nn.Module]
    fields: tuple[tuple[str, Any], ...]

    def __getitem__(self, name: str) -> Any:
        return dict(self.fields)[name]


def spec(part: nn.Module) -> Spec:
    """What a part depends on, read from it, with what its children depend on."""
    kind = type(part)
    says = depends_on(kind)
    if says is None:
        raise NotUnderstood(f"{kind.__name__} does not say what it depends on")
    if (why := changed_from_outside(part)) is not None:
        raise NotUnderstood(f"{kind.__name__} {why}")
    if (name := says.undeclared(part)) is not None:
        raise NotUnderstood(f"{kind.__name__} has {name}, which its class does not say that it depends on")
    names = [*says.fields, *((*part._modules, *part._parameters) if says.children else ())]
    return Spec(kind, tuple((name, _frozen(field_of(part, name), f"{kind.__name__}.{name}")) for name in names))


def field_of(part: nn.Module, name: str) -> Any:
    """The attribute, parameter, buffer or child of this name; None where there is none."""
    own = part.__dict__
    for held in (own, own["_modules"], own["_parameters"], own["_buffers"]):
        if name in held:
            return held[name]
    return None


def changed_from_outside(part: nn.Module) -> str | None:
    """Whether something other than its class decides what a part does."""
    own = part.__dict__
    if any(own[name] for name in _HOOKS):
        return "has a hook"
    if "forward" in own or own.get("_compiled_call_impl") is not None:
        return "has another forward than its class"
    return None


def _frozen(value: Any, name: str) -> Any:
    if type(value) in _NUMBERS or isinstance(value, (*_FUNCTIONS, torch.dtype, torch.device)):
        return value
    if isinstance(value, nn.Module):
        return spec(value)
    if isinstance(value, Tensor):
        return TensorForm(type(value), tuple(value.shape), value.dtype, value.device)
    if isinstance(value, tuple | list | range):
        return tuple(_frozen(each, name) for each in value)
    if isinstance(value, Mapping):
        return tuple((each, _frozen(value[each], name)) for each in value)
    if is_dataclass(value) and not isinstance(value, type) and getattr(value, "__hash__", None) is not None:
        return value
    raise NotUnderstood(f"{name} is a {type(value).__name__}, which no part is known to depend on")


Allowed = Callable[[Any], bool] | type | tuple[type, ...]


class Known:
    """What one way of running honours of a class of parts: fields by name, where needed with the values that it knows.

    Named alone, a field may be a number, a name, a plain tensor, or a part that is known itself. `allowed` says of a
    field which types, or by a function which values; with `anything` a part is called as it is, whatever it is.
    `children` stands for all steps of a part that has some of any name.
    """

    def __init__(self, kind: type[nn.Module], fields: str = "", **allowed: Allowed) -> None:
        self.kind, self.fields, self.allowed = kind, frozenset(fields.split()), allowed

    def refusal(self, part: nn.Module) -> str | None:
        """What of this part is not honoured; its children are not looked into."""
        name, says = self.kind.__name__, depends_on(self.kind)
        if type(part) is not self.kind:
            return f"a {type(part).__name__} is not known"
        if says is None:
            return f"a {name} does not say what it depends on"
        if (why := changed_from_outside(part)) is not None:
            return f"a {name} {why}"
        if (undeclared := says.undeclared(part)) is not None:
            return f"a {name} has {undeclared}, which is not known"
        children = [*part._modules] if says.children else []
        for field, neutral in [*says.fields.items(), *dict.fromkeys(children, _NOTHING).items()]:
            value = field_of(part, field)
            if not (self._honours(field, value) or _is_neutral(value, neutral)):
                return f"{name}.{field} is {_told(value)}"
        return None

    def looks_into(self, child: str) -> bool:
        """Whether a child must be known too: it is computed with, not called as it is."""
        named = child in self.fields or child in self.allowed
        return self.allowed.get(child if named else "children") not in (anything, by_forward)

    def _honours(self, field: str, value: Any) -> bool:
        named = field in self.fields or field in self.allowed
        allowed = self.allowed.get(field if named else "children")
        if allowed is None:
            return (field in self.fields or "children" in self.fields) and _is_plain(value)
        if isinstance(allowed, type | tuple):
            return type(value) in (allowed if isinstance(allowed, tuple) else (allowed,))
        return allowed(value)


class Honoured:
    """All that one way of running knows, class by class: what is not here it leaves to the parts themselves."""

    def __init__(self, *known: Known) -> None:
        self._known = {each.kind: each for each in known}

    def refusal(self, part: nn.Module, name: str = "") -> str | None:
        """Why this way is not for a part or for something inside of it; None: it honours all of it."""
        known = self._known.get(type(part))
        why = f"a {type(part).__name__} is not known" if known is None else known.refusal(part)
        if why is not None:
            return f"{name}: {why}" if name else why
        assert known is not None
        inside = (
            self.refusal(child, f"{name}.{own}" if name else own)
            for own, child in part._modules.items()
            if child is not None and known.looks_into(own)
        )
        return next((why for why in inside if why is not None), None)

    def and_also(self, *known: Known) -> Honoured:
        """The same, and these in the place of those of the same classes."""
        return Honoured(*{**self._known, **{each.kind: each for each in known}}.values())

    def of(self, kind: type[nn.Module]) -> Known:
        """What is honoured of a class of parts that is here."""
        return self._known[kind]

    def __iter__(self) -> Iterator[Known]:
        return iter(self._known.values())


def anything(value: Any) -> bool:
    """Of a field that whoever honours it leaves to the part's own code: a child is called as it is."""
    return True


def by_forward(value: Any) -> bool:
    """Of a child whose `forward` is called, past any hooks, so that it must have none."""
    return value is None or (isinstance(value, nn.Module) and changed_from_outside(value) is None)


def _is_plain(value: Any) -> bool:
    if type(value) in _NUMBERS or type(value) in (Tensor, nn.Parameter) or isinstance(value, nn.Module):
        return True
    if isinstance(value, Mapping):
        return all(_is_plain(each) for each in value.values())
    return isinstance(value, tuple | list | range) and all(_is_plain(each) for each in value)


def _is_neutral(value: Any, neutral: Any) -> bool:
    return value is neutral or (type(value) is type(neutral) and type(value) in _NUMBERS and bool(value == neutral))


def _told(value: Any) -> str:
    if isinstance(value, nn.Module):
        return f"a {type(value).__name__}"
    if isinstance(value, Tensor):
        return f"a tensor of {list(value.shape)}"
    if isinstance(value, _FUNCTIONS):
        return f"the function {value.__name__}"
    return repr(value) if type(value) in _NUMBERS or is_dataclass(value) else f"a {type(value).__name__}"


class Unchanged:
    """All that modules are and hold, as it was seen once: a quick question whether it is so still.

    Numbers in weights may have changed, and where they lie is for those who copy them to watch.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        own = [each.__dict__ for each in {id(each): each for module in modules for each in module.modules()}.values()]
        self._own, self._seen = own, [dict(each) for each in own]
        self._hooks = [each[name] for each in own for name in _HOOKS]
        self._watched = [*map(len, self._hooks)]
        self._inner = [each[name] for each in own for name in ("_parameters", "_buffers", "_modules")]
        self._held = [*_values(self._inner)]  # kept, so that no other object can get one of their ids
        self._ids = [*map(id, self._held)]
        named = (item for each in own for item in each.items() if item[0] not in _BASE)
        self._lists = [value for _, value in named if type(value) in (list, dict)]
        self._copies = [value.copy() for value in self._lists]

    def holds(self) -> bool:
        try:
            same = self._own == self._seen and self._lists == self._copies
        except RuntimeError:  # two tensors that are not one
            return False
        return same and [*map(len, self._hooks)] == self._watched and [*map(id, _values(self._inner))] == self._ids


def _values(inner: Iterable[dict[str, Any]]) -> Iterator[Any]:
    return chain.from_iterable(map(dict.values, inner))
