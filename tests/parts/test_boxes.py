import torch
from transformers.loss.loss_for_object_detection import box_iou, generalized_box_iou

from qkv.parts.boxes import area, centres, corners, generalised_overlap, overlap


def random_boxes(*shape: int) -> torch.Tensor:
    return corners(torch.rand(*shape, 4) * torch.tensor([1.0, 1.0, 0.5, 0.5]))


def test_corners_and_centres_are_each_others_inverse():
    boxes = torch.rand(5, 4)
    torch.testing.assert_close(centres(corners(boxes)), boxes)
    assert corners(torch.tensor([0.5, 0.5, 0.2, 0.4])).tolist() == torch.tensor([0.4, 0.3, 0.6, 0.7]).tolist()


def test_overlaps_are_those_of_the_reference():
    torch.manual_seed(0)
    one, other = random_boxes(7), random_boxes(9)
    torch.testing.assert_close(overlap(one[:, None], other), box_iou(one, other)[0])
    torch.testing.assert_close(generalised_overlap(one[:, None], other), generalized_box_iou(one, other))


def test_boxes_that_touch_nowhere_are_worse_the_farther_they_are():
    box = torch.tensor([0.0, 0.0, 1.0, 1.0])
    near, far = torch.tensor([2.0, 0.0, 3.0, 1.0]), torch.tensor([9.0, 0.0, 10.0, 1.0])
    assert overlap(box, near) == overlap(box, far) == 0
    assert generalised_overlap(box, far) < generalised_overlap(box, near) < 0
    assert generalised_overlap(box, box) == overlap(box, box) == 1


def test_boxes_without_an_inside_have_nothing_in_common():
    point = torch.tensor([0.5, 0.5, 0.5, 0.5])
    assert area(point) == 0
    assert overlap(point, point) == 0
    assert generalised_overlap(point, point).isfinite()
