"""Pictures become what the reference processors make of them, to the last bit."""

import json
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.data.preprocessing import (
    CLIP_MEAN,
    CLIP_STD,
    Centre,
    EdgesUpTo,
    Exactly,
    Normalise,
    Preprocessing,
    RoundedCentre,
    ShortestEdge,
    exact_parts,
)
from qkv.data.preprocessing_files import preprocessing_from, preprocessing_from_timm
from qkv.errors import QkvError

NO_TORCHVISION = "the torchvision that fits is built for CUDA, and breaks imports beside a torch for CPUs"
SIZES = [(37, 91), (64, 64), (301, 200), (224, 224), (225, 333), (1, 40), (500, 11), (20, 30)]  # width, height


def noise(width: int, height: int, channels: int = 3) -> Image.Image:
    """A picture in which every pixel matters, with smooth parts."""
    draw = np.random.default_rng([width, height])
    values = draw.integers(0, 256, (height, width, channels)) * 0.3
    values += np.linspace(0, 170, width)[None, :, None]
    return Image.fromarray(values.astype(np.uint8))


def reference(name: str, **settings: Any) -> Any:
    module = import_module(f"transformers.models.{name.lower()}.image_processing_pil_{name.lower()}")
    return getattr(module, f"{name}ImageProcessorPil")(**settings)


CASES = {
    "vit": ("ViT", {}),
    "vit to a rectangle": ("ViT", {"size": {"height": 48, "width": 80}, "resample": 3}),
    "vit by lanczos": ("ViT", {"size": {"height": 64, "width": 64}, "resample": 1}),
    "vit without normalising": ("ViT", {"do_normalize": False}),
    "vit without resizing": ("ViT", {"do_resize": False}),
    "deit": ("DeiT", {}),
    "deit with an odd margin": (
        "DeiT",
        {"size": {"height": 75, "width": 70}, "crop_size": {"height": 64, "width": 33}},
    ),
    "deit with a crop beyond the picture": ("DeiT", {"do_resize": False, "crop_size": {"height": 97, "width": 100}}),
    "clip": ("CLIP", {}),
    "clip at another size": ("CLIP", {"size": {"shortest_edge": 61}, "crop_size": {"height": 48, "width": 48}}),
    "clip at other scale": ("CLIP", {"rescale_factor": 1 / 127.5}),
    "detr": ("Detr", {}),
    "detr, small": ("Detr", {"size": {"shortest_edge": 48, "longest_edge": 80}}),
}


@pytest.mark.parametrize("case", CASES)
def test_pixels_are_those_of_the_reference(case: str) -> None:
    name, settings = CASES[case]
    processor = reference(name, **settings)
    config = {**settings, "image_processor_type": f"{name}ImageProcessor"}
    mine = preprocessing_from(config, "file")
    sizes = SIZES if name != "Detr" or settings else [(37, 91), (301, 200), (640, 480), (50, 500)]
    for width, height in sizes:
        if name == "Detr" and min(width, height) / max(width, height) < 1 / 60:
            continue  # the reference has no size for these
        image = noise(width, height)
        theirs = processor(images=[image], return_tensors="pt")["pixel_values"][0]
        assert torch.equal(mine.tensor(image), theirs), (width, height)


def test_the_written_defaults_of_the_reference_are_read_as_they_are_meant() -> None:
    for name in ("ViT", "DeiT", "CLIP", "Detr"):
        whole = json.loads(reference(name).to_json_string())
        bare = {"image_processor_type": f"{name}ImageProcessor"}
        assert preprocessing_from(whole, "file") == preprocessing_from(bare, "file")


