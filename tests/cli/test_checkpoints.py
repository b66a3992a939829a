"""Folders that others publish, through the command: certify, export, convert; and every damage in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.command import qkv
from tests.cli.test_faults import refused
from tests.weights.folders import edit_config, edit_tensors, write_gpt2

WTE, NORM = "transformer.wte.weight", "transformer.ln_f.weight"


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def point_outside(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"weight_map": {WTE: "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def lose_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {WTE: "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


DAMAGES = {
    "a missing tensor": (lambda f: edit_tensors(f, without=NORM), ["lack tensors: transformer.ln_f.weight."]),
    "an extra tensor": (lambda f: edit_tensors(f, surplus=torch.zeros(3)), ["has no place for", "surplus"]),
    "a wrong shape": (
        lambda f: edit_tensors(f, transformer__ln_f__weight=torch.zeros(99)),
        ["gives transformer.ln_f.weight the shape [99]", "it has [12]"],
    ),
    "a matrix on its side": (
        lambda f: edit_tensors(f, transformer__h__0__attn__c_attn__weight=torch.zeros(36, 12)),
        ["gives transformer.h.0.attn.c_attn.weight the shape [36, 12]", "it has [12, 36]"],
    ),
    "whole numbers": (
        lambda f: edit_tensors(f, transformer__ln_f__weight=torch.zeros(12, dtype=torch.int32)),
        ["holds transformer.ln_f.weight as torch.int32"],
    ),
    "too many layers": (lambda f: edit_config(f, n_layer=3), ["lack tensors: transformer.h.2.attn"]),
    "too few layers": (lambda f: edit_config(f, n_layer=1), ["more layers than the model: transformer.h.1.attn"]),
    "absurdly many layers": (lambda f: edit_config(f, n_layer=10**9), ["at most 100,000,000"]),
    "more layers than tensors": (lambda f: edit_config(f, n_layer=10**6), ["do not belong together"]),
    "heads that do not divide": (lambda f: edit_config(f, n_head=5), ["5"]),
    "another vocabulary": (lambda f: edit_config(f, vocab_size=24), ["[23, ", "[24, "]),
    "an unknown key": (lambda f: edit_config(f, rotary_twist=2), ["could change what GPT-2 computes", "rotary_twist"]),
    "a missing key": (lambda f: edit_config(f, without="n_embd"), ["lacks n_embd"]),
    "a text for a number": (lambda f: edit_config(f, n_embd="12"), ["width", "whole number"]),
    "an unknown kind of model": (lambda f: edit_config(f, model_type="gpt5"), ["'gpt5'", "qkv reads"]),
    "an unknown head": (lambda f: edit_config(f, architectures=["GPT2Telepathy"]), ["GPT2Telepathy"]),
    "a cut file": (cut, ["model.safetensors is not a whole safetensors file"]),
    "an index that leaves the folder": (point_outside, ["names a file beside it"]),
    "an index with a missing shard": (lose_a_shard, ["model-00001-of-00002.safetensors is missing"]),
    "nothing but a pickle": (only_pickles, ["pytorch_model.bin, a pickle", "qkv convert"]),
    "nothing at all": (empty, ["holds no model", "config.json"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_sentence(damage: str, tmp_path: Path) -> None:
    folder = write_gpt2(tmp_path / "model")
    change, words = DAMAGES[damage]
    change(folder)
    refused(qkv("export", folder, tmp_path / "new"), *words)
    assert not (tmp_path / "new").exists()
    refused(qkv("certify", folder), *words)
    assert not (folder / "parity.json").exists()


def test_certify_writes_a_table_and_a_report(tmp_path: Path) -> None:
    folder = write_gpt2(tmp_path / "model")
    outcome = qkv("certify", folder, "--longest", "9")
    assert outcome.code == 0, outcome
    assert "GPT2LMHeadModel, transformers" in outcome.out
    assert "up to 9 tokens of 32 that it reads" in outcome.out
    assert "float32, logits" in outcome.out
    assert "bfloat16, logits" in outcome.out
    report = json.loads((folder / "parity.json").read_text())
    assert report["passed"] is True
    assert len(report["settings"]) == 2 * (4 + 2 * 12)
    assert {"length", "rows", "padding", "cached", "absolute", "relative", "tolerance", "passed"} <= set(
        report["settings"][0]
    )


def test_certify_on_a_device_that_is_not_there(tmp_path: Path) -> None:
    folder = write_gpt2(tmp_path / "model")
    refused(qkv("certify", folder, "--device", "gpu"), "gpu", "cuda")
    if not torch.cuda.is_available():
        refused(qkv("certify", folder, "--device", "cuda"), "offers none")


def test_a_difference_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.weights import certify

    opened = certify.open_reference

    def changed(*given: Any) -> tuple[Any, dict[str, list[str]]]:
        reference, keys = opened(*given)
        with torch.no_grad():
            reference.transformer.ln_f.bias[0] += 0.1
        return reference, keys

    monkeypatch.setattr(certify, "open_reference", changed)
    outcome = qkv("certify", write_gpt2(tmp_path / "model"), "--longest", "2", "--out", tmp_path / "out.json")
    assert outcome.code == 1
    assert "DIFFERS" in outcome.out
    assert "!" in outcome.out
    assert json.loads((tmp_path / "out.json").read_text())["passed"] is False


def test_export_and_convert(tmp_path: Path) -> None:
    folder = write_gpt2(tmp_path / "model")
    assert qkv("export", folder, tmp_path / "new", "--shard-size", "5KB", "--dtype", "bfloat16").code == 0
    assert len(list((tmp_path / "new").glob("model-*.safetensors"))) > 1
    assert qkv("convert", tmp_path / "new", tmp_path / "newer", "--dtype", "float32").code == 0
    assert (tmp_path / "newer" / "model.safetensors").exists()
    refused(qkv("export", folder, tmp_path / "new"), "not empty", "--overwrite")
    refused(qkv("export", folder, tmp_path / "other", "--shard-size", "much"), "5GB")
    refused(qkv("convert", tmp_path / "absent", tmp_path / "other"), "There is no", "absent")
    refused(qkv("convert", tmp_path, tmp_path / "other"), "holds no model")


def test_a_hostile_pickle_is_exit_code_2(tmp_path: Path) -> None:
    import os
    import pickle

    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "it ran"),)

    folder = write_gpt2(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Hostile(), protocol=2))
    refused(qkv("convert", folder, tmp_path / "new"), "is refused: it asks for posix.mkdir")
    assert not (tmp_path / "it ran").exists()
