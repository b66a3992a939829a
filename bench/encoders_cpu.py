"""Encoders on two CPU cores: BERT-base on full rows and on texts of mixed lengths, ViT-B on pictures.

    python bench/encoders_cpu.py              # some ten minutes on two quiet cores
    python bench/encoders_cpu.py --small

All libraries have the same precision in a row: float32, bfloat16, or 8 bits, whose whole numbers each makes in its own
way of the weights and, as they come, of what they are multiplied with. In 8 bits the reference library is what torch
makes of it (`quantize_dynamic`).

Weights are random and the same for all; each answer is the states of all real tokens, or a picture's logits, and is
compared before anything is timed. Peers: the reference library; ONNX Runtime with what torch exports of that, fused by
its own optimizer; CTranslate2, which has no ViT. The limit is that of the matrix products which the answers need, of
real tokens, at the speed at which the cores multiply numbers of that precision that stay in registers, in turns.

Texts come in as token numbers, as long as the sentences of a book, in no order. Ours is the reader that `qkv.load`
gives. The reference library pads them in the order they come in, which is what its users write, and once more with the
texts put in order of length for it; ONNX Runtime and CTranslate2 get them in that order too.

What fewer bits cost is told by a published model on real texts (`make checkpoints corpora`): of how many reviews the
vectors of all-MiniLM-L6-v2 tell whether they praise a film, by the reviews whose vectors are nearest.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import THREADS
from encoding_gpu import SPECIAL, drawn_lengths, operations_of, sizes_of
from peers import Bench, Missing
from same_weights import operations, ours_of, reference_of
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from turns import Call, Work, main, near, need

import qkv
from qkv.data.tokenizer import TextTokenizer
from qkv.files import write_json
from qkv.generate.readers import StateReader
from qkv.generate.use import at_rest
from qkv.models.bert import SIZES
from qkv.models.head_choice import HeadChoice
from qkv.models.vit import SIZES as VIT_SIZES
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.precision import TYPES, in_precision
from qkv.weights.published import save_published

ROOT, NEIGHBOURS = Path(__file__).parents[1], 15
LENGTH, TEXTS, TOGETHER, PICTURES, CLASSES = 128, 32, 16, 8, 1000
TINY_VIT: dict[str, Any] = {"image": 32, "width": 48, "hidden": 96, "heads": 3, "layers": 2}
NEAR = {"float32": 1e-3, "bfloat16": 5e-2, "int8": 0.2}  # of the largest answer; in 8 bits each rounds in its own way
Ids = Sequence[list[int]]
Batch = Callable[[Ids], list[Tensor]]  # texts of any lengths → the states of each, [s d]


class Bert:
    """BERT-base, ours and the peers', with the same weights."""

    def __init__(self, bench: Bench, precision: str = "float32") -> None:
        self.bench, self.sizes, self.head = bench, sizes_of(bench, SIZES["base"]), HeadChoice("pooled")
        self.precision = precision
        self.model = ours_of("bert", self.sizes, self.head, bench)
        self.reference = reference_of(self.model, bench)

    def ours(self) -> Any:
        return in_precision(self.model, self.precision)

    def hf(self) -> Batch:
        model = reference_in(self.reference, self.precision)

        def answer(texts: Ids) -> list[Tensor]:
            ids, seen = padded(texts)
            with torch.inference_mode():
                return real(model(ids, attention_mask=seen).last_hidden_state, texts)

        return answer

    def onnx(self) -> Batch:
        need("onnx", "onnxruntime")
        file = self.bench.folder / "bert.onnx"
        ids, seen = padded([[1, 2, 3, 4], [1, 2]])  # some are hidden, so that hiding is exported
        of_states = States(self.reference)
        export(of_states, (ids, seen), file, ["ids", "seen"], {0: "rows", 1: "slots"}, "bert", self.sizes)
        session = session_of(file, self.precision)

        def answer(texts: Ids) -> list[Tensor]:
            ids, seen = padded(texts)
            (states,) = session.run(None, {"ids": ids.numpy(), "seen": seen.numpy()})
            return real(torch.from_numpy(states), texts)

        return answer

    def ctranslate2(self) -> Batch:
        need("ctranslate2")
        import ctranslate2

        kind = {"int8": "int8_float32"}.get(self.precision, self.precision)
        if kind not in ctranslate2.get_supported_compute_types("cpu"):
            raise Missing(f"it has no {self.precision} on this processor")
        folder = self.bench.folder / "published"
        save_published(self.model, folder, PUBLISHED, {"position_embedding_type": "absolute"})
        words = [f"w{number}" for number in range(self.sizes.vocabulary - len(SPECIAL))]
        (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *words]) + "\n", encoding="utf-8")
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
        converted = str(self.bench.folder / "ctranslate2")
        ctranslate2.converters.TransformersConverter(str(folder)).convert(converted)
        encoder = ctranslate2.Encoder(converted, compute_type=kind, intra_threads=THREADS)

        def answer(texts: Ids) -> list[Tensor]:
            states = encoder.forward_batch(list(texts)).last_hidden_state
            if self.precision == "bfloat16":  # which numpy does not know
                states = states.to(ctranslate2.DataType.float32)
            return real(torch.from_numpy(np.array(states)), texts)

        return answer


