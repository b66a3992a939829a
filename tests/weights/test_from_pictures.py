"""An AST that begins with the weights of a model of pictures."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.models.ast import ASTSizes
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.models.image_model import ImageModel
from qkv.weights.from_pictures import begin_with_pictures
from tests.models.small_images import small_model


def hearer(seer: ImageModel, **given: int) -> ImageModel:
    sizes = seer.sizes
    own = {"width": sizes.width, "hidden": sizes.hidden, "heads": sizes.heads, "layers": sizes.layers, **given}
    torch.manual_seed(1)
    bank = ASTSizes(bands=12, frames=24, patch=4, frequency_stride=3, time_stride=3, epsilon=sizes.epsilon, **own)
    model: ImageModel = build("ast", bank, HeadChoice("classification", ("low", "high")))
    return model.eval()


@pytest.mark.parametrize("family", ["vit", "deit"])
def test_a_grey_picture_gives_the_same_patches_and_the_same_stream(family: str) -> None:
    """Of three equal colours the mean filter sees what the three see together, but for a factor of three."""
    seer = small_model(family, "states")
    ast = hearer(seer)
    head = {name: tensor.clone() for name, tensor in ast.head.state_dict().items()}
    begin_with_pictures(ast, seer)
    spectrum = torch.randn(2, 1, 12, 24)
    bias = seer.embed.patches.bias[None, :, None, None]
    colours = torch.nn.functional.conv2d(spectrum.expand(-1, 3, -1, -1), seer.embed.patches.weight, stride=3, padding=0)
    expected = (colours / 3 + bias).flatten(2).transpose(1, 2)
    torch.testing.assert_close(ast.embed.patches(spectrum), expected)
    place, theirs = ast.embed.position, seer.embed.position
    prefix = len(seer.embed.prefix)
    torch.testing.assert_close(place.weight[2:], theirs(place.rows, place.columns)[prefix:])
    second = 0 if family == "vit" else 1
    torch.testing.assert_close(place.weight[:2], theirs.weight[[0, second]])
    torch.testing.assert_close(ast.embed.class_token, seer.embed.class_token)
    wanted = seer.embed.class_token if family == "vit" else seer.embed.distillation_token
    torch.testing.assert_close(ast.embed.distillation_token, wanted)
    x = torch.randn(2, 23, seer.sizes.width)
    ctx = ast.context(spectrum)
    torch.testing.assert_close(ast.stack(x, ctx), seer.stack(x, ctx))
    assert all(torch.equal(tensor, head[name]) for name, tensor in ast.head.state_dict().items())


def test_models_that_do_not_fit_are_refused() -> None:
    seer = small_model("vit", "states")
    with pytest.raises(QkvError, match="class token"):
        begin_with_pictures(hearer(seer), small_model("vit", "states", pooling="mean"))
    with pytest.raises(QkvError, match="begins with a ViT"):
        begin_with_pictures(seer, seer)
    with pytest.raises(QkvError, match="model of pictures"):
        begin_with_pictures(hearer(seer, layers=seer.sizes.layers + 1), seer)
    with pytest.raises(QkvError, match="model of pictures"):
        begin_with_pictures(hearer(seer, hidden=seer.sizes.hidden + 4), seer)


def test_a_model_with_convolutions_before_its_patches_is_refused() -> None:
    seer = small_model("vit", "states", stem=2, patch=1)
    with pytest.raises(QkvError, match="convolutions before"):
        begin_with_pictures(hearer(seer), seer)
