"""GGUF and llama2.c files as models of ours: the same logits as the reference's, whatever the file is called."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from qkv.errors import QkvError
from qkv.models.catalogue import count_parameters
from qkv.models.head_choice import HeadChoice
from qkv.models.llama import SIZES
from qkv.models.text_model import TextModel
from qkv.weights.gguf import read_gguf
from qkv.weights.llama2c import read_llama2c, read_llama2c_vocabulary
from qkv.weights.load import load_model
from qkv.weights.maps.gguf_llama import llama_of_gguf
from tests.weights.llamas import greedy, llama_of, random_llama
from tests.weights.maps.test_gguf_llama import published, tokenizer_of, write_gguf
from tests.weights.test_llama2c import CHECKPOINTS, write_llama2c


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


@pytest.mark.parametrize("key_heads", [1, 6])
def test_a_llama2c_file_is_a_model(tmp_path: Path, key_heads: int) -> None:
    theirs = random_llama(num_key_value_heads=key_heads, tie_word_embeddings=True)
    assert_same_logits(load_model(write_llama2c(tmp_path / "stories.bin", theirs)), theirs, [1, 2, 9, 32])


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
        (b"", "too short to be a llama2.c checkpoint"),
        (b"GGUF", "not a whole GGUF file"),
        (b"x" * 100, "is not a llama2.c checkpoint"),
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


@pytest.mark.slow
def test_the_published_storyteller_answers_as_the_reference_does() -> None:
    path = CHECKPOINTS / "stories15m" / "stories15M.bin"
    if not path.exists():
        pytest.skip("needs `make checkpoints`")
    ours, theirs = load_model(path), llama_of(*read_llama2c(path))
    assert ours.sizes == SIZES["stories15m"]
    assert sum(parameter.numel() for parameter in ours.parameters()) == count_parameters("llama", SIZES["stories15m"])
    assert_same_logits(ours, theirs, [1, 2, 9, 64, 256])
    pieces, _ = read_llama2c_vocabulary(path.parent / "tokenizer.bin")
    start = [1, *(pieces.index(piece) for piece in (" Once", " upon", " a", " time"))]
    told = greedy_cached(ours, start, 60)
    assert told == greedy(theirs, start, 60)
    assert "".join(pieces[token] for token in told).startswith(", there was a little girl named Lily.")


@pytest.mark.slow
def test_the_published_assistant_answers_as_the_reference_does() -> None:
    path = published()
    file = read_gguf(path)
    ours, theirs = load_model(path), llama_of(*llama_of_gguf(file))
    assert ours.sizes == SIZES["smollm2-135m"]
    assert_same_logits(ours, theirs, [1, 9, 64])
    tokenizer = tokenizer_of(file)
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(question).ids
    expected = greedy(theirs, ids, 12)  # it stops where the answer does
    answer = greedy_cached(ours, ids, len(expected))
    assert answer == expected
    assert tokenizer.decode(answer).startswith("The capital of France is Paris")
