"""What is kept for a device has numbers."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from qkv.data.kept_tensors import keeping_tensors


def test_tensors_are_kept_and_what_stands_for_one_is_not() -> None:
    made: list[str] = []

    @keeping_tensors
    def ones(count: int, device: str) -> Tensor:
        made.append(device)
        return torch.ones(count, device=device)

    with FakeTensorMode():
        assert type(ones(3, "cpu")) is not Tensor
    first = ones(3, "cpu")
    assert first.tolist() == [1, 1, 1]
    assert ones(3, "cpu") is first
    assert ones(3, "meta") is not ones(3, "meta")
    assert made == ["cpu", "cpu", "meta", "meta"]
