"""What a folder says of its pictures is understood whole or refused, and written back the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkv.data.preprocessing import Centre, EdgesUpTo, Exactly, Normalise, Preprocessing, RoundedCentre, ShortestEdge
from qkv.data.preprocessing_files import (
    preprocessing_from,
    preprocessing_from_timm,
    published_config,
    read_preprocessing,
    write_preprocessing,
)
from qkv.errors import QkvError

THIRDS = Normalise(1 / 255, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
WAYS = [
    Preprocessing(resize=Exactly(224, 192), normalise=THIRDS),
    Preprocessing(resize=Exactly(256, 256), filter="bicubic", crop=Centre(224, 200), normalise=THIRDS),
    Preprocessing(resize=ShortestEdge(224), filter="lanczos", crop=Centre(224, 224), normalise=THIRDS),
    Preprocessing(resize=EdgesUpTo(800, 1333), normalise=THIRDS, padding="to largest"),
    Preprocessing(resize=None, normalise=THIRDS),
    Preprocessing(resize=Exactly(28, 28), normalise=Normalise(1 / 255, (0.3,), (0.4,))),
]


@pytest.mark.parametrize("way", WAYS, ids=repr)
def test_what_is_written_is_read_back(way: Preprocessing, tmp_path: Path) -> None:
    write_preprocessing(way, tmp_path)
    assert read_preprocessing(tmp_path) == way


@pytest.mark.parametrize("way", WAYS, ids=repr)
def test_what_is_written_means_the_same_to_the_reference(way: Preprocessing) -> None:
    config = published_config(way)
    name = config["image_processor_type"].removesuffix("ImageProcessor")
    module = pytest.importorskip(f"transformers.models.{name.lower()}.image_processing_pil_{name.lower()}")
    processor = getattr(module, f"{name}ImageProcessorPil")(**config)
    assert preprocessing_from(json.loads(processor.to_json_string()), "file") == way


def test_the_crop_of_timm_stays_in_our_own_folders(tmp_path: Path) -> None:
    way = Preprocessing(resize=ShortestEdge(248), crop=RoundedCentre(224, 224), normalise=THIRDS)
    write_preprocessing(way, tmp_path)
    assert read_preprocessing(tmp_path) == way
    with pytest.raises(QkvError, match="has no name"):
        published_config(way)


def test_a_folder_of_a_processor_and_one_of_timm_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"architecture": "vit", "pretrained_cfg": {"input_size": [3, 224, 224], "crop_pct": 0.9, "mean": 0.5}}
        )
    )
    assert read_preprocessing(tmp_path).resize == ShortestEdge(248)
    assert read_preprocessing(tmp_path).normalise.mean == (0.5, 0.5, 0.5)
    (tmp_path / "processor_config.json").write_text(
        json.dumps(
            {"image_processor": {"image_processor_type": "CLIPImageProcessor"}, "processor_class": "CLIPProcessor"}
        )
    )
    assert read_preprocessing(tmp_path).resize == ShortestEdge(224)


def test_sizes_of_old_files_are_understood() -> None:
    def resized(**config: Any) -> Any:
        return preprocessing_from(config, "file").resize

    assert resized(feature_extractor_type="ViTFeatureExtractor", size=384) == Exactly(384, 384)
    assert resized(feature_extractor_type="CLIPFeatureExtractor", size=288) == ShortestEdge(288)
    assert resized(feature_extractor_type="DetrFeatureExtractor", size=800, max_size=1333) == EdgesUpTo(800, 1333)
    assert resized(size=[32, 48]) == Exactly(32, 48)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"image_processor_type": "LlavaImageProcessor"}, "known here are ViTImageProcessor"),
        ({"do_flip_channel_order": True}, "could change what becomes of a picture: do_flip_channel_order"),
        ({"size": {"height": 10**9, "width": 10}}, "from 1 to 16,384"),
        ({"size": {"height": 0, "width": 10}}, "from 1 to 16,384"),
        ({"size": {"tall": 3}}, "needs height and width"),
        ({"size": "large"}, "a height and a width are needed"),
        ({"resample": 17}, "resample 17"),
        ({"do_resize": "yes"}, "should be true or false"),
        ({"image_std": [0, 1, 1]}, "standard deviation above 0"),
        ({"image_mean": [1, 2]}, "each of three channels"),
        ({"rescale_factor": -1}, "rescale_factor -1"),
        ({"pad_size": {"height": 5, "width": 5}}, "asks for pad_size"),
        ([], "a JSON object"),
    ],
)
def test_what_is_not_understood_is_refused(config: Any, told: str) -> None:
    with pytest.raises(QkvError, match=told):
        preprocessing_from(config, "file")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"crop_pct": 7}, "crop_pct 7"),
        ({"crop_mode": "border"}, "crop_mode 'border'"),
        ({"input_size": [1, 28, 28]}, "three channels"),
        ({"interpolation": "random"}, "interpolation 'random'"),
        ({"crop_border_pixels": 4}, "crop_border_pixels"),
        ({"sharpen": True}, "could change what becomes of a picture: sharpen"),
        (3, "an object"),
    ],
)
def test_what_timm_may_say_and_is_not_offered_is_refused(config: Any, told: str) -> None:
    with pytest.raises(QkvError, match=told):
        preprocessing_from_timm(config, "file")


def test_a_folder_that_says_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="does not say how pictures become inputs"):
        read_preprocessing(tmp_path)
