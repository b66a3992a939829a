"""Fine-tuning: a loaded model learns a task from labelled texts. [devlin2019 §4]"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from qkv.api.distilling import Distillation
from qkv.api.runs import MakeOptimizer, check_folder, divided, parameters_of, run_training, typical_batch, validation
from qkv.api.texts import about_model, fingerprint_of_texts
from qkv.data.answers import SpanRows
from qkv.data.batches import Batches
from qkv.data.contrast import GroupRows
from qkv.data.encoding import Encoding, Limit
from qkv.data.labelled import ClassRows, LabelledTexts
from qkv.data.plan import Batching, RowCount
from qkv.data.questions import Question
from qkv.data.rows import Rows
from qkv.data.tagged import TaggedWords, TagRows
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.reader import TOKENIZER_FILE, TextReader
from qkv.generate.readers import Answerer, Classifier, SentenceEncoder, Tagger
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.train.adapt import LoRA, add_lora, freeze
from qkv.train.flops import flops_per_counted_token
from qkv.train.objectives.embeddings import ContrastiveLoss
from qkv.train.objectives.labels import ClassificationLoss, SpanLoss, TagLoss
from qkv.train.optimizers import adamw
from qkv.train.reporter import Reporter
from qkv.train.schedules import Linear, Schedule
from qkv.train.settings import TrainSettings
from qkv.weights.load import with_head

SETTINGS = TrainSettings(steps=500, evaluate_every=100, save_every=100, keep=2)
STRIDE = 128  # tokens that windows of a long context share
Reader = TypeVar("Reader", bound=TextReader)


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """How a task is learned: what is the same for all tasks."""

    length: int | None = None  # tokens a text is cut to; None: as many as the model reads, at most 512
    batching: Batching = RowCount(16)  # noqa: RUF009 (frozen)
    settings: TrainSettings = SETTINGS
    optimizer: MakeOptimizer = partial(adamw, learning_rate=3e-5)  # noqa: RUF009 (never changed)
    schedule: Schedule = Linear(warmup=50)  # noqa: RUF009 (frozen)
    frozen_layers: int = 0  # of the first blocks, which keep their weights; with any, the embeddings keep theirs
    lora: LoRA | None = None  # low-rank updates are trained in place of the weights, and folded in at the end
    distil: Distillation | None = None  # a teacher to learn from beside the right answers
    hold_out: float = 0.05  # share to validate on where nothing is given for it
    reporter: Reporter | None = None
    resume: bool = False
    overwrite: bool = False

    def limit(self, model: TextModel, cut: str = "longest", stride: int | None = None) -> Limit:
        length = self.length or min(model.longest or 512, 512)
        if model.longest is not None and length > model.longest:
            raise QkvError(f"Texts of {length} tokens are longer than the {model.longest} that the model reads.")
        return Limit(length, cut, None if stride is None else min(stride, length // 4))


HOW = FineTuning()


def fine_tune_classifier(
    model: TextReader,
    data: LabelledTexts,
    folder: Path | str,
    *,
    valid: LabelledTexts | None = None,
    objective: Any = ClassificationLoss(),  # noqa: B008 (frozen)
    how: FineTuning = HOW,
    evaluate: Callable[[Classifier], Mapping[str, float]] | None = None,
) -> Classifier:
    """Learn the label of a text, or of a pair of texts. A head that knows these labels already is trained further."""
    network = headed(model.model, HeadChoice("classification", labels=data.names))
    use = Classifier(network, model.tokenizer)
    if valid is not None and valid.names != data.names:
        raise QkvError(f"The validation labels {', '.join(valid.names)} are not those of the training texts.")
    items, held = _labelled(data), [] if valid is None else _labelled(valid)
    if valid is None and how.hold_out:
        items, held = divided(items, how.hold_out, key=lambda item: item[0], kind=lambda item: item[2])
    place = {name: number for number, name in enumerate(data.names)}

    def rows(some: Sequence[Any]) -> ClassRows:
        texts, seconds, labels = zip(*some, strict=True)
        encodings = encoded(use, texts, seconds if pairs else None, how)
        return ClassRows(use.rows(encodings), _places(labels, place))

    pairs = data.seconds is not None
    return fine_tune(use, rows, items, held, objective, Path(folder), how, evaluate, pairs)


def encoded(
    use: TextReader, texts: Sequence[str], seconds: Sequence[str] | None, how: FineTuning
) -> list[Encoding]:  # fmt: skip
    """Texts as the model reads them, each with its second one where there are any."""
    limit = how.limit(use.model)
    if seconds is None:
        return use.tokenizer.encodings(texts, limit=limit)
    return use.tokenizer.encode_pairs(texts, seconds, limit=limit)


def fine_tune_tagger(
    model: TextReader,
    data: TaggedWords,
    folder: Path | str,
    *,
    valid: TaggedWords | None = None,
    objective: Any = TagLoss(),  # noqa: B008 (frozen)
    how: FineTuning = HOW,
    evaluate: Callable[[Tagger], Mapping[str, float]] | None = None,
) -> Tagger:
    """Learn the tag of each word."""
    network = headed(model.model, HeadChoice("tokens", labels=data.names))
    use = Tagger(network, model.tokenizer)
    items = list(zip(data.words, data.numbers(), strict=True))
    held = list(zip(valid.words, valid.numbers(), strict=True)) if valid else []
    if valid is not None and valid.names != data.names:
        raise QkvError(f"The validation tags {', '.join(valid.names)} are not those of the training texts.")
    if valid is None and how.hold_out:
        items, held = divided(items, how.hold_out, key=lambda item: " ".join(item[0]))

    def rows(some: Sequence[Any]) -> TagRows:
        words, tags = zip(*some, strict=True)
        encodings = use.tokenizer.encode_words(words, limit=how.limit(network))
        return TagRows.from_encodings(encodings, tags, pad=_pad(use.tokenizer))

    return fine_tune(use, rows, items, held, objective, Path(folder), how, evaluate)


def fine_tune_answerer(
    model: TextReader,
    questions: Sequence[Question],
    folder: Path | str,
    *,
    valid: Sequence[Question] | None = None,
    objective: Any = SpanLoss(),  # noqa: B008 (frozen)
    how: FineTuning = HOW,
    evaluate: Callable[[Answerer], Mapping[str, float]] | None = None,
) -> Answerer:
    """Learn where in a context the answer to a question stands, or that there is none."""
    network = headed(model.model, HeadChoice("spans"))
    use = Answerer(network, model.tokenizer)
    items, held = list(questions), list(valid or [])
    if valid is None and how.hold_out:
        items, held = divided(items, how.hold_out, key=lambda item: item.context)

    def rows(some: Sequence[Question]) -> SpanRows:
        encodings = use.tokenizer.encode_pairs(
            [each.question for each in some],
            [each.context for each in some],
            limit=how.limit(network, "second", STRIDE),
        )
        made = SpanRows.from_encodings(encodings, some, pad=_pad(use.tokenizer))
        return made if network.embed.tells_segments else made.without_segments()

    return fine_tune(use, rows, items, held, objective, Path(folder), how, evaluate, pairs=True)


def fine_tune_embeddings(
    model: TextReader,
    groups: Sequence[Sequence[str]],
    folder: Path | str,
    *,
    valid: Sequence[Sequence[str]] | None = None,
    pooling: str = "mean",
    values: Sequence[float] | None = None,
    valid_values: Sequence[float] | None = None,
    objective: Any = ContrastiveLoss(),  # noqa: B008 (frozen)
    how: FineTuning = HOW,
    evaluate: Callable[[SentenceEncoder], Mapping[str, float]] | None = None,
) -> SentenceEncoder:
    """Learn vectors that are alike where texts are: pairs, or triplets of a text, one like it and one that is not.

    `values` say how alike the texts of each pair are, for `CosineLoss`; `ContrastiveLoss` takes all others of a batch
    for unlike. [reimers2019 §3] The encoder then reads as much of a text as it was tuned with.
    """
    network = headed(model.model, HeadChoice("embedding", pooling=pooling, unit_length=True))
    longest, lowercase = how.limit(network).length, False
    if isinstance(model, SentenceEncoder):
        longest, lowercase = how.length or min(longest, model.longest or longest), model.lowercase
    use = SentenceEncoder(network, model.tokenizer, longest, lowercase)
    if len({len(group) for group in [*groups, *(valid or [])]}) != 1:
        raise QkvError("Groups of texts must all be pairs, or all triplets.")
    if valid is not None and (values is None) != (valid_values is None):
        raise QkvError("Groups to validate on need values where those to train on have them, and only there.")
    items = list(zip(groups, [1.0] * len(groups) if values is None else values, strict=True))
    held: list[Any] = []
    if valid is not None:
        held = list(zip(valid, [1.0] * len(valid) if valid_values is None else valid_values, strict=True))
    elif how.hold_out:
        items, held = divided(items, how.hold_out, key=lambda item: item[0][0])

    def rows(some: Sequence[Any]) -> GroupRows:
        columns = zip(*(group for group, _ in some), strict=True)
        texts = tuple(use.rows(use.encodings(column)) for column in columns)
        numbers = None if values is None else torch.tensor([value for _, value in some]).numpy()
        return GroupRows(texts, numbers)

    return fine_tune(use, rows, items, held, objective, Path(folder), how, evaluate)


def fine_tune(
    use: Reader,
    rows: Callable[[Sequence[Any]], Rows[Any]],
    items: Sequence[Any],
    held: Sequence[Any],
    objective: Any,
    folder: Path,
    how: FineTuning,
    evaluate: Callable[[Reader], Mapping[str, float]] | None,
    pairs: bool = False,
) -> Reader:
    """What all tasks share: `rows` makes rows of items, of which some are trained on and some are held out."""
    check_folder(folder, how.resume, how.overwrite)
    if how.distil is not None:
        objective = how.distil.objective(objective, use, pairs)
    if how.frozen_layers:
        freeze(use.model, embeddings=True, layers=how.frozen_layers)
    if how.lora is not None:
        add_lora(use.model, how.lora)
    train_rows = rows(items)
    batches = Batches(train_rows, how.batching, seed=how.settings.seed)
    (how.reporter or Reporter()).say(
        f"{len(items):,} examples to train on, {len(held):,} to validate on; {use.model.family}, "
        f"{parameters_of(use.model):,} parameters. Batches in an epoch: {len(batches):,}."
    )
    return run_training(
        use,
        objective,
        batches,
        how.settings,
        folder,
        about={
            **about_model(use.model, use.tokenizer),
            "data": {"length": how.length, "batching": repr(how.batching)},
            "frozen_layers": how.frozen_layers,
            "lora": None if how.lora is None else repr(how.lora),
        },
        fingerprint=fingerprint_of_texts(map(repr, [*items, *held])),
        optimizer=how.optimizer,
        schedule=how.schedule,
        evaluate=validation(use, objective, rows(held) if held else None, evaluate),
        flops_per_token=flops_per_counted_token(use.model, objective, typical_batch(train_rows, how.batching)),
        leave=lambda where: use.tokenizer.save(where / TOKENIZER_FILE),
        reporter=how.reporter,
        resume=how.resume,
        overwrite=how.overwrite,
    )


def _labelled(data: LabelledTexts) -> list[tuple[str, str, str]]:
    """(first, second, label), the second empty where texts stand alone."""
    seconds = [""] * len(data.texts) if data.seconds is None else data.seconds
    return list(zip(data.texts, seconds, data.labels, strict=True))


def headed(model: TextModel, head: HeadChoice) -> TextModel:
    """The model with this head; one that it has already is trained further."""
    return model if model.head_choice == head else with_head(model, head)


def _pad(tokenizer: TextTokenizer) -> int:
    return tokenizer.pad if tokenizer.has("pad") else 0


def _places(labels: Sequence[str], place: Mapping[str, int]) -> Any:
    numbers: Tensor = torch.tensor([place[label] for label in labels])
    return numbers.numpy()
