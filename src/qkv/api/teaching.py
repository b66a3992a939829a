"""Data that a trained model makes for another to learn from. [kim2016 §3.2]"""

from __future__ import annotations

from collections.abc import Sequence

from qkv.api.pairs import Pair
from qkv.data.labelled import LabelledTexts
from qkv.generate.language import DEFAULTS, Options, TextWriter
from qkv.generate.readers import Classifier
from qkv.generate.text import TextToText


def pairs_of(teacher: TextToText, sources: Sequence[str], *, beams: int = 4) -> list[Pair]:
    """Each source with what the teacher makes of it: outputs more regular than people's, and easier to learn.

    A source for which the teacher writes nothing is left out.
    """
    outputs = teacher.run(sources, beams=beams)
    return [(source, output.text) for source, output in zip(sources, outputs, strict=True) if output.text.strip()]


def labels_of(teacher: Classifier, texts: Sequence[str], *, sure: float = 0.0) -> LabelledTexts:
    """Texts without labels, with those the teacher gives them where it is at least so sure."""
    found = [(text, answer) for text, answer in zip(texts, teacher.run(texts), strict=True)]
    kept = [(text, answer.label) for text, answer in found if answer.probability >= sure]
    names = teacher.model.head_choice.labels
    return LabelledTexts([text for text, _ in kept], None, [label for _, label in kept], names)


def texts_of(teacher: TextWriter, prompts: Sequence[str], options: Options = DEFAULTS) -> list[str]:
    """Prompts with how the teacher goes on with them, all samples of each."""
    written = teacher.run_all(prompts, options)
    return [prompt + output.text for prompt, outputs in zip(prompts, written, strict=True) for output in outputs]
