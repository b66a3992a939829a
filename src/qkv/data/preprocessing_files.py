"""What a folder says of the way of a picture into its model, read and written.

Published folders have a `preprocessor_config.json` (or keep the same inside `processor_config.json`); those of timm
have `pretrained_cfg` in their `config.json`. A key is allow-listed or it is an error: what is not known could change
pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qkv.data.columns import is_number
from qkv.data.preprocessing import (
    CLIP_MEAN,
    CLIP_STD,
    FILTERS,
    HALF,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Centre,
    EdgesUpTo,
    Exactly,
    Normalise,
    Preprocessing,
    RoundedCentre,
    ShortestEdge,
    Sizing,
)
from qkv.errors import QkvError
from qkv.files import read_json, write_json

PUBLISHED_FILE, NESTED_FILE, TIMM_FILE = "preprocessor_config.json", "processor_config.json", "config.json"
LARGEST = 2**14  # pixels a side: what a file asks for beyond this would fill the memory
FILTER_NUMBERS = {int(value): name for name, value in FILTERS.items()}
CROP_KEY, ROUNDED = "qkv_crop", "rounded centre"  # in folders of our own, for what has no name in published ones


@dataclass(frozen=True)
class Kind:
    """What a processor of this name does where its file says nothing."""

    size: Any
    filter: int
    crop: Any
    mean: tuple[float, ...]
    std: tuple[float, ...]
    square: bool  # whether a size of one number means both sides
    pads: bool = False


KINDS = {
    "ViT": Kind({"height": 224, "width": 224}, 2, None, HALF, HALF, True),
    "DeiT": Kind({"height": 256, "width": 256}, 3, {"height": 224, "width": 224}, HALF, HALF, True),
    "CLIP": Kind({"shortest_edge": 224}, 3, {"height": 224, "width": 224}, CLIP_MEAN, CLIP_STD, False),
    "Bit": Kind({"shortest_edge": 224}, 3, {"height": 224, "width": 224}, CLIP_MEAN, CLIP_STD, False),
    "VitPose": Kind({"height": 256, "width": 192}, 2, None, IMAGENET_MEAN, IMAGENET_STD, True),
    "Detr": Kind({"shortest_edge": 800, "longest_edge": 1333}, 2, None, IMAGENET_MEAN, IMAGENET_STD, False, True),
}
ENDINGS = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")
STEPS = {
    "do_resize", "size", "max_size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor",
    "do_normalize", "image_mean", "image_std", "do_pad", "pad_and_return_pixel_mask",
}  # fmt: skip
# What changes no pixel, or is done by every reader here: pictures are always read as RGB.
OTHER = {
    "image_processor_type", "feature_extractor_type", "processor_class", "do_convert_rgb", "use_fast",
    "_valid_processor_keys", "data_format", "input_data_format", "device", "disable_grouping", "return_tensors",
    "format", "do_convert_annotations", "default_to_square", "model_input_names", "return_segmentation_masks",
    "image_seq_length", "auto_map", "masks_path", CROP_KEY,
}  # fmt: skip
# The same of timm's `pretrained_cfg`: where it comes from, what it was trained on, how it is tested at other sizes.
TIMM_STEPS = {"input_size", "crop_pct", "crop_mode", "crop_border_pixels", "interpolation", "mean", "std"}
TIMM_OTHER = {
    "url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "hf_hub_revision", "source", "architecture", "tag",
    "custom_load", "test_input_size", "test_crop_pct", "test_crop_mode", "fixed_input_size", "min_input_size",
    "num_classes", "label_offset", "label_names", "label_descriptions", "pool_size", "test_pool_size", "first_conv",
    "classifier", "license", "description", "origin_url", "paper_name", "paper_ids", "notes",
}  # fmt: skip
# Must ask for nothing else. The frames of keypoints are made where they are looked for.
ABSENT = {
    "pad_size": (None,), "size_divisor": (None,), "do_reduce_labels": (False, None),
    "do_affine_transform": (None, True), "normalize_factor": (None, 200.0),
}  # fmt: skip


def read_preprocessing(folder: Path | str) -> Preprocessing:
    """What the files of a folder say; a folder that says nothing is an error."""
    found = _said(Path(folder))
    if found is None:
        raise QkvError(f"The folder {folder} does not say how pictures become inputs: it has no {PUBLISHED_FILE}.")
    return found


def says_preprocessing(folder: Path | str) -> bool:
    """Whether a folder says how pictures become inputs."""
    return _said(Path(folder)) is not None


def _said(folder: Path) -> Preprocessing | None:
    if (folder / PUBLISHED_FILE).exists():
        return preprocessing_from(read_json(folder / PUBLISHED_FILE), folder / PUBLISHED_FILE)
    if (folder / NESTED_FILE).exists():
        nested = read_json(folder / NESTED_FILE)
        if isinstance(nested, dict) and "image_processor" in nested:
            return preprocessing_from(nested["image_processor"], folder / NESTED_FILE)
    if (folder / TIMM_FILE).exists():
        config = read_json(folder / TIMM_FILE)
        if isinstance(config, dict) and "pretrained_cfg" in config:
            return preprocessing_from_timm(config["pretrained_cfg"], folder / TIMM_FILE)
    return None


def preprocessing_from(config: Any, file: Path | str) -> Preprocessing:
    """The content of a `preprocessor_config.json`. A mean of one number in a list is that of greys."""
    if not isinstance(config, dict):
        raise QkvError(f"{file} should hold a JSON object that names each step.")
    kind = _kind(config, file)
    if unknown := sorted(set(config) - STEPS - OTHER - set(ABSENT)):
        raise QkvError(f"{file} has keys that could change what becomes of a picture: {', '.join(unknown)}.")
    for key, meant in ABSENT.items():
        if config.get(key) not in meant:
            raise QkvError(f"{file} asks for {key} {config[key]!r}, which is not offered.")
    pads = _flag(config, "do_pad", _flag(config, "pad_and_return_pixel_mask", kind.pads, file), file)
    resizes, crops = (
        _flag(config, "do_resize", True, file),
        _flag(config, "do_center_crop", kind.crop is not None, file),
    )
    square = _flag(config, "default_to_square", kind.square, file)
    crop = config.get("crop_size") or kind.crop or {"height": 224, "width": 224}
    if config.get(CROP_KEY) not in (None, ROUNDED):
        raise QkvError(f"{file} has {CROP_KEY} {config[CROP_KEY]!r}; it should be {ROUNDED!r}.")
    centre = RoundedCentre if CROP_KEY in config else Centre
    return Preprocessing(
        resize=_sizing(config.get("size") or kind.size, config.get("max_size"), square, kind, file)
        if resizes
        else None,
        filter=_filter(config.get("resample", kind.filter), file),
        crop=centre(*_rectangle(crop, "crop_size", file)) if crops else None,
        normalise=_normalise(config, kind, file),
        padding="to largest" if pads else "none",
    )


def preprocessing_from_timm(config: Any, file: Path | str) -> Preprocessing:
    """The content of timm's `pretrained_cfg`: the middle part of each picture, as large as the model wants it."""
    if not isinstance(config, dict):
        raise QkvError(f"{file} should hold an object under pretrained_cfg.")
    if unknown := sorted(set(config) - TIMM_STEPS - TIMM_OTHER):
        raise QkvError(f"{file} has keys that could change what becomes of a picture: {', '.join(unknown)}.")
    size = config.get("input_size", [3, 224, 224])
    if not (isinstance(size, list) and len(size) == 3 and size[0] == 3):
        raise QkvError(f"{file} has input_size {size!r}; three channels, a height and a width are needed.")
    height, width = (_pixels(side, "input_size", file) for side in size[1:])
    share = config.get("crop_pct") or 0.875
    if not isinstance(share, int | float) or not 0.01 < share <= 1:
        raise QkvError(f"{file} has crop_pct {share!r}; it should be a share of the picture, from 0.01 to 1.")
    scaled = math.floor(height / share), math.floor(width / share)
    mode = config.get("crop_mode") or "center"
    if mode == "squash":
        resize: Sizing = Exactly(*scaled)
    elif mode == "center" and scaled[0] == scaled[1]:
        resize = ShortestEdge(scaled[0])
    else:
        raise QkvError(f"{file} asks for crop_mode {mode!r} to {height} × {width}, which is not offered.")
    if config.get("crop_border_pixels"):
        raise QkvError(f"{file} asks for crop_border_pixels, which is not offered.")
    filter = config.get("interpolation") or "bilinear"
    if not isinstance(filter, str) or filter not in FILTERS:
        raise QkvError(f"{file} asks for the interpolation {filter!r}; there are {', '.join(FILTERS)}.")
    mean = _channels(config.get("mean", list(IMAGENET_MEAN)), "mean", file)
    std = _channels(config.get("std", list(IMAGENET_STD)), "std", file)
    return Preprocessing(
        resize=resize, filter=filter, crop=RoundedCentre(height, width), normalise=Normalise(1 / 255, mean, std)
    )