def test_pictures_of_several_sizes_are_padded_as_the_reference_pads_them() -> None:
    processor = reference("Detr", size={"shortest_edge": 40, "longest_edge": 66})
    images = [noise(37, 91), noise(64, 64), noise(200, 101)]
    theirs = processor(images=images, return_tensors="pt")
    mine = Preprocessing(
        resize=EdgesUpTo(40, 66),
        normalise=Normalise(1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        padding="to largest",
    ).batch(images)
    assert torch.equal(mine.pixels, theirs["pixel_values"])
    assert torch.equal(mine.real.long(), theirs["pixel_mask"])


@pytest.mark.parametrize("mode", ["L", "RGBA", "LA", "P", "1", "CMYK"])
def test_pictures_that_are_not_rgb_become_what_the_reference_makes_of_them(mode: str) -> None:
    image = noise(60, 40, 4).convert("RGBA")
    image = image.convert("CMYK" if mode == "CMYK" else mode)
    theirs = reference("CLIP")(images=[image], return_tensors="pt")["pixel_values"][0]
    assert torch.equal(preprocessing_from({"image_processor_type": "CLIPImageProcessor"}, "").tensor(image), theirs)


@pytest.mark.parametrize(
    "config", [{}, {"crop_pct": 0.9}, {"crop_pct": 1.0}, {"crop_pct": 0.95, "crop_mode": "squash"}]
)
def test_pixels_are_those_of_timm(config: dict[str, Any]) -> None:
    pytest.importorskip("torchvision", reason=NO_TORCHVISION)
    factory = pytest.importorskip("timm.data.transforms_factory", reason=NO_TORCHVISION)
    for size, filter in ((224, "bicubic"), (97, "bilinear")):
        whole = {"input_size": [3, size, size], "interpolation": filter, **config}
        mine = preprocessing_from_timm(whole, "file")
        transform = factory.transforms_imagenet_eval(
            size, config.get("crop_pct"), config.get("crop_mode"), interpolation=filter
        )
        for width, height in SIZES:
            image = noise(width, height)
            assert torch.equal(mine.tensor(image), transform(image)), (width, height, size)


def test_pixels_are_nearly_those_of_the_references_torchvision_processors() -> None:
    """They resize by another implementation: no value is off by more than one or two steps of 255."""
    pytest.importorskip("torchvision", reason=NO_TORCHVISION)
    from transformers import CLIPImageProcessor

    image = noise(301, 200)
    theirs = CLIPImageProcessor()(images=[image], return_tensors="pt")["pixel_values"][0]
    mine = preprocessing_from({"image_processor_type": "CLIPImageProcessor"}, "").tensor(image)
    assert (mine - theirs).abs().max() * min(CLIP_STD) * 255 < 2.5


def test_half_a_pixel_is_rounded_as_torchvision_does() -> None:
    """Worked out by hand: (229 − 224) / 2 = 2.5 goes to the even 2, (231 − 224) / 2 = 3.5 to 4."""
    assert RoundedCentre(224, 224).corner(229, 231) == (2, 4)
    assert Centre(224, 224).corner(229, 231) == (2, 3)
    assert RoundedCentre(10, 10).corner(7, 5) == (-1, -2)
    assert Centre(10, 10).corner(7, 5) == (-2, -3)


def test_a_very_thin_picture_needs_no_large_memory() -> None:
    """1 × 10,000 at a shortest edge of 224 would be 500 million pixels: only the crop is made, as it would be."""
    mine = Preprocessing(resize=ShortestEdge(224), filter="bicubic", crop=Centre(224, 224))
    thin = noise(1, 10_000)
    made = mine.pixels(thin)
    assert made.shape == (3, 224, 224)
    # The same stretch of the picture, cut out with some room and resized whole.
    around = thin.crop((0, 4_900, 1, 5_100)).resize((224, 224 * 200), Image.Resampling.BICUBIC)
    middle = np.asarray(around)[224 * 100 - 112 : 224 * 100 + 112]
    assert np.abs(made.permute(1, 2, 0).numpy().astype(int) - middle).max() <= 1


def test_a_picture_thinner_than_a_pixel_keeps_one() -> None:
    assert EdgesUpTo(800, 1333).of(1, 10_000) == (1, 1333)
    assert EdgesUpTo(800, 1333).of(10_000, 1) == (1333, 1)


def test_what_cannot_be_done_is_told() -> None:
    with pytest.raises(QkvError, match="several sizes"):
        Preprocessing(resize=ShortestEdge(32)).batch([noise(64, 32), noise(32, 32)])
    with pytest.raises(QkvError, match="would become"):
        Preprocessing(resize=ShortestEdge(224)).pixels(noise(1, 10_000))
    with pytest.raises(QkvError, match="no filter 'sharp'"):
        Preprocessing(filter="sharp")
    with pytest.raises(QkvError, match="at least one"):
        Preprocessing(resize=Exactly(8, 8)).batch([])


def test_clip_numbers_stand_as_published() -> None:
    clip = preprocessing_from({"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224}, "file")
    assert clip == Preprocessing(
        resize=ShortestEdge(224),
        filter="bicubic",
        crop=Centre(224, 224),
        normalise=Normalise(1 / 255, CLIP_MEAN, CLIP_STD),
    )
    assert clip.size == (224, 224)


def test_a_model_of_greys_gets_greys() -> None:
    way = Preprocessing(resize=Exactly(20, 30), normalise=Normalise(1 / 255, (0.25,), (0.5,)))
    colours = noise(64, 48)
    assert way.tensor(colours).shape == (1, 20, 30)
    greys = colours.convert("L")
    assert torch.equal(way.tensor(greys), way.tensor(colours))
    theirs = reference(
        "ViT", size={"height": 20, "width": 30}, image_mean=[0.25], image_std=[0.5], do_convert_rgb=False
    )(images=[greys], return_tensors="pt")
    assert torch.equal(way.tensor(greys), theirs["pixel_values"][0])


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (Preprocessing(resize=Exactly(224, 224)), (Exactly(384, 384), None)),
        (Preprocessing(resize=ShortestEdge(256), crop=Centre(224, 224)), (ShortestEdge(439), Centre(384, 384))),
        (Preprocessing(resize=ShortestEdge(9), crop=RoundedCentre(9, 9)), (ShortestEdge(384), RoundedCentre(384, 384))),
        (Preprocessing(resize=Exactly(256, 256), crop=Centre(224, 224)), (Exactly(439, 439), Centre(384, 384))),
    ],
)  # fmt: skip
def test_another_size_shows_as_much_of_a_picture(way: Preprocessing, expected: tuple[object, object]) -> None:
    larger = way.at(384)
    assert (larger.resize, larger.crop) == expected
    assert larger.size == (384, 384)
    assert way.size is not None
    assert way.at(way.size[0]) == way


def test_a_way_without_one_size_has_no_other() -> None:
    with pytest.raises(QkvError, match="no one size"):
        Preprocessing(resize=ShortestEdge(224)).at(384)


def test_what_was_normalised_can_be_undone() -> None:
    normalise = Normalise(1 / 255, (0.1, 0.2, 0.3), (0.3, 0.2, 0.1))
    pixels = torch.arange(48, dtype=torch.uint8).view(1, 3, 4, 4)
    torch.testing.assert_close(normalise.undone(normalise(pixels)), pixels / 255)


@pytest.mark.parametrize("scale", [1 / 255, 1 / 127.5, 1 / 256, 1.0, 1 / 127])
def test_in_single_precision_two_parts_of_a_scale_give_what_double_precision_rounds_to(scale: float) -> None:
    pixels = torch.arange(256, dtype=torch.uint8)
    parts = exact_parts(scale)
    assert parts is not None
    assert torch.equal((pixels * parts[0]).add_(pixels, alpha=parts[1]), (pixels.double() * scale).float())
