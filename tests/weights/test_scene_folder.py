"""What stands beside models that find boxes and points, exported: the reference's own processors prepare the same."""

import numpy as np
import torch
from PIL import Image
from transformers import DetrForObjectDetection, VitPoseForPoseEstimation
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil
from transformers.models.vitpose.image_processing_pil_vitpose import VitPoseImageProcessorPil

from qkv.api.loading import load
from qkv.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, EdgesUpTo, Exactly, Normalise, Preprocessing
from qkv.generate.detect import Detector
from qkv.generate.keypoints import KeypointFinder
from qkv.models.catalogue import build
from qkv.models.detr import DetrSizes
from qkv.models.head_choice import HeadChoice
from qkv.models.vitpose import ViTPoseSizes
from qkv.weights.export import export
from tests.models.small import perturb

NORMALISE = Normalise(1 / 255, IMAGENET_MEAN, IMAGENET_STD)
SIZES = DetrSizes(
    stem=4, stage_widths=(8, 12), stage_depths=(1, 2), queries=5, width=16, encoder_hidden=20, decoder_hidden=24,
    encoder_heads=2, decoder_heads=4, encoder_layers=1, decoder_layers=1,
)  # fmt: skip


def photo(seed: int, width: int, height: int) -> Image.Image:
    """Smooth, as photographs are."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


@torch.no_grad()
def test_objects_are_those_of_the_reference_from_picture_to_box(tmp_path):
    torch.manual_seed(0)
    model = build("detr", SIZES, HeadChoice("detection", ("ant", "bee", "cat")))
    perturb(model)
    prepared = Preprocessing(resize=EdgesUpTo(48, 80), normalise=NORMALISE, padding="to largest")
    Detector(model, prepared).save(tmp_path / "ours")
    export(tmp_path / "ours", tmp_path / "theirs")
    processor = DetrImageProcessorPil.from_pretrained(tmp_path / "theirs")
    reference = DetrForObjectDetection.from_pretrained(tmp_path / "theirs").eval()
    pictures = [photo(1, 120, 90), photo(2, 60, 100)]
    inputs = processor(pictures, return_tensors="pt")
    sizes = [(picture.height, picture.width) for picture in pictures]
    expected = processor.post_process_object_detection(reference(**inputs), threshold=0.2, target_sizes=sizes)
    for folder in ("ours", "theirs"):
        found = load(tmp_path / folder, "cpu").run(pictures, threshold=0.2)
        assert sum(map(len, found)) > 2
        for boxes, theirs in zip(found, expected, strict=True):
            order = theirs["scores"].argsort(descending=True, stable=True)
            assert [("ant", "bee", "cat").index(box.label) for box in boxes] == theirs["labels"][order].tolist()
            corners = torch.tensor([box.corners for box in boxes]).reshape(-1, 4)
            torch.testing.assert_close(corners, theirs["boxes"][order], atol=1e-3, rtol=1e-4)


@torch.no_grad()
def test_points_are_those_of_the_reference_from_picture_to_point(tmp_path):
    torch.manual_seed(0)
    sizes = ViTPoseSizes(image=64, image_width=48, width=16, hidden=32, heads=2, layers=2, decoder="plain")
    model = build("vitpose", sizes, HeadChoice("keypoints", ("nose", "ear")))
    perturb(model)
    KeypointFinder(model, Preprocessing(resize=Exactly(64, 48), normalise=NORMALISE)).save(tmp_path / "ours")
    export(tmp_path / "ours", tmp_path / "theirs")
    processor = VitPoseImageProcessorPil.from_pretrained(tmp_path / "theirs")
    reference = VitPoseForPoseEstimation.from_pretrained(tmp_path / "theirs").eval()
    picture, box = photo(3, 130, 100), (20.0, 10.0, 90.0, 80.0)
    as_coco = [[[20.0, 10.0, 70.0, 70.0]]]
    inputs = processor(picture, boxes=as_coco, return_tensors="pt")
    output = reference(**inputs)
    expected = processor.post_process_pose_estimation(output, boxes=as_coco)[0][0]
    for folder in ("ours", "theirs"):
        ((points,),) = load(tmp_path / folder, "cpu").run([picture], [[box]])
        heights = torch.tensor([point.probability for point in points])
        torch.testing.assert_close(heights, expected["scores"], atol=0.02, rtol=0.02)
        for point, theirs in zip(points, expected["keypoints"].tolist(), strict=True):
            assert abs(point.x - theirs[0]) < 1.0
            assert abs(point.y - theirs[1]) < 1.0