def write_preprocessing(preprocessing: Preprocessing, folder: Path | str) -> None:
    """For a folder of our own: what published folders have, and a key for timm's cropping."""
    crop = preprocessing.crop
    if isinstance(crop, RoundedCentre):
        plain = replace(preprocessing, crop=Centre(crop.height, crop.width))
        config = {**published_config(plain), CROP_KEY: ROUNDED}
    else:
        config = published_config(preprocessing)
    write_json(Path(folder) / PUBLISHED_FILE, config)


def published_config(preprocessing: Preprocessing) -> dict[str, Any]:
    """The same in the words of the reference processors; timm's way of cropping has none there."""
    resize, crop, normalise = preprocessing.resize, preprocessing.crop, preprocessing.normalise
    if isinstance(crop, RoundedCentre):
        raise QkvError("Cropping as timm does has no name in a preprocessor_config.json: crop with Centre instead.")
    sizes = {
        Exactly: lambda size: {"height": size.height, "width": size.width},
        ShortestEdge: lambda size: {"shortest_edge": size.edge},
        EdgesUpTo: lambda size: {"shortest_edge": size.shortest, "longest_edge": size.longest},
    }
    pads = preprocessing.padding != "none"
    kind = "Detr" if pads else "CLIP" if isinstance(resize, ShortestEdge) else "DeiT" if crop is not None else "ViT"
    config: dict[str, Any] = {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_convert_rgb": len(normalise.mean) == 3,
        "do_resize": resize is not None,
        "resample": int(FILTERS[preprocessing.filter]),
        "do_center_crop": crop is not None,
        "do_rescale": True,
        "rescale_factor": normalise.scale,
        "do_normalize": True,
        "image_mean": list(normalise.mean),
        "image_std": list(normalise.std),
        "do_pad": pads,
    }
    if resize is not None:
        config["size"] = sizes[type(resize)](resize)
    if crop is not None:
        config["crop_size"] = {"height": crop.size[0], "width": crop.size[1]}
    return config


