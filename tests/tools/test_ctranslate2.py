"""Whisper from CTranslate2's files: written here byte by byte, read back, and opened by the reference library."""

import hashlib
import json
import struct
from pathlib import Path

import pytest
import torch
from transformers import WhisperForConditionalGeneration

from qkv.errors import QkvError
from qkv.files import write_json
from qkv.generate.transcribe import Transcriber
from qkv.models.whisper import SIZES as PUBLISHED_SIZES
from qkv.weights.load import load_model
from qkv.weights.maps.whisper import CONFIG, RULES
from qkv.weights.rules import to_theirs
from qkv.weights.save import tensors_of
from tests.generate.speech import SIZES, small_model, tokenizer
from tools.ctranslate2 import publish, read_arrays

KINDS = {torch.float32: 0, torch.int8: 1, torch.int16: 2, torch.float16: 4}
SAID = {
    "decoder/activation": torch.tensor(3, dtype=torch.int8),
    "decoder/alibi": torch.tensor(0, dtype=torch.int8),
    "decoder/alignment_heads": torch.tensor(1, dtype=torch.int16),
    "decoder/alignment_layer": torch.tensor(-1, dtype=torch.int16),
    "decoder/num_heads": torch.tensor(SIZES.decoder_heads, dtype=torch.int16),
    "decoder/pre_norm": torch.tensor(1, dtype=torch.int8),
    "decoder/scale_embeddings": torch.tensor(0, dtype=torch.int8),
    "decoder/start_from_zero_embedding": torch.tensor(0, dtype=torch.int8),
    "encoder/num_heads": torch.tensor(SIZES.encoder_heads, dtype=torch.int16),
}


def arrays_of(model):
    """The tensors of a model by CTranslate2's names."""
    theirs = to_theirs(RULES, tensors_of(model))
    found = dict(SAID)

    def take(name, ours):
        found[name] = theirs.pop(ours)

    for conv in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            take(f"encoder/{conv}/{kind}", f"model.encoder.{conv}.{kind}")
    take("decoder/embeddings/weight", "model.decoder.embed_tokens.weight")
    for side, layers in (("encoder", SIZES.encoder_layers), ("decoder", SIZES.decoder_layers)):
        take(f"{side}/position_encodings/encodings", f"model.{side}.embed_positions.weight")
        norms = {f"{side}/layer_norm": f"model.{side}.layer_norm"}
        for layer in range(layers):
            name, ours = f"{side}/layer_{layer}", f"model.{side}.layers.{layer}"
            norms |= {
                f"{name}/self_attention/layer_norm": f"{ours}.self_attn_layer_norm",
                f"{name}/ffn/layer_norm": f"{ours}.final_layer_norm",
            }
            linear = {
                "self_attention/linear_1": "self_attn.out_proj",
                "ffn/linear_0": "fc1",
                "ffn/linear_1": "fc2",
            }
            joined = {"self_attention/linear_0": ("self_attn", "qkv")}
            if side == "decoder":
                norms[f"{name}/attention/layer_norm"] = f"{ours}.encoder_attn_layer_norm"
                linear |= {"attention/linear_0": "encoder_attn.q_proj", "attention/linear_2": "encoder_attn.out_proj"}
                joined["attention/linear_1"] = ("encoder_attn", "kv")
            for place, where in linear.items():
                for kind in ("weight", "bias"):
                    take(f"{name}/{place}/{kind}", f"{ours}.{where}.{kind}")
            for place, (where, letters) in joined.items():
                theirs[f"{ours}.{where}.k_proj.bias"] = torch.zeros(SIZES.width)
                for kind in ("weight", "bias"):
                    parts = [theirs.pop(f"{ours}.{where}.{letter}_proj.{kind}") for letter in letters]
                    found[f"{name}/{place}/{kind}"] = torch.cat(parts)
        for place, where in norms.items():
            take(f"{place}/gamma", f"{where}.weight")
            take(f"{place}/beta", f"{where}.bias")
    assert not theirs
    return found


def text(value):
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def file_of(arrays, version=6, name="WhisperSpec"):
    content = struct.pack("<I", version) + text(name) + struct.pack("<II", 3, len(arrays))
    for key, array in arrays.items():
        raw = array.detach().contiguous().numpy().tobytes()
        content += text(key) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        content += struct.pack("<BI", KINDS[array.dtype], len(raw)) + raw
    return content + struct.pack("<I", 1) + text("decoder/projection/weight") + text("decoder/embeddings/weight")


