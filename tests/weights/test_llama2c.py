"""Checkpoints of llama2.c: a random Llama written as one comes back with the same logits; a published one speaks."""

import struct
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from qkv.errors import QkvError
from qkv.weights.llama2c import read_llama2c, read_llama2c_vocabulary
from tests.weights.llamas import greedy, llama_of, logits, random_llama, to_neighbours

CHECKPOINTS = Path(__file__).resolve().parents[2] / "checkpoints"


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


def test_a_vocabulary_is_read(tmp_path: Path) -> None:
    entries = [("<unk>", 0.0), ("", -1.5), (" é", -2.0)]
    file = tmp_path / "tokenizer.bin"
    packed = [struct.pack("<fi", score, len(piece.encode())) + piece.encode() for piece, score in entries]
    file.write_bytes(struct.pack("<i", 27) + b"".join(packed))
    assert read_llama2c_vocabulary(file) == ([piece for piece, _ in entries], [score for _, score in entries])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack("<ifi", 27, 0.0, 2**31 - 1), "piece 0 would have 2147483647 bytes"),
        (struct.pack("<ifi", 27, 0.0, -1), "piece 0 would have -1 bytes"),
        (struct.pack("<if", 27, 0.0), "ends within a piece"),
        (struct.pack("<ifi", 27, 0.0, 1) + b"\xff", "piece 0 is not UTF-8"),
        (b"", "too short"),
    ],
)
def test_a_vocabulary_that_is_none_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "tokenizer.bin").write_bytes(content)
    with pytest.raises(QkvError, match=message):
        read_llama2c_vocabulary(tmp_path / "tokenizer.bin")


@pytest.mark.slow
def test_the_published_storyteller_tells_a_story() -> None:
    folder = CHECKPOINTS / "stories15m"
    if not folder.exists():
        pytest.skip("needs `make checkpoints`")
    pieces, _ = read_llama2c_vocabulary(folder / "tokenizer.bin")
    config, tensors = read_llama2c(folder / "stories15M.bin")
    start = [config["bos_token_id"], *(pieces.index(piece) for piece in (" Once", " upon", " a", " time"))]
    story = "".join(pieces[token] for token in greedy(llama_of(config, tensors), start, 40))
    assert story.startswith(", there was a little girl named Lily. She loved to play outside in the")
