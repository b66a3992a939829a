import pytest
import torch
from PIL import Image
from transformers import DetrImageProcessor
from transformers.models.detr.modeling_detr import DetrObjectDetectionOutput

from qkv.data.preprocessing import Centre, EdgesUpTo, Preprocessing
from qkv.errors import QkvError
from qkv.generate.detect import Detector, found_boxes
from qkv.models.catalogue import build
from qkv.models.detr import DetrSizes
from qkv.models.head_choice import HeadChoice
from qkv.parts.detection_heads import Detections

LABELS = ("ant", "bee", "cat")
PREPARED = Preprocessing(resize=EdgesUpTo(32, 64), padding="to largest")


def small_detector(kind: str = "detection") -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = DetrSizes(
        stem=4, stage_widths=(8, 8), stage_depths=(1, 1), residual="basic", map_norm="batch", queries=6, width=16,
        encoder_hidden=16, decoder_hidden=16, encoder_heads=2, decoder_heads=2, encoder_layers=1, decoder_layers=1,
    )  # fmt: skip
    return build("detr", sizes, HeadChoice(kind, LABELS if kind == "detection" else ()))


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6])
def test_boxes_are_those_of_the_reference(threshold):
    torch.manual_seed(0)
    said = Detections(2 * torch.randn(3, 7, 4), torch.rand(3, 7, 4))
    sizes = [(640, 480), (31, 77), (1, 5000)]
    reference = DetrImageProcessor().post_process_object_detection(
        DetrObjectDetectionOutput(logits=said.logits, pred_boxes=said.boxes),
        threshold=threshold,
        target_sizes=[(height, width) for width, height in sizes],
    )
    for found, expected in zip(found_boxes(said, sizes, LABELS, threshold), reference, strict=True):
        assert [LABELS.index(box.label) for box in found] == expected["labels"].tolist()
        torch.testing.assert_close(torch.tensor([box.probability for box in found]), expected["scores"])
        torch.testing.assert_close(torch.tensor([box.corners for box in found]).reshape(-1, 4), expected["boxes"])


def test_pictures_of_all_sizes_are_looked_at():
    detector = Detector(small_detector(), PREPARED)
    pictures = [Image.new("RGB", size, "red") for size in ((40, 30), (30, 90), (64, 64), (200, 20), (10, 10))]
    found = detector.run(pictures, threshold=0.0, batch=2)
    assert [len(boxes) for boxes in found] == [6] * 5
    for boxes in found:
        probabilities = [box.probability for box in boxes]
        assert probabilities == sorted(probabilities, reverse=True)
    assert detector.run(pictures[:1], threshold=1.0) == [[]]
    assert detector.run([]) == []


def test_the_model_learns_on_as_before():
    model = small_detector().train()
    Detector(model, PREPARED).run([Image.new("RGB", (40, 30))])
    assert model.training


def test_what_finds_no_objects_is_refused():
    with pytest.raises(QkvError, match="detection head"):
        Detector(small_detector("states"), PREPARED)
    with pytest.raises(QkvError, match="without a crop"):
        Detector(small_detector(), Preprocessing(crop=Centre(8, 8)))
    with pytest.raises(QkvError, match="from 0 to 1"):
        Detector(small_detector(), PREPARED).run([Image.new("RGB", (40, 30))], threshold=1.5)
