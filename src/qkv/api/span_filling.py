"""Encoder-decoders pre-trained as T5 was: they write down what was cut out of a text. [raffel2020 §3.1.4]"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from qkv.api.attention import Attention, with_attention
from qkv.api.choices import NewTokenizer, Sizes, choose_sizes
from qkv.api.runs import MakeOptimizer, check_folder, parameters_of, run_training, typical_batch, validation
from qkv.api.texts import chosen_tokenizer, fingerprint_of_texts, held_out
from qkv.api.training import EvaluateText, check_family, check_kept, leave_tokenizers
from qkv.data.batches import Batches
from qkv.data.encoding import Limit
from qkv.data.in_processes import InProcesses
from qkv.data.plan import Batching, RowCount
from qkv.data.sentinels import sentinels_of, with_sentinels
from qkv.data.span_corruption import SpanCorruption, whole_length
from qkv.data.token_rows import TokenRows
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.text import TextToText
from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import attention_of, build
from qkv.train.flops import flops_per_target_token
from qkv.train.objectives.loss import Objective
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
from qkv.train.optimizers import adamw
from qkv.train.reporter import Reporter
from qkv.train.schedules import Linear, Schedule
from qkv.train.settings import TrainSettings

SETTINGS = TrainSettings(minutes=5, evaluate_every=200, save_every=200, keep=2)
TOKENIZER: NewTokenizer | TextTokenizer = NewTokenizer("unigram", 8000)
FAMILY = "t5"
SIZES: Sizes = "desk"


@dataclass(frozen=True)
class CuttingOut:
    """How much of a text is cut out: the share of its tokens, and how many go together on average."""

    share: float = 0.15
    mean: float = 3.0

    def rows_of(self, texts: Sequence[str], tokenizer: TextTokenizer, length: int, seed: int) -> SpanCorruption:
        """Each text in windows whose sources have at most `length` tokens; other stretches go each epoch."""
        whole = whole_length(length, self.share, self.mean)
        encodings = tokenizer.encodings(texts, special=False, limit=Limit(whole, stride=0))
        windows = TokenRows.from_lists((one.ids for one in encodings if one.ids), tokenizer.pad)
        if not len(windows):
            raise QkvError("There is no token in the texts, so nothing can be cut out: give texts that say something.")
        return SpanCorruption(
            windows,
            sentinels_of(tokenizer),
            end=tokenizer.end,
            start=tokenizer.start,
            rate=self.share,
            mean=self.mean,
            seed=seed,
        )


def pretrain_text_to_text(
    texts: Sequence[str],
    folder: Path | str,
    *,
    valid: Sequence[str] | None = None,
    hold_out: float = 0.02,
    model: TextToText | None = None,
    tokenizer: NewTokenizer | TextTokenizer = TOKENIZER,
    family: str = FAMILY,
    sizes: Sizes = SIZES,
    attention: Attention = None,
    length: int = 128,
    cutting_out: CuttingOut = CuttingOut(),  # noqa: B008 (frozen)
    batching: Batching = RowCount(16),  # noqa: B008 (frozen)
    settings: TrainSettings = SETTINGS,
    objective: Objective = SequenceToSequenceLoss(smoothing=0.0),  # noqa: B008 (frozen)
    optimizer: MakeOptimizer = partial(adamw, learning_rate=1e-3),  # noqa: B008 (never changed)
    schedule: Schedule = Linear(warmup=200),  # noqa: B008 (frozen)
    evaluate: EvaluateText | None = None,
    reporter: Reporter | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> TextToText:
    """Pre-train a model that reads texts with gaps and writes what stood there; it is left in `folder`.

    Each text is a document, read in windows of `length` tokens, sentinels counted. With `model` a loaded T5 is trained
    further, with its own tokenizer and no new sizes; a new tokenizer gets sentinels. With an `attention` that one
    stands in place of the model's own. Every evaluation measures loss and perplexity of what was cut out of held-out
    documents. What comes of it fills gaps, `model.run(["Let <extra_id_0> light"])`, and can be trained on pairs of
    texts: `train_text_to_text(model=…)`.
    """
    folder, say = Path(folder), (reporter or Reporter()).say
    choice = AttentionChoice.of(attention)
    check_family(family)
    check_kept(model, tokenizer=tokenizer != TOKENIZER, family=family != FAMILY, sizes=sizes != SIZES)
    check_folder(folder, resume, overwrite)
    to_train, to_validate = held_out(texts, valid, hold_out)
    if model is None:
        cutter = with_sentinels(chosen_tokenizer(to_train, tokenizer, folder, resume))
        chosen = choose_sizes(family, sizes, cutter, cutter)
    else:
        cutter, chosen = model.source_tokenizer, model.model.sizes
        if cutter is not model.target_tokenizer or not sentinels_of(cutter):
            raise QkvError("The model's tokenizer has no sentinels such as <extra_id_0>: gaps are for models like T5.")
    rows_of = cutting_out.rows_of(to_train, cutter, length, settings.seed)
    first = rows_of(0)
    valid_rows = cutting_out.rows_of(to_validate, cutter, length, seed=0)(0) if to_validate else None
    torch.manual_seed(settings.seed)
    if model is None:
        model = TextToText(build(family, chosen, attention=choice), cutter, cutter)
    elif choice is not None:
        model = with_attention(model, choice, say)
    network = model.model
    beside = settings.torch_device().type == "cuda"  # which must not wait for rows
    batches = Batches(InProcesses(rows_of) if beside else rows_of, batching, seed=settings.seed)
    say(
        f"{len(to_train):,} documents of {int(rows_of.texts.lengths.sum()):,} tokens to train on, "
        f"{len(to_validate):,} to validate on; {network.family}, {parameters_of(network):,} parameters. "
        f"Batches in an epoch: {len(batches):,}."
    )
    return run_training(
        model,
        objective,
        batches,
        settings,
        folder,
        about={
            "family": network.family,
            "sizes": asdict(chosen),
            **({} if (own := attention_of(network)) is None else {"attention": str(own)}),
            "tokenizers": [cutter.fingerprint()],
            "data": {"length": length, "cutting_out": repr(cutting_out), "batching": repr(batching)},
        },
        fingerprint=fingerprint_of_texts([*to_train, *to_validate]),
        optimizer=optimizer,
        schedule=schedule,
        evaluate=validation(model, SequenceToSequenceLoss(smoothing=0.0), valid_rows, evaluate),
        flops_per_token=flops_per_target_token(network, typical_batch(first, batching)),
        leave=partial(leave_tokenizers, model),
        reporter=reporter,
        resume=resume,
        overwrite=overwrite,
    )
