"""Encoders pre-trained as BERT was: hidden tokens, and whether two segments belong together. [devlin2019 §3.1]"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qkv.api.attention import Attention, with_attention
from qkv.api.choices import NewTokenizer, Sizes
from qkv.api.distilling import Distillation
from qkv.api.runs import MakeOptimizer, check_folder, parameters_of, run_training, typical_batch, validation
from qkv.api.texts import about_model, chosen_tokenizer, fingerprint_of_texts, held_out, new_text_model
from qkv.data.batches import Batches
from qkv.data.encoding import Limit
from qkv.data.in_processes import InProcesses
from qkv.data.masking import MaskedRows, Masking, continuations
from qkv.data.next_sentence import SegmentPairs, Sentences, Special
from qkv.data.plan import Batching, RowCount
from qkv.data.reading_tokenizer import for_reading
from qkv.data.rows import Rows
from qkv.data.text_rows import TextRows
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.reader import TOKENIZER_FILE
from qkv.generate.readers import MaskFiller
from qkv.models.attention_choice import AttentionChoice
from qkv.models.head_choice import HeadChoice
from qkv.train.flops import flops_per_counted_token
from qkv.train.objectives.loss import Objective
from qkv.train.objectives.masked import MaskedLoss, PretrainingLoss
from qkv.train.optimizers import adamw
from qkv.train.reporter import Reporter
from qkv.train.schedules import Linear, Schedule
from qkv.train.settings import TrainSettings

SETTINGS = TrainSettings(minutes=5, evaluate_every=200, save_every=200, keep=2)


@dataclass(frozen=True)
class Hiding:
    """How tokens are hidden: the share of them, and whether words are hidden as wholes."""

    share: float = 0.15
    whole_words: bool = False

    def masking(self, tokenizer: TextTokenizer) -> Masking:
        size = tokenizer.size
        return Masking(
            mask=tokenizer.mask,
            vocabulary=size,
            special=tokenizer.special_ids,
            rate=self.share,
            continues=continuations(tokenizer.tokens(range(size))) if self.whole_words else None,
        )


def pretrain_encoder(
    texts: Sequence[str],
    folder: Path | str,
    *,
    next_sentence: bool = True,
    valid: Sequence[str] | None = None,
    hold_out: float = 0.02,
    model: MaskFiller | None = None,
    tokenizer: NewTokenizer | TextTokenizer = NewTokenizer("wordpiece", 8000, lowercase=True),  # noqa: B008 (frozen)
    family: str = "bert",
    sizes: Sizes = "desk",
    attention: Attention = None,
    length: int = 128,
    hiding: Hiding = Hiding(),  # noqa: B008 (frozen)
    batching: Batching = RowCount(16),  # noqa: B008 (frozen)
    settings: TrainSettings = SETTINGS,
    objective: Objective | None = None,
    distil: Distillation | None = None,
    optimizer: MakeOptimizer = partial(adamw, learning_rate=5e-4, betas=(0.9, 0.98)),  # noqa: B008 (never changed)
    schedule: Schedule = Linear(warmup=200),  # noqa: B008 (frozen)
    evaluate: Callable[[MaskFiller], Mapping[str, float]] | None = None,
    reporter: Reporter | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> MaskFiller:
    """Pre-train an encoder on texts, each a document; it is returned, and left in `folder` with its history.

    With `next_sentence` rows are pairs of segments from real document order and both of BERT's questions are asked;
    without, rows are texts in windows and only hidden tokens are. With `model` a loaded one is trained further. With an
    `attention` that one stands in place of the model's own, and with `distil` a teacher is learned from beside the
    texts. Another `objective` than BERT's own may be given.
    """
    folder, say = Path(folder), (reporter or Reporter()).say
    choice = AttentionChoice.of(attention)
    check_folder(folder, resume, overwrite)
    if next_sentence and hold_out and len(texts) > 2:
        hold_out = max(hold_out, 2 / len(texts))  # a segment from elsewhere needs a second document
    to_train, to_validate = held_out(texts, valid, hold_out)
    if model is not None:
        tokenizer = model.tokenizer
    cutter = for_reading(chosen_tokenizer(to_train, tokenizer, folder, resume))
    torch.manual_seed(settings.seed)
    kind = "pretraining" if next_sentence else "masked"
    if model is None:
        network = new_text_model(family, sizes, HeadChoice(kind), cutter, length, choice)
    else:
        network = (model if choice is None else with_attention(model, choice, say)).model
    if network.head_choice.kind != kind:
        raise QkvError(f"Training {'with' if next_sentence else 'without'} next sentences needs a {kind} head.")
    filler = MaskFiller(network, cutter)
    masking = hiding.masking(cutter)
    make = partial(_pairs if next_sentence else _windows, tokenizer=cutter, length=length, masking=masking)
    rows_of = make(to_train, seed=settings.seed)
    first = rows_of(0)
    if settings.torch_device().type == "cuda":  # which must not wait for rows
        rows_of = InProcesses(rows_of)
    valid_rows = make(to_validate, seed=0)(0) if to_validate else None
    batches = Batches(rows_of, batching, seed=settings.seed)
    say(
        f"{len(to_train):,} documents to train on, {len(to_validate):,} to validate on; {network.family}, "
        f"{parameters_of(network):,} parameters. Batches in an epoch: {len(batches):,}."
    )
    own = PretrainingLoss() if next_sentence else MaskedLoss()
    objective = objective or own
    if distil is not None:
        objective = distil.objective(objective, filler)
    return run_training(
        filler,
        objective,
        batches,
        settings,
        folder,
        about={
            **about_model(network, cutter),
            "data": {"length": length, "hiding": repr(hiding), "batching": repr(batching)},
        },
        fingerprint=fingerprint_of_texts([*to_train, *to_validate]),
        optimizer=optimizer,
        schedule=schedule,
        evaluate=validation(filler, own, valid_rows, evaluate),
        flops_per_token=flops_per_counted_token(network, objective, typical_batch(first, batching)),
        leave=lambda where: cutter.save(where / TOKENIZER_FILE),
        reporter=reporter,
        resume=resume,
        overwrite=overwrite,
    )


def _pairs(
    texts: Sequence[str], *, tokenizer: TextTokenizer, length: int, masking: Masking, seed: int
) -> Callable[[int], Rows[Any]]:
    """Pairs of segments, made anew each epoch."""
    special = Special(tokenizer.classifier, tokenizer.separator, tokenizer.pad)
    return SegmentPairs(Sentences.from_texts(texts, tokenizer), length, special, masking, seed=seed)


def _windows(
    texts: Sequence[str], *, tokenizer: TextTokenizer, length: int, masking: Masking, seed: int
) -> Callable[[int], Rows[Any]]:
    """Each text in windows that do not overlap; other tokens are hidden each epoch."""
    encodings = tokenizer.encodings(texts, limit=Limit(length, stride=0))
    rows = TextRows.from_encodings(encodings, pad=tokenizer.pad).without_segments()
    return partial(_hidden_anew, rows, masking, seed)


def _hidden_anew(rows: TextRows, masking: Masking, seed: int, epoch: int) -> MaskedRows:
    return MaskedRows(rows, masking, (seed, epoch))
