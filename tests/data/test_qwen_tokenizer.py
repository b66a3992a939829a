"""Qwen's tokenizer and conversations as published, against the reference library: every id, from all its files."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, Qwen2Tokenizer

from qkv.data.published_tokenizer import read_tokenizer
from qkv.generate.chat import Message, chat_marks, chat_prompt
from tests.data.published_folders import CORPUS, write
from tests.data.test_published_tokenizer import TEXTS, check, check_saved

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>"]
ORDINARY = ["<tool_call>", "</tool_call>", "<think>", "</think>"]  # which texts may spell
# What a conversation of words is in the published template, which also knows of tools.
TEMPLATE = """
{%- set last = namespace(user=messages|length - 1, looking=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if last.looking and message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set last.looking = false %}{%- set last.user = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else message.content | tojson %}
    {%- if message.role == "assistant" and loop.index0 < last.user and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
MORE = [
    "It'S 12345 o'clock; I'LL be THERE'RE, don'T\r\n\r\n  ok \n\t\n x",
    "A\u030angstro\u0308m \u1100\u1161\u11a8 \ufb01 \u212b",  # which are composed first, but for the ligature
    "<think>\nhm\n</think>\n\nsum<tool_call>{}</tool_call><|im_end|> <|endoftext|>",
    "   leading, trailing   ",
]


def qwen_folder(folder: Path, **config: Any) -> Path:
    """Its `tokenizer.json` part by part, and the files beside it."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(Regex(SPLIT), "isolated", invert=False)
    bytes_of_it = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([cut, bytes_of_it])
    made.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    made.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    made.model.save(str(folder))
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in ORDINARY])
    made.save(str(folder / "tokenizer.json"))
    added = {
        str(made.token_to_id(token)): {
            "content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": token in SPECIAL,
        }
        for token in (*SPECIAL, *ORDINARY)
    }  # fmt: skip
    said = {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added,
        "additional_special_tokens": SPECIAL[1:], "bos_token": None, "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
        "model_max_length": 131072, "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }  # fmt: skip
    write(folder, "tokenizer_config.json", {**said, **config})
    write(folder, "config.json", {"model_type": "qwen3"})
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "qwen").mkdir()
    return qwen_folder(tmp_path / "qwen")


def test_every_id_is_the_reference_s(folder: Path, tmp_path: Path) -> None:
    ours = read_tokenizer(folder)
    check(ours, AutoTokenizer.from_pretrained(folder), [*TEXTS, *MORE])
    assert (ours.end, ours.pad) == (ours.id_of("<|im_end|>"), ours.id_of("<|endoftext|>"))
    assert not ours.has("start")
    assert (ours.notes.longest, ours.notes.chat_template) == (131072, TEMPLATE)
    assert chat_marks(ours) == (ours.id_of("<|im_start|>"), ours.end)
    check_saved(ours, tmp_path / "saved")


@pytest.mark.parametrize("named", ["by its class", "by the model"])
def test_older_folders_hold_a_vocabulary_and_merges_alone(folder: Path, named: str) -> None:
    """GPT-2's have files of the same names, and cut words in another way."""
    whole = read_tokenizer(folder)
    theirs = Qwen2Tokenizer.from_pretrained(folder)
    (folder / "tokenizer.json").unlink()
    if named == "by the model":
        said = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        del said["tokenizer_class"]
        write(folder, "tokenizer_config.json", said)
    ours = read_tokenizer(folder)
    check(ours, theirs, [*TEXTS, *MORE])
    assert ours.encode([*TEXTS, *MORE]) == whole.encode([*TEXTS, *MORE])


def test_tokens_that_no_file_names_are_those_of_its_kind(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {})
    ours, theirs = read_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert (ours.end, ours.pad) == (theirs.eos_token_id, theirs.pad_token_id) == (ours.id_of("<|endoftext|>"),) * 2


THOUGHT = "<think>\nhm\n</think>\n\n"  # of an answer before the last question, which the template leaves out
TALK = [
    ("system", "Be kind.\n"),
    ("user", "  What is 2 + 2?\n"),
    ("assistant", f"{THOUGHT}4, I'd say"),
    ("user", "Żółć? <think>"),
]


@pytest.mark.parametrize("start", [0, 1, 3])
def test_a_conversation_has_the_ids_of_the_published_template(folder: Path, start: int) -> None:
    ours, theirs = read_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    messages = [{"role": role, "content": text} for role, text in TALK[start:]]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    talk = [Message(role, text.removeprefix(THOUGHT)) for role, text in TALK[start:]]
    assert chat_prompt(ours, talk) == expected
