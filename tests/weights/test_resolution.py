"""A model brought to pictures of another size."""

from pathlib import Path

import pytest
import torch

from qkv.errors import QkvError
from qkv.weights.load import load_model
from qkv.weights.resolution import at_resolution
from qkv.weights.save import save_model
from tests.models.small_images import small_model
from tests.models.small_text import small_model as small_text_model


@pytest.mark.parametrize(
    ("family", "kind", "sizes"),
    [
        ("vit", "classification", {}),
        ("deit", "distilled", {}),
        ("vit", "masked", {}),
        ("vit", "classification", {"stem": 2, "patch": 1}),
    ],
)
@torch.no_grad()
def test_a_model_answers_the_same_once_its_positions_are_interpolated_for_good(
    family: str, kind: str, sizes: dict[str, int], tmp_path: Path
) -> None:
    model = small_model(family, kind, **sizes)
    larger = at_resolution(model, 20)
    images = torch.randn(2, 3, 20, 20)
    torch.testing.assert_close(larger(images), model(images))
    assert larger.sizes.image == 20
    assert len(larger.embed.position.weight) == len(larger.embed.prefix) + 25
    assert not larger.training
    assert model.sizes.image == 12
    save_model(larger, tmp_path)
    assert torch.equal(load_model(tmp_path)(images), larger(images))


def test_what_has_no_resolution_is_refused() -> None:
    with pytest.raises(QkvError, match="square pictures"):
        at_resolution(small_text_model("bert"), 20)
    with pytest.raises(QkvError, match="smaller than one patch"):
        at_resolution(small_model("vit"), 3)
