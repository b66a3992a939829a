"""What stands beside a model of pictures in its folder: how a picture becomes what the model reads."""

from __future__ import annotations

from pathlib import Path

from qkv.data.preprocessing import RoundedCentre
from qkv.data.preprocessing_files import PUBLISHED_FILE, published_config, read_preprocessing, says_preprocessing
from qkv.files import read_json, write_json
from qkv.models.catalogue import Model, find_family
from qkv.weights.save import CONFIG_FILE

# What the reference's own processor of a family is told, where it is not one that its pixels alone would do for.
MORE = {"vitpose": {"image_processor_type": "VitPoseImageProcessor", "do_affine_transform": True}}


def write_published_preprocessing(source: Path, folder: Path, model: Model) -> None:
    """In the words of the reference library; nothing where the source says nothing, or has no words for it there.

    A folder that was published with such words keeps them. There are none for timm's way of finding the middle: a
    reader of the folder is then asked for the preprocessing, which is better than being given one that is a pixel off.
    """
    published = "model_type" in read_json(source / CONFIG_FILE)
    if published or "images" not in find_family(model.family).reads or not says_preprocessing(source):
        return
    preprocessing = read_preprocessing(source)
    if isinstance(preprocessing.crop, RoundedCentre):
        (folder / PUBLISHED_FILE).unlink(missing_ok=True)
    else:
        write_json(folder / PUBLISHED_FILE, {**published_config(preprocessing), **MORE.get(model.family, {})})
