"""The gradient of parameters that ranks hold in every way there is has the norm it has in one process."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from qkv.train.parallel.norm import clip_gradients, total_norm
from tests.train.parallel.ranks import run_ranks
from tests.train.parallel.wholes import whole

SHAPES = {"plain": (3, 2), "one way": (5, 3), "both ways": (4, 6), "twice": (7, 2), "repeated": (4,), "on one": (1, 2)}


def gradients(scale: float = 1.0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=random) * scale for name, shape in SHAPES.items()}


def holders(wholes: dict[str, Tensor]) -> list[nn.Parameter]:
    found = []
    for gradient in wholes.values():
        parameter = nn.Parameter(gradient * 0)
        parameter.grad = gradient
        found.append(parameter)
    return [*found, nn.Parameter(torch.zeros(2))]  # which has none


def held(*clips: float) -> list[tuple[float, dict[str, Tensor]]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    ways = {
        "one way": (mesh["shard"], [Shard(0)]),
        "both ways": (mesh, [Shard(0), Shard(1)]),
        "twice": (mesh, [Shard(0), Shard(0)]),
        "repeated": (mesh, [Shard(0), Replicate()]),
        "on one": (mesh["tensor"], [Shard(0)]),
    }
    found = []
    for most in clips:
        wholes = gradients()
        for name, (ranks, placements) in ways.items():
            wholes[name] = distribute_tensor(wholes[name], ranks, placements)
        parameters = holders(wholes)
        norm = total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        clip_gradients(parameters, most, norm)
        found.append((float(norm), {name: whole(each) for name, each in wholes.items()}))
    return found


def test_each_number_counts_once_however_it_is_held() -> None:
    wholes = gradients()
    expected = math.sqrt(sum(float(each.double().square().sum()) for each in wholes.values()))
    clips = (2.0, 100.0)
    answers = run_ranks(4, held, *clips)
    for answer in answers:
        for most, (norm, clipped) in zip(clips, answer, strict=True):
            assert norm == answers[0][0][0], "ranks must agree to the last bit"
            assert norm == pytest.approx(expected, rel=1e-6)
            for name, gradient in wholes.items():
                torch.testing.assert_close(clipped[name], gradient * min(1.0, most / expected))


def test_a_process_alone_has_the_norm_and_the_clipping_of_torch() -> None:
    ours, theirs = holders(gradients()), holders(gradients())
    norm = total_norm([parameter.grad for parameter in ours if parameter.grad is not None])
    clip_gradients(ours, 0.7, norm)
    assert torch.equal(norm, nn.utils.clip_grad_norm_(theirs, 0.7))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.grad is None if other.grad is None else torch.equal(mine.grad, other.grad)


def refused() -> tuple[list[bool], str]:
    """Of a number that only one rank holds, and of sums that nobody has made."""
    mesh, finite = init_device_mesh("cpu", (2,)), []
    for bad in (float("inf"), float("nan")):
        gradient = torch.tensor([bad, 1.0, 1.0, 1.0])
        finite.append(bool(torch.isfinite(total_norm([distribute_tensor(gradient, mesh, [Shard(0)])]))))
    try:
        total_norm([DTensor.from_local(torch.ones(2), mesh, [Partial()])])
    except AssertionError as error:
        return finite, str(error)
    return finite, ""


def test_all_ranks_know_of_a_number_that_is_not_finite_and_of_sums_not_made() -> None:
    for finite, said in run_ranks(2, refused):
        assert finite == [False, False]
        assert "not summed" in said
