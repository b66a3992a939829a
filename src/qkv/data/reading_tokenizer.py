"""A tokenizer made here, given what BERT-like models read: a token that hides, and tokens around texts and pairs."""

from tokenizers import AddedToken, Tokenizer, processors

from qkv.data.tokenizer import TextTokenizer

MASK = "<mask>"


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
