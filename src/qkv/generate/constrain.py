"""Output in a given form: JSON of a schema, or text that matches a regular expression.

A grammar of the form, kept by the llguidance library, says at every step which tokens can still lead to a whole output.

Shapes: r rows, v vocabulary.
"""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.encoding import is_text
from qkv.data.token_labels import BYTE_OF
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.history import History

KEPT = 256  # states of grammars that are kept for what is written next


class Form(ABC):
    """What an output must look like."""

    @abstractmethod
    def grammar(self, library: Any) -> str:
        """As the library reads it."""

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class JsonSchema(Form):
    """JSON of a schema, on one line, with one space after each comma and colon: free space could go on for ever."""

    schema: Mapping[str, Any] | bool | str  # as text: JSON

    def grammar(self, library: Any) -> str:
        schema = self.schema
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except json.JSONDecodeError as error:
                raise QkvError(f"The schema is no JSON: {error}.") from error
        if not isinstance(schema, bool | Mapping):
            raise QkvError(f"A JSON schema is an object, such as {{}}, and not {schema!r}.")
        if isinstance(schema, bool):
            schema = {} if schema else {"enum": []}
        spacing = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        return str(library.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=spacing))

    def __str__(self) -> str:
        return "JSON schema"


@dataclass(frozen=True)
class Regex(Form):
    """Text that a regular expression matches from beginning to end. Look-around is not known."""

    pattern: str

    def grammar(self, library: Any) -> str:
        if not is_text(self.pattern):
            raise QkvError(f"A regular expression is a text, and {self.pattern!r:.60} is no valid one.")
        return str(library.LLMatcher.grammar_from_regex(self.pattern))

    def __str__(self) -> str:
        return "regular expression"


class Vocabulary:
    """A tokenizer as the library wants it: the bytes of every token, and which tokens are no text."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: TextTokenizer, ends: Iterable[int]) -> None:
        self.ends = sorted(set(ends))
        if not self.ends:
            raise QkvError("Output in a given form ends with an end token, and the tokenizer has none: name one.")
        self.eos_token_id = self.ends[0]
        self.special_token_ids = sorted(tokenizer.special_ids | set(self.ends))
        self.tokens = token_bytes(tokenizer)
        plain = set(range(len(self.tokens))) - set(self.special_token_ids)
        self._ids = {self.tokens[token]: token for token in sorted(plain, reverse=True) if self.tokens[token]}
        self._longest = max(map(len, self._ids), default=0)
        for token in self.special_token_ids:
            self.tokens[token] = b"<special %d>" % token
        self.library = _library()
        self.known = self.library.LLTokenizer(self, eos_token=self.ends)

    def __call__(self, text: str | bytes) -> list[int]:
        """The tokens of bytes that must come, the longest first: the tokenizer itself could put a space before them."""
        rest, found = text.encode() if isinstance(text, str) else text, list[int]()
        while rest:
            size = next((n for n in range(min(self._longest, len(rest)), 0, -1) if rest[:n] in self._ids), 0)
            if not size:
                return []  # the library then looks for tokens itself
            found.append(self._ids[rest[:size]])
            rest = rest[size:]
        return found


class Constraint:
    """A shaper that leaves only tokens with which the output can still take its form, and the end once it has it.

    It reads nothing but what was written, so it serves every strategy.
    """

    def __init__(self, form: Form, vocabulary: Vocabulary) -> None:
        self._name, self._vocabulary = str(form), vocabulary
        library = vocabulary.library
        limits = library.LLParserLimits(verbose_errors=False)
        root = library.LLMatcher(vocabulary.known, form.grammar(library), log_level=0, limits=limits)
        self._check(root)
        self._allowed(root)
        self._states: OrderedDict[tuple[int, ...], Any] = OrderedDict({(): root})

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        written = history.ids[:, history.prompt :].tolist()
        vocabulary = scores.shape[-1]
        allowed = np.zeros((len(written), vocabulary), dtype=bool)
        for row, ids in enumerate(written):
            mask = self._allowed(self._state(tuple(ids), len(written)))[:vocabulary]
            allowed[row, : len(mask)] = mask
        return scores.masked_fill(~torch.from_numpy(allowed).to(scores.device), -torch.inf)

    def _allowed(self, state: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which tokens may come next. [v]"""
        bits = np.frombuffer(state.compute_bitmask(), dtype=np.uint8)
        self._check(state)
        if state.is_stopped() and not state.is_accepting():
            raise QkvError(f"No output of this vocabulary can meet the {self._name}.")
        return np.unpackbits(bits, bitorder="little")[: self._vocabulary.known.vocab_size].astype(bool)

    def _state(self, ids: tuple[int, ...], rows: int) -> Any:
        """The grammar after these tokens, taken from where it was after the most of them that are known."""
        known = len(ids)
        while ids[:known] not in self._states:
            known -= 1
        state = self._states[ids[:known]]
        if known < len(ids):
            state = state.deep_copy()
            state.consume_tokens(list(ids[known:]))
            self._check(state)
            self._states[ids] = state
        self._states.move_to_end(ids)
        self._states.move_to_end((), last=True)
        while len(self._states) > max(KEPT, 4 * rows):
            self._states.popitem(last=False)
        return state

    def _check(self, state: Any) -> None:
        if state.is_error():
            reason = " ".join(str(state.get_error()).split()).rstrip(".")
            if reason.startswith("NoExtension"):
                raise QkvError(f"No output of this vocabulary can meet the {self._name}.")
            raise QkvError(f"No output can be held to this {self._name}: {reason}.")


def token_bytes(tokenizer: TextTokenizer) -> list[bytes]:
    """What each token adds to a text, in bytes; nothing for those that add none."""
    if tokenizer.cleans_up:
        raise QkvError("This tokenizer moves spaces about when it decodes, so its output cannot be held to a form.")
    names = tokenizer.names()
    if tokenizer.byte_level:
        return [
            bytes(BYTE_OF[sign] for sign in name) if all(sign in BYTE_OF for sign in name) else name.encode()
            for name in names
        ]
    # Otherwise a token's text depends on whether it begins the text, so it is looked at after another one.
    anchor = next((token for token, name in enumerate(names) if name.isalpha() and name.isascii()), None)
    if anchor is None:
        raise QkvError("This tokenizer has no token that spells a letter, so its output cannot be held to a form.")
    before = tokenizer.decode([anchor], whole=True)
    found = []
    for token, name in enumerate(names):
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            found.append(bytes([int(name[3:5], 16)]))
        else:
            found.append(tokenizer.decode([anchor, token], whole=True)[len(before) :].encode() if name else b"")
    return found


def _library() -> Any:
    try:
        return importlib.import_module("llguidance")
    except ImportError as error:
        raise QkvError('Output in a given form needs llguidance: pip install "qkv[constrained]".') from error