def _kind(config: Mapping[str, Any], file: Path | str) -> Kind:
    name = config.get("image_processor_type") or config.get("feature_extractor_type")
    for ending in ENDINGS:
        if isinstance(name, str) and name.endswith(ending) and name.removesuffix(ending) in KINDS:
            return KINDS[name.removesuffix(ending)]
    if name is None:  # the first files of ViT did not say
        return KINDS["ViT"]
    known = ", ".join(f"{each}ImageProcessor" for each in KINDS)
    raise QkvError(f"{file} is for {name!r}; the processors that are known here are {known}.")


def _flag(config: Mapping[str, Any], key: str, absent: bool, file: Path | str) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise QkvError(f"{file} has {key} {value!r}; it should be true or false.")
    return absent if value is None else value


def _filter(number: Any, file: Path | str) -> str:
    if not isinstance(number, int | float) or number not in FILTER_NUMBERS:
        raise QkvError(f"{file} has resample {number!r}; it should be from 0 to {max(FILTER_NUMBERS)}.")
    return FILTER_NUMBERS[int(number)]


def _pixels(value: Any, key: str, file: Path | str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise QkvError(f"{file} has {value!r} in its {key}; it should be a number of pixels from 1 to {LARGEST:,}.")
    return value


def _rectangle(size: Any, key: str, file: Path | str) -> tuple[int, int]:
    """Height and width, both the same where one number is given."""
    if isinstance(size, int):
        return _pixels(size, key, file), _pixels(size, key, file)
    sides = [size.get(side) for side in ("height", "width")] if isinstance(size, dict) else size
    if not isinstance(sides, Sequence) or isinstance(sides, str) or len(sides) != 2:
        raise QkvError(f"{file} has {key} {size!r}; a height and a width are needed.")
    return _pixels(sides[0], key, file), _pixels(sides[1], key, file)


def _sizing(size: Any, longest: Any, square: bool, kind: Kind, file: Path | str) -> Sizing:
    if isinstance(size, int) and not square:
        size = {"shortest_edge": size}
        if kind.pads:
            size["longest_edge"] = 1333 if longest is None else longest
    if isinstance(size, dict) and "shortest_edge" in size:
        if unknown := sorted(set(size) - {"shortest_edge", "longest_edge"}):
            raise QkvError(f"{file} has {unknown[0]} beside shortest_edge in its size, which is not offered.")
        shortest = _pixels(size["shortest_edge"], "size", file)
        longest = size.get("longest_edge", longest)
        return ShortestEdge(shortest) if longest is None else EdgesUpTo(shortest, _pixels(longest, "size", file))
    if isinstance(size, dict) and set(size) != {"height", "width"}:
        raise QkvError(f"{file} has size {size!r}; it needs height and width, or shortest_edge.")
    return Exactly(*_rectangle(size, "size", file))


def _normalise(config: Mapping[str, Any], kind: Kind, file: Path | str) -> Normalise:
    scale = config.get("rescale_factor", 1 / 255) if _flag(config, "do_rescale", True, file) else 1.0
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale <= 1:
        raise QkvError(f"{file} has rescale_factor {scale!r}; it should be above 0, usually 1/255.")
    if not _flag(config, "do_normalize", True, file):
        return Normalise(float(scale), (0.0,) * 3, (1.0,) * 3)
    mean = _channels(config.get("image_mean") or list(kind.mean), "image_mean", file)
    std = _channels(config.get("image_std") or list(kind.std), "image_std", file)
    return Normalise(float(scale), mean, std)


def _channels(value: Any, key: str, file: Path | str) -> tuple[float, ...]:
    value = [value] * 3 if isinstance(value, int | float) else value
    good = isinstance(value, list) and len(value) in (1, 3)
    if not good or not all(is_number(each) for each in value):
        raise QkvError(f"{file} has {key} {value!r}; a number for each of three channels is needed, or one for greys.")
    return tuple(float(each) for each in value)
