"""Small valid folders of models: our own and published ones of every family, shards, single files, adapters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFWriter, quants
from gguf.constants import GGMLQuantizationType

from qkv.files import write_tensors
from qkv.models.catalogue import FAMILIES, build
from qkv.models.head_choice import WITH_LABELS, HeadChoice
from qkv.train.adapt.lora import LoRA, add_lora
from qkv.train.adapt.lora_files import save_adapter
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from qkv.weights.save import save_model
from tests.fuzz.folders import Seed, seed_of
from tests.models.small import shrunk
from tests.weights.folders import SMALL, small_published, write_gpt2

# Sizes that do not follow from the published ones by making all of them small.
PICTURES = {"image": 12, "patch": 4}
DETECTOR = {"stem": 4, "stage_widths": (4, 8), "stage_depths": (1, 1)}
FURTHER = {
    **dict.fromkeys(("vit", "deit", "clip", "clip-image"), PICTURES),
    "vitpose": {"image": 16, "image_width": 12, "patch": 4},
    "detr": DETECTOR,
}


def tensor_files(folder: Path) -> Iterator[Seed]:
    """Safetensors files alone: of every type of number, of one tensor, of none."""
    dtypes = ("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")
    many = {name: torch.ones(2, 3).to(getattr(torch, name)) for name in dtypes}
    files = {"kinds": many, "one": {"weight": torch.randn(4, 4)}, "none": {}, "empty": {"a": torch.zeros(0, 5)}}
    files["layers"] = {f"layers.{number}.weight": torch.randn(3) for number in range(12)}
    for name, tensors in files.items():
        place = folder / name
        place.mkdir()
        write_tensors(place / "model.safetensors", tensors, {"note": "a"} if name == "one" else None)
        yield seed_of(place, name)


def own_models(folder: Path) -> Iterator[Seed]:
    for name, family in FAMILIES.items():
        given = {**SMALL.get(name, {}), **FURTHER.get(name, {})}
        kind = family.heads[0] if family.heads else ""
        labels = ("a", "b", "c") if kind in WITH_LABELS else ()
        head = HeadChoice(kind, labels=labels, pooling="mean" if kind == "embedding" else None) if kind else None
        save_model(build(name, shrunk(next(iter(family.published.values())), **given), head).eval(), folder / name)
        yield seed_of(folder / name, name)


def published_models(folder: Path) -> Iterator[Seed]:
    for name, published in PUBLISHED.items():
        kinds = list(published.architectures)
        for kind in dict.fromkeys((kinds[0], kinds[-1])):
            model = small_published(published.family, kind, **FURTHER.get(published.family, {}))
            if published.fits(model.sizes):
                place = folder / f"{name}-{kind or 'plain'}"
                save_published(model, place, {name: published}, shard_bytes=10**9)
                yield seed_of(place, place.name)


def configurations(folder: Path) -> Iterator[Seed]:
    """The `config.json` of every family alone."""
    for make in (published_models, own_models):
        place = folder / make.__name__
        for seed in make(place):
            yield Seed(f"{make.__name__}-{seed.name}", {"config.json": seed.files["config.json"]}, ("config.json",))


def sharded_models(folder: Path) -> Iterator[Seed]:
    for bytes_each in (4_000, 8_000):
        place = folder / f"of-{bytes_each}"
        write_gpt2(place, bytes_each)
        yield seed_of(place, place.name)


def adapters(folder: Path) -> Iterator[Seed]:
    model = adapted_model()
    add_lora(model, LoRA(rank=2))
    place = folder / "gpt2"
    save_adapter(model, place)
    yield seed_of(place, "gpt2")
    file = place / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "alpha_pattern": {"c_attn": 4, "h.0.*": 2}}))
    yield seed_of(place, "pattern")


def adapted_model() -> torch.nn.Module:
    torch.manual_seed(0)
    model: torch.nn.Module = small_published("gpt2", "language", positions=32)
    return model


def single_files(folder: Path) -> Iterator[Seed]:
    place = folder / "gguf"
    place.mkdir()
    _write_gguf(place)
    yield seed_of(place, "gguf")


TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{number:02X}>" for number in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]


def _write_gguf(folder: Path) -> None:
    width, hidden, heads, layers = 32, 32, 2, 1
    writer = GGUFWriter(folder / "model.gguf", "llama")
    for key, value in {
        "context_length": 16, "embedding_length": width, "block_count": layers, "feed_forward_length": hidden,
        "attention.head_count": heads, "attention.head_count_kv": heads, "rope.dimension_count": width // heads,
        "vocab_size": len(TOKENS),
    }.items():  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([-float(number) for number in range(len(TOKENS))])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * 6])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random = np.random.default_rng(0)

    def tensor(name: str, *shape: int, kind: GGMLQuantizationType | None = None) -> None:
        values = random.standard_normal(shape).astype(np.float32)
        if kind is None:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)

    tensor("token_embd.weight", len(TOKENS), width, kind=GGMLQuantizationType.Q8_0)
    tensor("output_norm.weight", width)
    tensor("output.weight", len(TOKENS), width, kind=GGMLQuantizationType.F16)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        tensor(f"blk.0.{name}.weight", width, width, kind=GGMLQuantizationType.Q4_0)
    for name, shape in {"ffn_gate": (hidden, width), "ffn_up": (hidden, width), "ffn_down": (width, hidden)}.items():
        tensor(f"blk.0.{name}.weight", *shape)
    tensor("blk.0.attn_norm.weight", width)
    tensor("blk.0.ffn_norm.weight", width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
