"""Llama in GGUF: a random one that the reference writer wrote comes back the same; a published one answers."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFWriter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM

from qkv.errors import QkvError
from qkv.weights.gguf import GgufFile, read_gguf
from qkv.weights.maps.gguf_llama import llama_of_gguf
from tests.weights.llamas import greedy, llama_of, logits, random_llama, to_neighbours

CHECKPOINTS = Path(__file__).resolve().parents[3] / "checkpoints"

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def write_gguf(path: Path, model: LlamaForCausalLM, **more: Any) -> Path:
    """As llama.cpp's converter names and orders things; `more` entries replace or add to those of the model."""
    config = model.config
    writer = GGUFWriter(path, "llama")
    said = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    } | more
    factors = said.pop("factors", None)
    for key, value in said.items():
        if value is not None:
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
            add[type(value)](f"llama.{key}", value)
    writer.add_uint32("tokenizer.ggml.bos_token_id", 3)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    for name, tensor in model.state_dict().items():
        if name.startswith("lm_head") and config.tie_word_embeddings:
            continue
        layer, module, kind = re.fullmatch(r"(?:model\.layers\.(\d+)\.)?(.+)\.(weight|bias)", name).groups()
        if module in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = config.num_attention_heads if module == "self_attn.q_proj" else config.num_key_value_heads
            tensor = to_neighbours(tensor, heads)
        prefix = "" if layer is None else f"blk.{layer}."
        writer.add_tensor(f"{prefix}{NAMES[module]}.{kind}", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 6},
        {"num_key_value_heads": 1},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"rms_norm_eps": 1e-6},
    ],
    ids=str,
)
def test_a_random_llama_comes_back_with_the_same_logits(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = random_llama(**changes)
    config, tensors = llama_of_gguf(read_gguf(write_gguf(tmp_path / "model.gguf", model)))
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in tensors.items())
    assert torch.equal(logits(llama_of(config, tensors)), logits(model))
    for key in ("rms_norm_eps", "max_position_embeddings", "attention_bias", "mlp_bias", "tie_word_embeddings"):
        assert config[key] == getattr(model.config, key)
    assert config["bos_token_id"] == 3


def test_heads_may_be_wider_than_the_model(tmp_path: Path) -> None:
    model = random_llama(head_dim=16)
    file = write_gguf(tmp_path / "model.gguf", model, **{"attention.key_length": 16, "attention.value_length": 16})
    config, tensors = llama_of_gguf(read_gguf(file))
    assert torch.equal(logits(llama_of(config, tensors)), logits(model))


def test_what_the_file_need_not_say_is_known(tmp_path: Path) -> None:
    model = random_llama(num_key_value_heads=6)
    absent = dict.fromkeys(["attention.head_count_kv", "rope.freq_base", "rope.dimension_count", "vocab_size"])
    config, tensors = llama_of_gguf(read_gguf(write_gguf(tmp_path / "model.gguf", model, **absent)))
    assert torch.equal(logits(llama_of(config, tensors)), logits(model))


@pytest.mark.parametrize("scaling", [{"rope_type": "linear", "factor": 4.0}, {"rope_type": "llama3", "factor": 8.0}])
def test_stretched_positions_are_understood(tmp_path: Path, scaling: dict[str, Any]) -> None:
    more: dict[str, Any] = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    if scaling["rope_type"] == "llama3":
        scaling = scaling | {
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        }  # fmt: skip
    rope = {"rope_theta": 500000.0, **scaling}
    model = random_llama(head_dim=32, max_position_embeddings=65536, rope_parameters=rope)
    if scaling["rope_type"] == "llama3":
        plain = random_llama(head_dim=32, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
        more = {"factors": plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq}
        assert len(set(more["factors"].tolist())) > 2  # unchanged ones, slowed ones, and some between
    file = write_gguf(tmp_path / "model.gguf", model, **{"attention.key_length": 32}, **more)
    config, tensors = llama_of_gguf(read_gguf(file))
    assert config["rope_scaling"] == pytest.approx(scaling)
    torch.testing.assert_close(logits(llama_of(config, tensors)), logits(model))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"expert_count": 8}, "llama.expert_count 8; a Llama has 0"),
        ({"attention.sliding_window": 4096}, "could change what Llama computes: llama.attention.sliding_window"),
        ({"rope.dimension_count": 4}, "width of a head, 8"),
        ({"attention.value_length": 4}, "width of a head, 8"),
        ({"rope.scaling.type": "yarn"}, "by 'yarn'; read here are"),
        ({"rope.scaling.type": "linear"}, "llama.rope.scaling.factor None"),
        ({"factors": torch.tensor([1.0, 1.0, 7.0, 9.0])}, "another way than Llama 3"),
        ({"factors": torch.ones(3)}, "another way than Llama 3"),
        ({"block_count": 10**9}, "announces 1000000000 layers"),
        ({"block_count": 3}, "lack tensors: blk.2"),
        ({"block_count": 1}, "more layers than the model"),
        ({"block_count": 0}, "llama.block_count 0; it should be one whole number"),
        ({"attention.head_count": None}, "llama.attention.head_count None"),
        ({"attention.head_count": 5}, "width of a head, 9"),
        ({"attention.head_count_kv": [3, 3]}, "llama.attention.head_count_kv"),
        ({"attention.head_count_kv": 7}, "not 7 heads of pairs"),
        ({"attention.layer_norm_rms_epsilon": 0.0}, "number above 0"),
        ({"rope.freq_base": float("nan")}, "number above 0"),
    ],
)
def test_what_would_be_another_model_is_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    file = read_gguf(write_gguf(tmp_path / "model.gguf", random_llama(), **more))
    with pytest.raises(QkvError, match=message):
        llama_of_gguf(file)


def test_another_architecture_and_a_vocabulary_alone_are_named(tmp_path: Path) -> None:
    for architecture, message in [("gpt2", "architecture 'gpt2'"), ("llama", "it holds a vocabulary, not a model")]:
        model = random_llama()
        path = write_gguf(tmp_path / "model.gguf", model)
        file = read_gguf(path)
        file.metadata["general.architecture"] = architecture
        del file.notes["token_embd.weight"]
        with pytest.raises(QkvError, match=message):
            llama_of_gguf(file)


def published() -> Path:
    path = CHECKPOINTS / "smollm2-135m-instruct" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        pytest.skip("needs `make checkpoints`")
    return path


def tokenizer_of(file: GgufFile) -> Tokenizer:
    tokens, merges = (file.metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "merges"))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = file.metadata["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == 3])
    return tokenizer


@pytest.mark.slow
def test_a_published_file_gives_the_tensors_that_the_reference_makes_of_it() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = published()
    config, tensors = llama_of_gguf(read_gguf(path))
    with torch.device("meta"):
        named = LlamaForCausalLM(LlamaConfig(**config))
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=named)
    assert tensors.keys() == theirs["tensors"].keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, theirs["tensors"][name])
    for key in config.keys() & theirs["config"].keys():
        assert config[key] == pytest.approx(theirs["config"][key]), key


@pytest.mark.slow
def test_the_published_assistant_knows_the_capital_of_france() -> None:
    file = read_gguf(published())
    tokenizer = tokenizer_of(file)
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    model = llama_of(*llama_of_gguf(file))
    answer = tokenizer.decode(greedy(model, tokenizer.encode(question).ids, 12))
    assert answer.startswith("The capital of France is Paris")
