"""A head gives the same answer from the slots that it is said to read."""

import pytest
import torch

from qkv.models.catalogue import FAMILIES
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.heads import ClassificationHead, PooledHead
from qkv.parts.pool import FirstToken, MeanOfFirst, MeanOfPatches, UnitLength
from qkv.parts.wanted import slots_read
from tests.models.small_images import IMAGE_FAMILIES, small_model

CASES = [(name, kind) for name in IMAGE_FAMILIES for kind in FAMILIES[name].heads]
READ = {"classification": 1, "projection": 1, "distilled": 2}  # all others read all slots


@pytest.mark.parametrize(("family", "kind"), CASES)
@torch.no_grad()
def test_heads_of_pictures(family: str, kind: str) -> None:
    model = small_model(family, kind)
    count = slots_read(model.head)
    mean_of_patches = (family, kind) == ("clip-image", "classification")
    assert count == (None if mean_of_patches else READ.get(kind))
    if count is not None:
        x, ctx = torch.randn(3, 10, model.sizes.width), Context(tokens=Tokens(10))
        assert torch.equal(model.head(x[:, :count], ctx), model.head(x, ctx))


def test_pools() -> None:
    assert slots_read(PooledHead(UnitLength(FirstToken()))) == 1
    assert slots_read(ClassificationHead(MeanOfFirst(2), 4, 3)) == 2
    assert slots_read(PooledHead(MeanOfPatches(1))) is None


def test_a_head_that_is_watched_or_another_is_given_all() -> None:
    class Other(FirstToken):
        pass

    assert slots_read(PooledHead(Other())) is None
    for part in ("", "pool"):
        head = PooledHead(FirstToken())
        assert slots_read(head) == 1
        head.get_submodule(part).register_forward_pre_hook(lambda *_: None)
        assert slots_read(head) is None