class States(nn.Module):
    """The reference library's model, whose answer is its states alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, seen: Tensor) -> Tensor:
        states: Tensor = self.model(ids, attention_mask=seen).last_hidden_state
        return states


class Logits(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self.model(pictures).logits
        return logits


def rows(bench: Bench, count: int, precision: str = "float32") -> Work:
    """Rows of one length: nothing is padding, so all do the same products."""
    bert = Bert(bench, precision)
    count, length = bench.pick((count, LENGTH), (2, 8))
    texts = torch.randint(len(SPECIAL), bert.sizes.vocabulary, (count, length)).tolist()
    ids, flops = torch.tensor(texts), operations("bert", bert.sizes, bert.head, torch.tensor(texts))

    def ours() -> Call:
        model = bert.ours()

        def call() -> list[Tensor]:
            with at_rest(model):
                return list(model(ids)[0])

        return call

    return Work(
        title=f"BERT-base, {count} rows of {length} tokens" + told(precision),
        unit="rows/s",
        amount=count,
        ways={
            "qkv": ours,
            "HF": lambda: partial(bert.hf(), texts),
            "ONNX Runtime": lambda: partial(bert.onnx(), texts),
            "CTranslate2": lambda: partial(bert.ctranslate2(), texts),
        },
        agree=partial(alike, precision=precision),
        least=lambda most: most.seconds(flops=flops, precision=precision),
        precision=precision,
    )


def sentences(bench: Bench, precision: str = "float32") -> Work:
    """Texts of a book's lengths, in no order."""
    bert = Bert(bench, precision)
    lengths = drawn_lengths(bench.pick(TEXTS, 6), bert.sizes.positions)
    draw = np.random.default_rng(3)
    texts = [draw.integers(len(SPECIAL), bert.sizes.vocabulary, size=each).tolist() for each in lengths]
    flops = operations_of(bert.sizes, bert.head, lengths)
    names = [*SPECIAL, *(f"w{number}" for number in range(bert.sizes.vocabulary - len(SPECIAL)))]
    given = [" ".join(names[token] for token in text) for text in texts]

    def ours() -> Call:
        reader = StateReader(bert.ours(), of_words(names))
        return lambda: reader.run(given)

    def in_order(answer: Batch) -> Call:
        """The longest first, so that texts of like length are padded together."""
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))

        def call() -> list[Tensor]:
            found = batches(answer, [texts[place] for place in order])
            return [found[order.index(place)] for place in range(len(texts))]

        return call

    return Work(
        title=f"BERT-base, {len(texts)} texts of mixed lengths, {np.mean(lengths):.0f} tokens each" + told(precision),
        unit="texts/s",
        amount=len(texts),
        ways={
            "qkv": ours,
            "HF": lambda: partial(batches, bert.hf(), texts),
            "HF, in order of length": lambda: in_order(bert.hf()),
            "ONNX Runtime": lambda: in_order(bert.onnx()),
            "CTranslate2": lambda: in_order(bert.ctranslate2()),
        },
        agree=partial(alike, precision=precision),
        least=lambda most: most.seconds(flops=flops, precision=precision),
        precision=precision,
    )


def pictures(bench: Bench, precision: str = "float32") -> Work:
    sizes = replace(VIT_SIZES["base-16"], **(TINY_VIT if bench.small else {}))
    head = HeadChoice("classification", labels=tuple(map(str, range(bench.pick(CLASSES, 10)))))
    model = ours_of("vit", sizes, head, bench)
    reference = reference_of(model, bench)
    given = torch.randn(bench.pick(PICTURES, 2), sizes.channels, sizes.image, sizes.image)
    flops = operations("vit", sizes, head, given, answers=True)
    narrow = given.bfloat16() if precision == "bfloat16" else given

    def ours() -> Call:
        ready = in_precision(model, precision)

        def call() -> list[Tensor]:
            with at_rest(ready):
                return list(ready(narrow).float())

        return call

    def theirs() -> Call:
        ready = Logits(reference_in(reference, precision))

        def call() -> list[Tensor]:
            with torch.inference_mode():
                return list(ready(narrow).float())

        return call

    def onnx() -> Call:
        need("onnx", "onnxruntime")
        file = bench.folder / "vit.onnx"
        export(Logits(reference), (given,), file, ["pictures"], {0: "rows"}, "vit", sizes)
        session = session_of(file, precision)
        return lambda: list(torch.from_numpy(session.run(None, {"pictures": given.numpy()})[0]))

    def no_such_model() -> Call:
        raise Missing("CTranslate2 has no ViT")

    return Work(
        title=f"ViT-B/16, {len(given)} pictures of {sizes.image}²" + told(precision),
        unit="pictures/s",
        amount=len(given),
        ways={
            "qkv": ours,
            "HF": theirs,
            "ONNX Runtime": onnx,
            "CTranslate2": no_such_model,
        },
        agree=partial(alike, precision=precision),
        least=lambda most: most.seconds(flops=flops, precision=precision),
        precision=precision,
    )


