"""Encoders on a GPU: BERT-base on rows of 128 tokens, and sentences of mixed lengths as vectors.

    python bench/encoding_gpu.py              # about 60 s
    python bench/encoding_gpu.py --small

Rows: 256 of 128 ids that are on the GPU; the peer is the reference library's model, as it is and compiled.

Sentences: 4,096 texts in, one vector each out, so cutting texts into tokens counts. Their lengths are those of the
sentences of Moby-Dick, by BERT's vocabulary; their words are made up, as the weights are. Each call has texts of its
own, and of their words one in 30 has not been met before, as in running text: ours keeps words (`data/word_table.py`).
Ours is `qkv.load(…, precision="bfloat16").run`, which reads them without padding.
The peer is sentence-transformers with the batches it makes itself and with larger ones; where it is not installed, the
reference library's model over texts sorted by length, in batches of 128, which is what that one does inside.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from peers import Bench, Call, Make, Work, absent, agree, main, without
from same_weights import NARROW, operations, ours_of, reference_of
from torch import Tensor

import qkv
from qkv.files import write_json
from qkv.models.bert import SIZES, BertSizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.precision import in_precision
from qkv.weights.published import save_published

TINY = {"vocabulary": 200, "positions": 64, "width": 48, "hidden": 96, "heads": 3, "layers": 2}
MINILM = replace(SIZES["base"], width=384, hidden=1536, layers=6)
ROWS, LENGTH, TEXTS, TOGETHER = 256, 128, 4096, 128
CALLS, NEW = 22, 30  # lists of texts, more than are timed; one word in so many is new
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Tokens of the 8,891 sentences of Moby-Dick, [CLS] and [SEP] among them: the bounds of 32 parts of as many sentences.
# The longest has 529; the last bound is such that the mean is the book's, 35.
LENGTHS = (
    4, 5, 5, 7, 8, 10, 11, 12, 14, 15, 17, 19, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 41, 44, 47, 50, 54, 59, 65, 73,
    83, 101, 167,
)  # fmt: skip


def rows(bench: Bench) -> Work:
    count, length = bench.pick((ROWS, LENGTH), (2, 8))
    sizes, head = sizes_of(bench, SIZES["base"]), HeadChoice("pooled")
    model = ours_of("bert", sizes, head, bench)
    reference = reference_of(model, bench)
    ids = torch.randint(0, sizes.vocabulary, (count, length), device=bench.device)
    seen, flops = torch.ones_like(ids), operations("bert", sizes, head, ids)

    @torch.inference_mode()
    def agreement() -> str:
        return agree({"qkv": model(ids[:8])[0], "HF": reference(ids[:8], attention_mask=seen[:8]).last_hidden_state})

    def ours(stack: ExitStack) -> Call:
        stack.enter_context(torch.inference_mode())
        chosen = in_precision(model, "bfloat16")
        return lambda: chosen(ids)

    def theirs(stack: ExitStack, compiled: bool) -> Call:
        stack.enter_context(torch.no_grad())
        call = bench.compiled(reference.to(NARROW)) if compiled else reference.to(NARROW)
        return lambda: call(ids, attention_mask=seen)

    return Work(
        title=f"BERT-base, {count} rows of {length} tokens",
        unit="rows/s",
        amount=count,
        ours={"qkv": ours},
        peers={"HF": partial(theirs, compiled=False), "HF, compiled": partial(theirs, compiled=True)},
        agreement=agreement,
        least=lambda most: most.seconds(flops=flops),
        given={"HF": 18_985},
    )


def sentences(bench: Bench, named: str, published: BertSizes) -> Work:
    sizes = sizes_of(bench, published)
    head = HeadChoice("embedding", pooling="mean", unit_length=True)
    folder = bench.folder / "sentences"
    save_published(ours_of("bert", sizes, head, bench), folder, PUBLISHED)
    words = [f"w{number}" for number in range(sizes.vocabulary - len(SPECIAL))]
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *words]) + "\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    lengths = drawn_lengths(bench.pick(TEXTS, 12), sizes.positions)
    every = [drawn_texts(words, lengths, call) for call in range(bench.pick(CALLS, 2))]
    exact = qkv.load(folder, device=bench.device.type)
    fallback = SortedBatches(folder, bench)
    missing = absent("sentence_transformers")
    library = None if missing else _sentence_transformer(folder, bench)

    def encode(some: list[str], **together: int) -> Tensor:
        assert library is not None
        vectors: Tensor = library.encode(some, convert_to_tensor=True, show_progress_bar=False, **together)
        return vectors

    def agreement() -> str:
        few = every[0][:64]
        others = {"HF": fallback.run(few)} if library is None else {"sentence-transformers": encode(few).cpu()}
        return agree({"qkv": exact.run(few), **others})

    def ours(stack: ExitStack) -> Call:
        encoder = qkv.load(folder, device=bench.device.type, precision="bfloat16")
        return one_by_one(encoder.run)

    def one_by_one(run: Callable[[list[str]], object]) -> Call:
        """At each call the next texts."""
        coming = cycle(every)
        return lambda: run(next(coming))

    def narrow(model: Any, run: Callable[[list[str]], object]) -> Make:
        def make(stack: ExitStack) -> Call:
            model.to(NARROW)
            return one_by_one(run)

        return make

    peers = {"HF, sorted batches": narrow(fallback.model, fallback.run)}
    if missing is not None:
        peers["sentence-transformers"] = without(missing)
    else:
        peers = {
            "sentence-transformers": narrow(library, encode),
            f"sentence-transformers, {TOGETHER} together": narrow(library, partial(encode, batch_size=TOGETHER)),
        }
    return Work(
        title=f"{named}, {len(lengths):,} sentences of mixed lengths, {np.mean(lengths):.0f} tokens each",
        unit="sentences/s",
        amount=len(lengths),
        ours={"qkv": ours},
        peers=peers,
        agreement=agreement,
        least=lambda most: most.seconds(flops=operations_of(sizes, head, lengths)),
        calls=3,
        warm=1,
    )


class SortedBatches:
    """One vector a text by the reference library: the longest texts first, padded to the longest of their batch."""

    def __init__(self, folder: Any, bench: Bench) -> None:
        self.device = bench.device
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).to(bench.device).eval()

    @torch.no_grad()
    def run(self, texts: list[str]) -> Tensor:
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        found = []
        for first in range(0, len(order), TOGETHER):
            some = [texts[place] for place in order[first : first + TOGETHER]]
            given = self.tokenizer(some, padding=True, truncation=True, max_length=512, return_tensors="pt")
            given = given.to(self.device)
            states = self.model(**given).last_hidden_state  # [b s d]
            real = given["attention_mask"][..., None].to(states.dtype)
            found.append(F.normalize((states * real).sum(1) / real.sum(1), dim=-1).float().cpu())
        vectors = torch.cat(found)
        return vectors[torch.tensor(order).argsort()]


def _sentence_transformer(folder: Any, bench: Bench) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device=bench.device.type)


def sizes_of(bench: Bench, published: BertSizes) -> BertSizes:
    return replace(published, **(TINY if bench.small else {}))


def drawn_texts(words: list[str], lengths: list[int], call: int) -> list[str]:
    """Texts of so many tokens, two of which are put around them. A word in NEW is none that another call has."""
    draw, drawn = np.random.default_rng((3, call)), np.array(words, dtype=object)
    texts = []
    for length in lengths:
        of_text = drawn[draw.integers(len(words), size=length - 2)]
        new = draw.random(len(of_text)) < 1 / NEW
        of_text[new] += f"x{call}"  # unknown, so that it is one token too
        texts.append(" ".join(of_text))
    return texts


def drawn_lengths(count: int, longest: int) -> list[int]:
    """As the sentences of a book have them, in no order."""
    drawn = np.random.default_rng(2).random(count)
    steps = np.linspace(0, 1, len(LENGTHS))
    return [int(min(each, longest)) for each in np.interp(drawn, steps, LENGTHS).round()]


def operations_of(sizes: BertSizes, head: HeadChoice, lengths: list[int]) -> float:
    """Of rows without padding: a part that grows with their length, and the attentions' with its square."""
    short, long = (operations("bert", sizes, head, torch.zeros(1, n, dtype=torch.long)) for n in (16, 32))
    square = (long - 2 * short) / (32**2 - 2 * 16**2)
    each = (short - square * 16**2) / 16
    return sum(each * length + square * length**2 for length in lengths)


WORKS = {
    "rows": rows,
    "minilm": partial(sentences, named="MiniLM", published=MINILM),
    "bert": partial(sentences, named="BERT-base", published=SIZES["base"]),
}

if __name__ == "__main__":
    main("encoding_gpu", WORKS, {"precision": "bfloat16"})
