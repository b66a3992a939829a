"""How wrong is what a model hears, letter by letter: for validation while it learns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch

from qkv.data.sound_rows import SpokenBatch
from qkv.models.sound_model import SoundModel
from qkv.train.metrics import edit_distance
from qkv.train.objectives.ctc import CTCLoss
from qkv.train.objectives.loss import Loss


@dataclass(frozen=True)
class SpokenErrors:
    """The loss, and the edits between what was said and the likeliest path, a letter (cer) and a word (wer)."""

    objective: CTCLoss
    space: int | None  # the token between words; None: words are not known, and only letters are counted

    def measure(self, model: SoundModel, batch: SpokenBatch) -> dict[str, Loss]:
        logits = self.objective.logits(model, batch)
        paths, frames = logits.argmax(-1).tolist(), batch.frame_lengths.tolist()
        wanted, lengths = batch.letters.tolist(), batch.letter_lengths.tolist()
        edits, counts = [0, 0], [0, 0]  # of letters, of words
        for path, count, ids, length in zip(paths, frames, wanted, lengths, strict=True):
            said = [token for token, _ in groupby(path[:count]) if token != self.objective.blank]  # [graves2006 eq.1]
            for which, split in enumerate((self.letters, self.words)):
                right = split(ids[:length])
                if length:  # filler says nothing
                    edits[which] += edit_distance(split(said), right)
                    counts[which] += len(right)
        figures = {"loss": self.objective.of_logits(logits, batch)}
        for name, total, count in zip(("cer", "wer"), edits, counts, strict=True):
            if name == "cer" or self.space is not None:
                figures[name] = Loss(torch.tensor(float(total)), count)
        return figures

    def letters(self, ids: list[int]) -> list[str]:
        """Each token as a sign of its own; a space at an end is none."""
        return list(" ".join(self.words(ids)))

    def words(self, ids: list[int]) -> list[str]:
        """Runs of tokens with none between words in them, each as a text of signs."""
        text = "".join(" " if token == self.space else chr(0x4E00 + token) for token in ids)
        return text.split()
