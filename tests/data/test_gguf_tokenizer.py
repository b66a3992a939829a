"""Tokenizers of llama.cpp: from metadata, against the libraries that the models come from."""

import json
from pathlib import Path

import pytest
import sentencepiece
from transformers import GPT2Tokenizer

from qkv.data.gguf_tokenizer import SPLITS, tokenizer_of_gguf
from qkv.data.published_tokenizer import read_tokenizer
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.weights.gguf import read_gguf
from tests.data.published_folders import CORPUS, bert_folder, byte_level_folder, sentencepiece_bytes
from tests.data.torture import TORTURE, random_strings

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
VOCABULARIES = CHECKPOINTS / "llama-cpp-vocabularies"
TEXTS = [*CORPUS[:6], *TORTURE, *random_strings(50)]
LLAMA = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
UNREADABLE = {"aquila", "gpt-neox", "deepseek-llm"}  # the first two do not say how they split text
needs_checkpoints = pytest.mark.skipif(not CHECKPOINTS.exists(), reason="needs `make checkpoints`")


def ggml(**facts):
    return {f"tokenizer.ggml.{key}": value for key, value in facts.items()}


def byte_level_metadata(folder):
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
    kinds = [3 if token == "<|endoftext|>" else 1 for token in vocabulary]
    tokens = sorted(vocabulary, key=vocabulary.get)
    return ggml(
        model="gpt2", pre="gpt-2", tokens=tokens, merges=lines, token_type=kinds, bos_token_id=0, eos_token_id=0
    )


def sentencepiece_metadata(theirs):
    numbers = range(theirs.get_piece_size())
    kinds = [
        2 if theirs.is_unknown(n) else 3 if theirs.is_control(n) else 6 if theirs.is_byte(n) else 1 for n in numbers
    ]
    return ggml(
        tokens=[theirs.id_to_piece(n) for n in numbers],
        scores=[theirs.get_score(n) for n in numbers],
        token_type=kinds,
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
    )


def test_bytes_merged(tmp_path):
    folder = byte_level_folder(tmp_path, "gpt2", ["<|endoftext|>"])
    ours, theirs = tokenizer_of_gguf(byte_level_metadata(folder)), GPT2Tokenizer.from_pretrained(folder)
    assert ours.encode(TEXTS, allow_special=True) == theirs(TEXTS)["input_ids"]
    assert ours.roles == {"start": "<|endoftext|>", "end": "<|endoftext|>"}
    for ids in ours.encode(TEXTS):
        assert ours.decode(ids) == theirs.decode(ids)
    started = tokenizer_of_gguf(byte_level_metadata(folder) | ggml(add_bos_token=True))
    assert started.encode(["the cat"], special=True) == [[0, *ours.encode(["the cat"])[0]]]


@pytest.mark.parametrize("name", SPLITS)
def test_every_way_to_split_keeps_the_text(tmp_path, name):
    folder = byte_level_folder(tmp_path, "gpt2", ["<|endoftext|>"])
    tokenizer = tokenizer_of_gguf(byte_level_metadata(folder) | ggml(pre=name))
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(TEXTS)] == TEXTS


def test_pieces_with_scores():
    theirs = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_bytes("bpe", 500, **LLAMA))
    metadata = sentencepiece_metadata(theirs) | ggml(model="llama") | {"tokenizer.chat_template": "{{ messages }}"}
    ours = tokenizer_of_gguf(metadata)
    assert ours.encode(TEXTS) == theirs.encode(TEXTS)
    assert ours.encode(TEXTS, special=True) == [[1, *ids] for ids in theirs.encode(TEXTS)]
    assert (ours.start, ours.end, ours.unknown, ours.notes.chat_template) == (1, 2, 0, "{{ messages }}")


def test_pieces_with_likelihoods():
    theirs = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_bytes(normalization_rule_name="identity"))
    ours = tokenizer_of_gguf(sentencepiece_metadata(theirs) | ggml(model="t5"))
    assert ours.encode(TEXTS) == theirs.encode(TEXTS)
    assert ours.encode(["the cat"], special=True) == [[*theirs.encode("the cat"), 2]]


def test_words_and_parts(tmp_path):
    plain = read_tokenizer(bert_folder(tmp_path))
    names = (tmp_path / "vocab.txt").read_text(encoding="utf-8").splitlines()
    tokens = [
        name[2:] if name.startswith("##") else name if name[0] == "[" and len(name) > 1 else f"▁{name}"
        for name in names
    ]
    metadata = ggml(model="bert", tokens=tokens, cls_token_id=2, seperator_token_id=3, padding_token_id=0)
    ours = tokenizer_of_gguf(metadata)
    assert ours.encode(TEXTS, special=True) == plain.encode(TEXTS, special=True)
    assert (ours.classifier, ours.separator, ours.pad) == (2, 3, 0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": "rwkv"}, "tokenizer 'rwkv' that cannot be read"),
        ({"tokens": []}, "without tokens"),
        ({"merges": []}, "without merges"),
        ({"pre": "unheard-of"}, "in the way 'unheard-of', which is not known here: there are gpt-2"),
        ({"bos_token_id": 10_000}, "start token is number 10000"),
        ({"merges": ["no such"]}, "'no' is not in the vocabulary"),
        ({"model": "llama"}, "a score and a type for each"),
    ],
)
def test_metadata_that_cannot_be_used(tmp_path, changes, problem):
    metadata = byte_level_metadata(byte_level_folder(tmp_path, "gpt2", ["<|endoftext|>"]))
    with pytest.raises(QkvError, match=problem):
        tokenizer_of_gguf(metadata | ggml(**changes))


@pytest.mark.slow
@needs_checkpoints
@pytest.mark.parametrize("name", sorted(file.name[11:-5] for file in VOCABULARIES.glob("*.gguf")))
def test_the_vocabularies_that_llama_cpp_is_tested_with(name):
    metadata = read_gguf(VOCABULARIES / f"ggml-vocab-{name}.gguf").metadata
    if name in UNREADABLE:
        with pytest.raises(QkvError, match="splits text in the way"):
            tokenizer_of_gguf(metadata)
        return
    tokenizer = tokenizer_of_gguf(metadata)
    assert tokenizer.size == len(metadata["tokenizer.ggml.tokens"])
    answers = VOCABULARIES / f"ggml-vocab-{name}.gguf.out"
    if not answers.exists():
        return
    texts = (VOCABULARIES / f"ggml-vocab-{name}.gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    expected = [list(map(int, line.split())) for line in answers.read_text().split("\n")]
    assert len(texts) > 40
    for text, ids in zip(texts, expected, strict=False):
        assert tokenizer.encode([text]) == [ids], text


@pytest.mark.slow
@needs_checkpoints
def test_the_tokenizers_of_published_models():
    stories = read_tokenizer(CHECKPOINTS / "stories15m")
    assert stories.size == 32000
    spm = tokenizer_of_gguf(read_gguf(VOCABULARIES / "ggml-vocab-llama-spm.gguf").metadata)
    assert stories.encode(TEXTS) == spm.encode(TEXTS)  # both are Llama's
    (file,) = (CHECKPOINTS / "smollm2-135m-instruct").glob("*.gguf")
    smol = tokenizer_of_gguf(read_gguf(file).metadata)
    assert isinstance(smol, TextTokenizer)
    assert smol.size == 49152
    (ids,) = smol.encode(["<|im_start|>user\nHello<|im_end|>"], allow_special=True)
    assert (smol.tokens(ids)[0], smol.tokens(ids)[-1]) == ("<|im_start|>", "<|im_end|>")
