"""Attention of texts in one call."""

from pathlib import Path

import numpy as np
import pytest

from qkv.api.looking import look_at
from qkv.errors import QkvError
from qkv.generate.text import TextToText
from qkv.look.maps import Kind
from tests.api.tiny import train_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TextToText:
    return train_tiny(tmp_path_factory.mktemp("run"))


def test_a_record_is_made_of_each_text(model: TextToText, tmp_path: Path) -> None:
    records = look_at(model, ["cat", "goat"], html=tmp_path / "page.html", png=tmp_path / "image.png")
    assert [record.source for record in records] == ["cat", "goat"]
    assert {file.name for file in tmp_path.iterdir()} == {"page.html", "image-1.png", "image-2.png"}
    for record in records:
        for each in record.maps:
            np.testing.assert_allclose(each.weights.sum(-1), 1.0, atol=1e-5)


def test_a_target_can_be_given(model: TextToText, tmp_path: Path) -> None:
    (record,) = look_at(model, ["cat"], targets=["T A C"], png=tmp_path / "image.png")
    assert record.target == "T A C"
    assert record.of(Kind.CROSS)[0].queries == ("T", "A", "C", "</s>")
    assert [file.name for file in tmp_path.iterdir()] == ["image.png"]


def test_the_model_is_left_as_it_was(model: TextToText) -> None:
    model.model.train()
    look_at(model, ["cat"])
    assert model.model.training
    model.model.eval()


@pytest.mark.parametrize(("texts", "targets"), [([], None), ("cat", None), (["cat"], ["C", "A"])])
def test_what_cannot_be_looked_at(model: TextToText, texts: list[str], targets: list[str] | None) -> None:
    with pytest.raises(QkvError):
        look_at(model, texts, targets=targets)
