"""A whole text-to-text training, put together from the rooms: the one place where that is done."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qkv.api.attention import Attention, with_attention
from qkv.api.choices import DataSettings, NewTokenizer, Sizes, choose_sizes, make_tokenizers
from qkv.api.pairs import Pair, fingerprint, hold_out
from qkv.api.runs import MakeOptimizer, check_folder, no_model, parameters_of, run_training, typical_batch, validation
from qkv.data.batches import Batches
from qkv.data.in_processes import InProcesses
from qkv.data.pairs import PairBatch, Pairs
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.text import (
    KEPT,
    KEPT_OF_SIDES,
    SHARED_FILE,
    SOURCE_FILE,
    TARGET_FILE,
    Sides,
    TextToText,
    load_tokenizers,
    readers_of,
)
from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import attention_of, build, find_family
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.parts.admin import profile_stacks
from qkv.train.flops import flops_per_target_token
from qkv.train.objectives.loss import Objective
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
from qkv.train.optimizers import adamw
from qkv.train.provenance import describe
from qkv.train.reporter import Reporter
from qkv.train.run_folder import RunFolder
from qkv.train.schedules import Cosine, Schedule
from qkv.train.settings import TrainSettings
from qkv.train.state import TrainResult

EvaluateText = Callable[[TextToText], Mapping[str, float]]
CountFlops = Callable[[SequenceToSequence, PairBatch], float]  # of a typical batch, for each predicted token

SETTINGS = TrainSettings(minutes=5, evaluate_every=200, save_every=200, keep=2, patience=10)
TOKENIZER: NewTokenizer | TextTokenizer = NewTokenizer("bpe", 8000)
FAMILY = "transformer-prenorm"
SIZES: Sizes = "desk"


def train_text_to_text(
    pairs: Sequence[Pair],
    folder: Path | str,
    *,
    valid: Sequence[Pair] | None = None,
    model: TextToText | None = None,
    tokenizer: NewTokenizer | TextTokenizer = TOKENIZER,
    target_tokenizer: NewTokenizer | TextTokenizer | None = None,
    family: str = FAMILY,
    sizes: Sizes = SIZES,
    attention: Attention = None,
    data: DataSettings = DataSettings(),  # noqa: B008 (frozen)
    settings: TrainSettings = SETTINGS,
    objective: Objective = SequenceToSequenceLoss(),  # noqa: B008 (frozen)
    optimizer: MakeOptimizer = partial(adamw, betas=(0.9, 0.98)),  # noqa: B008 (never changed)
    schedule: Schedule = Cosine(warmup=100, floor=0.02),  # noqa: B008 (frozen)
    initialise: Callable[[SequenceToSequence], None] | None = None,
    evaluate: EvaluateText | None = None,
    flops: CountFlops = flops_per_target_token,
    reporter: Reporter | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> TextToText:
    """Train a model that turns source texts into target texts; it is returned, and left in `folder` with its history.

    Without `valid` pairs a share of the sources is held out. One `tokenizer` serves both sides unless the target has
    its own. `sizes` is `desk`, a size published with the family, or changes to the desk size by name. `optimizer`
    makes one for the model; `initialise` replaces the family's own start. Every evaluation measures loss and perplexity
    on the validation pairs and adds what `evaluate` says of the model so far, for example `Scores`. `flops` counts a
    typical batch, for each predicted token.

    With `model` a loaded one, such as T5 or Marian, is trained further with its own tokenizers; what `freeze` and
    `add_lora` of `qkv.train.adapt` did to it stands, and low-rank updates are folded in at the end. With an `attention`
    that one stands in place of the model's own.

    With `resume` a run that was stopped goes on with the tokenizers it has; with `overwrite` it is begun anew. What
    came of a run stays in its folder: `read_result`.
    """
    say = (reporter or Reporter()).say
    folder, choice = Path(folder), AttentionChoice.of(attention)
    check_family(family)
    check_kept(
        model,
        tokenizer=tokenizer != TOKENIZER,
        target_tokenizer=target_tokenizer is not None,
        family=family != FAMILY,
        sizes=sizes != SIZES,
        initialise=initialise is not None,
    )
    check_folder(folder, resume, overwrite)
    pairs = list(pairs)
    if valid is None and data.hold_out:
        pairs, valid = hold_out(pairs, data.hold_out)
    if not pairs:
        raise QkvError("There are no pairs to train on: give at least one source with its target.")

    if model is not None:
        tokenizers = model.source_tokenizer, model.target_tokenizer
    else:
        tokenizers = load_tokenizers(folder) if resume else make_tokenizers(pairs, tokenizer, target_tokenizer)
    chosen_sizes = choose_sizes(family, sizes, *tokenizers) if model is None else model.model.sizes
    readers = readers_of(*tokenizers)
    train_pairs = Pairs.from_texts(*_sides(pairs), *readers, max_length=data.max_length)
    valid_pairs = Pairs.from_texts(*_sides(valid), *readers) if valid else None
    batches = Batches(
        _cut_anew(pairs, readers, data, settings) if data.subword_dropout else train_pairs,
        data.batching,
        seed=settings.seed,
    )
    typical = typical_batch(train_pairs, data.batching)

    torch.manual_seed(settings.seed)
    if model is None:
        model = _new(family, chosen_sizes, tokenizers, initialise, typical, choice)
    elif choice is not None:
        model = with_attention(model, choice, say)
    network = model.model
    flops_per_token = flops(network, typical)
    network.to(settings.torch_device())

    say(
        f"{len(train_pairs):,} pairs to train on"
        + (f" ({train_pairs.dropped:,} longer than {data.max_length} tokens left out)" if train_pairs.dropped else "")
        + f", {len(valid or []):,} to validate on; {network.family}, {parameters_of(network):,} parameters. "
        + f"Batches in an epoch: {len(batches):,}."
    )
    return run_training(
        model,
        objective,
        batches,
        settings,
        folder,
        about={
            "family": network.family,
            "sizes": asdict(chosen_sizes),
            **({} if (own := attention_of(network)) is None else {"attention": str(own)}),
            "tokenizers": [each.fingerprint() for each in tokenizers],
            "data": {**describe(data), "batching": repr(data.batching)},
        },
        fingerprint=fingerprint([*pairs, *(valid or [])]),
        optimizer=optimizer,
        schedule=schedule,
        evaluate=validation(model, SequenceToSequenceLoss(smoothing=0.0), valid_pairs, evaluate),
        flops_per_token=flops_per_token,
        leave=partial(leave_tokenizers, model),
        reporter=reporter,
        resume=resume,
        overwrite=overwrite,
    )


def read_result(folder: Path | str) -> TrainResult:
    """What came of a finished run, from its folder: steps, tokens, operations, seconds and validation figures."""
    run = RunFolder(folder, save_model=no_model, resume=True)
    final = [record for record in run.records() if record["kind"] == "final"]
    if not final:
        raise QkvError(f"The run in {folder} is not finished: resume it first.")
    names = ("step", "tokens", "flops", "seconds", "wall_seconds", "figures", "weights")
    return TrainResult(folder=Path(folder), **{name: final[-1][name] for name in names})


def check_family(family: str) -> None:
    if find_family(family).heads:
        raise QkvError(f"Family {family} does not turn one text into another: take one such as transformer or t5.")


def check_kept(model: TextToText | None, **chosen: bool) -> None:
    """A model that is trained further is what it is: what is chosen beside it would do nothing."""
    if model is None:
        return
    if not isinstance(model, TextToText):
        raise QkvError(f"A {type(model).__name__} does not turn one text into another: give a model such as T5.")
    if not any(parameter.requires_grad for parameter in model.model.parameters()):
        raise QkvError("All of the model is frozen, so nothing can be learned: freeze fewer layers.")
    for name, differs in chosen.items():
        if differs:
            raise QkvError(f"A model that is trained further keeps what it is: give a model or {name}, not both.")


def _new(
    family: str,
    sizes: Any,
    tokenizers: Sides,
    initialise: Callable[[SequenceToSequence], None] | None,
    typical: PairBatch,
    attention: AttentionChoice | None,
) -> TextToText:
    """A new model, as the family starts it or as `initialise` does."""
    network = build(family, sizes, attention=attention)
    if initialise is not None:
        initialise(network)
    profile_stacks(network, lambda: network(typical.source, typical.source_lengths, typical.target[:, :-1]))
    return TextToText(network, *tokenizers)


def leave_tokenizers(model: TextToText, folder: Path) -> None:
    """Write them before the first checkpoint, which is worth nothing without them, in the place of any from before."""
    for name in (SHARED_FILE, SOURCE_FILE, TARGET_FILE, *KEPT, *KEPT_OF_SIDES):
        (folder / name).unlink(missing_ok=True)
    model.save_tokenizers(folder)


def _sides(pairs: Sequence[Pair]) -> tuple[list[str], list[str]]:
    return [source for source, _ in pairs], [target for _, target in pairs]


def _cut_anew(
    pairs: Sequence[Pair], tokenizers: Sides, data: DataSettings, settings: TrainSettings
) -> Callable[[int], Pairs]:
    """A function from epoch to pairs; beside a GPU, which must not wait for it, it works in processes of its own."""
    for tokenizer in tokenizers:  # one that cannot drop anything says so here, not in the background
        tokenizer.encode(["a"], subword_dropout=data.subword_dropout)
    cut = partial(_cut, *_sides(pairs), tokenizers, data.subword_dropout, data.max_length)
    return InProcesses(cut, workers=3) if settings.torch_device().type == "cuda" else cut


def _cut(
    sources: list[str],
    targets: list[str],
    tokenizers: Sides,
    dropout: float,
    longest: int | None,
    epoch: int,
) -> Pairs:
    """The same texts in other pieces. [provilkov2020 §3.1]"""
    return Pairs.from_texts(sources, targets, *tokenizers, subword_dropout=dropout, max_length=longest)
