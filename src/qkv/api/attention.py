"""Another attention in a model that was loaded; what it loses by that, distillation can bring back.

teacher = qkv.load("runs/stories")
student = qkv.with_attention(teacher, "window:64")
qkv.train_language_model(texts, "runs/near", model=student, distil=qkv.Distillation(teacher))
"""

from collections.abc import Callable
from typing import TypeVar

from qkv.generate.reader import TextReader
from qkv.generate.text import TextToText
from qkv.models.attention_choice import AttentionChoice
from qkv.weights import load
from qkv.weights.hub import say_aside

Use = TypeVar("Use", bound=TextReader | TextToText)
Attention = AttentionChoice | str | None  # as a choice, or spelled: window:256+global:4


def with_attention(use: Use, attention: Attention, say: Callable[[str], None] = say_aside) -> Use:
    """The same with another attention in its model, or with None its family's own; what was given stays as it is.

    Weights that both have are kept. Where some are lost, that is said.
    """
    choice = AttentionChoice.of(attention)
    model = load.with_attention(use.model, choice)
    if model is use.model:
        return use
    if choice is not None and choice.loses is not None:
        say(choice.loses)
    return use.with_model(model)  # type: ignore[return-value]  # of the same kind
