"""What tests of divided models share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from qkv.models.catalogue import build
from tests.models import small, small_text


def text_model(family: str, kind: str | None = None, **sizes: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"heads": 4, "width": 16, **sizes}
    model = build(family, replace(small_text.small_sizes(family), **sizes), kind and small_text.choice(kind)).eval()
    small.perturb(model)
    return model


def ids(rows: int, slots: int) -> Tensor:
    return torch.randint(3, 19, (rows, slots), generator=torch.Generator().manual_seed(slots))


def ways(*sizes: int) -> DeviceMesh:
    return init_device_mesh("cpu", sizes, mesh_dim_names=("shard", "tensor")[-len(sizes) :])


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
