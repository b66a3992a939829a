"""What parts say they depend on, and that nobody who runs them in another way passes anything over."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import FAMILIES, build
from qkv.models.head_choice import WITH_LABELS, HeadChoice
from qkv.models.unfilled import Unfilled
from qkv.parts.attention.attention import Attention
from qkv.parts.norm import LayerNorm
from qkv.parts.position import Rotary, rotary_rates
from qkv.parts.residual import PreNorm
from qkv.parts.spec import Depends, Honoured, Known, NotUnderstood, Unchanged, anything, by_forward, depends_on, spec

SWAPS = {"gpt2": "performer:4", "llama": "rfa:4", "bert": "linformer:4", "roformer": "performer:4"}


def shallow(sizes: Any) -> Any:
    """Two layers of each kind: more are alike."""
    layers = [each.name for each in fields(sizes) if each.name.endswith("layers")]
    return replace(sizes, **{name: 2 for name in layers if type(getattr(sizes, name)) is int})


def head(family: str, kind: str | None) -> HeadChoice | None:
    if kind is None:
        return None
    labels = ("a", "b") if kind in WITH_LABELS else ()
    return HeadChoice(kind, labels, pooling="mean" if kind == "embedding" else None)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_part_of_every_family_says_all_that_it_depends_on(family: str) -> None:
    chosen = FAMILIES[family]
    with torch.device("meta"), Unfilled():
        first, *others = map(shallow, chosen.published.values())
        for kind in chosen.heads or (None,):
            spec(build(family, first, head(family, kind)))  # refuses what it does not understand
        for sizes in others:
            spec(build(family, sizes, head(family, next(iter(chosen.heads), None))))
        if family in SWAPS:
            spec(build(family, first, None, AttentionChoice.parse(SWAPS[family])))


def parts() -> list[nn.Module]:
    """One of each class of parts in the catalogue."""
    found: dict[type, nn.Module] = {}
    with torch.device("meta"), Unfilled():
        for name, family in FAMILIES.items():
            sizes = shallow(next(iter(family.published.values())))
            for kind in family.heads or (None,):
                for part in build(name, sizes, head(name, kind)).modules():
                    found.setdefault(type(part), part)
    return list(found.values())


PARTS = parts()


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_what_is_added_to_a_part_is_not_understood(part: nn.Module) -> None:
    before = spec(part)
    part.added = 1  # type: ignore[assignment]
    with pytest.raises(NotUnderstood, match="added"):
        spec(part)
    del part.added
    part.register_buffer("added", torch.zeros(1))
    with pytest.raises(NotUnderstood, match="added"):
        spec(part)
    del part.added
    if not isinstance(part, nn.ParameterList | nn.ModuleList) and not depends_on(type(part)).children:  # type: ignore[union-attr]
        part.register_parameter("added", nn.Parameter(torch.zeros(1)))
        with pytest.raises(NotUnderstood, match="added"):
            spec(part)
        del part.added
        part.add_module("added", nn.Identity())
        with pytest.raises(NotUnderstood, match="added"):
            spec(part)
        del part.added
    hook = part.register_forward_hook(lambda *_: None)
    with pytest.raises(NotUnderstood, match="hook"):
        spec(part)
    hook.remove()
    part.forward = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(NotUnderstood, match="another forward"):
        spec(part)
    del part.forward
    assert spec(part) == before


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_a_class_made_from_a_part_has_to_say_it_anew(part: nn.Module) -> None:
    kind = type(part)
    part.__class__ = type("Derived", (kind,), {"forward": lambda *_: None})
    try:
        with pytest.raises(NotUnderstood, match="Derived"):
            spec(part)
    finally:
        part.__class__ = kind


def test_a_value_of_no_known_kind_is_not_understood() -> None:
    attention = Attention(8, 2)
    attention.scale = object()  # type: ignore[assignment]
    with pytest.raises(NotUnderstood, match="scale is a object"):
        spec(attention)


def test_specs_are_equal_but_for_numbers_in_tensors() -> None:
    one, other = Attention(8, 2), Attention(8, 2)
    assert spec(one) == spec(other)
    assert hash(spec(one)) == hash(spec(other))
    other.scale = 0.5
    assert spec(one) != spec(other)
    assert spec(one)["scale"] is None


HEADS = "heads key_value_heads key_width value_width scale dropout visibility out"
KNOWN = Honoured(
    Known(PreNorm, "norm mixer dropout", path=anything),
    Known(LayerNorm, "weight bias eps"),
    Known(nn.Dropout, "p inplace"),
    Known(nn.Linear, "weight bias"),
    Known(Attention, HEADS, project=by_forward, visibility=anything),
)


def wired(**options: Any) -> PreNorm:
    return PreNorm(LayerNorm(8), Attention(8, 2, **options))


def test_what_is_honoured_is_not_refused_and_what_is_not_is_named() -> None:
    assert KNOWN.refusal(wired()) is None
    turned = wired(rotary=Rotary(rotary_rates(4)))
    assert KNOWN.refusal(turned) == "mixer: Attention.rotary is a Rotary"
    with_kernel = wired()
    with_kernel.mixer.kernel = lambda *_: None  # type: ignore[union-attr]
    assert "Attention.kernel is the function" in (KNOWN.refusal(with_kernel) or "")
    other_norm = wired()
    other_norm.norm = nn.Identity()
    assert KNOWN.refusal(other_norm) == "norm: a Identity is not known"


def test_a_hook_is_refused_where_forward_is_called_past_it_and_left_where_a_part_is_called() -> None:
    hooked = wired()
    hooked.path.register_forward_hook(lambda *_: None)
    assert KNOWN.refusal(hooked) is None  # called as it is
    hooked.mixer.project.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]
    assert KNOWN.refusal(hooked) == "mixer: Attention.project is a JoinedLinear"


def test_neutral_values_are_honoured_by_everyone() -> None:
    class Part(nn.Module):
        depends_on = Depends("width", gate=None, share=0.0)

        def __init__(self, gate: Any = None, share: float = 0.0) -> None:
            super().__init__()
            self.width, self.gate, self.share = 3, gate, share

    known = Known(Part, "width")
    assert known.refusal(Part()) is None
    assert known.refusal(Part(share=0.1)) == "Part.share is 0.1"
    assert known.refusal(Part(gate=nn.Identity())) == "Part.gate is a Identity"
    assert known.refusal(Part(share=False)) == "Part.share is False"  # of another type
    assert Known(Part).refusal(Part()) == "Part.width is 3"


def test_any_change_of_a_part_is_seen() -> None:
    model = nn.ModuleList([wired()])
    seen = Unchanged([model])
    assert seen.holds()
    attention: Any = model[0].mixer
    changes: list[tuple[Any, Any]] = [
        (lambda: setattr(attention, "scale", 0.5), lambda: setattr(attention, "scale", None)),
        (lambda: setattr(attention, "added", 1), lambda: delattr(attention, "added")),
        (lambda: attention.register_buffer("added", torch.ones(2)), lambda: delattr(attention, "added")),
        (lambda: attention.add_module("added", nn.Identity()), lambda: delattr(attention, "added")),
        (lambda: attention.project.outputs.update(key=4), lambda: attention.project.outputs.update(key=8)),
        (lambda: model.train(False), lambda: model.train(True)),
    ]
    for change, back in changes:
        change()
        assert not seen.holds()
        back()
        assert seen.holds()
    hook = attention.register_forward_hook(lambda *_: None)
    assert not seen.holds()
    hook.remove()
    assert seen.holds()
    weight = attention.out.weight
    attention.out.weight = nn.Parameter(weight.detach().clone())
    assert not seen.holds()
    attention.out.weight = weight
    assert seen.holds()
    model[0].norm = LayerNorm(8)
    assert not seen.holds()
