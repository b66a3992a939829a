"""Folders of sentence embeddings: what is written is read, and steps that we do not have are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.errors import QkvError
from qkv.models.head_choice import HeadChoice
from qkv.weights.load import load_sentence_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from qkv.weights.sentence_folder import is_sentence_folder, read_sentence_folder, write_sentence_folder
from tests.models.test_text_contract import small_model

MEAN = HeadChoice("embedding", pooling="mean", unit_length=True)


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
@pytest.mark.parametrize("unit_length", [True, False])
def test_what_is_written_is_read(tmp_path: Path, pooling: str, unit_length: bool) -> None:
    head = HeadChoice("embedding", pooling=pooling, unit_length=unit_length)
    assert not is_sentence_folder(tmp_path)
    write_sentence_folder(tmp_path, head, 24, 128)
    assert is_sentence_folder(tmp_path)
    found = read_sentence_folder(tmp_path)
    assert (found.head, found.longest, found.lowercase) == (head, 128, False)


@pytest.mark.parametrize("family", ["bert", "albert", "distilbert", "roformer", "gpt2"])
@torch.no_grad()
def test_an_exported_model_comes_back_as_it_was(tmp_path: Path, family: str) -> None:
    model = small_model(family, "embedding")
    save_published(model, tmp_path, PUBLISHED)
    again = load_sentence_model(tmp_path)
    ids, lengths = torch.randint(0, model.vocabulary, (3, 7)), torch.tensor([7, 4, 1])
    assert again.head_choice == model.head_choice
    assert torch.equal(again(ids, lengths=lengths), model(ids, lengths=lengths))


def test_the_later_name_of_a_way_to_pool(tmp_path: Path) -> None:
    write_sentence_folder(tmp_path, MEAN, 24, 128)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 24, "pooling_mode": "cls"}')
    assert read_sentence_folder(tmp_path).head.pooling == "first"


def step(kind: str, path: str = "") -> dict[str, Any]:
    return {"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{kind}"}


POOLING = {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True}
TWO = [step("Transformer"), step("Pooling", "1_Pooling")]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("modules.json", {}, "must list steps"),
        ("modules.json", [{"type": 3, "path": ""}], "must list steps"),
        ("modules.json", [step("Transformer"), step("Pooling", "../1_Pooling")], "must list steps"),
        ("modules.json", [*TWO, step("Dense", "2_Dense")], "Dense in 2_Dense"),
        ("modules.json", [step("Transformer", "0_Transformer"), step("Pooling", "1_Pooling")], "in the folder itself"),
        ("1_Pooling/config.json", [], "object of named settings"),
        ("1_Pooling/config.json", POOLING | {"pooling_mode_max_tokens": True}, "asks for .*max_tokens"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pools by one of mean"),
        ("1_Pooling/config.json", {"word_embedding_dimension": 24}, "asks for nothing"),
        ("1_Pooling/config.json", {"pooling_mode": "attention"}, "asks for attention"),
        ("1_Pooling/config.json", POOLING | {"pooling_mode": "cls"}, "pools by one of mean"),
        ("1_Pooling/config.json", POOLING | {"include_prompt": False}, "leaves prompts out"),
        ("1_Pooling/config.json", POOLING | {"whiten": True}, "could change what is pooled: whiten"),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, "whole number"),
        ("sentence_bert_config.json", {"stem": True}, "could change how texts are read: stem"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "before every text"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, file: str, content: Any, said: str) -> None:
    write_sentence_folder(tmp_path, MEAN, 24, 128)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(QkvError, match=said):
        read_sentence_folder(tmp_path)


def test_a_folder_that_says_nothing_of_sentences(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=r"has no modules\.json"):
        read_sentence_folder(tmp_path)
