"""What damaged files found, each as the smallest file that did it: once a traceback, a wait for ever or gigabytes."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv.cli.config_file import read_config
from qkv.cli.main import printable
from qkv.data.letters import read_letters
from qkv.data.preprocessing_files import read_preprocessing
from qkv.data.published_tokenizer import read_tokenizer
from qkv.data.sentencepiece import read_sentencepiece
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import LONGEST, QkvError
from qkv.files import checksum_of_json, read_json, read_tensors
from qkv.generate.language import read_ends
from qkv.models.catalogue import count_parameters, find_family
from qkv.models.head_choice import HeadChoice
from qkv.train.adapt.lora_files import load_adapter
from qkv.train.history import read_history
from qkv.weights.load import load_model
from tests.fuzz.folders import Seed, put, written
from tests.fuzz.seeds_of_models import adapted_model, adapters
from tests.fuzz.seeds_of_texts import PICTURES, TIMM, letters

HUGE = 10**400  # more than any float


def edited(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("gpt2-language", {"activation_function": []}),
    ("gpt2-language", {"architectures": 3}),
    ("openai-gpt-language", {"afn": []}),
    ("clip-plain", {"text_config": 7}),
    ("detr-states", {"backbone_config": True}),
    ("longformer-masked", {"attention_window": {}}),
    ("vit-pooled", {"layer_norm_eps": HUGE}),
    ("gpt2-language", {"n_layer": HUGE}),
    ("t5-plain", {"num_layers": float("nan")}),
]


@pytest.mark.parametrize(("family", "changes"), CONFIGS, ids=[f"{name} {[*one]}" for name, one in CONFIGS])
def test_configurations(models: dict[str, Seed], tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    folder = written(models[family], tmp_path / "model")
    edited(folder / "config.json", **changes)
    with pytest.raises(QkvError):
        load_model(folder)


def test_shapes_that_torch_has_no_numbers_for(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}).encode()
    put(tmp_path / "a.safetensors", struct.pack("<Q", len(header)) + header)
    with pytest.raises(QkvError, match="not a whole safetensors file") as error:
        read_tensors(tmp_path / "a.safetensors")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '["\\uDFFF"]'])
def test_halves_of_signs_are_no_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(QkvError, match="not whole JSON"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"a": "\\ud83d\\ude00"}')
    assert read_json(tmp_path / "a.json") == {"a": "😀"}


def test_templates_that_are_no_text(cutters: dict[str, Seed], tmp_path: Path) -> None:
    folder = written(cutters["bpe"], tmp_path / "tokenizer")
    put(folder / "chat_template.jinja", b"\xed\xa0\x80")
    with pytest.raises(QkvError, match=r"chat_template\.jinja"):
        read_tokenizer(folder)


@pytest.mark.parametrize(
    "content", [b"\n\x06\n\x01a\x10\x03\x18", b"\n\x05\n\x01a\x1a\x00", b"\n\x07\n\x01a\x10\x00\x18\x01"]
)
def test_pieces_whose_score_is_a_number_of_another_kind(tmp_path: Path, content: bytes) -> None:
    put(tmp_path / "spiece.model", content)
    with pytest.raises(QkvError, match="not a whole SentencePiece model"):
        read_sentencepiece(tmp_path / "spiece.model")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"lora_dropout": 32}, "lora_dropout"),
        ({"lora_alpha": HUGE}, "lora_alpha"),
        ({"lora_dropout": float("nan")}, "lora_dropout"),
        ({"alpha_pattern": {"([a-z._0-9]+)+!": 2}}, "may never end"),
        ({"alpha_pattern": {".*.*.*.*.*!": 2}}, "may never end"),
        ({"alpha_pattern": {"[": 2}}, "no regular expression"),
    ],
)
def test_adapters(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    folder = written(next(adapters(tmp_path)), tmp_path / "adapter")
    edited(folder / "adapter_config.json", **changes)
    with pytest.raises(QkvError, match=told):
        load_adapter(adapted_model(), folder)


@pytest.mark.parametrize("line", [f'{{"kind": "train", "step": {HUGE}}}', "[" * 9000, "9" * 9000])
def test_records_beyond_numbers(tmp_path: Path, line: str) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"format": "qkv-run-1", "settings": {}, "sessions": []}))
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(QkvError, match=r"metrics\.jsonl"):
        read_history(tmp_path)


@pytest.mark.parametrize("text", ["a = " + "[" * 9000, "a = " + "9" * 9000, 'b."x.y" = 1'])
def test_configuration_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.toml").write_text(text)
    with pytest.raises(QkvError, match=r"train\.toml"):
        read_config(tmp_path / "train.toml", "train lm", {"b": ["steps"]}, ["steps"])


def test_processors_of_pictures(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PICTURES["vit"], "resample": []}))
    with pytest.raises(QkvError, match="resample"):
        read_preprocessing(tmp_path)


def test_letters(tmp_path: Path) -> None:
    folder = written(next(letters(tmp_path)), tmp_path / "some")
    edited(folder / "tokenizer_config.json", pad_token=[])
    with pytest.raises(QkvError, match="pad_token"):
        read_letters(folder)


def test_checksums_of_what_no_file_of_ours_holds() -> None:
    with pytest.raises(QkvError, match="NaN"):
        checksum_of_json({"a": float("nan")})


SAYS: list[Callable[[], str]] = [lambda: "a" * 10**6, lambda: "é" * 3000]


@pytest.mark.parametrize("says", SAYS)
def test_sentences_stay_short(says: Callable[[], str]) -> None:
    told = str(QkvError(f"The file begins {says()} and ends."))
    assert len(told) <= LONGEST
    assert told.startswith("The file begins")
    assert told.endswith("and ends.")


def test_what_a_file_says_does_not_steer_a_terminal() -> None:
    assert printable("a\x1b[2J\u202eé\ud800") == "a\\x1b[2J\\u202eé\\ud800"


@pytest.mark.parametrize(
    "notes",
    [{"model_input_names": 7}, {"known_tokens": -1}, {"known_tokens": "x"}, {"model_max_length": float("-inf")}],
)
def test_notes_of_tokenizers(cutters: dict[str, Seed], tmp_path: Path, notes: dict[str, Any]) -> None:
    folder = written(cutters["bpe"], tmp_path / "tokenizer")
    edited(folder / "tokenizer_config.json", **notes)
    for read in (read_tokenizer, lambda place: TextTokenizer.load(place / "tokenizer.json")):
        with pytest.raises(QkvError):
            read(folder)


@pytest.mark.parametrize("far", [10**9, 2**32 - 1])
def test_numbers_of_tokens_take_no_memory(cutters: dict[str, Seed], tmp_path: Path, far: int) -> None:
    """The library would take four bytes for every number up to the largest one, and end the process without them."""
    folder = written(cutters["characters"], tmp_path / "tokenizer")
    found = json.loads((folder / "tokenizer.json").read_text())
    found["model"]["vocab"]["e"] = far
    (folder / "tokenizer.json").write_text(json.dumps(found))
    with pytest.raises(QkvError, match="beyond any vocabulary"):
        read_tokenizer(folder)


def test_processors_of_timm(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TIMM, "pretrained_cfg": {"interpolation": ["bilinear"]}}))
    with pytest.raises(QkvError, match="interpolation"):
        read_preprocessing(tmp_path)


@pytest.mark.parametrize("depths", [[1, 2**64], [1, 10**7], [1, -1], [1, 0.5]])
def test_stages_without_end(models: dict[str, Seed], tmp_path: Path, depths: list[Any]) -> None:
    folder = written(models["detr-states"], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    edited(folder / "config.json", backbone_config={**config["backbone_config"], "depths": depths})
    with pytest.raises(QkvError):
        load_model(folder)


def test_names_that_no_file_has(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="null"):
        read_json(tmp_path / "a\0b")


def test_ends_beyond_any_token(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2**70]}))
    with pytest.raises(QkvError, match="eos_token_id"):
        read_ends(tmp_path)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers(tmp_path: Path, score: float) -> None:
    piece = b"\n\x01a\x15" + struct.pack("<f", score)
    put(tmp_path / "spiece.model", b"\n" + bytes([len(piece)]) + piece)
    with pytest.raises(QkvError, match="is no number"):
        read_sentencepiece(tmp_path / "spiece.model")


def test_blocks_that_no_network_has(models: dict[str, Seed], tmp_path: Path) -> None:
    folder = written(models["detr-states"], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    edited(folder / "config.json", backbone_config={**config["backbone_config"], "layer_type": "other"})
    with pytest.raises(QkvError):
        load_model(folder)


def test_a_model_that_is_counted_takes_no_memory() -> None:
    """Once 34 GB, for the norm of weights that nobody has."""
    sizes = find_family("wav2vec2").sizes({"width": 2**16, "hidden": 8, "heads": 2, "layers": 1})
    assert count_parameters("wav2vec2", sizes, HeadChoice("ctc")) > 2**32
