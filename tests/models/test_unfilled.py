"""Models without first numbers have the shapes of others, and cost neither memory nor the import of a compiler."""

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.models.catalogue import FAMILIES, build
from qkv.models.head_choice import WITH_LABELS, HeadChoice
from qkv.models.unfilled import Undrawn, Unfilled
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.rules import check_kinds
from qkv.weights.save import tensors_of

HEADS = [(name, kind) for name, family in FAMILIES.items() for kind in family.heads or (None,)]


def two_layers(family: str) -> Any:
    """The first published size, two layers of it where there are more."""
    sizes = next(iter(FAMILIES[family].published.values()))
    return replace(sizes, **{each.name: 2 for each in fields(sizes) if each.name.endswith("layers")})


def choice(kind: str | None) -> HeadChoice | None:
    labels = ("bad", "good") if kind in WITH_LABELS else ()
    return None if not kind else HeadChoice(kind, labels, pooling="mean" if kind == "embedding" else None)


def shapes(model: torch.nn.Module) -> dict[str, tuple[Any, ...]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(("family", "kind"), HEADS)
def test_what_a_folder_holds_has_the_same_shapes(family: str, kind: str | None) -> None:
    with torch.device("meta"):
        filled = build(family, two_layers(family), choice(kind))
        with Unfilled():
            unfilled = build(family, two_layers(family), choice(kind))
    assert shapes(unfilled) == shapes(filled)
    assert all(tensor.is_meta for tensor in unfilled.state_dict().values())


def test_nothing_is_drawn_but_from_a_generator() -> None:
    before = torch.random.get_rng_state()
    with Undrawn():
        torch.nn.Linear(3, 4)
        torch.nn.init.xavier_normal_(torch.randn(3, 2) + torch.rand(3, 2))
        drawn = torch.randn(3, generator=torch.Generator().manual_seed(1))
        table = torch.ones(2) * torch.arange(2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(drawn, torch.randn(3, generator=torch.Generator().manual_seed(1)))
    assert table.tolist() == [0, 1]


def test_who_draws_until_numbers_lie_within_bounds_comes_to_an_end() -> None:
    """Whatever memory held before: torch draws again as long as a number is too large."""
    weight = torch.full((64, 64), 1e6)
    with Undrawn(), torch.no_grad():
        torch.nn.init.trunc_normal_(weight, std=0.1, a=-0.2, b=0.2)
        assert float(weight.abs().max()) <= 0.2
        assert float(torch.full((3,), 7.0).uniform_(1, 2).max()) <= 2


def look_at_all() -> None:
    """Every family with every head, and what its published folders hold."""
    with torch.device("meta"), Unfilled():
        for family, kind in HEADS:
            build(family, two_layers(family), choice(kind))
        for published in PUBLISHED.values():
            sizes = two_layers(published.family)
            for head in map(choice, published.architectures):
                wanted = tensors_of(build(published.family, sizes, head))
                check_kinds(published.rules(sizes, head), {}, wanted, Path())


def test_no_family_needs_a_compiler_to_be_looked_at() -> None:
    """Which takes a second to import, and filling tensors that have no memory asks for it; so does joining them."""
    code = (
        "import sys; from tests.models import test_unfilled as t; t.look_at_all(); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_tensors_without_memory_are_joined_as_others_are(axis: int) -> None:
    parts = [torch.empty(2, 3, device="meta"), torch.empty(2, 3, device="meta")]
    with Unfilled():
        shapes = [torch.cat(parts, axis).shape, torch.cat(tensors=parts, dim=axis).shape]
        assert torch.cat([torch.ones(1), torch.zeros(1)]).tolist() == [1, 0]
    assert shapes == [torch.cat([torch.ones(2, 3)] * 2, axis).shape] * 2
