"""Export: a folder that the reference opens whole, with the tokenizer and the tokens that begin and end its texts."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file

from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.weights.certify import open_reference
from qkv.weights.export import export
from qkv.weights.load import load_model
from qkv.weights.save import save_model
from tests.weights.folders import small_published, write_gpt2

NO_KEYS = {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
TEXTS = ["the cat sat on the mat", "a dog and a cat"]


@pytest.fixture
def trained(tmp_path):
    """A folder of our own, with its tokenizer."""
    tokenizer = TextTokenizer.train("characters", TEXTS)
    save_model(small_published("marian", vocabulary=tokenizer.size), tmp_path / "own")
    tokenizer.save(tmp_path / "own" / "tokenizer.json")
    return tmp_path / "own"


def test_what_was_trained_here_the_reference_opens_and_writes(trained, tmp_path):
    export(trained, tmp_path / "new")
    opened, keys = open_reference(transformers, "MarianMTModel", tmp_path / "new")
    assert keys == NO_KEYS
    tokenizer = TextTokenizer.load(trained / "tokenizer.json")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    ids = tokenizer.encode(["the dog"])
    assert theirs(["the dog"], add_special_tokens=False)["input_ids"] == ids
    source, target = torch.tensor(ids), torch.tensor([[tokenizer.start, *ids[0]]])
    with torch.no_grad():
        expected = opened(input_ids=source, decoder_input_ids=target).logits
        torch.testing.assert_close(load_model(trained)(source, None, target), expected, atol=1e-5, rtol=1e-4)
    written = json.loads((tmp_path / "new" / "config.json").read_text())
    said = json.loads((tmp_path / "new" / "generation_config.json").read_text())
    for place in (written, said):
        assert place["decoder_start_token_id"] == place["bos_token_id"] == tokenizer.start
        assert place["eos_token_id"] == tokenizer.end
        assert place["pad_token_id"] == tokenizer.pad
    assert opened.generation_config.forced_eos_token_id is None
    assert opened.generate(source, max_new_tokens=3)[0, 0] == tokenizer.start


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_precision_in_shards(tmp_path, dtype):
    export(write_gpt2(tmp_path / "old"), tmp_path / "new", dtype=dtype, shard_bytes=5000)
    files = sorted((tmp_path / "new").glob("model-*.safetensors"))
    assert len(files) > 1
    assert {str(tensor.dtype) for file in files for tensor in load_file(file).values()} == {f"torch.{dtype}"}
    opened, keys = open_reference(transformers, "GPT2LMHeadModel", tmp_path / "new")
    assert keys == NO_KEYS
    assert opened.config.eos_token_id == 1
    assert json.loads((tmp_path / "new" / "config.json").read_text())["dtype"] == dtype
    ids = torch.arange(9)[None]
    with torch.no_grad():
        ours = load_model(tmp_path / "new")(ids)
        torch.testing.assert_close(ours, opened.float()(ids).logits, atol=1e-5, rtol=1e-4)


def test_nothing_is_overwritten_unasked(tmp_path):
    folder = write_gpt2(tmp_path / "old", shard_bytes=5000)
    write_gpt2(tmp_path / "new", shard_bytes=5000)
    with pytest.raises(QkvError, match="is not empty: name a new one, or give --overwrite"):
        export(folder, tmp_path / "new")
    export(folder, tmp_path / "new", overwrite=True)
    assert [file.name for file in (tmp_path / "new").glob("*.safetensors*")] == ["model.safetensors"]


def test_an_unknown_precision_is_refused(tmp_path):
    with pytest.raises(QkvError, match="no precision 'int8' to write in: there are float32, bfloat16, float16"):
        export(write_gpt2(tmp_path / "old"), tmp_path / "new", dtype="int8")
