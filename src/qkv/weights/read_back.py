"""Whether what is written for others would be read as the model it is: by its parts, its sizes and its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.catalogue import Model, build, head_of
from qkv.models.unfilled import Undrawn
from qkv.parts.spec import NotUnderstood, Spec, TensorForm, spec
from qkv.weights.rules import to_ours
from qkv.weights.save import tensors_of

if TYPE_CHECKING:
    from qkv.weights.published import PublishedFamily


def check_parts(model: Model) -> None:
    """A model whose parts are not those that its sizes build is known to no file, which holds sizes and tensors."""
    with Undrawn():
        plain = build(model.family, model.sizes, head_of(model))
    for name, part in model.named_children():
        other = plain.get_submodule(name)
        try:
            why = next(chain(_differences(spec(part), spec(other), name), _other_tables(part, other, name)), None)
        except NotUnderstood as unknown:
            why = f"{name}: {unknown}"
        if why is not None:
            raise QkvError(f"This model cannot be written as a {model.family}, which its sizes do not make it: {why}.")


def check_read_back(
    model: Model, published: PublishedFamily, config: dict[str, Any], theirs: dict[str, Tensor]
) -> None:
    """The folder that is to be written must be read by its own type as these sizes and tensors."""
    sizes = published.settle(published.sizes_of(config), theirs)
    ours, read = asdict(model.sizes), asdict(sizes)
    for name, value in ours.items():
        if read[name] != value and "dropout" not in name and name not in published.untold:  # nothing drops in answers
            raise QkvError(
                f"As a {published.model_type} this model would be read with {name} {read[name]!r}, but has {value!r}."
            )
    wanted = tensors_of(model)
    found = to_ours(published.rules(sizes, head_of(model)), published.renamed(theirs), wanted)
    for name, tensor in wanted.items():
        if name not in found or not _same(found[name], tensor):
            raise QkvError(f"As a {published.model_type} this model would be read with another {name}.")


def _same(read: Tensor, own: Tensor) -> bool:
    """Bit for bit, so that what is no number is itself."""
    if read.shape != own.shape or read.dtype != own.dtype:
        return False
    return torch.equal(read, own) or (
        torch.equal(read.isnan(), own.isnan()) and torch.equal(read.nan_to_num(), own.nan_to_num())
    )


def _differences(own: Any, other: Any, name: str) -> Iterator[str]:
    """Where two specs differ, but for the types and places of numbers."""
    if isinstance(own, Spec) and isinstance(other, Spec):
        if own.part is not other.part:
            yield f"{name} is a {own.part.__name__}, not a {other.part.__name__}"
            return
        theirs = dict(other.fields)
        for field, value in own.fields:
            yield from _differences(value, theirs.get(field), f"{name}.{field}")
    elif isinstance(own, TensorForm) and isinstance(other, TensorForm):
        if own.shape != other.shape:
            yield f"{name} has the shape {list(own.shape)}, not {list(other.shape)}"
    elif isinstance(own, tuple) and isinstance(other, tuple) and len(own) == len(other):
        for number, (one, two) in enumerate(zip(own, other, strict=True)):
            yield from _differences(one, two, f"{name}.{number}")
    elif own != other:
        yield f"{name} is {_told(own)}, not {_told(other)}"


def _other_tables(part: nn.Module, other: nn.Module, name: str) -> Iterator[str]:
    """Numbers that no file holds, because sizes tell them."""
    held = part.state_dict().keys()
    for own, table in part.named_buffers():
        if own not in held and not torch.equal(table.cpu(), other.get_buffer(own).to(table.dtype)):
            yield f"{name}.{own} has other numbers"


def _told(value: Any) -> str:
    return f"a {value.part.__name__}" if isinstance(value, Spec) else repr(value)
