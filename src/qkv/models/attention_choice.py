"""Which attention a model has in place of its family's own: who sees whom, or another way to compute it.

A choice is spelled as on the command line and in `config.json`: `window:256+global:4`, `performer:256`. Pieces with a +
between them are seen together.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TypeVar

from torch import nn

from qkv.errors import QkvError, nearest_or_all
from qkv.models import attention_swaps as swaps
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention, CrossAttention, MultiHead
from qkv.parts.attention.gated import GatedAttention
from qkv.parts.attention.visibility import Causal, Everything, Fixed, GlobalTokens, Rule, Strided, Window
from qkv.parts.attention.whole_rows import counts_slots, rules_of
from qkv.parts.stack import Stack

MOST = 2**20  # no number of a spelling is larger
Numbers = tuple[int, ...]
Net = TypeVar("Net", bound=nn.Module)


@dataclass(frozen=True)
class Kind:
    """One kind of attention: how it is spelled, and what it does."""

    form: str  # as a person reads it
    least: int  # numbers that a spelling has
    most: int
    says: str


@dataclass(frozen=True)
class RuleKind(Kind):
    """A rule that narrows what tokens see; the weights and the way to compute it stay."""

    rule: Callable[..., Rule]


@dataclass(frozen=True)
class SwapKind(Kind):
    """Something that stands in the place of an attention, or of the kernel inside it."""

    swap: Callable[..., swaps.Swap]
    both_ways: bool = False  # it cannot look back only
    whole_rows: bool = False  # it can keep nothing from step to step of a decoder
    told_apart: bool = False  # it keeps documents apart that are packed into one row
    loses: str | None = None  # what of a trained model is gone


def _fixed(stride: int, summary: int) -> Fixed:
    if summary > stride:
        raise QkvError(f"A block of {stride} slots has no {summary} last ones: give fixed:{stride}:{min(8, stride)}.")
    return Fixed(stride, summary)


KINDS: dict[str, RuleKind | SwapKind] = {
    "window": RuleKind("window:SIZE[:STEP]", 1, 2, "tokens fewer than SIZE away, every STEP-th of them", Window),
    "global": RuleKind("global:COUNT", 1, 1, "the first COUNT tokens see all and are seen by all", GlobalTokens),
    "strided": RuleKind(
        "strided:STRIDE", 1, 1, "the last STRIDE tokens and every STRIDE-th", lambda n: Window(n) | Strided(n)
    ),
    "fixed": RuleKind("fixed:STRIDE:LAST", 2, 2, "the own block of STRIDE tokens, and the LAST of every block", _fixed),
    "big_bird": SwapKind(
        "big_bird:BLOCK[:RANDOM]", 1, 2, "blocks beside it, both ends and RANDOM (3) others", swaps.big_bird,
        both_ways=True, whole_rows=True,
    ),
    "performer": SwapKind(
        "performer:FEATURES[:REDRAW]", 1, 2, "all tokens, by positive random features, new every REDRAW updates (1000)",
        swaps.performer,
    ),
    "rfa": SwapKind("rfa:FEATURES", 1, 1, "all tokens, by random waves, with a memory that fades", swaps.rfa),
    "linformer": SwapKind(
        "linformer:TOKENS", 1, 1, "all tokens, projected to TOKENS of them, in all layers alike", swaps.linformer,
        both_ways=True, whole_rows=True,
    ),
    "linformer_key_value": SwapKind(
        "linformer_key_value:TOKENS", 1, 1, "the same, by a projection of each layer", swaps.linformer_key_value,
        both_ways=True, whole_rows=True,
    ),
    "linformer_headwise": SwapKind(
        "linformer_headwise:TOKENS", 1, 1, "the same, by one of each layer for keys and one for values",
        swaps.linformer_headwise, both_ways=True, whole_rows=True,
    ),
    "lsh": SwapKind(
        "lsh:ROUNDS:CHUNK", 2, 2, "tokens hashed alike, in chunks of CHUNK", swaps.lsh, whole_rows=True,
        told_apart=True,
        loses="Queries serve as keys in lsh attention: the weights of the keys are gone, and training must make up "
        "for them.",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class AttentionChoice:
    """The attention of all layers of a model, as pieces of a kind and its numbers."""

    pieces: tuple[tuple[str, Numbers], ...]

    def __post_init__(self) -> None:
        for name, numbers in self.pieces:
            if name not in KINDS:
                raise QkvError(f"There is no attention called {name!r}: {nearest_or_all(name, KINDS)}")
            kind = KINDS[name]
            if not kind.least <= len(numbers) <= kind.most or not all(0 < number <= MOST for number in numbers):
                spelled = ":".join((name, *map(str, numbers)))
                raise QkvError(
                    f"The attention {spelled!r} should be spelled {kind.form}, with whole numbers from 1 to {MOST:,}."
                )
        names = [name for name, _ in self.pieces]
        if len(names) > 1 and (alone := next((name for name in names if isinstance(KINDS[name], SwapKind)), None)):
            raise QkvError(f"The attention {alone} stands alone: only rules such as window and global go together.")
        if set(names) <= {"global"}:
            raise QkvError("Global tokens go with a rule for the others: window:256+global:4.")
        if isinstance(self._kind, RuleKind):
            _ = self.rule  # numbers that do not fit together are told here

    @classmethod
    def parse(cls, spelled: str) -> AttentionChoice:
        pieces = []
        for piece in spelled.split("+"):
            name, *numbers = piece.strip().split(":")
            if not all(re.fullmatch(r"[0-9]{1,9}", number) for number in numbers):
                form = KINDS[name].form if name in KINDS else "window:256"
                raise QkvError(f"The attention {spelled!r} should be spelled like {form}, with whole numbers.")
            pieces.append((name, tuple(map(int, numbers))))
        return cls(tuple(pieces))

    @classmethod
    def of(cls, value: AttentionChoice | str | None) -> AttentionChoice | None:
        """What is a choice already, or spelled, or none."""
        return cls.parse(value) if isinstance(value, str) else value

    @classmethod
    def from_config(cls, value: object) -> AttentionChoice:
        if not isinstance(value, str):
            raise QkvError(f'"attention" must be a spelling such as "window:256", but is {value!r}.')
        return cls.parse(value)

    def __str__(self) -> str:
        return "+".join(":".join((name, *map(str, numbers))) for name, numbers in self.pieces)

    @property
    def _kind(self) -> RuleKind | SwapKind:
        return KINDS[self.pieces[0][0]]

    @property
    def rule(self) -> Rule | None:
        """Who sees whom, besides what the family says; None where another attention stands in its place."""
        rules = [kind.rule(*numbers) for name, numbers in self.pieces if isinstance(kind := KINDS[name], RuleKind)]
        return reduce(or_, rules) if rules else None

    @property
    def loses(self) -> str | None:
        """What a trained model loses by it, as a sentence; None: all of its weights are kept."""
        return self._kind.loses if isinstance(self._kind, SwapKind) else None

    @property
    def tells_documents_apart(self) -> bool:
        """Whether a document reads the same alone and packed into a row with others."""
        rule = self.rule
        return (
            not counts_slots(rule) if rule is not None else isinstance(self._kind, SwapKind) and self._kind.told_apart
        )

    def put_into(self, model: Net) -> Net:
        """The model itself, all self-attentions of which now have this choice; what each family hides stays hidden."""
        places = [
            (parent, name, child)
            for parent in model.modules()
            for name, child in parent.named_children()
            if isinstance(child, MultiHead) and not isinstance(child, CrossAttention)
        ]
        if not places:
            raise QkvError(f"This model has no self-attention that {self} could stand for: choose another family.")
        if any(type(child) is not Attention for _, _, child in places):
            raise QkvError(
                f"The attention of this family is of its own kind, and {self} cannot stand for it: choose one such as "
                "gpt2, llama or bert."
            )
        if (rule := self.rule) is not None:
            for _, _, attention in places:
                attention.visibility = attention.visibility & rule
        else:
            self._swap(model, [(parent, name, child) for parent, name, child in places if isinstance(child, Attention)])
        if isinstance(model, TextModel):
            model.look_over()
        return model

    def _swap(self, model: nn.Module, places: list[tuple[nn.Module, str, Attention]]) -> None:
        """Those that see all, or all before them, are swapped; where a family looks near only, that stays."""
        kind, (_, numbers) = self._kind, self.pieces[0]
        assert isinstance(kind, SwapKind)
        wide = [
            place for place in places if all(isinstance(r, Everything | Causal) for r in rules_of(place[2].visibility))
        ]
        if not wide:
            raise QkvError(f"All layers of this family look near only, so that {self} has no place: choose another.")
        looking_back = any(isinstance(rule, Causal) for *_, each in wide for rule in rules_of(each.visibility))
        if kind.both_ways and looking_back:
            raise QkvError(
                f"The attention {self} looks both ways in a row, so nothing can be hidden from the tokens before it: "
                "it is for models that look both ways too, such as bert."
            )
        if kind.whole_rows and not isinstance(model, TextModel):
            raise QkvError(
                f"The attention {self} reads whole rows: it is for models of one row, not for those that "
                "turn one sequence into another."
            )
        if any(isinstance(module, Stack) and module.bias is not None for module in model.modules()):
            raise QkvError(
                f"This family adds a bias to every score, and {self} forms no single scores: choose a rule such as "
                "window."
            )
        for _, _, attention in wide:
            if (why := swaps.SWAPPED.refusal(attention)) is not None:
                raise QkvError(f"The attention {self} cannot take the place of this family's own: {why}.")
        make = kind.swap(model, *numbers)
        for number, (parent, name, attention) in enumerate(wide):
            setattr(parent, name, make(attention, number))


def weights_by_choice(model: nn.Module) -> list[nn.Parameter]:
    """What a model has beside its family's weights, for the attention that was chosen: gates, spreads, projections.

    Where a model is frozen these go on learning, since nobody has trained them with the rest.
    """
    attentions = [module for module in model.modules() if isinstance(module, MultiHead)]
    kernels = [each.kernel for each in attentions if isinstance(each.kernel, nn.Module)]
    gates = [each.gate for each in attentions if isinstance(each, GatedAttention)]
    return [parameter for module in (*kernels, *gates) for parameter in module.parameters()]


def must_be_own(model: nn.Module) -> None:
    """For those who write a model as others know it."""
    choice: AttentionChoice | None = getattr(model, "attention_choice", None)
    if choice is not None:
        raise QkvError(
            f"The model has the attention {choice} in place of its family's own, of which no published form knows: it "
            "can be kept in a folder of qkv's own only."
        )
