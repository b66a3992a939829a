"""English to German: the 2017 Transformer against its recurrent predecessor, on the same data for the same minutes.

    python recipes/translate.py transformer --data DATA --minutes 7 --out runs/transformer
    python recipes/translate.py rnn --data DATA --minutes 7 --out runs/rnn

DATA is a folder with train, valid and test as `.tsv` or `.tsv.xz` without a header, English and German first. A run
ends with BLEU and chrF on the test split in `result.json`. A run that was stopped goes on with --resume, and one that
is done goes on with --resume and more minutes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from qkv.data.fresh import FreshPairs
from qkv.data.pairs import PairBatches, Pairs, ordered_batches
from qkv.data.plan import TokenBudget
from qkv.data.table import read_table
from qkv.data.tokenizer import TextTokenizer
from qkv.generate.text import TextToText
from qkv.models import rnn, transformer
from qkv.models.catalogue import build
from qkv.train import Linear, RunFolder, TrainSettings, ValidationLoss, adamw, train
from qkv.train.flops import flops_per_target_token
from qkv.train.metrics import bleu, chrf
from qkv.train.objectives.consistency import ConsistentLoss
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss

VOCABULARY = 12000
WATCHED = 500  # validation sentences translated while training, for the curve
DECODED = 20_000  # source tokens translated at a time
LONGEST = 120  # tokens a side; longer pairs (1 in 800) are left out of training, never of the test

# Both as published, but for the vocabulary and for the dropout that so little data asks for.
MODELS = {
    "transformer": (
        "transformer-prenorm",
        replace(
            transformer.SIZES["base"], vocabulary=VOCABULARY, dropout=0.3, attention_dropout=0.1, hidden_dropout=0.1
        ),
    ),
    "rnn": ("rnn", replace(rnn.SIZES["search"], vocabulary=VOCABULARY, source_vocabulary=None, dropout=0.3)),
}


def read_split(data: Path, split: str) -> tuple[list[str], list[str]]:
    file = next(file for file in (data / f"{split}.tsv", data / f"{split}.tsv.xz") if file.exists())
    table = read_table(str(file), columns=["en", "de"], names=["en", "de", "source"])
    return table.column("en"), table.column("de")


def main(
    model: Annotated[str, typer.Argument(help="transformer or rnn")],
    data: Annotated[Path, typer.Option(help="folder with train, valid and test")],
    out: Annotated[Path, typer.Option(help="run folder")],
    minutes: float = 7.0,
    learning_rate: float = 1.5e-3,
    batch_tokens: int = 25_000,
    consistency: float = 0.0,
    subword_dropout: float = 0.1,
    warmup: int = 1000,
    compile: bool = False,
    evaluate_every: int = 1000,
    save_every: int | None = None,
    keep: int = 3,
    resume: bool = False,
    precision: str = "bfloat16",
    device: str = "auto",
) -> None:
    family, sizes = MODELS[model]
    train_texts, valid_texts, test_texts = (read_split(data, split) for split in ("train", "valid", "test"))
    shared = out.parent / "tokenizer.json"  # both models read the same pieces
    if not shared.exists():
        shared.parent.mkdir(parents=True, exist_ok=True)
        TextTokenizer.train("bpe", train_texts[0] + train_texts[1], vocabulary=VOCABULARY).save(shared)
    tokenizer = TextTokenizer.load(shared)

    fresh = FreshPairs(
        *train_texts, tokenizer, tokenizer, subword_dropout=subword_dropout, max_length=LONGEST, workers=3
    )
    batches = PairBatches(fresh, TokenBudget(batch_tokens, multiple_of=4))
    print(f"{len(batches)} batches an epoch", flush=True)  # the first epoch is cut before the clock starts
    valid_pairs = Pairs.from_texts(*valid_texts, tokenizer, tokenizer, max_length=LONGEST)
    valid_batches = [batch for _, batch in ordered_batches(valid_pairs, batch_tokens)]

    torch.manual_seed(1)
    network = build(family, sizes)
    if isinstance(network, rnn.RNNSearch):
        rnn.initialise_wide(network)  # the paper's start begins on a plateau that a few minutes cannot leave
    translator = TextToText(network, tokenizer, tokenizer)
    objective = ConsistentLoss(weight=consistency) if consistency else SequenceToSequenceLoss()
    passes = 2 if consistency else 1
    validation = ValidationLoss(SequenceToSequenceLoss(), valid_batches)

    def evaluate(network: torch.nn.Module) -> dict[str, float]:
        figures = validation(network)
        output = [result.text for result in translator.run(valid_texts[0][:WATCHED], beams=1, batch_tokens=DECODED)]
        return {**figures, "bleu": bleu(output, valid_texts[1][:WATCHED]).value}

    settings = TrainSettings(
        minutes=minutes,
        precision=precision,
        compile=compile,
        device=device,
        evaluate_every=evaluate_every,
        save_every=save_every,
        keep=keep,
        ema=0.999,
    )
    network.to(settings.torch_device())
    result = train(
        network,
        objective,
        batches,
        settings,
        RunFolder(out, save_model=lambda _, folder: translator.save(folder), resume=resume),
        optimizer=adamw(network, learning_rate=learning_rate, betas=(0.9, 0.98), weight_decay=0.01),
        schedule=Linear(warmup=warmup),
        evaluate=evaluate,
        flops_per_token=passes * flops_per_target_token(network, valid_batches[len(valid_batches) // 2]),
    )
    scores = {}
    for name, (english, german) in {"valid": valid_texts, "test": test_texts}.items():
        for beams in (1, 5):
            output = [result.text for result in translator.run(english, beams=beams, batch_tokens=DECODED * beams)]
            (out / f"{name}.beam{beams}.txt").write_text("\n".join(output) + "\n", encoding="utf-8")
            scores[f"{name} beam {beams}"] = {
                "BLEU": bleu(output, german).value,
                "chrF": chrf(output, german).value,
                "signature": bleu(output, german).signature,
            }
    summary = {
        "model": model,
        "sizes": asdict(sizes),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "minutes": result.seconds / 60,
        "wall_minutes": result.wall_seconds / 60,
        "steps": result.step,
        "target_tokens": result.tokens,
        "flops": result.flops,
        "weights": result.weights,
        "scores": scores,
    }
    (out / "result.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    typer.run(main)
