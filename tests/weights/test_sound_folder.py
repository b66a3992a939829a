"""What stands beside a model of sound must fit it."""

from pathlib import Path

import pytest

from qkv.data.sound_features import FilterBank, LogMel, WaveFeatures
from qkv.data.sound_processor import PROCESSOR_FILE, write_sound_processor
from qkv.errors import QkvError
from qkv.files import write_json
from qkv.models.ast import ASTSizes
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.weights.sound_folder import read_features, usual_features, write_features
from tests.models.small_sounds import small_sound
from tests.models.small_text import small_model

AST = build(
    "ast",
    ASTSizes(bands=32, frames=64, width=12, hidden=16, heads=2, layers=1),
    HeadChoice("classification", ("a", "b")),
)


def test_where_a_folder_says_nothing_the_model_tells(tmp_path: Path) -> None:
    assert read_features(tmp_path, small_sound("base")) == WaveFeatures()
    assert read_features(tmp_path, small_sound("prenorm")) == WaveFeatures(attention_mask=True)
    assert read_features(tmp_path, AST) == FilterBank(bands=32, frames=64)
    assert usual_features(small_model("bert")) is None
    with pytest.raises(QkvError, match="hears no sounds"):
        read_features(tmp_path, small_model("bert"))


def test_what_a_folder_says_is_kept(tmp_path: Path) -> None:
    write_sound_processor(tmp_path, FilterBank(bands=32, frames=99, mean=1.0))
    write_features(tmp_path, AST)
    assert read_features(tmp_path, AST) == FilterBank(bands=32, frames=99, mean=1.0)
    (tmp_path / PROCESSOR_FILE).unlink()
    write_features(tmp_path, AST)
    assert read_features(tmp_path, AST) == FilterBank(bands=32, frames=64)
    (tmp_path / PROCESSOR_FILE).unlink()
    write_features(tmp_path, small_model("bert"))
    assert list(tmp_path.iterdir()) == []


def test_an_old_folder_does_not_name_its_preparation(tmp_path: Path) -> None:
    """As the first published models of wav2vec 2.0 have it."""
    old = {"do_normalize": True, "feature_size": 1, "padding_side": "right", "padding_value": 0.0}
    write_json(tmp_path / PROCESSOR_FILE, {**old, "return_attention_mask": False, "sampling_rate": 16000})
    assert read_features(tmp_path, small_sound("base")) == WaveFeatures()
    write_json(tmp_path / PROCESSOR_FILE, {**old, "padding_side": "left"})
    with pytest.raises(QkvError, match="padding_side"):
        read_features(tmp_path, AST)


def test_a_preparation_for_another_model_is_refused(tmp_path: Path) -> None:
    write_sound_processor(tmp_path, LogMel())
    with pytest.raises(QkvError, match="another kind of model"):
        read_features(tmp_path, AST)
    write_sound_processor(tmp_path, FilterBank(bands=40))
    with pytest.raises(QkvError, match="40 mel bands, and the model reads 32"):
        read_features(tmp_path, AST)
