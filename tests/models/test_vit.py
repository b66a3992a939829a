"""ViT and DeiT: sizes as published, and the choices that are theirs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkv.errors import QkvError
from qkv.models import deit, vit
from qkv.models.catalogue import build, count_parameters
from qkv.models.head_choice import HeadChoice
from qkv.weights.load import load_model
from qkv.weights.save import save_model
from tests.models.small import perturb
from tests.models.small_images import LABELS, choice, small_model, small_sizes

IMAGENET = HeadChoice("classification", tuple(f"LABEL_{number}" for number in range(1000)))
# As counted in the published files, the head of a thousand classes included.
COUNTS = {
    "base-16": 86_567_656,
    "base-32": 88_224_232,
    "large-16": 304_326_632,
    "large-32": 306_535_400,
    "huge-14": 632_045_800,
}


@pytest.mark.parametrize("size", COUNTS)
def test_the_parameters_of_every_published_vit(size: str) -> None:
    assert count_parameters("vit", vit.SIZES[size], IMAGENET) == COUNTS[size]


@pytest.mark.parametrize(("size", "millions"), [("base-16", 86), ("large-16", 307), ("huge-14", 632)])
def test_about_as_many_as_the_paper_says(size: str, millions: int) -> None:
    """Within 2% of [dosovitskiy2021 tab.1]."""
    assert count_parameters("vit", vit.SIZES[size]) == pytest.approx(millions * 1e6, rel=0.02)


@pytest.mark.parametrize(
    ("size", "count"), [("base", 87_338_192), ("small", 22_436_432), ("tiny", 5_910_800), ("base-384", 87_630_032)]
)
def test_the_parameters_of_every_published_deit(size: str, count: int) -> None:
    """Both heads counted; [touvron2021 tab.1] has 86, 22 and 5 millions, without the second token and its head."""
    assert count_parameters("deit", deit.SIZES[size], HeadChoice("distilled", IMAGENET.labels)) == count


@torch.no_grad()
def test_a_vit_may_decide_by_the_mean_of_its_patches() -> None:
    model = build("vit", replace(small_sizes("vit"), pooling="mean"), choice("classification")).eval()
    perturb(model)
    images = torch.randn(2, 3, 12, 12)
    states = model.states(images, model.context(images))
    assert states.shape[1] == 9
    torch.testing.assert_close(model(images), model.head.out(states.mean(1)))


def test_another_way_to_decide_is_refused() -> None:
    with pytest.raises(QkvError, match="decides by one of class, mean, not by 'last'"):
        build("vit", replace(small_sizes("vit"), pooling="last"))
    with pytest.raises(QkvError, match="one vector of a row by mean, not by first"):
        build("vit", replace(small_sizes("vit"), pooling="mean"), HeadChoice("embedding", pooling="first"))
    with pytest.raises(QkvError, match="no resampling called bicubik: did you mean bicubic"):
        build("vit", replace(small_sizes("vit"), resampling="bicubik"))


@torch.no_grad()
def test_a_distilled_decision_is_the_mean_of_two() -> None:
    model = small_model("deit", "distilled")
    images = torch.randn(2, 3, 12, 12)
    states = model.states(images, model.context(images))
    by_class, by_teacher = model.head.both(states)
    assert by_class.shape == by_teacher.shape == (2, len(LABELS))
    torch.testing.assert_close(by_class, model.head.out(states[:, 0]))
    torch.testing.assert_close(by_teacher, model.head.teacher_out(states[:, 1]))
    torch.testing.assert_close(model(images), (by_class + by_teacher) / 2)
    assert not torch.allclose(by_class, by_teacher)


def test_rates_of_leaving_out_grow_with_depth() -> None:
    model = build("vit", replace(small_sizes("vit"), layers=5, path_dropout=0.2))
    rates = [(block.attention.path.rate, block.feed_forward.path.rate) for block in model.stack.blocks]
    assert rates == [(pytest.approx(rate), pytest.approx(rate)) for rate in (0.0, 0.05, 0.1, 0.15, 0.2)]


@pytest.mark.parametrize("family", ["vit", "deit"])
@torch.no_grad()
def test_a_model_with_convolutions_before_its_patches_is_saved_and_loaded(family: str, tmp_path: Path) -> None:
    model = small_model(family, "classification", stem=2, patch=1)
    images = torch.randn(2, 3, 12, 12)
    assert model.embed.grid(images) == (3, 3)
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.sizes.stem == 2
    assert torch.equal(loaded(images), model(images))


def test_patches_behind_convolutions_are_not_hidden() -> None:
    with pytest.raises(QkvError, match="has seen its neighbours"):
        small_model("vit", "masked", stem=2, patch=1)
