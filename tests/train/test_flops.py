"""Operations are counted by running a step, which leaves no trace."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from qkv.data.pairs import PairBatch
from qkv.models.catalogue import build, find_family
from qkv.train.adapt import LoRA, add_lora
from qkv.train.flops import flops_per_target_token

SIZES = {
    "t5": {"width": 8, "key_width": 4, "hidden": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
    "rnn": {"embedding": 8, "width": 8, "alignment": 8, "maxout": 8, "dropout": 0.1},
}


def batch_of(rows: int) -> PairBatch:
    return PairBatch(
        source=torch.randint(4, 20, (rows, 7)),
        source_lengths=torch.full((rows,), 7),
        target=torch.randint(4, 20, (rows, 6)),
        target_lengths=torch.full((rows,), 6),
    )


@pytest.mark.parametrize("family", SIZES)
def test_the_count_is_that_of_a_step_and_leaves_no_trace(family: str) -> None:
    model = build(family, find_family(family).sizes({**SIZES[family], "vocabulary": 20}))
    batch = batch_of(3)
    state = torch.get_rng_state()
    found = flops_per_target_token(model, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None and parameter.device.type == "cpu" for parameter in model.parameters())
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(batch.source, batch.source_lengths, batch.target[:, :-1]).sum().backward()
    assert found == counter.get_total_flops() / 15


def test_what_is_frozen_costs_less() -> None:
    model = build("t5", find_family("t5").sizes({**SIZES["t5"], "vocabulary": 20}))
    whole = flops_per_target_token(model, batch_of(2))
    add_lora(model, LoRA(rank=1))
    assert flops_per_target_token(model, batch_of(2)) < whole
