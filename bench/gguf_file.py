"""Our GPT-2 for llama.cpp: as a GGUF file, and opened where AMX is announced and forbidden."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from same_weights import names_of_others

from qkv.data.tokenizer import TextTokenizer
from qkv.models.text_model import TextModel


def write_gguf(file: Path, model: TextModel, tokenizer: TextTokenizer, end: str, precision: str) -> None:
    """The model as llama.cpp reads it; in 8 bits the matrices are in blocks of 32 numbers with a scale each."""
    import gguf

    sizes, writer = model.sizes, gguf.GGUFWriter(file, "gpt2")
    writer.add_context_length(sizes.positions)
    writer.add_embedding_length(sizes.width)
    writer.add_feed_forward_length(sizes.hidden)
    writer.add_block_count(sizes.layers)
    writer.add_head_count(sizes.heads)
    writer.add_layer_norm_eps(sizes.epsilon)
    names = tokenizer.names()
    library = tokenizer.library_state()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * (len(names) - 1) + [int(gguf.TokenType.CONTROL)])
    writer.add_token_merges(merges_of(library))
    writer.add_eos_token_id(tokenizer.id_of(end))
    writer.add_bos_token_id(tokenizer.id_of(end))
    words = {"ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
             "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}  # fmt: skip
    tables = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
    for name, tensor in names_of_others(model).items():
        place, _, kind = name.removeprefix("transformer.").rpartition(".")
        values = tensor.detach().numpy()
        if place.startswith("h."):
            _, number, part = place.split(".", 2)
            named = f"blk.{number}.{words[part]}.{kind}"
            values = values.T if part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj") else values
        else:
            named = f"{tables[place]}.{kind}"
        values = np.ascontiguousarray(values, dtype=np.float32)
        if precision == "int8" and values.ndim == 2 and place != "wpe" and values.shape[-1] % 32 == 0:
            narrow = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(named, narrow, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(named, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def merges_of(library: str) -> list[str]:
    """The merges of a tokenizer of the tokenizers library, each as two tokens with a space between."""
    merges = json.loads(library)["model"]["merges"]
    return [each if isinstance(each, str) else " ".join(each) for each in merges]


@contextmanager
def without_amx(library: Any) -> Iterator[None]:
    """Inside, llama.cpp arranges no matrix for AMX, which ends the process where it is announced and forbidden."""
    made = library.llama_cpp.llama_model_default_params

    def defaults() -> Any:
        found = made()
        found.use_extra_bufts = False
        return found

    library.llama_cpp.llama_model_default_params = defaults
    try:
        yield
    finally:
        library.llama_cpp.llama_model_default_params = made
