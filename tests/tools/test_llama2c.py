"""Checkpoints of llama2.c: a random Llama written as one comes back with the same logits; a published one speaks."""

import struct
from pathlib import Path

import pytest
import sentencepiece
import torch
from transformers import LlamaForCausalLM

from qkv.data.published_tokenizer import read_tokenizer as read_published
from qkv.errors import QkvError
from qkv.models.catalogue import count_parameters
from qkv.models.llama import SIZES
from qkv.weights.load import load_model
from tests.data.published_folders import CORPUS, sentencepiece_bytes
from tests.data.torture import TORTURE, random_strings
from tests.weights.llamas import greedy, llama_of, logits, random_llama, to_neighbours
from tools.llama2c import publish, read_llama2c, read_tokenizer

CHECKPOINTS = Path(__file__).resolve().parents[2] / "checkpoints"
TEXTS = [*CORPUS[:6], *TORTURE, *random_strings(50)]
LLAMA = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}


def write_llama2c(path: Path, model: LlamaForCausalLM) -> Path:
    """As llama2.c's own export orders things."""
    config, state = model.config, model.state_dict()
    heads, key_heads, tied = config.num_attention_heads, config.num_key_value_heads, config.tie_word_embeddings

    def layers(name: str, heads: int | None = None) -> list[torch.Tensor]:
        found = [state[f"model.layers.{layer}.{name}.weight"] for layer in range(config.num_hidden_layers)]
        return [to_neighbours(rows, heads) for rows in found] if heads else found

    tables = [torch.rand(config.max_position_embeddings, config.hidden_size // heads // 2) for _ in range(2)]
    tensors = [
        state["model.embed_tokens.weight"],
        *layers("input_layernorm"),
        *layers("self_attn.q_proj", heads),
        *layers("self_attn.k_proj", key_heads),
        *layers("self_attn.v_proj"),
        *layers("self_attn.o_proj"),
        *layers("post_attention_layernorm"),
        *layers("mlp.gate_proj"),
        *layers("mlp.down_proj"),
        *layers("mlp.up_proj"),
        state["model.norm.weight"],
        *tables,
        *([] if tied else [state["lm_head.weight"]]),
    ]
    numbers = [config.hidden_size, config.intermediate_size, config.num_hidden_layers, heads, key_heads]
    numbers += [config.vocab_size if tied else -config.vocab_size, config.max_position_embeddings]
    path.write_bytes(struct.pack("<7i", *numbers) + b"".join(tensor.numpy().tobytes() for tensor in tensors))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_llama2c(tmp_path / "model.bin", random_llama())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("key_heads", [6, 3, 1])
def test_a_random_llama_comes_back_with_the_same_logits(tmp_path: Path, tied: bool, key_heads: int) -> None:
    model = random_llama(tie_word_embeddings=tied, num_key_value_heads=key_heads)
    config, tensors = read_llama2c(write_llama2c(tmp_path / "model.bin", model))
    assert ("lm_head.weight" in tensors) is not tied
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in tensors.items())
    assert torch.equal(logits(llama_of(config, tensors)), logits(model))
    assert config["max_position_embeddings"] == 32


@pytest.mark.parametrize("change", [-4, -1, 1, 4])
def test_a_file_of_another_length_is_refused(file: Path, change: int) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:change] if change < 0 else content + bytes(change))
    with pytest.raises(QkvError, match=r"not a whole llama2\.c checkpoint"):
        read_llama2c(file)


@pytest.mark.parametrize(
    ("place", "number", "message"),
    [
        (0, 0, "no sizes of a model"),
        (0, 47, "no sizes of a model"),
        (1, -5, "no sizes of a model"),
        (2, 2**31 - 1, "not a whole"),
        (3, 0, "no sizes of a model"),
        (4, 4, "no sizes of a model"),
        (5, -(2**31), "no sizes of a model"),
        (5, 50, "not a whole"),
        (6, 2**31 - 1, "not a whole"),
        (0, 0x616B3432, "of version"),
    ],
)
def test_sizes_that_cannot_be_are_refused(file: Path, place: int, number: int, message: str) -> None:
    content = bytearray(file.read_bytes())
    struct.pack_into("<i", content, 4 * place, number)
    file.write_bytes(content)
    with pytest.raises(QkvError, match=message):
        read_llama2c(file)


def test_what_is_no_checkpoint_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"short")
    for name, message in [("absent", "no file"), (".", "no file"), ("short", "too short")]:
        with pytest.raises(QkvError, match=message):
            read_llama2c(tmp_path / name)


def llama2c_bytes(theirs, spelled):
    """The file as llama2.c exports it: spaces written out, line breaks around the names of control pieces."""
    content = struct.pack("<i", 27)
    for number in range(theirs.get_piece_size()):
        text = theirs.id_to_piece(number)
        text = chr(number - 3) if theirs.is_byte(number) and not spelled else text
        text = f"\n{text}\n" if theirs.is_control(number) else text.replace("▁", " ")
        content += struct.pack("<fi", theirs.get_score(number), len(text.encode())) + text.encode()
    return content


@pytest.mark.parametrize("spelled", [True, False])  # newer files spell bytes as SentencePiece does
def test_its_vocabulary_is_read(tmp_path, spelled):
    theirs = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_bytes("bpe", 500, **LLAMA))
    file = tmp_path / "tokenizer.bin"
    file.write_bytes(llama2c_bytes(theirs, spelled))
    ours = read_tokenizer(file)
    assert ours.encode(TEXTS) == theirs.encode(TEXTS)
    assert ours.encode(["the cat"], special=True) == [[1, *theirs.encode("the cat")]]
    assert ours.roles == {"unknown": "<unk>", "start": "<s>", "end": "</s>"}
    whole = file.read_bytes()
    for broken in (whole[:-1], whole[:200], b"", whole[:4], whole[:4] + b"\xff" * 40):
        file.write_bytes(broken)
        with pytest.raises(QkvError, match=r"is not a .*tokenizer of llama2\.c"):
            read_tokenizer(file)


@pytest.mark.parametrize("key_heads", [1, 6])
def test_it_becomes_a_published_folder(tmp_path: Path, key_heads: int) -> None:
    theirs = random_llama(num_key_value_heads=key_heads, tie_word_embeddings=True)
    publish(write_llama2c(tmp_path / "stories.bin", theirs), tmp_path / "new")
    ids = torch.tensor([[1, 2, 9, 32]])
    with torch.no_grad():
        torch.testing.assert_close(load_model(tmp_path / "new")(ids), theirs(ids).logits, atol=2e-5, rtol=1e-4)


@pytest.mark.slow
def test_the_published_storyteller_tells_a_story(tmp_path: Path) -> None:
    file = CHECKPOINTS / "stories15m" / "stories15M.bin"
    if not file.exists():
        pytest.skip("needs `make checkpoints`")
    publish(file, tmp_path / "new")
    ours, theirs = load_model(tmp_path / "new"), llama_of(*read_llama2c(file))
    assert ours.sizes == SIZES["stories15m"]
    assert sum(parameter.numel() for parameter in ours.parameters()) == count_parameters("llama", SIZES["stories15m"])
    tokenizer = read_published(tmp_path / "new")
    (start,) = tokenizer.encode(["Once upon a time"], special=True)
    told = tokenizer.decode([greedy(theirs, start, 40)])[0]
    with torch.no_grad():
        ids = torch.tensor([start])
        torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=2e-4, rtol=1e-4)
    assert told.startswith(", there was a little girl named Lily. She loved to play outside in the")
