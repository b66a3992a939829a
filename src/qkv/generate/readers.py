"""What text models are used for beside writing: labels for texts and words, answers, hidden words, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from qkv.data.encoding import Encoding, Limit, check_texts
from qkv.data.token_rows import TokenRows
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.reader import BATCH_TOKENS, TextReader
from qkv.models.text_model import TextModel
from qkv.parts.heads import PretrainingLogits
from qkv.weights.sentence_folder import write_text_settings

if TYPE_CHECKING:
    from qkv.data.answers import FoundAnswer


@dataclass(frozen=True)
class Labelled:
    """The likeliest label of a text, and the probability of every label."""

    label: str
    probabilities: dict[str, float]

    @classmethod
    def of(cls, labels: Sequence[str], shares: Tensor) -> Labelled:
        """From shares [c]. Classes of one name count together: ImageNet knows two that are called crane."""
        together = dict.fromkeys(labels, 0.0)
        for label, share in zip(labels, shares.tolist(), strict=True):
            together[label] += share
        return cls(labels[int(shares.argmax())], together)

    @property
    def probability(self) -> float:
        return self.probabilities[self.label]


class Classifier(TextReader):
    """One label a text, or a pair of texts."""

    kinds: ClassVar = ("classification",)

    def run(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, *, batch_tokens: int | None = None
    ) -> list[Labelled]:
        """The label of each text; with `seconds`, of each pair. What is longer than the model reads is cut."""
        labels = self.model.head_choice.labels
        return [Labelled.of(labels, shares) for shares in self.vectors(texts, seconds, batch_tokens).softmax(-1)]


class Rater(TextReader):
    """One number a text, or a pair of texts: what a head with a single label says."""

    kinds: ClassVar = ("classification",)

    def __init__(self, model: TextModel, tokenizer: TextTokenizer) -> None:
        super().__init__(model, tokenizer)
        if not rates(model):
            raise QkvError(f"This needs a head with one label, but it has {len(model.head_choice.labels)}.")

    def run(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, *, batch_tokens: int | None = None
    ) -> list[float]:
        """The number of each text; with `seconds`, of each pair. What is longer than the model reads is cut."""
        found: list[float] = self.vectors(texts, seconds, batch_tokens).flatten().tolist()
        return found


def rates(model: TextModel) -> bool:
    """Whether a model gives numbers: a single label is nothing to choose between."""
    return model.head_choice.kind == "classification" and len(model.head_choice.labels) == 1


@dataclass(frozen=True)
class Tagged:
    """A word with the label of its first piece."""

    word: str
    label: str
    probability: float
    start: int  # characters of the text it stands at
    end: int


class Tagger(TextReader):
    """One label a word."""

    kinds: ClassVar = ("tokens",)

    def run(self, texts: Sequence[str], *, batch_tokens: int | None = None) -> list[list[Tagged]]:
        """The words of each text in order, each with its label. What is longer than the model reads is an error."""
        texts = check_texts(texts)
        encodings = self.tokenizer.encodings(texts)
        labels = self.model.head_choice.labels
        found: list[list[Tagged]] = []
        for text, encoding, logits in zip(texts, encodings, self.answers(encodings, batch_tokens), strict=True):
            shares = logits.softmax(-1)  # [s c]
            words: list[Tagged] = []
            before = None
            for slot, (word, (start, end)) in enumerate(zip(encoding.words, encoding.offsets, strict=True)):
                if word is None:
                    continue
                if word == before:  # a further piece of the same word
                    last = words[-1]
                    start = _past_spaces(text, last.start, end)
                    words[-1] = Tagged(text[start:end], last.label, last.probability, start, end)
                else:
                    best = int(shares[slot].argmax())
                    start = _past_spaces(text, start, end)
                    words.append(Tagged(text[start:end], labels[best], float(shares[slot, best]), start, end))
                before = word
            found.append([word for word in words if word.word])
        return found


def _past_spaces(text: str, start: int, end: int) -> int:
    """Where a word begins: pieces of bytes hold the space before it."""
    return end - len(text[start:end].lstrip())


class Answerer(TextReader):
    """Answers to questions, found in a text."""

    kinds: ClassVar = ("spans",)

    def run(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        *,
        threshold: float = 0.0,
        longest: int = 30,
        stride: int = 128,
        batch_tokens: int | None = None,
    ) -> list[FoundAnswer]:
        """The stretch of each context that answers its question; empty where no answer is better by `threshold`.

        A context too long for the model is read in windows that overlap by `stride` tokens.
        """
        from qkv.data.answers import find_answers

        questions, contexts = check_texts(questions), check_texts(contexts)
        longest_row = self.model.longest
        overlap = None if longest_row is None else min(stride, longest_row // 4)
        encodings = self.tokenizer.encode_pairs(questions, contexts, limit=self.limit("second", overlap))
        scores = [scores.numpy() for scores in self.answers(encodings, batch_tokens)]  # [s 2] each
        starts, ends = [each[:, 0] for each in scores], [each[:, 1] for each in scores]
        return find_answers(encodings, starts, ends, contexts, threshold=threshold, longest=longest)


class SentenceEncoder(TextReader):
    """One vector a text. [reimers2019 §3]"""

    kinds: ClassVar = ("embedding",)

    def __init__(
        self, model: TextModel, tokenizer: TextTokenizer, longest: int | None = None, lowercase: bool = False
    ) -> None:
        """`longest` is how many tokens of a text are read, where a publisher says fewer than the model could read;
        with `lowercase`, texts are read in small letters."""
        super().__init__(model, tokenizer)
        self.longest = longest if model.longest is None else min(model.longest, longest or model.longest)
        self.lowercase = lowercase

    def with_model(self, model: TextModel) -> Self:
        return type(self)(model, self.tokenizer, self.longest, self.lowercase)

    def limit(self, cut: str = "longest", stride: int | None = None) -> Limit | None:
        return None if self.longest is None else Limit(self.longest, cut, stride)

    def encodings(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> list[Encoding]:
        return super().encodings(self._lowered(texts), seconds)

    def ids(self, texts: Sequence[str]) -> TokenRows:
        return super().ids(self._lowered(texts))

    def _lowered(self, texts: Sequence[str]) -> Sequence[str]:
        return [text.lower() for text in check_texts(texts)] if self.lowercase else texts

    def save(self, folder: Path | str) -> None:
        super().save(folder)
        write_text_settings(Path(folder), self.longest, self.lowercase)

    def run(self, texts: Sequence[str], *, batch_tokens: int | None = None) -> Tensor:
        """[texts d]. What is longer than is read is cut."""
        return self.vectors(texts, batch_tokens=batch_tokens)

    def similarities(self, first: Sequence[str], second: Sequence[str]) -> Tensor:
        """The cosine of the angle between each of the first texts and each of the second. [first second]"""
        normed = [torch.nn.functional.normalize(self.run(texts), dim=-1) for texts in (first, second)]
        return normed[0] @ normed[1].T


@dataclass(frozen=True)
class Filling:
    """A word for a hidden place, and the text with it."""

    token: str
    probability: float
    text: str


class MaskFiller(TextReader):
    """What a hidden word was."""

    kinds: ClassVar = ("masked", "pretraining")

    def run(self, texts: Sequence[str], *, best: int = 5, batch_tokens: int = BATCH_TOKENS) -> list[list[Filling]]:
        """The likeliest tokens for the hidden place of each text, best first. Each has one, spelled as the tokenizer
        spells it: [MASK]. What is said of a token is as wide as the vocabulary, so few are read together anywhere."""
        texts = check_texts(texts)
        mask = self.tokenizer.mask
        encodings = self.tokenizer.encodings(texts, allow_special=True)
        found = []
        for text, encoding, output in zip(texts, encodings, self.answers(encodings, batch_tokens), strict=True):
            places = [slot for slot, token in enumerate(encoding.ids) if token == mask]
            if len(places) != 1:
                spelled = self.tokenizer.roles["mask"]
                raise QkvError(
                    f"A text needs one hidden place, spelled {spelled}, but {text[:60]!r} has {len(places)}."
                )
            logits = output.masked if isinstance(output, PretrainingLogits) else output
            shares = logits[places[0]].softmax(-1)
            top = shares.topk(min(best, self.tokenizer.size))
            fillings = []
            for share, token in zip(top.values.tolist(), top.indices.tolist(), strict=True):
                ids = [*encoding.ids[: places[0]], token, *encoding.ids[places[0] + 1 :]]
                whole = self.tokenizer.decode(ids, whole=True)
                name = self.tokenizer.tokens([token])[0] if token < self.tokenizer.size else f"<{token}>"
                fillings.append(Filling(name, share, whole))
            found.append(fillings)
        return found


class StateReader(TextReader):
    """The stream itself, for those who build on it."""

    kinds: ClassVar = ("states", "pooled")

    def run(self, texts: Sequence[str], *, batch_tokens: int | None = None) -> list[Tensor]:
        """The states of each text's tokens, special ones included. [s d] each"""
        answers = self.read(texts, batch_tokens=batch_tokens)
        return [answer[0] if isinstance(answer, tuple) else answer for answer in answers]
