"""Text in, text out: a model with the tokenizers of its two sides, as a model folder holds them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.data.batches import ordered_batches
from qkv.data.encoding import check_texts
from qkv.data.pairs import Pairs
from qkv.data.sentinels import hearing_sentinels, spells_sentinels
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.beam import beam_search
from qkv.generate.decode import PAPER_LIMIT, Hypothesis, LengthLimit, sample
from qkv.generate.history import Shaper
from qkv.generate.prepare import Ready
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.parts.block import Block
from qkv.weights.load import load_model
from qkv.weights.save import save_model

SHARED_FILE = "tokenizer.json"
SOURCE_FILE, TARGET_FILE = "source_tokenizer.json", "target_tokenizer.json"
# What a published folder says of outputs, and the tokenizers of a translator that has one for each side: kept as they
# are, since the reference library reads those of the two sides in no other form.
KEPT = ("generation_config.json",)
KEPT_OF_SIDES = ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json", "special_tokens_map.json")

Sides = tuple[TextTokenizer, TextTokenizer]  # of the source, of the target
Decode = Callable[[SequenceToSequence, Tensor, Tensor], list[list[Hypothesis]]]


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
    """A sequence-to-sequence model that reads and writes text.

    Where the tokenizer has sentinels, as T5's does, a text may name them: `Thank you <extra_id_0> me`. The output for
    such a text shows them too; other outputs show no special token.
    """

    def __init__(
        self,
        model: SequenceToSequence,
        source_tokenizer: TextTokenizer,
        target_tokenizer: TextTokenizer,
        spare: int = 0,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """`spare` rows of the model's vocabulary may stand for no token: some round it up to a number that is quick.

        As many may that a tokenizer notes. `files` are kept beside the model, as `kept_files` finds them.
        """
        if model.source_vocabulary is None:
            raise QkvError(f"A model of the family {model.family} hears sound and reads no text: use Transcriber.")
        for side, vocabulary, tokenizer in (
            ("source", model.source_vocabulary, source_tokenizer),
            ("target", model.target_vocabulary, target_tokenizer),
        ):
            if not tokenizer.size <= vocabulary <= tokenizer.size + max(spare, tokenizer.notes.spare):
                raise QkvError(
                    f"Mismatched tokenizer: the {side} one has {tokenizer.size} tokens, but the model was built for "
                    f"{vocabulary}; it belongs to another model."
                )
        self.model, self.source_tokenizer, self.target_tokenizer = model, source_tokenizer, target_tokenizer
        self.readers = readers_of(source_tokenizer, target_tokenizer)
        self.files = dict(files or {})
        self._ready: Ready[SequenceToSequence] = Ready()

    @classmethod
    def load(cls, folder: Path | str, device: str | torch.device = "cpu") -> TextToText:
        """From a folder of our own; `qkv.load` opens published ones too."""
        return cls.of_folder(folder, load_model(folder, device))

    @classmethod
    def of_folder(cls, folder: Path | str, model: SequenceToSequence) -> TextToText:
        """The model of a folder of our own with the tokenizers that stand beside it."""
        source, target = load_tokenizers(folder)
        return cls(model, source, target, files=kept_files(folder, shared=source is target))

    def with_model(self, model: SequenceToSequence) -> TextToText:
        """The same use of another model that reads and writes the same tokens."""
        source, target = self.source_tokenizer, self.target_tokenizer
        assert model.source_vocabulary is not None
        spare = max(model.source_vocabulary - source.size, model.target_vocabulary - target.size)
        return TextToText(model, source, target, spare, self.files)

    def save(self, folder: Path | str) -> None:
        save_model(self.model, Path(folder))
        self.save_tokenizers(folder)

    def explain(self) -> str:
        """Who computes what of this model here, what faster ways did not understand, and what runs instead."""
        from qkv.generate.explain import explain  # with all ways, of which most are not for this model

        return explain(self.model)

    def save_tokenizers(self, folder: Path | str) -> None:
        """The tokenizers with a note of how many rows of the model stand for no token, and the files that are kept."""
        source, target = self.source_tokenizer, self.target_tokenizer
        assert self.model.source_vocabulary is not None
        noted = source.with_spare(self.model.source_vocabulary - source.size)
        other = target.with_spare(self.model.target_vocabulary - target.size)
        save_tokenizers(folder, noted, noted if source is target else other)
        for name, content in self.files.items():
            (Path(folder) / name).write_bytes(content)

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
        shapers: Sequence[Shaper] = (),
        limit: LengthLimit = PAPER_LIMIT,
        batch_tokens: int = 8192,
    ) -> list[list[Result]]:
        """The `best` outputs for each text, best first.

        Texts of like length are decoded together, at most `batch_tokens` source tokens of all beams at a time. A blank
        text, which training never shows a model, has one output: a blank one.
        """
        target = self.target_tokenizer

        def search(model: SequenceToSequence, source: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
            return beam_search(
                model,
                source,
                lengths,
                start=target.start,
                end=target.end,
                beams=beams,
                length_penalty=length_penalty,
                best=best,
                limit=limit,
                never=self._never(),
                shapers=shapers,
            )

        return self._outputs(texts, search, batch_tokens // beams)

    def sample(
        self,
        texts: Sequence[str],
        *,
        samples: int = 1,
        seed: int | None = None,
        shapers: Sequence[Shaper] = (),
        limit: LengthLimit = PAPER_LIMIT,
        batch_tokens: int = 8192,
    ) -> list[list[Result]]:
        """`samples` outputs for each text, drawn token by token after `shapers` such as `Temperature` and `TopP`.

        The same seed gives a text the same outputs, alone or in any company; None makes up another seed each time.
        """
        if samples < 1:
            raise QkvError(f"Sampling gives 1 output a text at least, not {samples}.")
        target = self.target_tokenizer
        seed = secrets.randbits(64) if seed is None else seed

        def draw(model: SequenceToSequence, source: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
            return sample(
                model,
                source,
                lengths,
                start=target.start,
                end=target.end,
                seed=seed,
                samples=samples,
                shapers=shapers,
                limit=limit,
                never=self._never(),
            )

        return self._outputs(texts, draw, batch_tokens // samples)

    def _outputs(self, texts: Sequence[str], decode: Decode, batch_tokens: int) -> list[list[Result]]:
        """What `decode` makes of each text, in the order of the texts."""
        texts = check_texts(texts)
        results: list[list[Result]] = [[] if text.strip() else [BLANK] for text in texts]
        written = [place for place, outputs in enumerate(results) if not outputs]
        if not written:
            return results
        # The targets of these pairs are empty: only the sources' batching is wanted.
        pairs = Pairs.from_texts([texts[place] for place in written], [""] * len(written), *self.readers)
        device = next(self.model.parameters()).device
        widest = int(pairs.source.lengths.max())
        with self._ready.decoding(self.model) as model:
            for places, batch in ordered_batches(pairs, max(batch_tokens, widest)):
                found = decode(model, batch.source.to(device), batch.source_lengths.to(device))
                for place, hypotheses in zip(places.tolist(), found, strict=True):
                    text = texts[written[place]]
                    shown = self.readers[1] if spells_sentinels(text) else self.target_tokenizer
                    results[written[place]] = [Result(shown.decode(one.ids), one) for one in hypotheses]
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


def load_tokenizers(folder: Path | str) -> Sides:
    """The tokenizers of a model folder for source and target: one for both, or one each."""
    folder = Path(folder)
    if (folder / SHARED_FILE).exists():
        shared = TextTokenizer.load(folder / SHARED_FILE)
        return shared, shared
    return TextTokenizer.load(folder / SOURCE_FILE), TextTokenizer.load(folder / TARGET_FILE)


def readers_of(source: TextTokenizer, target: TextTokenizer) -> Sides:
    """The tokenizers with ears for sentinels, where they have any: what texts are cut by, to run and to train."""
    reading = hearing_sentinels(source)
    return reading, reading if source is target else hearing_sentinels(target)


def kept_files(folder: Path | str, *, shared: bool) -> dict[str, bytes]:
    """Files of a model folder that are kept as they are; `shared` where one tokenizer serves both sides."""
    files = [Path(folder) / name for name in (*KEPT, *(() if shared else KEPT_OF_SIDES))]
    return {file.name: file.read_bytes() for file in files if file.is_file()}


def save_tokenizers(folder: Path | str, source: TextTokenizer, target: TextTokenizer) -> None:
    folder = Path(folder)
    if source is target:
        source.save(folder / SHARED_FILE)
    else:
        source.save(folder / SOURCE_FILE)
        target.save(folder / TARGET_FILE)
