"""The one data set of a comparison: texts to train on, held-out rows, one tokenizer, and rows of random tokens."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from qkv.api.choices import NewTokenizer
from qkv.api.language_data import TextsInMemory
from qkv.api.runs import VALIDATION_TOKENS
from qkv.api.texts import chosen_tokenizer, fingerprint_of_texts, held_out
from qkv.data.batches import ordered_batches
from qkv.data.packing import LanguageBatch, stream
from qkv.data.reading_tokenizer import for_writing
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.reader import TOKENIZER_FILE


class ComparedTexts:
    """Divided and cut once, for all variants alike."""

    def __init__(
        self,
        texts: Sequence[str],
        valid: Sequence[str] | None,
        hold_out: float,
        tokenizer: NewTokenizer | TextTokenizer,
        folder: Path,
        begin_anew: bool,
    ) -> None:
        """The tokenizer is kept in the folder, since not every kind is trained alike a second time."""
        self.to_train, self.to_validate = held_out(texts, valid, hold_out)
        if not self.to_validate:
            raise QkvError("A comparison needs held-out text to compare on: give some, or a share to hold out.")
        self.shared = TextsInMemory(self.to_train, self.to_validate, 0.0)  # cut once for all runs
        self.fingerprint = fingerprint_of_texts([*self.to_train, *self.to_validate])
        file = folder / TOKENIZER_FILE
        known = file.exists() and not begin_anew
        self.tokenizer = chosen_tokenizer(self.to_train, tokenizer, folder, resume=known)
        if not known:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self.tokenizer.save(file)
            except OSError as error:
                raise QkvError(f"The folder {folder} cannot be written ({error.strerror}): name another.") from error
        self.cutter = for_writing(self.tokenizer)  # as a training has it

    def held_out_batches(self, length: int) -> Iterator[LanguageBatch]:
        """The rows that every run validates on."""
        _, documents = self.shared.cut(self.cutter)
        assert documents is not None  # without any a comparison is refused
        start = self.cutter.start if self.cutter.has("start") else None
        rows = stream(documents, length, end=self.cutter.end, start=start)
        for _, batch in ordered_batches(rows, max(VALIDATION_TOKENS, length)):
            yield batch

    def random_rows(self, rows: int, length: int) -> LanguageBatch:
        """A batch of this shape without a meaning."""
        ids = torch.randint(self.cutter.size, (rows, length + 1), generator=torch.Generator().manual_seed(0))
        predicted = rows * length
        return LanguageBatch(
            ids=ids, documents=torch.ones_like(ids), packed=False, predicted=predicted, bytes=predicted
        )
