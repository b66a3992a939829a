import torch

from qkv.parts.detection_heads import DetectionHead


def test_boxes_are_as_fine_in_bfloat16_as_without():
    torch.manual_seed(0)
    head, x = DetectionHead(16, 3), torch.randn(2, 5, 16)
    plain = head(x)
    with torch.autocast("cpu", torch.bfloat16):
        narrow, narrow_input = head(x), head(x.bfloat16())
    assert narrow.boxes.dtype == torch.float32
    torch.testing.assert_close(narrow.boxes, plain.boxes)
    torch.testing.assert_close(narrow_input.boxes, head(x.bfloat16().float()).boxes)


def test_a_narrow_head_stays_narrow():
    head = DetectionHead(16, 3).bfloat16()
    said = head(torch.randn(2, 5, 16).bfloat16())
    assert said.boxes.dtype == said.logits.dtype == torch.bfloat16
    assert ((said.boxes >= 0) & (said.boxes <= 1)).all()
