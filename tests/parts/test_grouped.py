"""Grouped products, by blocks and by the kernel, against one product a row."""

import pytest
import torch
from torch import Tensor

from qkv.parts.grouped import (
    EvenGroups,
    GroupedLinear,
    Groups,
    block_product,
    grouped_product,
    kernel_product,
    kernel_takes,
)

SIZES = [(1, 8, 8, 16), (5, 8, 8, 16), (16, 8, 8, 8), (40, 3, 8, 16), (41, 4, 16, 8), (97, 7, 8, 8), (33, 1, 8, 8)]


def spread(rows: int, groups: int, kind: str) -> Tensor:
    """Rows in all groups, all in the last, or in the first and the last alone."""
    if kind == "all":
        return torch.randint(0, groups, (rows,))
    last = torch.full((rows,), groups - 1)
    return last if kind == "last" else torch.where(torch.rand(rows) < 0.3, 0, last)


def row_by_row(x: Tensor, weight: Tensor, group: Tensor) -> Tensor:
    return torch.stack([row @ weight[number] for row, number in zip(x, group.tolist(), strict=True)])


@pytest.mark.parametrize("kind", ["all", "last", "ends"])
@pytest.mark.parametrize(("rows", "groups", "width", "answer"), SIZES)
def test_blocks_give_what_each_row_gives_alone(rows: int, groups: int, width: int, answer: int, kind: str) -> None:
    group, x = spread(rows, groups, kind), torch.randn(rows, width, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(groups, width, answer, dtype=torch.float64, requires_grad=True)
    sorted_rows = Groups(group, groups)
    found = sorted_rows.restore(block_product(sorted_rows.sort(x), weight, sorted_rows))
    expected = row_by_row(x, weight, group)
    torch.testing.assert_close(found, expected)
    pull = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, (x, weight), pull), torch.autograd.grad(expected, (x, weight), pull), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", ["all", "last", "ends"])
@pytest.mark.parametrize(("rows", "groups", "width", "answer"), SIZES)
def test_the_kernel_gives_the_same(rows: int, groups: int, width: int, answer: int, kind: str) -> None:
    """In bfloat16, of which it is the way: close to what float32 gives with the same rounded numbers."""
    group = spread(rows, groups, kind)
    x, weight = torch.randn(rows, width).bfloat16().requires_grad_(), torch.randn(groups, width, answer).bfloat16()
    weight.requires_grad_()
    sorted_rows = Groups(group, groups)
    assert kernel_takes(x, weight)
    found = sorted_rows.restore(kernel_product(sorted_rows.sort(x), weight, sorted_rows))
    wide_x, wide = x.detach().float().requires_grad_(), weight.detach().float().requires_grad_()
    expected, pull = row_by_row(wide_x, wide, group), torch.randn(rows, answer).bfloat16()
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.02)
    for mine, theirs in zip(
        torch.autograd.grad(found, (x, weight), pull),
        torch.autograd.grad(expected, (wide_x, wide), pull.float()),
        strict=True,
    ):
        torch.testing.assert_close(mine.float(), theirs, atol=0.2, rtol=0.02)


def test_no_row_is_a_group_too() -> None:
    weight, groups = torch.randn(3, 8, 8), Groups(torch.zeros(0, dtype=torch.long), 3)
    assert grouped_product(torch.randn(0, 8), weight, groups).shape == (0, 8)
    assert not kernel_takes(torch.randn(0, 8).bfloat16(), weight.bfloat16())


def test_narrow_numbers_of_odd_widths_go_by_blocks() -> None:
    group, x, weight = torch.randint(0, 3, (11,)), torch.randn(11, 7).bfloat16(), torch.randn(3, 7, 5).bfloat16()
    groups = Groups(group, 3)
    assert not kernel_takes(x, weight)
    found = groups.restore(grouped_product(groups.sort(x), weight, groups))
    torch.testing.assert_close(found.float(), row_by_row(x.float(), weight.float(), group), atol=0.05, rtol=0.02)


def test_autocast_narrows_both() -> None:
    layer, groups, x = GroupedLinear(3, 8, 16), Groups(torch.tensor([2, 0, 0, 1]), 3), torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x, groups)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), layer(x, groups), atol=0.05, rtol=0.02)


def test_rows_stand_for_several_and_sum_their_gradients() -> None:
    x, group = torch.randn(5, 3, requires_grad=True), torch.randint(0, 4, (10,))
    groups = Groups(group, 4)
    copies = groups.restore(groups.sort(x, copies=2))
    torch.testing.assert_close(copies, x.repeat_interleave(2, 0))
    pull = torch.randn_like(copies)
    (found,) = torch.autograd.grad(copies, x, pull)
    torch.testing.assert_close(found, pull.unflatten(0, (5, 2)).sum(1))


def test_even_groups_leave_out_rows_without_a_place() -> None:
    """Two groups of three places; the fourth row has none, and two places stay empty."""
    place = torch.tensor([4, 0, 2, -1, 3])
    groups, layer = EvenGroups(place, 2, 3), GroupedLinear(2, 8, 6)
    x = torch.randn(5, 8, requires_grad=True)
    found = groups.restore(layer(groups.sort(x), groups))
    has, group = place >= 0, place // 3
    expected = torch.stack([row @ layer.weight[number] for row, number in zip(x[has], group[has], strict=True)])
    torch.testing.assert_close(found[has], expected)
    pull, inputs = torch.randn_like(found), (x, layer.weight)
    pairs = zip(torch.autograd.grad(found, inputs, pull), torch.autograd.grad(expected, inputs, pull[has]), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs)


def test_blocks_never_take_much_more_room_than_rows() -> None:
    for rows in (64, 1000, 4096):
        for groups in (2, 8, 31):
            worst = Groups(torch.arange(rows) % groups, groups)
            places, owners, size = worst.blocks()
            assert len(owners) * size <= 1.6 * rows + 2 * groups * size / 2
            assert len(set(places.tolist())) == rows
            assert int(places.max()) < len(owners) * size


def test_without_numbers_the_operations_of_each_row_are_counted() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    layer, group = GroupedLinear(8, 16, 32).to("meta"), torch.zeros(100, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        layer(torch.empty(100, 16, device="meta"), Groups(group, 8))
    assert counter.get_total_flops() == 2 * 100 * 16 * 32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_host_never_waits() -> None:
    x, weight = torch.randn(512, 64, device="cuda"), torch.randn(8, 64, 128, device="cuda")
    group = torch.randint(0, 8, (512,), device="cuda")
    expected = torch.einsum("nd,ndf->nf", x, weight[group])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        groups = Groups(group, 8)
        by_blocks = groups.restore(block_product(groups.sort(x), weight, groups))
        by_kernel = groups.restore(kernel_product(groups.sort(x.bfloat16()), weight.bfloat16(), groups))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(by_blocks, expected, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(by_kernel.float(), expected, atol=0.5, rtol=0.05)