def export(
    model: Any, given: tuple[Tensor, ...], file: Path, names: list[str], free: dict[int, str], kind: str, sizes: Any
) -> None:
    """As ONNX Runtime's own optimizer likes it: whole attentions in one operator, which it knows of plain products."""
    from onnxruntime.transformers import optimizer

    inner = model.model
    before = inner.config._attn_implementation
    inner.set_attn_implementation("eager")
    try:
        torch.onnx.export(
            model, given, str(file), input_names=names, output_names=["answer"], opset_version=17, dynamo=False,
            dynamic_axes=dict.fromkeys((*names, "answer"), free),
        )  # fmt: skip
    finally:
        inner.set_attn_implementation(before)
    fused = optimizer.optimize_model(str(file), model_type=kind, num_heads=sizes.heads, hidden_size=sizes.width)
    fused.save_model_to_file(str(file))


def reference_in(model: Any, precision: str) -> Any:
    """The reference library's model, its weights in that precision."""
    if precision == "int8":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ways that are to come
            return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    return model.to(TYPES[precision])


def session_of(file: Path, precision: str) -> Any:
    import onnxruntime

    if precision == "bfloat16":
        raise Missing("it has no bfloat16 on a CPU")
    if precision == "int8":
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        whole = file.with_name("int8-" + file.name)
        kinds = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # of what is inside its own operators
        quantize_dynamic(str(file), str(whole), weight_type=QuantType.QInt8, extra_options=kinds)
        file = whole
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would take the cores from the others
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def of_words(names: list[str]) -> TextTokenizer:
    """Each word is a token, by its place in the list."""
    made = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TextTokenizer(made)


def padded(texts: Ids) -> tuple[Tensor, Tensor]:
    """Ids [b s] and which of them are real."""
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    return ids, (torch.arange(longest) < torch.tensor([len(text) for text in texts])[:, None]).long()


def real(states: Tensor, texts: Ids) -> list[Tensor]:
    return [row[: len(text)] for row, text in zip(states, texts, strict=True)]


def batches(answer: Batch, texts: Ids) -> list[Tensor]:
    return [each for first in range(0, len(texts), TOGETHER) for each in answer(texts[first : first + TOGETHER])]


def alike(ours: list[Tensor], theirs: list[Tensor], precision: str = "float32") -> str:
    first, second = (torch.cat([each.flatten().float() for each in some]) for some in (ours, theirs))
    return near(first, second, NEAR[precision])


def told(precision: str) -> str:
    return {"float32": "", "int8": ", 8 bits"}.get(precision, f", {precision}")


def told_right() -> dict[str, str]:
    """The share of reviews that a published model's vectors tell right, in each precision; none if it is not here."""
    model, reviews = ROOT / "checkpoints" / "all-minilm-l6-v2", ROOT / "corpora" / "rotten-tomatoes"
    if not (model.exists() and reviews.exists()):
        return {}
    known, asked = (read_reviews(reviews / f"{part}.jsonl") for part in ("train", "test"))
    labels = torch.tensor([praises for _, praises in known])
    wanted = torch.tensor([praises for _, praises in asked])
    found = []
    for precision in NEAR:
        reader: Any = qkv.load(model, device="cpu", precision=precision)
        first, second = (reader.run([text for text, _ in some]).float() for some in (known, asked))
        nearest = (second @ first.T).topk(NEIGHBOURS).indices  # vectors of length 1
        right = (labels[nearest].float().mean(1) > 0.5) == wanted
        found.append(f"{float(right.float().mean()):.1%} in {precision}")
    title = f"reviews told right by the {NEIGHBOURS} nearest of {len(known):,}, vectors of all-MiniLM-L6-v2 by qkv"
    return {title: f"{', '.join(found)}; {len(asked):,} reviews"}


def read_reviews(file: Path) -> list[tuple[str, bool]]:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
    return [(row["text"], row["label"] == "positive") for row in rows]


WORKS = {
    "rows": partial(rows, count=8),
    "more-rows": partial(rows, count=32),
    "sentences": sentences,
    "pictures": pictures,
    "sentences-bfloat16": partial(sentences, precision="bfloat16"),
    "rows-bfloat16": partial(rows, count=8, precision="bfloat16"),
    "pictures-bfloat16": partial(pictures, precision="bfloat16"),
    "rows-int8": partial(rows, count=8, precision="int8"),
    "pictures-int8": partial(pictures, precision="int8"),
}

if __name__ == "__main__":
    main("encoders_cpu", WORKS, {"weights": "random, the same for all"}, seconds=36.0, told=told_right)
