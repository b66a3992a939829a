"""Every place that runs parts in a way of its own honours a list of what they depend on, and refuses the rest."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qkv.generate import fused, known, standing
from qkv.models.attention_swaps import SWAPPED
from qkv.parts import in_place, token_wise
from qkv.parts.attention.attention import BY_CONTENT, Attention
from qkv.parts.attention.visibility import Causal
from qkv.parts.spec import Honoured, Known, anything, by_forward, depends_on, field_of
from qkv.train.float8.known import IN_8_BITS
from qkv.train.parallel.tensor import DIVIDED
from tests.parts.test_spec import PARTS

PLACES: dict[str, Honoured] = {
    "packed matrices": known.MAPS,
    "residual steps on a CPU": known.STEPS,
    "whole stacks on a CPU": known.STACK,
    "steps of few operations": known.STRAIGHT,
    "steps by custom kernels on a GPU": fused.KNOWN,
    "recorded steps": standing.KNOWN,
    "blocks in place": in_place.ANSWERS,
    "attention by content": Honoured(BY_CONTENT),
    "documents in line": Honoured(token_wise.BY_TOKENS),
    "training in 8 bits": IN_8_BITS,
    "tensor ranks": DIVIDED,
    "another attention": Honoured(SWAPPED),
}
CASES = [(place, each) for place, table in PLACES.items() for each in table]


def unchanged(each: Known) -> nn.Module:
    """A part as it is built, which the place honours."""
    for part in map(deepcopy, PARTS):
        if type(part) is each.kind and isinstance(part, Attention) and each.refusal(part) is not None:
            part.visibility = Causal()
        if type(part) is each.kind and each.refusal(part) is None:
            return part
    pytest.skip(f"no published size has a {each.kind.__name__} that is plain enough")


def changes(part: nn.Module, each: Known) -> Iterator[tuple[str, Any]]:
    """What is done to a part, and how it is undone."""
    says = depends_on(type(part))
    assert says is not None
    yield "an attribute", lambda: setattr(part, "added", 1)
    yield "a buffer", lambda: part.register_buffer("added", torch.zeros(1))
    if not says.children:
        yield "a parameter", lambda: part.register_parameter("added", nn.Parameter(torch.zeros(1)))
        yield "a child", lambda: part.add_module("added", nn.Identity())
    yield "a hook", lambda: part.register_forward_hook(lambda *_: None)
    yield "a hook before", lambda: part.register_forward_pre_hook(lambda *_: None)
    yield "a hook of gradients", lambda: part.register_full_backward_hook(lambda *_: None)
    yield "another forward", lambda: setattr(part, "forward", lambda *_: None)
    yield "another class", lambda: setattr(part, "__class__", type("Derived", (type(part),), {}))
    for field in says.fields:
        if each.allowed.get(field) not in (anything, by_forward):
            yield f"an unknown {field}", lambda field=field: replace_field(part, field)


def replace_field(part: nn.Module, field: str) -> None:
    for held in ("_parameters", "_buffers", "_modules"):
        part.__dict__[held].pop(field, None)
    part.__dict__[field] = object()


@pytest.mark.parametrize(("place", "each"), CASES, ids=[f"{place}-{each.kind.__name__}" for place, each in CASES])
def test_a_place_refuses_a_part_with_anything_that_it_does_not_know(place: str, each: Known) -> None:
    own = unchanged(each)
    for number in range(sum(1 for _ in changes(own, each))):
        part = deepcopy(own)
        what, change = [*changes(part, each)][number]
        change()
        assert each.refusal(part) is not None, what


@pytest.mark.parametrize("place", PLACES)
def test_what_a_place_honours_is_what_parts_have(place: str) -> None:
    for each in PLACES[place]:
        says = depends_on(each.kind)
        assert says is not None, each.kind
        assert (each.fields | each.allowed.keys()) - {"children"} <= says.fields.keys(), each.kind


def test_in_a_class_itself_an_attribute_is_not_passed_over_either(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Attention.__init__

    def with_gate(self: Any, *given: Any, **options: Any) -> None:
        own(self, *given, **options)
        self.gate = nn.Linear(8, 8)

    assert BY_CONTENT.refusal(Attention(8, 2)) is None
    monkeypatch.setattr(Attention, "__init__", with_gate)
    part = Attention(8, 2)
    for name, table in PLACES.items():
        for each in table:
            if each.kind is Attention:
                assert "gate" in (each.refusal(part) or ""), name
    assert field_of(part, "gate") is not None


ROOMS = ("parts", "generate", "train")
# Files that compare the types of parts, and in how many places: a new one belongs here after it was looked at. It must
# ask the parts themselves, or be told by tensors, or honour a list above.
SOURCE = Path(__file__).parents[1] / "src" / "qkv"


def comparisons(path: Path, kinds: set[str]) -> int:
    """How often a file asks whether something is of a class of parts: by `type`, `isinstance` or `match`."""
    found = 0
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        named: list[ast.AST] = []
        if isinstance(node, ast.Compare) and any(_asks_type(each) for each in (node.left, *node.comparators)):
            named = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            named = node.args[1:]
        elif isinstance(node, ast.MatchClass):
            named = [node.cls]
        names = {getattr(each, "id", getattr(each, "attr", "")) for one in named for each in ast.walk(one)}
        found += bool(names & kinds)
    return found


def _asks_type(node: ast.AST) -> bool:
    called = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "type"
    return called or (isinstance(node, ast.Attribute) and node.attr == "__class__")


def part_classes() -> set[str]:
    names = {"Module", "Linear", "Dropout", "Identity", "ModuleList", "Embedding"}
    classes: dict[str, list[str]] = {}
    for path in [*(SOURCE / "parts").rglob("*.py"), *(SOURCE / "models").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(each).split("[")[0] for each in node.bases]
                classes[node.name] = ["Module" if each.startswith("nn.") else each for each in bases]
    while more := {name for name, bases in classes.items() if name not in names and names & set(bases)}:
        names |= more
    return names


def test_whoever_compares_the_types_of_parts_is_known() -> None:
    kinds = part_classes()
    assert {"Attention", "LayerNorm", "PreNorm", "TextModel"} <= kinds
    found: Counter[str] = Counter()
    for room in ROOMS:
        for path in sorted((SOURCE / room).rglob("*.py")):
            if count := comparisons(path, kinds):
                found[path.relative_to(SOURCE).as_posix()] = count
    assert dict(found) == TYPES_COMPARED


TYPES_COMPARED = {
    "parts/activated_map.py": 3,
    "parts/admin.py": 9,
    "parts/attention/attention.py": 1,
    "parts/attention/kernels/random_features.py": 3,
    "parts/attention/shared.py": 1,
    "parts/attention/summing.py": 1,
    "parts/convolution.py": 1,
    "parts/cpu_maps.py": 5,
    "parts/deepnorm.py": 3,
    "parts/in_place.py": 10,
    "parts/linear.py": 4,
    "parts/low_rank.py": 2,
    "parts/narrow_maps.py": 3,
    "parts/norm.py": 1,
    "parts/reversible.py": 1,
    "parts/spec.py": 4,
    "parts/token_wise.py": 2,
    "parts/tried.py": 2,
    "parts/wanted.py": 3,
    "parts/wave.py": 2,
    "generate/bound.py": 7,
    "generate/compiling.py": 4,
    "generate/continuation.py": 1,
    "generate/detect.py": 1,
    "generate/explain.py": 6,
    "generate/fused.py": 12,
    "generate/keypoints.py": 1,
    "generate/listen.py": 2,
    "generate/prepare.py": 3,
    "generate/recording.py": 3,
    "generate/residual_steps.py": 6,
    "generate/sound_readers.py": 7,
    "generate/standing.py": 2,
    "generate/straight.py": 1,
    "generate/text.py": 1,
    "generate/transcribe.py": 1,
    "generate/untuned.py": 2,
    "train/adapt/depth.py": 4,
    "train/adapt/lora.py": 9,
    "train/adapt/lora_files.py": 1,
    "train/adjust.py": 1,
    "train/by_layer.py": 1,
    "train/compiling.py": 1,
    "train/float8/known.py": 5,
    "train/float8/products.py": 5,
    "train/loop.py": 1,
    "train/objectives/expert_losses.py": 1,
    "train/objectives/images.py": 1,
    "train/objectives/masked.py": 2,
    "train/objectives/masked_patches.py": 1,
    "train/objectives/sequence_to_sequence.py": 1,
    "train/objectives/sound_labels.py": 1,
    "train/objectives/sound_pretraining.py": 1,
    "train/objectives/trace.py": 1,
    "train/optimizers/orthogonal.py": 1,
    "train/parallel/context.py": 8,
    "train/parallel/experts.py": 3,
    "train/parallel/fsdp.py": 1,
    "train/parallel/pieces.py": 2,
    "train/parallel/ranks.py": 1,
    "train/parallel/recompute.py": 2,
    "train/parallel/tensor.py": 9,
    "train/parallel/tensor_styles.py": 3,
    "train/provenance.py": 2,
    "train/recordable.py": 4,
    "train/recorded.py": 1,
    "train/streamed.py": 13,
}
