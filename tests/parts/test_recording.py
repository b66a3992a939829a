"""Work done again from the same memory into the same memory; on a GPU as a graph."""

import pytest
import torch
from torch import Tensor

from qkv.parts.recording import captured, hold, recorded

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("device", [CPU, pytest.param(GPU, marks=pytest.mark.gpu)], ids=["cpu", "gpu"])
def test_what_the_work_gave_is_filled_anew(device: torch.device) -> None:
    x = torch.zeros(3, device=device)
    replay = captured(lambda: (x + 1, x.sum()), device)
    first, total = replay()
    x.fill_(2.0)
    again = replay()
    assert again[0] is first
    assert again[1] is total
    assert first.tolist() == [3.0, 3.0, 3.0]
    assert total.item() == 6.0


@pytest.mark.parametrize("device", [CPU, pytest.param(GPU, marks=pytest.mark.gpu)], ids=["cpu", "gpu"])
def test_work_that_changes_its_memory(device: torch.device) -> None:
    x = torch.zeros((), device=device)

    def work() -> None:
        x.add_(1)

    step = recorded(work, device)
    before = x.item()
    for _ in range(3):
        step()
    assert x.item() == before + 3


@pytest.mark.gpu
def test_a_record_that_fails_leaves_stream_and_random_numbers_as_they_were() -> None:
    def work() -> tuple[Tensor, ...]:
        x = torch.rand(5, device=GPU)
        return (x[x > 0.5],)  # how many they are is known to the device alone

    torch.manual_seed(0)
    wanted = torch.rand(5, device=GPU).tolist()
    torch.manual_seed(0)
    with pytest.raises(RuntimeError):
        captured(work, GPU)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.rand(5, device=GPU).tolist() == wanted
    (given,) = captured(lambda: (torch.rand(5, device=GPU),), GPU)()
    assert given.shape == (5,)


@pytest.mark.gpu
def test_what_a_cache_may_forget_is_held() -> None:
    cache = [torch.arange(4.0, device=GPU)]
    replay = captured(lambda: (hold(cache[0]) * 2,), GPU)
    cache.clear()
    torch.full((4,), 9.0, device=GPU)  # would take the place
    assert replay()[0].tolist() == [0.0, 2.0, 4.0, 6.0]


def test_nothing_is_held_where_nothing_is_recorded() -> None:
    value = object()
    assert hold(value) is value
