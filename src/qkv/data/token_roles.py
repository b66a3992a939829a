"""What a tokenizer's special tokens are for, and what else is noted beside its vocabulary.

A published tokenizer says in `tokenizer_config.json` (older ones in `special_tokens_map.json`) which token pads, which
one starts a text, and so on. Where nothing is said, tokens are known by their usual names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from qkv.errors import QkvError

# Each role with the key it has in published files, in the order in which missing tokens are added to a vocabulary.
PUBLISHED_KEYS = {
    "start": "bos_token",
    "end": "eos_token",
    "unknown": "unk_token",
    "separator": "sep_token",
    "pad": "pad_token",
    "classifier": "cls_token",
    "mask": "mask_token",
}
# The first name that a tokenizer knows is taken; ours are first, then those of well-known published tokenizers.
USUAL_NAMES = {
    "start": ("<s>", "[BOS]", "<bos>", "<|startoftext|>", "<|begin_of_text|>"),
    "end": ("</s>", "[EOS]", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
    "unknown": ("<unk>", "[UNK]", "<|unk|>"),
    "separator": ("[SEP]",),
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "classifier": ("[CLS]",),
    "mask": ("[MASK]", "<mask>"),
}
# BERT's texts have no start and end of their own: the token to classify by comes first, the separator last.
STANDS_IN = {"start": "classifier", "end": "separator"}
# Spaces that English does not want before these, taken out in this order.
CLEANED_UP = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
LARGEST_VOCABULARY = 2**24  # numbers of tokens; the library takes memory for all up to the largest one
UNLIMITED = 10**18  # published files write a number beyond this where texts may be of any length


@dataclass(frozen=True)
class TokenizerNotes:
    """What a `tokenizer_config.json` adds to a `tokenizer.json`."""

    roles: Mapping[str, str] = field(default_factory=dict)  # role -> token, where it is said and not by usual name
    longest: int | None = None  # tokens that the model was made for
    padding_side: str = "right"
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")  # `token_type_ids` where the model reads segments
    clean_up: bool = False  # take out the spaces before English punctuation when decoding
    known: int | None = None  # ids from here on are pieces that the model has no row for: they are unknown
    spare: int = 0  # rows of the model's vocabulary behind the last token: T5's is rounded up from 32,100 to 32,128
    chat_template: str | None = None

    @classmethod
    def from_published(cls, config: Mapping[str, Any]) -> "TokenizerNotes":
        """The notes of a `tokenizer_config.json`, or of what was merged from it and its companions."""
        longest = config.get("model_max_length")
        template = config.get("chat_template")
        spare = config.get("spare_rows", 0)
        if type(spare) is not int or spare < 0:
            raise QkvError(f'"spare_rows" counts rows that stand for no token, so it cannot be {spare!r}.')
        if isinstance(longest, int | float) and not longest > 0:
            raise QkvError(f'"model_max_length" counts tokens, so it cannot be {longest!r}.')
        inputs, known = config.get("model_input_names") or list(cls.inputs), config.get("known_tokens")
        if not isinstance(inputs, list) or not all(isinstance(name, str) for name in inputs):
            raise QkvError(f'"model_input_names" must be a list of names, not {inputs!r}.')
        if known is not None and (type(known) is not int or not 0 < known < LARGEST_VOCABULARY):
            raise QkvError(f'"known_tokens" counts tokens, so it cannot be {known!r}.')
        return cls(
            roles={
                role: token_text(config[key]) for role, key in PUBLISHED_KEYS.items() if config.get(key) is not None
            },
            longest=int(longest) if isinstance(longest, int | float) and longest < UNLIMITED else None,
            padding_side=str(config.get("padding_side") or "right"),
            inputs=tuple(inputs),
            clean_up=bool(config.get("clean_up_tokenization_spaces", False)),
            known=known,
            spare=spare,
            chat_template=template if isinstance(template, str) else None,
        )

    def published(self, roles: Mapping[str, str]) -> dict[str, Any]:
        """A `tokenizer_config.json` that opens with these roles."""
        config: dict[str, Any] = {PUBLISHED_KEYS[role]: token for role, token in roles.items()}
        config |= {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": list(self.inputs),
            "padding_side": self.padding_side,
            "clean_up_tokenization_spaces": self.clean_up,
        }
        optional = {
            "model_max_length": self.longest,
            "known_tokens": self.known,
            "spare_rows": self.spare or None,
            "chat_template": self.chat_template,
        }
        return config | {key: value for key, value in optional.items() if value is not None}


class WithRoles:
    """Gives the ids of roles by their names."""

    _ids: Mapping[str, int]

    def has(self, role: str) -> bool:
        return role in self._ids or STANDS_IN.get(role) in self._ids

    def role(self, role: str) -> int:
        """The id of the token with this role."""
        for name in (role, STANDS_IN.get(role, role)):
            if name in self._ids:
                return self._ids[name]
        usual = (*USUAL_NAMES[role], *USUAL_NAMES.get(STANDS_IN.get(role, ""), ()))
        raise QkvError(f"The tokenizer has no {role} token: name one of its tokens for it, or add one of {usual}.")

    @property
    def pad(self) -> int:
        return self.role("pad")

    @property
    def start(self) -> int:
        return self.role("start")

    @property
    def end(self) -> int:
        return self.role("end")

    @property
    def unknown(self) -> int:
        return self.role("unknown")

    @property
    def mask(self) -> int:
        return self.role("mask")

    @property
    def classifier(self) -> int:
        return self.role("classifier")

    @property
    def separator(self) -> int:
        return self.role("separator")


def token_text(value: Any) -> str:
    """The token that a published file names, either as it is or with its properties around it."""
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise QkvError(f"A special token should be a text, or an object with its content, but there is {value!r}.")
    return text


def added_token(value: Any) -> AddedToken:
    """A special token with the properties that a published file gives it."""
    properties = value if isinstance(value, dict) else {}
    return AddedToken(
        token_text(value),
        special=bool(properties.get("special", True)),
        normalized=bool(properties.get("normalized", False)),
        lstrip=bool(properties.get("lstrip", False)),
        rstrip=bool(properties.get("rstrip", False)),
        single_word=bool(properties.get("single_word", False)),
    )


def add_special_tokens(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """Make special what a published file names: tokens of the vocabulary, and new ones at its end."""
    named = [config[key] for key in PUBLISHED_KEYS.values() if config.get(key) is not None]
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    named += extra.values() if isinstance(extra, dict) else extra
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_special_tokens([added_token(value) for value in named if token_text(value) not in known])


def found_roles(tokenizer: Tokenizer, named: Mapping[str, str]) -> dict[str, str]:
    """The token of each role: the one that is named, or else one that is known by a usual name.

    Where some are named, only special tokens count for the others: Qwen's vocabulary has an ordinary token `<unk>`.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    absent = [f"{token!r} as {role}" for role, token in named.items() if token not in vocabulary]
    if absent:
        raise QkvError(f"The tokenizer's notes name {' and '.join(absent)}, but its vocabulary knows no such token.")
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    roles = dict(named)
    for role, names in USUAL_NAMES.items():
        known = [name for name in names if name in (special if named else vocabulary)]
        # Where a file names what stands in for a role, it left that role out on purpose.
        if known and role not in roles and STANDS_IN.get(role) not in named:
            roles[role] = known[0]
    return roles


def frame(tokenizer: Tokenizer, roles: Mapping[str, str], starts: bool, ends: bool) -> None:
    """Let the special tokens stand around each text of a row."""
    first = [roles["start"]] if starts and "start" in roles else []
    last = [roles["end"]] if ends and "end" in roles else []
    pair = [*first, "$A", *last, *(f"{token}:1" for token in first), "$B:1", *(f"{token}:1" for token in last)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=pair,
        special_tokens=[(token, number_of(tokenizer, token)) for token in {*first, *last}],
    )


def number_of(tokenizer: Tokenizer, token: str) -> int:
    number: int | None = tokenizer.token_to_id(token)
    if number is None:
        raise QkvError(f"The vocabulary does not know {token!r}, which should stand beside texts.")
    return number


def cleaned_up(text: str) -> str:
    for spaced in CLEANED_UP:
        text = text.replace(spaced, spaced.strip())
    return text
