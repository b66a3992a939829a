import contextlib
import io

import numpy as np
import pytest

from qkv.data.boxes import Box, coco_annotations
from qkv.errors import QkvError
from qkv.train.metrics_of_boxes import score_boxes, score_by_size

NAMES = ("ant", "bee", "cat")


def random_scene(draw: np.random.Generator, tied: bool) -> tuple[list[Box], list[Box]]:
    """What is there, and what is found: some of it moved a little, some missed, some named wrong, some made up."""
    wanted, found = [], []
    for _ in range(draw.integers(0, 6)):
        x, y = draw.uniform(0, 80, 2)
        width, height = draw.uniform(5, 40, 2)
        name = str(draw.choice(NAMES[:2] if draw.random() < 0.9 else NAMES))
        wanted.append(Box(name, 1.0, x, y, x + width, y + height))
        if draw.random() < 0.85:
            dx, dy = draw.normal(0, 2, 2)
            other = str(draw.choice(NAMES)) if draw.random() < 0.2 else name
            likely = float(draw.integers(1, 4)) / 4 if tied else float(draw.random())
            found.append(Box(other, likely, x + dx, y + dy, x + dx + width, y + dy + height))
            if draw.random() < 0.3:  # twice
                found.append(Box(other, likely, x, y, x + width * 1.1, y + height))
    for _ in range(draw.integers(0, 3)):
        x, y = draw.uniform(0, 80, 2)
        found.append(Box(str(draw.choice(NAMES)), float(draw.random()), x, y, x + 10, y + 10))
    return wanted, found


def by_pycocotools(wanted: list[list[Box]], found: list[list[Box]]) -> np.ndarray:
    coco = pytest.importorskip("pycocotools.coco")
    from pycocotools.cocoeval import COCOeval

    names = sorted({box.label for some in wanted for box in some})
    images = [{"id": number, "file_name": f"{number}.png"} for number in range(len(wanted))]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        truth.dataset = coco_annotations(images, wanted, names)
        truth.createIndex()
        results = [
            {
                "image_id": number,
                "category_id": names.index(box.label) + 1,
                "bbox": [box.x0, box.y0, box.x1 - box.x0, box.y1 - box.y0],
                "score": box.probability,
            }
            for number, some in enumerate(found)
            for box in some
            if box.label in names
        ]
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_scores_are_those_of_coco(seed, tied):
    draw = np.random.default_rng(seed)
    wanted, found = (list(each) for each in zip(*(random_scene(draw, tied) for _ in range(25)), strict=True))
    expected = by_pycocotools(wanted, found)
    scores = score_boxes(found, wanted)
    np.testing.assert_allclose(
        [scores.average, scores.at_half, scores.at_three_quarters, scores.recall], expected[[0, 1, 2, 8]], atol=1e-12
    )
    assert 0.05 < scores.average < 0.95
    by_size = score_by_size(found, wanted)
    assert by_size.keys() == {"small", "medium"}
    np.testing.assert_allclose(list(by_size.values()), expected[[3, 4]], atol=1e-12)
    assert expected[5] == -1  # none is large


def test_only_the_likeliest_hundred_count():
    wanted = [[Box("ant", 1.0, 0, 0, 10, 10)]]
    found = [
        [Box("ant", 1 - number / 1000, 50, 50, 60, 60) for number in range(100)] + [Box("ant", 0.01, 0, 0, 10, 10)]
    ]
    np.testing.assert_allclose(score_boxes(found, wanted).average, by_pycocotools(wanted, found)[0])
    assert score_boxes(found, wanted).average == 0
    assert score_boxes(found, wanted, most=101).average > 0


def test_the_right_answer_has_the_best_score_and_no_answer_the_worst():
    wanted = [[Box("ant", 1.0, 0, 0, 10, 10), Box("bee", 1.0, 5, 5, 20, 25)], []]
    best = score_boxes(wanted, wanted)
    assert (best.average, best.at_half, best.recall, best.by_class) == (1.0, 1.0, 1.0, {"ant": 1.0, "bee": 1.0})
    worst = score_boxes([[], []], wanted)
    assert (worst.average, worst.recall) == (0.0, 0.0)


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(QkvError, match="1 pictures, and 2"):
        score_boxes([[]], [[], []])
    with pytest.raises(QkvError, match="no box to be found"):
        score_boxes([[]], [[]])
