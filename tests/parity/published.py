"""What the parity of every text model is made of: a reference, ours as read from its files, and the comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from qkv.models.catalogue import Model
from qkv.models.text_model import TextModel
from qkv.parts.attention.visibility import Tokens
from qkv.parts.position import positions_in_documents
from qkv.weights.certify import Finding, compare_models, open_reference
from qkv.weights.compare import ROWS, settings_for
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import family_of, save_published
from qkv.weights.rules import Computed, Drop, to_theirs
from qkv.weights.save import tensors_of

# What comes after the stream is the same for all families: others are read with it at every change.
HEADS = ("states", "classification", "tokens", "spans")
POOLED = ("classification", "embedding")  # heads that give a row one answer


@dataclass(frozen=True)
class Case:
    """A class of the reference library, and the configuration to build it with."""

    architecture: str
    config: Any


def other_heads_slow(cases: dict[str, Case]) -> list[Any]:
    """The names of the cases; those of heads that are the same for all families are for the slow tests."""
    return [pytest.param(name, marks=pytest.mark.slow) if name.endswith(HEADS) else name for name in cases]


@dataclass(frozen=True)
class Pair:
    case: Case
    reference: Any
    ours: TextModel


def reference_pair(case: Case, folder: Path) -> Pair:
    """The reference with noise on every parameter, and ours as read from the folder that the reference wrote."""
    torch.manual_seed(1)
    reference = getattr(transformers, case.architecture)(case.config).eval()
    perturb(reference)
    reference.save_pretrained(folder)
    return Pair(case, reference, load_model(folder))


@torch.no_grad()
def perturb(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:  # a table of sines is as it is
            parameter += 0.1 * torch.randn_like(parameter)


PARTS = [
    ("image_embeds", "text_embeds", "logits_per_image"),
    ("image_embeds",),
    ("text_embeds",),
    ("prediction_logits", "seq_relationship_logits"),
    ("prediction_logits", "sop_logits"),
    ("last_hidden_state", "pooler_output"),
    ("logits",),
    ("last_hidden_state",),
]


def answers(output: Any) -> tuple[Tensor, ...]:
    """An answer, ours or the reference's, as the tensors it consists of."""
    if isinstance(output, Tensor):
        return (output,)
    if isinstance(output, tuple):
        return tuple(output)
    for names in PARTS:
        if all(getattr(output, name, None) is not None for name in names):
            return tuple(getattr(output, name) for name in names)
    return (torch.stack((output.start_logits, output.end_logits), -1),)


def random_ids(pair: Pair, rows: int, length: int) -> Tensor:
    """Ids without the padding token, by which some references find the end of a row."""
    ids = torch.randint(0, pair.ours.vocabulary - 1, (rows, length))
    pad = pair.case.config.pad_token_id
    return ids if pad is None else ids + (ids >= pad)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def check_outputs(pair: Pair, lengths: list[int]) -> None:
    """What `qkv certify` compares, but stricter."""
    assert agree(pair.ours, pair.reference, lengths) == []


def agree(ours: Model, reference: Any, lengths: list[int], rows: Sequence[int] = ROWS) -> list[Finding]:
    """Whatever differs alone and batched, padded on either side, cached and not, in single precision and bfloat16."""
    settings = settings_for(ours, max(lengths), lengths, rows)
    findings = compare_models(ours, reference, settings, exact=2e-5, own=0.0)
    assert {each.dtype for each in findings} == {"float32", "bfloat16"}
    assert {each.setting for each in findings} >= {each for each in settings if each.padding == "none"}
    return [each for each in findings if not each.passed]


def check_gradients(pair: Pair) -> None:
    """Of every tensor, through the reversible names: theirs as ours, compared one by one."""
    ids = random_ids(pair, 2, 9)
    for model in (pair.ours, pair.reference):
        model.zero_grad()
    ours, theirs = answers(pair.ours(ids)), answers(pair.reference(ids))
    weights = [torch.randn_like(each) for each in theirs]
    for given in (ours, theirs):
        torch.stack([(each * weight).sum() for each, weight in zip(given, weights, strict=True)]).sum().backward()
    published = family_of(pair.ours, PUBLISHED)
    with torch.no_grad():
        gradients = {parameter: parameter.grad for parameter in pair.ours.parameters()}
        values = {parameter: parameter.detach().clone() for parameter in gradients}
        for parameter, gradient in gradients.items():  # so that names are told by the map itself
            parameter.copy_(torch.zeros_like(parameter) if gradient is None else gradient)
        rules = published.rules(pair.ours.sizes, pair.ours.head_choice)
        named = to_theirs(rules, tensors_of(pair.ours))
        named = {name: tensor.clone() for name, tensor in named.items()}
        for parameter, value in values.items():
            parameter.copy_(value)
    compared = {rule.theirs for rule in rules if isinstance(rule, Drop | Computed)}  # what the reference never learns
    for name, parameter in pair.reference.named_parameters():
        known = name if name in named else published.base + name
        if parameter.grad is not None and known in named:
            torch.testing.assert_close(named[known], parameter.grad, atol=1e-4, rtol=1e-3)
            compared.add(known)
    assert named.keys() <= compared
    for model in (pair.ours, pair.reference):
        model.zero_grad()


@torch.no_grad()
def check_cached(pair: Pair) -> None:
    """Token by token, and a prompt first and then the rest, with padding on the left."""
    if pair.ours.head_choice.kind in POOLED:
        return
    ids = random_ids(pair, 2, 9)
    whole = pair.ours(ids)
    cache = pair.ours.new_cache(9)
    close(torch.cat([pair.ours(ids[:, slot : slot + 1], cache=cache) for slot in range(9)], 1), whole)
    documents = (torch.arange(9) >= torch.tensor([[0], [4]])).long()
    positions = positions_in_documents(documents)
    whole = pair.ours(ids, tokens=Tokens(9, documents=documents), positions=positions)
    cache, parts = pair.ours.new_cache(9), []
    for start, end in ((0, 6), (6, 7), (7, 9)):
        tokens = Tokens(end - start, start, documents[:, start:end])
        parts.append(pair.ours(ids[:, start:end], tokens=tokens, positions=positions[:, start:end], cache=cache))
    close(torch.cat(parts, 1)[documents > 0], whole[documents > 0])


@torch.no_grad()
def check_both_ways(pair: Pair, folder: Path) -> None:
    """What we write, the reference opens without a missing, unexpected or mismatched key: it is the same, to the bit.

    So are its settings, for it answers the same, but for what two runs may differ by: how a product is added up depends
    on where its numbers lie.
    """
    save_published(pair.ours, folder, PUBLISHED, {"pad_token_id": pair.case.config.pad_token_id})
    opened, keys = open_reference(transformers, pair.case.architecture, folder)
    assert keys == {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
    published = family_of(pair.ours, PUBLISHED)
    rules = published.rules(pair.ours.sizes, pair.ours.head_choice)
    unused = {rule.theirs for rule in rules if isinstance(rule, Drop | Computed)}
    was = pair.reference.state_dict()
    for name, tensor in opened.state_dict().items():
        assert {name, published.base + name} & unused or torch.equal(tensor, was[name]), name
    ids = random_ids(pair, 2, 9)
    for one, other in zip(answers(opened(ids)), answers(pair.reference(ids)), strict=True):
        close(one, other)
