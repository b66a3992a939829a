"""Language models: the next token learned from a corpus. [radford2019 §2]"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from qkv.api.attention import Attention, with_attention
from qkv.api.choices import NewTokenizer, Sizes
from qkv.api.distilling import Distillation
from qkv.api.language_data import HowRows, LanguageData, TextsInMemory
from qkv.api.runs import MakeOptimizer, check_folder, parameters_of, run_training, validation
from qkv.api.streamed_texts import StreamedTexts
from qkv.api.texts import about_model, chosen_tokenizer, new_text_model
from qkv.api.texts_on_disk import SHARDS_FILE, corpus_of, tell_changes
from qkv.data.packing import LanguageRows, pack, stream
from qkv.data.plan import Batching, RowCount
from qkv.data.reading_tokenizer import for_writing
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import write_json
from qkv.generate.language import TextWriter
from qkv.generate.reader import TOKENIZER_FILE
from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import attention_of
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.train.cost.prediction import Cost
from qkv.train.flops import flops_per_counted_token
from qkv.train.objectives.language import LanguageLoss
from qkv.train.objectives.loss import Objective
from qkv.train.optimizers import adamw
from qkv.train.provenance import describe
from qkv.train.reporter import Reporter
from qkv.train.schedules import Cosine, Schedule
from qkv.train.settings import TrainSettings

CHOSEN = "chosen"  # in run.json
SETTINGS = TrainSettings(minutes=5, evaluate_every=200, save_every=200, keep=2)
Rows = Callable[..., LanguageRows]  # pack or stream


def train_language_model(
    texts: Sequence[str] | StreamedTexts | TextsInMemory,
    folder: Path | str,
    *,
    valid: Sequence[str] | None = None,
    hold_out: float = 0.02,
    model: TextWriter | None = None,
    tokenizer: NewTokenizer | TextTokenizer | None = None,
    family: str = "gpt2",
    sizes: Sizes = "desk",
    attention: Attention = None,
    length: int = 256,
    rows: Rows | None = None,
    batching: Batching = RowCount(8),  # noqa: B008 (frozen)
    settings: TrainSettings = SETTINGS,
    objective: Objective = LanguageLoss(),  # noqa: B008 (frozen)
    distil: Distillation | None = None,
    optimizer: MakeOptimizer = partial(adamw, betas=(0.9, 0.95), weight_decay=0.1),  # noqa: B008 (never changed)
    schedule: Schedule = Cosine(warmup=100, floor=0.1),  # noqa: B008 (frozen)
    evaluate: Callable[[TextWriter], Mapping[str, float]] | None = None,
    flops_per_token: float | None = None,
    foretold: Cost | None = None,
    chosen: Mapping[str, object] | None = None,
    reporter: Reporter | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> TextWriter:
    """Train a model to go on with texts; it is returned, and left in `folder` with its history.

    Each text is a document; those of `stream_texts` are read from disk meanwhile. `pack` puts documents side by side
    into rows of `length` tokens and lets no token see another document; `stream` cuts them as they follow each other,
    and is taken where the attention cannot keep documents apart. A new model has 8,000 byte-pair pieces, or the
    `tokenizer` that is given or that tokenised texts came from. With `model` a loaded one is trained further, with its
    own tokenizer and no new sizes. With an `attention` that one stands in place of the model's own, and with `distil` a
    teacher is learned from beside the texts. Every evaluation measures perplexity and bits per byte on held-out
    documents. Operations are counted as if every token saw its whole row, unless `flops_per_token` says better; what a
    step costs is told beforehand from its shapes, unless it is `foretold`. What was `chosen` by the texts and the
    machine, and on what grounds, is kept in the run's record.
    """
    folder, say = Path(folder), (reporter or Reporter()).say
    choice = AttentionChoice.of(attention)
    check_folder(folder, resume, overwrite)
    corpus = corpus_of(texts, valid, hold_out)
    own = corpus.tokenizer(tokenizer if model is None else model.tokenizer)
    cutter = chosen_tokenizer(partial(corpus.to_learn_from, say), own, folder, resume)
    if model is None:
        cutter = for_writing(cutter)
    torch.manual_seed(settings.seed)
    if model is None:
        network = new_text_model(family, sizes, HeadChoice("language"), cutter, length, choice)
    else:
        network = (model if choice is None else with_attention(model, choice, say)).model
    if network.longest is not None and length > network.longest:
        raise QkvError(f"Rows of {length} tokens are longer than the {network.longest} that the model reads.")
    if rows is None:
        rows = rows_for(network, say)
    elif rows is pack and not keeps_apart(network):
        raise QkvError(
            f"The attention {attention_of(network)} cannot keep documents apart that share a row: give rows=stream."
        )
    writer = TextWriter(network, cutter)
    if distil is not None:
        objective = distil.objective(objective, writer)
    marks = {"end": cutter.end, "start": cutter.start if cutter.has("start") else None}
    make = partial(rows, length=length, **marks)
    data = corpus.data(cutter, HowRows(make, length, batching, settings), say)
    if resume and data.shards:
        tell_changes(data.shards, folder, say)
    say(f"{data.told}; {network.family}, {parameters_of(network):,} parameters.")
    return run_training(
        writer,
        objective,
        data.batches,
        settings,
        folder,
        about={
            **about_model(network, cutter),
            "data": {"length": length, "rows": describe(rows)["name"], "batching": repr(batching), **data.about},
            **({} if chosen is None else {CHOSEN: chosen}),
        },
        fingerprint=data.fingerprint,
        optimizer=optimizer,
        schedule=schedule,
        evaluate=validation(writer, LanguageLoss(), data.valid, evaluate),
        flops_per_token=flops_per_token or flops_per_counted_token(network, objective, data.typical),
        foretold=foretold,
        leave=partial(_leave, cutter, data),
        reporter=reporter,
        resume=resume,
        overwrite=overwrite,
    )


def _leave(tokenizer: TextTokenizer, data: LanguageData, folder: Path) -> None:
    tokenizer.save(folder / TOKENIZER_FILE)
    if data.shards:
        write_json(folder / SHARDS_FILE, data.shards)


def keeps_apart(model: TextModel) -> bool:
    """Whether documents that share a row are read as if each stood alone."""
    attention = attention_of(model)
    return attention is None or attention.tells_documents_apart


def rows_for(model: TextModel, say: Callable[[str], None]) -> Rows:
    """The rows that suit the model's attention."""
    if keeps_apart(model):
        return pack
    say(f"The attention {attention_of(model)} cannot keep documents apart in a row: they are read as one stream.")
    return stream


__all__ = ["pack", "stream", "train_language_model"]
