"""Texts that tokenizers stumble over."""

import random

TORTURE = [
    "",
    " ",
    "  two  spaces  ",
    "Hello, world! It's 1984; don't we'll I'd they've.",
    "tabs\tand\nlines\r\n\r\n\n and   \t mixed \u3000 space\u00a0s \u2003\u200a",
    "\n\t\r\n\x0b\x0c\x85\u2028",
    "\x00 null \x00\x00",
    "control \x01\x02\x1f\x7f\x9f characters",
    "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 👍🏽 ☃️",
    "zero\u200bwidth\u200djoiner\u200c\u2060\ufeffs",
    "e\u0301 vs é, Z\u0351\u036b\u0343a\u0300l\u0301g\u0302o, ạ\u0323\u0307",
    "日本語 中文 한국어 العربية עברית ไทย हिन्दी தமிழ்",
    "漢字かな交じり文。全角ＡＢＣ１２３ ｶﾀｶﾅ",
    "שלום \u202eright to left\u202c مرحبا 123",
    "\ufeffbyte order mark\ufffe\uffff\ufffd",
    "</s> <pad><s> <unk> [CLS] ##ing ▁ Ġ Ċ Â",
    "<|endoftext|> text <|startoftext|> [SEP] [MASK] <mask> <extra_id_0>",
    "[CLS][SEP] [PAD]<s></s><|endoftext|>",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff \U000e0001 𐍈",
    "ẞ ǅ ﬁ İ ı ſ ŉ Ω K Å ½ ² ™",
    "camelCase snake_case kebab-case 3.14159 1,000,000 0x1F",
    "https://example.org/a?b=c&d=e#f user@example.org",
    "``quoted'' \"text\" ‘and’ “more” — dashes – …",
    "a" * 3000,
    "ab " * 500,
    "!?" * 100,
    "internationalisation-of-unbelievably-long-words" * 5,
]
MEGABYTE = "a" * 2**20


def random_strings(count: int) -> list[str]:
    """Characters from all of Unicode."""
    generator = random.Random(5)
    ranges = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    return [
        "".join(chr(generator.randrange(*generator.choice(ranges))) for _ in range(generator.randrange(30)))
        for _ in range(count)
    ]