@pytest.fixture(scope="module")
def arrays():
    return arrays_of(small_model())


@pytest.fixture
def folder(tmp_path, arrays):
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "model.bin").write_bytes(file_of(arrays))
    said = {"alignment_heads": [[1, 1]], "suppress_ids": [3, 4], "suppress_ids_begin": [5], "lang_ids": [7]}
    (folder / "config.json").write_text(json.dumps(said))
    tokenizer().save(folder / "tokenizer.json")
    return folder


def test_a_folder_becomes_a_published_one(folder, tmp_path):
    out = tmp_path / "out"
    publish(folder, out)
    expected, found = tensors_of(small_model()), tensors_of(load_model(out))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    opened, report = WhisperForConditionalGeneration.from_pretrained(out, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert opened.generation_config.suppress_tokens == [3, 4]
    generation = json.loads((out / "generation_config.json").read_text())
    assert (generation["alignment_heads"], generation["begin_suppress_tokens"]) == ([[1, 1]], [5])
    assert load_model(out).sizes == SIZES


def test_it_is_ready_to_hear(tmp_path, folder):
    """A window of one second, which the converted folder must be told: it takes thirty for granted."""
    out = tmp_path / "out"
    publish(folder, out)
    processor = json.loads((out / "preprocessor_config.json").read_text())
    (out / "preprocessor_config.json").write_text(json.dumps({**processor, "chunk_length": 1}))
    assert Transcriber.load(out).tokens.suppressed == (3, 4)


def test_half_precision_stays(tmp_path, folder, arrays):
    half = {name: array.half() if array.is_floating_point() else array for name, array in arrays.items()}
    (folder / "model.bin").write_bytes(file_of(half))
    read = read_arrays(folder / "model.bin")
    assert read["encoder/conv1/weight"].dtype == torch.float16
    assert read["decoder/projection/weight"] is read["decoder/embeddings/weight"]
    publish(folder, tmp_path / "out")


BROKEN = {
    "another version": (lambda arrays: file_of(arrays, version=2), "version 2"),
    "cut short": (lambda arrays: file_of(arrays)[:-4000], "cut short"),
    "cut in a number": (lambda arrays: file_of(arrays)[:21], "cut short"),
    "quantised": (lambda arrays: file_of({**arrays, "encoder/conv1/weight": torch.zeros(3, dtype=torch.int8)}), "qua"),
    "another activation": (
        lambda arrays: file_of({**arrays, "decoder/activation": torch.tensor(0, dtype=torch.int8)}),
        "activation 0",
    ),
    "a tensor too many": (lambda arrays: file_of({**arrays, "decoder/extra": torch.zeros(2)}), "no place for"),
    "a layer's tensor too many": (
        lambda arrays: file_of({**arrays, "decoder/layer_0/extra/weight": torch.zeros(2)}),
        "no place for",
    ),
    "a bias on keys": (
        lambda arrays: file_of({**arrays, "encoder/layer_0/self_attention/linear_0/bias": torch.ones(3 * SIZES.width)}),
        "bias on the keys",
    ),
    "no heads": (
        lambda arrays: file_of({name: array for name, array in arrays.items() if name != "encoder/num_heads"}),
        "encoder/num_heads",
    ),
    "a tensor missing": (
        lambda arrays: file_of({name: array for name, array in arrays.items() if name != "encoder/conv1/weight"}),
        "lack",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_or_another_model_is_refused(case, folder, tmp_path, arrays):
    make, message = BROKEN[case]
    (folder / "model.bin").write_bytes(make(arrays))
    with pytest.raises(QkvError, match=message):
        publish(folder, tmp_path / "out")


def test_the_checksum_of_what_is_fetched_still_holds(tmp_path):
    """`tools/checkpoints.sha256` has the configuration as it is written here: a change must be noted there too."""
    special = {"bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": 50256, "decoder_start_token_id": 50257}
    config = {
        **CONFIG.write(PUBLISHED_SIZES["tiny.en"]), "architectures": ["WhisperForConditionalGeneration"], **special,
    }  # fmt: skip
    write_json(tmp_path / "config.json", config)
    digest = hashlib.sha256((tmp_path / "config.json").read_bytes()).hexdigest()
    table = Path(__file__).parents[2] / "tools" / "checkpoints.sha256"
    assert f"{digest}  whisper-tiny.en/config.json" in table.read_text().splitlines()
