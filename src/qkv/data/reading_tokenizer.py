"""A tokenizer made here, given what models read beside text: BERT-like ones tokens around texts and one that hides,
language models a token before texts, models of captions tokens around them."""

import json

from tokenizers import AddedToken, Tokenizer, processors

from qkv.data.token_roles import frame
from qkv.data.tokenizer import TextTokenizer

MASK = "<mask>"
TEXT_START, TEXT_END = "<|startoftext|>", "<|endoftext|>"


def for_reading(tokenizer: TextTokenizer) -> TextTokenizer:
    """`<s> text </s>`, or `<s> first </s> second </s>` with segments 0 and 1, and `<mask>` as one token more.

    A tokenizer that can hide tokens already, such as a published one, is given back as it is.
    """
    if tokenizer.has("mask"):
        return tokenizer
    made = Tokenizer.from_str(tokenizer.library_state())
    made.add_special_tokens([AddedToken(MASK, special=True)])
    start, end = tokenizer.roles["start"], tokenizer.roles["end"]
    made.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} $B:1 {end}:1",
        special_tokens=[(start, tokenizer.start), (end, tokenizer.end)],
    )
    roles = {**tokenizer.roles, "mask": MASK, "classifier": start, "separator": end}
    return TextTokenizer(made).with_roles(**roles)


def for_writing(tokenizer: TextTokenizer) -> TextTokenizer:
    """`<s> text`: a prompt begins as the documents did that a language model was trained on.

    A tokenizer that puts something around texts already, or has no start token, is given back as it is.
    """
    if not tokenizer.has("start") or json.loads(tokenizer.library_state())["post_processor"] is not None:
        return tokenizer
    made = Tokenizer.from_str(tokenizer.library_state())
    frame(made, tokenizer.roles, starts=True, ends=False)
    return TextTokenizer(made).with_roles(**tokenizer.roles)


def for_captions(tokenizer: TextTokenizer) -> TextTokenizer:
    """`<|startoftext|> text <|endoftext|>`, as CLIP reads texts [radford2021 §2.4]; the end is the largest of all ids.

    It must be: files of this family tell the end by its number, and some numbers mean "the largest of the row" there.
    A tokenizer that puts an end behind texts already, such as CLIP's own, is given back as it is.
    """
    ids = tokenizer.encode(["a"], special=True)[0]
    if tokenizer.has("end") and len(ids) > 1 and ids[-1] == tokenizer.end:
        return tokenizer
    made = Tokenizer.from_str(tokenizer.library_state())
    made.add_special_tokens([AddedToken(name, special=True) for name in (TEXT_START, TEXT_END)])
    numbers = [(name, made.token_to_id(name)) for name in (TEXT_START, TEXT_END)]
    made.post_processor = processors.TemplateProcessing(single=f"{TEXT_START} $A {TEXT_END}", special_tokens=numbers)
    return TextTokenizer(made).with_roles(**{**tokenizer.roles, "start": TEXT_START, "end": TEXT_END})
