"""Conversations as one text, in the form that most small chat models were trained on (ChatML).

    <|im_start|>user
    What is two and two?<|im_end|>
    <|im_start|>assistant

What a person writes is encoded as plain text: a message that spells a special token stays a message. No template of a
model folder is run: one that leaves out what an assistant thought before it answered, as Qwen3's does, is followed by
giving the answers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError

OPEN, CLOSE = "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Message:
    """What one side of a conversation said."""

    role: str
    text: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise QkvError(f"A message comes from {', '.join(ROLES)}, not from {self.role!r}.")


def chat_prompt(tokenizer: TextTokenizer, messages: Sequence[Message]) -> list[int]:
    """The ids of a conversation, up to where the assistant answers."""
    if not messages:
        raise QkvError("A conversation has one message at least.")
    opened, closed = chat_marks(tokenizer)
    texts = [f"{message.role}\n{message.text}" for message in messages]
    *encoded, newline, answer = tokenizer.encode([*texts, "\n", "assistant\n"])
    ids = [token for text in encoded for token in (opened, *text, closed, *newline)]
    return [*ids, opened, *answer]


def knows_chat(tokenizer: TextTokenizer) -> bool:
    try:
        return tokenizer.id_of(OPEN) != tokenizer.id_of(CLOSE)
    except QkvError:
        return False


def chat_marks(tokenizer: TextTokenizer) -> tuple[int, int]:
    """The tokens that open and close a message; the second ends an answer."""
    if not knows_chat(tokenizer):
        raise QkvError(f"This tokenizer has no {OPEN} and {CLOSE}: the model was not made for conversations.")
    return tokenizer.id_of(OPEN), tokenizer.id_of(CLOSE)
