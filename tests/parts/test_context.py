"""The context that travels beside the stream, and the ledger."""

import dataclasses

import pytest
import torch
from torch import nn

from qkv.parts.attention.visibility import Causal, Everything, NotPadding, Tokens
from qkv.parts.context import Context, Ledger

CPU = torch.device("cpu")


def test_a_context_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Context(tokens=Tokens(3)).memory = torch.zeros(1)  # type: ignore[misc]


def test_positions_are_the_slots_unless_given() -> None:
    assert Context(tokens=Tokens(3, start=4)).position_ids(CPU).tolist() == [4, 5, 6]
    given = torch.tensor([[0, 0, 1]])
    assert Context(tokens=Tokens(3), positions=given).position_ids(CPU) is given


def test_the_pass_narrows_every_rule() -> None:
    side = Tokens.padded(torch.tensor([2]), 3)
    ctx = Context(tokens=side, visibility=NotPadding())
    assert ctx.mask(Causal(), side, side, CPU).rule == Causal() & NotPadding()
    assert ctx.mask(Everything(), side, side, CPU).rule == NotPadding()


def test_masks_are_shared_by_rule_and_sides_and_by_nothing_less() -> None:
    side, longer, later = Tokens(3), Tokens(4), Tokens(3, start=1)
    ctx = Context(tokens=side)
    mask = ctx.mask(Causal(), side, side, CPU)
    assert ctx.mask(Causal(), side, side, CPU) is mask
    assert dataclasses.replace(ctx, bias=torch.zeros(1)).mask(Causal(), side, side, CPU) is mask
    for other in (longer, later):
        assert ctx.mask(Causal(), side, other, CPU) is not mask
        assert ctx.mask(Causal(), other, side, CPU) is not mask
    assert ctx.mask(Everything(), side, side, CPU) is not mask
    assert Context(tokens=side).mask(Causal(), side, side, CPU) is not mask


def test_a_rule_that_reads_no_query_needs_one_mask_for_equally_many() -> None:
    """The beams of a sentence are lined up anew in every layer; what they see of the memory is the same."""
    memory = Tokens.padded(torch.tensor([2, 3]), 3)
    ctx = Context(tokens=Tokens(1), visibility=NotPadding())
    mask = ctx.mask(Everything(), Tokens(4), memory, CPU)
    assert ctx.mask(Everything(), Tokens(4), memory, CPU) is mask
    assert ctx.mask(Everything(), Tokens(5), memory, CPU) is not mask
    assert ctx.mask(Everything(), Tokens(4), memory, torch.device("meta")) is not mask


def test_the_ledger_writes_under_the_name_of_the_module() -> None:
    model = nn.Sequential(nn.ModuleDict({"attention": nn.Identity()}), nn.Identity())
    ledger = Ledger(model, keep=["weights"])
    first, second = torch.zeros(1), torch.ones(1)
    ledger.write(model[0]["attention"], "weights", first)
    ledger.write(model[0]["attention"], "weights", second)
    ledger.write(model[1], "balance", first)
    assert ledger.wants("weights")
    assert not ledger.wants("balance")
    assert ledger.entries == {"0.attention/weights": [first, second]}
