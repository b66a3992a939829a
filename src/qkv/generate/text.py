"""Text in, text out: a model with the tokenizers of its two sides, as a model folder holds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

import torch
from torch import nn

from qkv.data.batches import ordered_batches
from qkv.data.pairs import Pairs
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.beam import beam_search
from qkv.generate.decode import PAPER_LIMIT, Hypothesis, LengthLimit
from qkv.generate.prepare import Ready
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.parts.block import Block
from qkv.weights.load import load_model
from qkv.weights.save import save_model

SHARED_FILE = "tokenizer.json"
SOURCE_FILE, TARGET_FILE = "source_tokenizer.json", "target_tokenizer.json"


@dataclass(frozen=True)
class Result:
    """One output for one text: the likeliest first, where several were asked for."""

    text: str
    hypothesis: Hypothesis

    @property
    def score(self) -> float:
        return self.hypothesis.score


BLANK = Result("", Hypothesis([], log_probability=0.0, score=0.0, ended=True))


class TextToText:
    """A sequence-to-sequence model that reads and writes text."""

    def __init__(
        self,
        model: SequenceToSequence,
        source_tokenizer: TextTokenizer,
        target_tokenizer: TextTokenizer,
        spare: int = 0,
    ) -> None:
        """`spare` rows of the model's vocabulary may stand for no token: some round it up to a number that is quick."""
        if model.source_vocabulary is None:
            raise QkvError(f"A model of the family {model.family} hears sound and reads no text: use Transcriber.")
        for side, vocabulary, tokenizer in (
            ("source", model.source_vocabulary, source_tokenizer),
            ("target", model.target_vocabulary, target_tokenizer),
        ):
            if not tokenizer.size <= vocabulary <= tokenizer.size + spare:
                raise QkvError(
                    f"Mismatched tokenizer: the {side} one has {tokenizer.size} tokens, but the model was built for "
                    f"{vocabulary}; it belongs to another model."
                )
        self.model, self.source_tokenizer, self.target_tokenizer = model, source_tokenizer, target_tokenizer
        self._ready = Ready(model)

    @classmethod
    def load(cls, folder: Path | str, device: str | torch.device = "cpu") -> TextToText:
        model = load_model(folder, device)
        return cls(model, *load_tokenizers(folder))

    def save(self, folder: Path | str) -> None:
        save_model(self.model, Path(folder))
        save_tokenizers(folder, self.source_tokenizer, self.target_tokenizer)

    def run(
        self,
        texts: Sequence[str],
        *,
        beams: int = 4,
        length_penalty: float = 0.6,
        limit: LengthLimit = PAPER_LIMIT,
        batch_tokens: int = 8192,
    ) -> list[Result]:
        """The best output for each text, in the order of the texts."""
        found = self.run_best(
            texts, best=1, beams=beams, length_penalty=length_penalty, limit=limit, batch_tokens=batch_tokens
        )
        return [results[0] for results in found]

    def run_best(
        self,
        texts: Sequence[str],
        *,
        best: int,
        beams: int = 4,
        length_penalty: float = 0.6,
        limit: LengthLimit = PAPER_LIMIT,
        batch_tokens: int = 8192,
    ) -> list[list[Result]]:
        """The `best` outputs for each text, best first.

        Texts of like length are decoded together, at most `batch_tokens` source tokens of all beams at a time. A blank
        text, which training never shows a model, has one output: a blank one.
        """
        if isinstance(texts, str):
            raise QkvError("Give a list of texts, not a single text: put the one text into brackets.")
        results: list[list[Result]] = [[] if text.strip() else [BLANK] for text in texts]
        written = [place for place, outputs in enumerate(results) if not outputs]
        if not written:
            return results
        source, target = self.source_tokenizer, self.target_tokenizer
        # The targets of these pairs are empty: only the sources' batching is wanted.
        pairs = Pairs.from_texts([texts[place] for place in written], [""] * len(written), source, target)
        device = next(self.model.parameters()).device
        widest = int(pairs.source.lengths.max())
        with self._ready.decoding() as model:
            for places, batch in ordered_batches(pairs, max(batch_tokens // beams, widest)):
                found = beam_search(
                    model,
                    batch.source.to(device),
                    batch.source_lengths.to(device),
                    start=target.start,
                    end=target.end,
                    beams=beams,
                    length_penalty=length_penalty,
                    best=best,
                    limit=limit,
                    never=self._never(),
                )
                for place, hypotheses in zip(places.tolist(), found, strict=True):
                    results[written[place]] = [Result(target.decode(one.ids), one) for one in hypotheses]
        return results

    def _never(self) -> tuple[int, ...]:
        """Tokens that no output has."""
        target = self.target_tokenizer
        roles = [target.role(role) for role in ("pad", "start", "unknown") if target.has(role)]
        return (*roles, *range(target.size, self.model.target_vocabulary))

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return (
            f"TextToText({self.model.family}, {parameters:,} parameters, "
            f"{self.source_tokenizer.size:,} → {self.target_tokenizer.size:,} tokens)"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the sizes, and the parts with their blocks and parameters."""
        sizes = ", ".join(f"{name} {value}" for name, value in asdict(self.model.sizes).items() if value is not None)
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(summary)}</td><td>{count:,}</td></tr>"
            for name, summary, count in self._parts()
        )
        head = "<tr><th>part</th><th>made of</th><th>parameters</th></tr>"
        return f"<b>{escape(repr(self))}</b><p>{escape(sizes)}</p><table>{head}{rows}</table>"

    def _parts(self) -> Iterator[tuple[str, str, int]]:
        """Name, make and number of parameters of each part; what parts share counts where it stands first."""
        counted: set[nn.Parameter] = set()
        for name, part in self.model.named_children():
            fresh = set(part.parameters()) - counted
            counted |= fresh
            blocks = [child for child in part.modules() if isinstance(child, Block)]
            summary = type(part).__name__
            if blocks:
                summary = f"{len(blocks)} × ({', '.join(step for step, _ in blocks[0].named_children())})"
            yield name, summary, sum(parameter.numel() for parameter in fresh)


def load_tokenizers(folder: Path | str) -> tuple[TextTokenizer, TextTokenizer]:
    """The tokenizers of a model folder for source and target: one for both, or one each."""
    folder = Path(folder)
    if (folder / SHARED_FILE).exists():
        shared = TextTokenizer.load(folder / SHARED_FILE)
        return shared, shared
    return TextTokenizer.load(folder / SOURCE_FILE), TextTokenizer.load(folder / TARGET_FILE)


def save_tokenizers(folder: Path | str, source: TextTokenizer, target: TextTokenizer) -> None:
    folder = Path(folder)
    if source is target:
        source.save(folder / SHARED_FILE)
    else:
        source.save(folder / SOURCE_FILE)
        target.save(folder / TARGET_FILE)
