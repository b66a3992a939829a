"""What a language model is trained on: batches, rows to validate on, and what is said of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from qkv.api.choices import NewTokenizer
from qkv.api.runs import typical_batch
from qkv.api.texts import fingerprint_of_texts, held_out
from qkv.data.batches import Batches, BatchStream
from qkv.data.documents import Documents
from qkv.data.packing import LanguageBatch, LanguageRows
from qkv.data.plan import Batching
from qkv.data.streaming import MakeRows
from qkv.data.tokenizer import TextTokenizer
from qkv.train.settings import TrainSettings

NEW = NewTokenizer("bpe", 8000)  # where nobody says otherwise


@dataclass(frozen=True)
class LanguageData:
    """Batches to train on, rows to validate on, and what is said of them."""

    batches: BatchStream[LanguageBatch, Any]
    valid: LanguageRows | None
    typical: LanguageBatch
    fingerprint: str
    told: str
    about: dict[str, Any] = field(default_factory=dict)
    shards: Sequence[Mapping[str, str]] = ()  # name and key of each, where texts are on disk


@dataclass(frozen=True)
class HowRows:
    """How documents become batches: `make` is `pack` or `stream` with everything said but documents and seed."""

    make: MakeRows
    length: int
    batching: Batching
    settings: TrainSettings

    @property
    def seed(self) -> int:
        return self.settings.seed


class Corpus(Protocol):
    """Texts to train on, wherever they are."""

    def tokenizer(self, chosen: NewTokenizer | TextTokenizer | None) -> NewTokenizer | TextTokenizer: ...

    def to_learn_from(self, say: Callable[[str], None]) -> Sequence[str]:
        """What a new tokenizer is trained on."""

    def data(self, tokenizer: TextTokenizer, how: HowRows, say: Callable[[str], None]) -> LanguageData: ...


class TextsInMemory:
    """Texts, each a document, of which some are held out. Several trainings may share them: they are cut once."""

    def __init__(self, texts: Sequence[str], valid: Sequence[str] | None, hold_out: float) -> None:
        self.to_train, self.to_validate = held_out(texts, valid, hold_out)
        self._cut: tuple[str, Documents, Documents | None] | None = None  # by which tokenizer, to train on, held out

    def tokenizer(self, chosen: NewTokenizer | TextTokenizer | None) -> NewTokenizer | TextTokenizer:
        return chosen or NEW

    def to_learn_from(self, say: Callable[[str], None]) -> Sequence[str]:
        return self.to_train

    def cut(self, tokenizer: TextTokenizer) -> tuple[Documents, Documents | None]:
        """(to train on, held out if anything is) as tokens; those of the last tokenizer are kept."""
        name = tokenizer.fingerprint()
        if self._cut is None or self._cut[0] != name:
            to_train = Documents.from_texts(self.to_train, tokenizer)
            held = Documents.from_texts(self.to_validate, tokenizer) if self.to_validate else None
            self._cut = name, to_train, held
        return self._cut[1:]

    def data(self, tokenizer: TextTokenizer, how: HowRows, say: Callable[[str], None]) -> LanguageData:
        documents, validated = self.cut(tokenizer)
        first = how.make(documents, seed=how.seed)
        batches = Batches(
            lambda epoch: first if epoch == 0 else how.make(documents, seed=how.seed + epoch),
            how.batching,
            seed=how.seed,
        )
        valid = None if validated is None else how.make(validated, seed=0)
        return LanguageData(
            batches,
            valid,
            typical_batch(first, how.batching),
            fingerprint_of_texts([*self.to_train, *self.to_validate]),
            f"{len(self.to_train):,} documents of {int(documents.tokens.lengths.sum()):,} tokens to train on, "
            f"{len(self.to_validate):,} to validate on; batches in an epoch: {len(batches):,}",
        )
