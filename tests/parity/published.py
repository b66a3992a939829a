"""What the parity of every text model is made of: a reference, ours as read from its files, and the comparisons."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from qkv.models.text_model import TextModel
from qkv.parts.attention.visibility import Tokens
from qkv.parts.position import positions_in_documents
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import family_of, save_published
from qkv.weights.rules import Computed, Drop, to_theirs
from qkv.weights.save import tensors_of

POOLED = ("classification", "embedding")  # heads that give a row one answer


@dataclass(frozen=True)
class Case:
    """A class of the reference library, and the configuration to build it with."""

    architecture: str
    config: Any


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


def compare(found: Any, expected: Any, real: Tensor | None = None, pooled: bool = True) -> None:
    """The answers of real tokens [b s], and those of whole rows unless only the reference's read padding there."""
    for one, other in zip(answers(found), answers(expected), strict=True):
        if other.ndim == 3:
            close(*((one, other) if real is None else (one[real], other[real])))
        elif pooled:
            close(one, other)


def random_ids(pair: Pair, rows: int, length: int) -> Tensor:
    """Ids without the padding token, by which some references find the end of a row."""
    ids = torch.randint(0, pair.ours.vocabulary - 1, (rows, length))
    pad = pair.case.config.pad_token_id
    return ids if pad is None else ids + (ids >= pad)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def check_outputs(pair: Pair, lengths: list[int]) -> None:
    """Alone and batched, at every length; padded on the right and on the left."""
    pad = pair.case.config.pad_token_id or 0
    for length in lengths:
        ids = random_ids(pair, 3, length)
        expected = answers(pair.reference(ids))
        compare(pair.ours(ids), expected)
        compare(pair.ours(ids[:1]), tuple(each[:1] for each in expected))
        compare(pair.ours(ids, **segments(pair, ids)), pair.reference(ids, **segments(pair, ids, "token_type_ids")))
        if length == 1:
            continue
        short = torch.tensor([length, length - 1, max(1, length // 2)])
        slots = torch.arange(length)
        real = slots < short[:, None]  # [b s]
        right = torch.where(real, ids, pad)
        found = pair.ours(right, lengths=short)
        compare(found, pair.reference(right, attention_mask=real.long()), real)
        real = real.flip(1)
        left = torch.where(real, ids, pad)
        documents = real.long()
        positions = positions_in_documents(documents)
        found = pair.ours(left, tokens=Tokens(length, documents=documents), positions=positions)
        expected = pair.reference(left, attention_mask=documents, **left_positions(pair, positions))
        compare(found, expected, real, pooled=reads_last(pair))


def segments(pair: Pair, ids: Tensor, name: str = "segments") -> dict[str, Tensor]:
    """The number of the text of each token, where a model tells texts apart."""
    table = pair.ours.embed.segments
    return {} if table is None else {name: ids % len(table.weight)}


def left_positions(pair: Pair, positions: Tensor) -> dict[str, Tensor]:
    """Most references count positions by slot unless told otherwise; some have none to be told."""
    known = inspect.signature(pair.reference.forward).parameters
    return {"position_ids": positions} if "position_ids" in known else {}


def reads_last(pair: Pair) -> bool:
    """Whether a pooled answer comes from the last token: a reference that reads the first would read padding there."""
    return type(pair.ours.head).__name__ == "ClassificationHead" and type(pair.ours.head.pool).__name__ == "LastToken"


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
    """What we write, the reference opens without a missing, unexpected or mismatched key, and answers the same."""
    save_published(pair.ours, folder, PUBLISHED, {"pad_token_id": pair.case.config.pad_token_id})
    opened, report = getattr(transformers, pair.case.architecture).from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], f"{kind}: {report[kind]}"
    ids = random_ids(pair, 2, 9)
    for one, other in zip(answers(opened.eval()(ids)), answers(pair.reference(ids)), strict=True):
        torch.testing.assert_close(one, other, atol=0, rtol=0)
