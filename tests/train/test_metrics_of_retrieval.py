import pytest
import torch
import torch.nn.functional as F

from qkv.errors import QkvError
from qkv.train import metrics_of_retrieval
from qkv.train.metrics_of_retrieval import score_retrieval


def plainly(images, texts, keys):
    """By counting, one picture and one text at a time."""
    first = {key: texts[list(keys).index(key)] for key in keys}
    ranks = []
    for image, key in zip(images, keys, strict=True):
        near = {other: float(image @ text) for other, text in first.items()}
        ranks.append(sum(value >= near[key] for other, value in near.items() if other != key))
    found = []
    for key, text in first.items():
        near = [(float(text @ image), other == key) for image, other in zip(images, keys, strict=True)]
        found.append(max(near)[1])
    count = len(ranks)
    return {
        "accuracy": sum(rank < 1 for rank in ranks) / count,
        "top5": sum(rank < 5 for rank in ranks) / count,
        "text_accuracy": sum(found) / len(found),
    }


@pytest.mark.parametrize("at_once", [3, 1024])
def test_scores_are_those_of_counting(at_once, monkeypatch):
    monkeypatch.setattr(metrics_of_retrieval, "AT_ONCE", at_once)
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        keys = [f"text {number % 17}" for number in range(25)]
        vectors = {key: torch.randn(6, generator=generator) for key in dict.fromkeys(keys)}
        texts = F.normalize(torch.stack([vectors[key] for key in keys]), dim=-1)
        images = F.normalize(texts + 0.5 * torch.randn(25, 6, generator=generator), dim=-1)
        scores = score_retrieval(images, texts, keys)
        assert scores == pytest.approx(plainly(images, texts, keys))
        assert 0.1 < scores["accuracy"] < 1


def test_who_sees_no_difference_finds_nothing():
    same = torch.ones(8, 4) / 2
    assert set(score_retrieval(same, same, list(range(8))).values()) == {0.0}
    assert score_retrieval(torch.eye(4), torch.eye(4), "abcd") == {"accuracy": 1.0, "top5": 1.0, "text_accuracy": 1.0}
    assert score_retrieval(torch.ones(2, 1), torch.ones(2, 1), "aa")["accuracy"] == 1.0  # one text, both times right


def test_as_many_of_each_are_needed():
    with pytest.raises(QkvError, match="2 texts and 3 keys"):
        score_retrieval(torch.eye(3), torch.eye(3)[:2], "abc")
    with pytest.raises(QkvError, match="as many of each"):
        score_retrieval(torch.empty(0, 2), torch.empty(0, 2), [])
