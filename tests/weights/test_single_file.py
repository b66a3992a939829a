"""GGUF files as models of ours: the same logits as the reference's, whatever the file is called."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from qkv.errors import QkvError
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.weights.load import load_model
from tests.weights.llamas import random_llama
from tests.weights.maps.test_gguf_llama import write_gguf


@torch.no_grad()
def assert_same_logits(ours: TextModel, theirs: LlamaForCausalLM, lengths: list[int]) -> None:
    """Absolute bounds grow with the logits, which are those of real models here."""
    for length in lengths:
        ids = torch.randint(ours.vocabulary, (2, length))
        expected = theirs(ids).logits
        torch.testing.assert_close(ours(ids), expected, atol=2e-5 * float(expected.abs().max()), rtol=1e-4)


@torch.no_grad()
def greedy_cached(model: TextModel, ids: list[int], count: int) -> list[int]:
    cache, found, new = model.new_cache(len(ids) + count), [], torch.tensor([ids])
    for _ in range(count):
        found.append(int(model(new, cache=cache)[0, -1].argmax()))
        new = torch.tensor([found[-1:]])
    return found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["model.gguf", "model.bin", "model"])
def test_a_gguf_file_is_a_model_by_any_name(tmp_path: Path, tied: bool, name: str) -> None:
    theirs = random_llama(tie_word_embeddings=tied)
    ours = load_model(write_gguf(tmp_path / name, theirs))
    assert (ours.family, ours.head_choice) == ("llama", HeadChoice("language"))
    assert not ours.training
    assert_same_logits(ours, theirs, [1, 2, 9, 32])


def test_another_head_is_put_on_a_file_too(tmp_path: Path) -> None:
    theirs = random_llama()
    ours = load_model(write_gguf(tmp_path / "model.gguf", theirs), head=HeadChoice("states"))
    ids = torch.randint(ours.vocabulary, (2, 9))
    torch.testing.assert_close(ours(ids), theirs.model(ids).last_hidden_state, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x04]\x94.", "a pickle: `qkv convert`"),
        (b'{"model_type": "llama"}', "JSON: give the folder"),
        (b"\x40\0\0\0\0\0\0\0{" + b" " * 63, "holds tensors alone"),
        (b"", "is no GGUF file"),
        (b"GGUF", "not a whole GGUF file"),
        (b"x" * 100, "is no GGUF file"),
    ],
)
def test_what_is_no_model_is_told_what_it_is(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(QkvError, match=message):
        load_model(tmp_path / "model.bin")


def test_a_pickle_of_torch_is_not_opened(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(3)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(QkvError, match="a pickle of torch: `qkv convert`"):
        load_model(tmp_path / "pytorch_model.bin")
