"""Codes of 8 bits as the paper has them, and AdamW with moments in them."""

import math
from pathlib import Path

import torch
from torch import Tensor

from qkv.files import read_tensors
from qkv.train.optimizers import AdamW8bit, adamw_8bit
from qkv.train.optimizers.blocks import BLOCK, Codebook, code_values, in_blocks
from tests.train.optimizers.common import gradients, one_parameter, run, small_gpt2, stepped


def tree_value(bits: str) -> float:
    """A signed code read bit by bit: sign, zeros that count powers of ten, the first one, a linear fraction."""
    sign, rest = (-1 if bits[0] == "1" else 1), bits[1:]
    if "1" not in rest:
        return 1.0 if sign < 0 else 0.0  # the two codes without a fraction
    zeros = rest.index("1")
    fraction = rest[zeros + 1 :]
    share = (int(fraction, 2) if fraction else 0) + 0.5
    return sign * 10.0**-zeros * (0.1 + 0.9 * share / 2 ** len(fraction))


def test_signed_codes_are_dynamic_trees() -> None:
    expected = sorted(tree_value(f"{code:08b}") for code in range(256))
    torch.testing.assert_close(torch.tensor(code_values(True)), torch.tensor(expected))


def test_codes_without_a_sign_have_a_bit_more_for_the_fraction() -> None:
    values = code_values(False)
    assert len(set(values)) == 256
    assert (values[0], values[-1]) == (0.0, 1.0)
    for decade in range(7):
        inside = [value for value in values if 10.0 ** -(decade + 1) < value < 10.0**-decade]
        assert len(inside) == 128 >> decade


def nearest(blocks: Tensor, signed: bool) -> Tensor:
    """Every number tried with every code."""
    values = torch.tensor(code_values(signed), dtype=blocks.dtype)
    scales = blocks.abs().amax(1, keepdim=True)
    found = (blocks[..., None] / scales[..., None] - values).abs().argmin(-1)
    return values[found] * scales


def test_a_number_becomes_the_nearest_of_its_block() -> None:
    torch.manual_seed(0)
    blocks = torch.randn(3, BLOCK, dtype=torch.float64) * torch.tensor([[1e-9], [1.0], [1e4]], dtype=torch.float64)
    for signed, numbers in ((True, blocks), (False, blocks**2)):
        book = Codebook(signed)
        codes, scales = book.encode(numbers)
        assert codes.dtype == torch.uint8
        torch.testing.assert_close(book.decode(codes, scales), nearest(numbers, signed), rtol=1e-12, atol=0)
        largest = numbers.abs().amax(1)
        if not signed:  # the largest of a block is exact; below zero the codes end just before it
            assert torch.equal(book.decode(codes, scales).amax(1), largest)


def test_zeros_stay_zeros_and_blocks_do_not_see_each_other() -> None:
    book = Codebook(True)
    numbers = torch.cat([torch.zeros(1, BLOCK), torch.full((1, BLOCK), 1e-6), torch.full((1, BLOCK), 1e6)])
    assert torch.equal(book.decode(*book.encode(numbers)), numbers)
    assert in_blocks(torch.ones(3, 1000)).shape == (2, BLOCK)
    assert in_blocks(torch.ones(3, 1000)).sum() == 3000


def test_a_step_is_adam_between_decoding_and_encoding() -> None:
    shape = (3, 1000)
    model, given = one_parameter(shape), gradients(shape, 5)
    theta = model.weight.detach().clone()
    first, second = torch.zeros(2, BLOCK, dtype=torch.float64), torch.zeros(2, BLOCK, dtype=torch.float64)
    optimizer = AdamW8bit(model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.2)
    found = stepped(model, optimizer, given)
    for step, gradient in enumerate(given, 1):
        blocks = torch.zeros(2 * BLOCK, dtype=torch.float64)
        blocks[:3000] = gradient.flatten()
        first = 0.9 * first + 0.1 * blocks.view(2, BLOCK)
        second = 0.98 * second + 0.02 * blocks.view(2, BLOCK) ** 2
        update = (first / (1 - 0.9**step)) / ((second / (1 - 0.98**step)).sqrt() + 1e-9)
        theta = theta - 0.01 * (update.flatten()[:3000].view(shape) + 0.2 * theta)
        first, second = nearest(first, True), nearest(second, False)
    torch.testing.assert_close(found, theta, rtol=1e-9, atol=1e-10)


def test_it_stays_near_adamw() -> None:
    shape = (4, 2048)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator, dtype=torch.float64) + 0.5 for _ in range(30)]
    model, other = one_parameter(shape), one_parameter(shape)
    found = stepped(model, AdamW8bit(model.parameters(), lr=0.01), given)
    expected = stepped(other, torch.optim.AdamW(other.parameters(), lr=0.01), given)
    moved = (expected - one_parameter(shape).weight).abs().mean()
    assert (found - expected).abs().mean() < 0.02 * moved


def test_memory_is_a_quarter_and_tables_and_small_things_keep_all(tmp_path: Path) -> None:
    model = small_gpt2(vocabulary=500, width=64, hidden=256)
    optimizer = adamw_8bit(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        kept = sum(value.nbytes for value in state.values() if torch.is_tensor(value))
        eight = "embed" not in name and parameter.numel() >= 4096
        blocks = math.ceil(parameter.numel() / BLOCK)
        assert kept == (2 * blocks * (BLOCK + 4) if eight else 8 * parameter.numel()), name


def test_a_checkpoint_holds_bytes(tmp_path: Path) -> None:
    run(tmp_path / "run", "adamw8bit", 2)
    tensors = read_tensors(tmp_path / "run" / "checkpoints" / "step-00000002" / "optimizer.safetensors")
    assert tensors["mix.weight/exp_avg"].dtype == torch.uint8
    assert tensors["mix.weight/exp_avg_scale"].dtype == torch.float32
