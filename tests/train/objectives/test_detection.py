"""Set prediction against the reference library's loss, and whether it can be learned."""

import pytest
import torch
from transformers import DetrConfig
from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss, HungarianMatcher

from qkv.data.box_rows import BoxBatch
from qkv.errors import QkvError
from qkv.models.catalogue import build
from qkv.models.detr import DetrSizes
from qkv.models.head_choice import HeadChoice
from qkv.parts.detection_heads import Detections
from qkv.train.objectives.detection import SetPredictionLoss

CLASSES, QUERIES = 4, 9
COUNTS = [3, 0, 5, 1]  # objects of each picture


def answers(layers: int = 1, scale: float = 1.0) -> list[Detections]:
    return [
        Detections(
            (scale * torch.randn(len(COUNTS), QUERIES, CLASSES + 1)).requires_grad_(),
            torch.rand(len(COUNTS), QUERIES, 4).requires_grad_(),
        )
        for _ in range(layers)
    ]


def truth(counts: list[int] = COUNTS) -> tuple[torch.Tensor, torch.Tensor]:
    most = max(1, *counts)
    labels, boxes = torch.full((len(counts), most), -1), torch.zeros(len(counts), most, 4)
    for picture, count in enumerate(counts):
        labels[picture, :count] = torch.randint(0, CLASSES, (count,))
        boxes[picture, :count] = torch.rand(count, 4) * 0.5 + 0.2
    return labels, boxes


def as_targets(labels: torch.Tensor, boxes: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    return [{"class_labels": one[one >= 0], "boxes": some[one >= 0]} for one, some in zip(labels, boxes, strict=True)]


def config(**changed: object) -> DetrConfig:
    return DetrConfig(num_labels=CLASSES, decoder_layers=3, use_timm_backbone=False, backbone_config=None, **changed)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_loss_and_its_gradient_are_those_of_the_reference(layers, scale):
    torch.manual_seed(layers)
    said, (labels, boxes) = answers(layers, scale), truth()
    found = SetPredictionLoss().of_layers(said, labels, boxes, sum(COUNTS))
    all_logits, all_boxes = (torch.stack([each[place] for each in said]) for place in (0, 1))
    expected, parts, _ = ForObjectDetectionLoss(
        said[-1].logits,
        as_targets(labels, boxes),
        "cpu",
        said[-1].boxes,
        config(auxiliary_loss=layers > 1),
        all_logits,
        all_boxes,
    )
    ours = found["loss"].total / found["loss"].count
    torch.testing.assert_close(ours, expected.reshape(()))
    for name, theirs in (("class loss", "loss_ce"), ("distance", "loss_bbox"), ("apart", "loss_giou")):
        torch.testing.assert_close(found[name].total / found[name].count, parts[theirs].reshape(()))
    inputs = [tensor for each in said for tensor in each]
    for one, other in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(one, other)


def test_other_weights_are_those_of_the_reference():
    torch.manual_seed(5)
    said, (labels, boxes) = answers(), truth()
    loss = SetPredictionLoss(
        class_cost=3, distance_cost=1, overlap_cost=4, distance_weight=2, overlap_weight=7, no_object_weight=0.4
    )
    weights = {"class_cost": 3, "bbox_cost": 1, "giou_cost": 4, "bbox_loss_coefficient": 2, "giou_loss_coefficient": 7}
    reference = config(**weights, eos_coefficient=0.4)
    expected, _, _ = ForObjectDetectionLoss(said[0].logits, as_targets(labels, boxes), "cpu", said[0].boxes, reference)
    found = loss.of_layers(said, labels, boxes, sum(COUNTS))["loss"]
    torch.testing.assert_close(found.total / found.count, expected.reshape(()))


def test_the_matching_is_that_of_the_reference():
    torch.manual_seed(2)
    said, (labels, boxes) = answers()[0], truth()
    matched = SetPredictionLoss().match(said.logits[None], said.boxes[None], labels, boxes)
    outputs = {"logits": said.logits, "pred_boxes": said.boxes}
    expected = HungarianMatcher(class_cost=1, bbox_cost=5, giou_cost=2)(outputs, as_targets(labels, boxes))
    for picture, (queries, objects) in enumerate(expected):
        here = matched.pictures == picture
        assert matched.queries[here].tolist() == queries.tolist()
        assert matched.objects[here].tolist() == objects.tolist()


def test_pictures_without_objects_still_teach_that_there_is_none():
    torch.manual_seed(3)
    said, (labels, boxes) = answers(), truth([0, 0, 0, 0])
    found = SetPredictionLoss().of_layers(said, labels, boxes, 0)
    expected, _, _ = ForObjectDetectionLoss(said[0].logits, as_targets(labels, boxes), "cpu", said[0].boxes, config())
    torch.testing.assert_close(found["loss"].total, expected.reshape(()))
    assert found["loss"].count == 1


def test_more_objects_than_queries_are_matched_as_far_as_queries_go():
    torch.manual_seed(4)
    labels, boxes = truth([12, 1, 1, 1])
    matched = SetPredictionLoss().match(torch.randn(1, 4, QUERIES, 5), torch.rand(1, 4, QUERIES, 4), labels, boxes)
    assert (matched.pictures == 0).sum() == QUERIES


def test_a_query_that_says_no_number_is_matched_last():
    torch.manual_seed(6)
    labels, boxes = truth([3, 1, 1, 1])
    found = torch.rand(1, 4, QUERIES, 4)
    found[0, 0, :4] = torch.nan
    matched = SetPredictionLoss().match(torch.randn(1, 4, QUERIES, 5), found, labels, boxes)
    assert (matched.queries[matched.pictures == 0] >= 4).all()


def test_a_matching_without_costs_is_refused():
    with pytest.raises(QkvError, match="at least one cost"):
        SetPredictionLoss(class_cost=0, distance_cost=0, overlap_cost=0)


def test_a_small_model_learns_where_squares_are():
    """One bright square on a dark picture: after some steps its class and box are told."""
    torch.manual_seed(0)
    sizes = DetrSizes(
        stem=8, stage_widths=(8, 16), stage_depths=(1, 1), residual="basic", map_norm="batch", queries=4, width=32,
        encoder_hidden=32, decoder_hidden=32, encoder_heads=2, decoder_heads=2, encoder_layers=1, decoder_layers=2,
        dropout=0.0,
    )  # fmt: skip
    model = build("detr", sizes, HeadChoice("detection", ("bright", "dark")))
    pixels, labels, boxes = torch.zeros(8, 3, 32, 32), torch.zeros(8, 1, dtype=torch.long), torch.zeros(8, 1, 4)
    for picture in range(8):
        x, y = 4 + 3 * (picture % 4), 6 + 8 * (picture // 4)
        labels[picture, 0] = picture % 2
        pixels[picture, :, y : y + 12, x : x + 10] = 1.0 if picture % 2 == 0 else -1.0
        boxes[picture, 0] = torch.tensor([x + 5, y + 6, 10, 12]) / 32
    batch, loss = BoxBatch(pixels, None, labels, boxes, 8), SetPredictionLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    first = float(loss(model, batch).total.detach())
    for _ in range(60):
        optimizer.zero_grad()
        loss(model, batch).total.backward()
        optimizer.step()
    measured = loss.measure(model, batch)
    assert float(measured["loss"].total.detach()) < first / 4
    assert int(measured["right classes"].total) == 8
    assert float(measured["apart"].total.detach()) / 8 < 0.6
