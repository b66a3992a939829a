"""Greedy decoding by GPT-2 124M on a CPU, one text at a time, beside whatever else is installed that can do it.

    python bench/gpt2_decoding.py             # some five minutes on two cores
    python bench/gpt2_decoding.py --small     # to see that it runs; writes nothing
    python bench/gpt2_decoding.py --only HF   # ours and those peers alone whose names begin so

Peers: the reference library; CTranslate2, in single precision and 8 bits; llama.cpp by its Python package. The last two
are not among our dependencies: `pip install ctranslate2`, `pip install llama-cpp-python gguf`. All have the same random
weights and write the same tokens before anything is timed (those of fewer bits need not). They take turns, and a call
reads the prompt as well. What fewer bits cost is told by a published model on real texts, `make checkpoints corpora`:
its perplexity as ours computes it in each precision.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some machines announce AMX and forbid it

import torch
from apart import Apart, stay_single
from common import THREADS, interleaved, read_bandwidth, report, share_of_products
from gguf_file import without_amx, write_gguf
from peers import Bench, Disagreement, Missing, absent
from same_weights import many_bytes, ours_of, parameters_of, reference_of

import qkv
from qkv.files import write_json
from qkv.generate.language import Options, TextWriter
from qkv.models.gpt2 import SIZES, GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.parts.eight_bits import quantised
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published

TINY = {"vocabulary": 300, "positions": 128, "width": 48, "hidden": 192, "heads": 3, "layers": 2}
END = "<|endoftext|>"
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
COLUMNS = (
    "by",
    "tokens/s",
    "times HF",
    "times CTranslate2",
    "times llama.cpp",
    "of what memory allows",
    "time in products and steps",
    "perplexity",
    "tokens written",
)
ROOT = Path(__file__).parents[1]
PUBLISHED_MODEL = "smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"
TEXTS = ("austen/persuasion.txt", "moby-dick/moby-dick.txt")
CHARACTERS = 4000  # of each
Write = Callable[[], list[int]]


@dataclass(frozen=True)
class Peer:
    name: str
    precision: str
    make: Callable[[], Write]


class Settings:
    """The model, its folder as others read it, and what is to be written."""

    def __init__(self, small: bool, folder: Path) -> None:
        self.folder = folder
        self.sizes: GPT2Sizes = replace(SIZES["base"], **(TINY if small else {}))
        self.prompt_length, self.new, self.seconds = (8, 12, 0.0) if small else (128, 64, 60.0)
        self.bench = Bench(small, torch.device("cpu"), folder)
        self.model = ours_of("gpt2", self.sizes, HeadChoice("language"), self.bench)
        self.tokenizer = many_bytes(self.sizes.vocabulary, END)
        generator = torch.Generator().manual_seed(1)
        self.prompt = torch.randint(0, 256, (self.prompt_length,), generator=generator).tolist()

    def published(self) -> Path:
        """A folder that other libraries open."""
        folder = self.folder / "gpt2"
        if not folder.exists():
            end = self.tokenizer.id_of(END)
            save_published(self.model, folder, PUBLISHED, {"bos_token_id": end, "eos_token_id": end})
            self.tokenizer.save(folder / "tokenizer.json")
            write_json(
                folder / "tokenizer_config.json",
                {"tokenizer_class": "GPT2TokenizerFast", "bos_token": END, "eos_token": END, "unk_token": END},
            )
        return folder

    def ours(self, precision: str) -> Write:
        model = ours_of("gpt2", self.sizes, HeadChoice("language"), self.bench)
        model = quantised(model) if precision == "int8" else model.to(getattr(torch, precision))
        writer = TextWriter(model, many_bytes(self.sizes.vocabulary))
        return lambda: writer.run([self.prompt], Options(most=self.new))[0].ids

    def reference(self, precision: str) -> Write:
        model = reference_of(self.model, self.bench, {"eos_token_id": None, "bos_token_id": None}).to(
            getattr(torch, precision)
        )
        ids = torch.tensor([self.prompt])
        options = {"max_new_tokens": self.new, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

        def write() -> list[int]:
            with torch.inference_mode():
                found = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
            return found[0, self.prompt_length :].tolist()

        return write

    def ctranslate2(self, precision: str) -> Write:
        if reason := absent("ctranslate2"):
            raise Missing(reason)
        import ctranslate2

        folder = self.folder / "ctranslate2"
        if not folder.exists():
            ctranslate2.converters.TransformersConverter(str(self.published())).convert(str(folder))
        generator = ctranslate2.Generator(str(folder), compute_type=precision, intra_threads=THREADS)
        names = self.tokenizer.names()
        tokens = [names[token] for token in self.prompt]

        def write() -> list[int]:
            (found,) = generator.generate_batch(
                [tokens], min_length=self.new, max_length=self.new, include_prompt_in_result=False
            )
            return list(found.sequences_ids[0])

        return write

    def llama_cpp(self, precision: str) -> Write:
        for package in ("llama_cpp", "gguf"):
            if reason := absent(package):
                raise Missing(reason)
        import llama_cpp

        file = self.folder / f"gpt2-{precision}.gguf"
        write_gguf(file, self.model, self.tokenizer, END, precision)
        options = {"n_ctx": self.prompt_length + self.new, "n_threads": THREADS, "n_threads_batch": THREADS}
        with without_amx(llama_cpp.llama):
            model = llama_cpp.Llama(str(file), verbose=False, **options)

        def write() -> list[int]:
            model.reset()
            tokens: list[int] = []
            for token in model.generate(self.prompt, temp=0.0, reset=True):
                tokens.append(int(token))
                if len(tokens) == self.new:
                    break
            return tokens

        return write

    def peers(self) -> list[Peer]:
        makers = {
            "qkv": (self.ours, ["float32", "bfloat16", "int8"]),
            "HF": (self.reference, ["float32", "bfloat16"]),
            "CTranslate2": (self.ctranslate2, ["float32", "int8"]),
            "llama.cpp": (self.llama_cpp, ["float32", "int8"]),
        }
        return [
            Peer(f"{name}, {precision}", precision, lambda make=make, precision=precision: make(precision))
            for name, (make, precisions) in makers.items()
            for precision in precisions
        ]


def perplexities(precisions: tuple[str, ...]) -> dict[str, float]:
    """Of real text by a published model, in each precision; none where they were not fetched."""
    files = [ROOT / "corpora" / name for name in TEXTS]
    model = ROOT / "checkpoints" / PUBLISHED_MODEL
    if not all(file.exists() for file in (model, *files)):
        return {}
    pieces = [middle_of(file.read_text(encoding="utf-8", errors="replace")) for file in files]
    found = {}
    for precision in precisions:
        scores = qkv.load(model, device="cpu", precision=precision).score(pieces)
        surprise = -sum(score.log_probability for score in scores) / sum(len(score.ids) for score in scores)
        found[precision] = math.exp(surprise)
    return found


def middle_of(text: str) -> str:
    first = len(text) // 2
    return text[first : first + CHARACTERS]


def versions() -> dict[str, str]:
    found = {}
    for package in ("ctranslate2", "llama-cpp-python"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not here"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs; nothing is written")
    parser.add_argument("--only", action="append", help="peers whose names begin so, beside ours; may be said again")
    given = parser.parse_args()
    stay_single()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(given.small, Path(folder))
        rows, bandwidth = measured(settings, tuple(given.only or [""]))
    if given.small:
        print(*rows, sep="\n")
        return
    remarks = {
        "precision": "as each row says",
        "model": "GPT-2 124M, random weights",
        "written": f"{settings.new} tokens after {settings.prompt_length}, greedily; the time to read these is within",
        "memory is read at": f"{bandwidth / 1e9:.1f} GB/s",
        "perplexity": f"of SmolLM2-135M-Instruct on {len(TEXTS)} stretches of novels, by qkv",
        **versions(),
    }
    report("gpt2_decoding", rows, remarks)


def check_tokens(written: dict[str, list[int]], peer: Peer, new: int) -> None:
    """In single precision everybody writes what we write; otherwise as much."""
    found = written[peer.name]
    if len(found) != new or (peer.precision == "float32" and found != written["qkv, float32"]):
        raise Disagreement(f"{peer.name} writes other tokens")


def measured(settings: Settings, only: tuple[str, ...]) -> tuple[list[dict[str, Any]], float]:
    """The rows, and how fast memory was read between them, the median: machines have good and bad times."""
    writers: dict[str, Apart] = {}
    missing: dict[str, str] = {}
    chosen = [peer for peer in settings.peers() if peer.name.startswith(("qkv", *only))]
    written: dict[str, list[int]] = {}
    for peer in chosen:
        try:
            writers[peer.name] = Apart(peer.make, THREADS)
            written[peer.name] = writers[peer.name]()
            check_tokens(written, peer, settings.new)
        except Exception as error:
            if peer.name.startswith("qkv"):
                raise
            missing[peer.name] = f"{'not here' if isinstance(error, Missing) else 'failed'}: {error}"
            if (failed := writers.pop(peer.name, None)) is not None:
                failed.end()
    memory = Apart(lambda: read_bandwidth, THREADS)
    found: list[float] = []
    turns = {**writers, "memory": lambda: found.append(memory())}
    times = interleaved(turns, seconds=settings.seconds, at_least=1 if settings.bench.small else 3)
    memory.end()
    bandwidth = statistics.median(found)
    middle = {name: settings.new / statistics.median(times[name]) for name in writers}
    shares = {
        name: writer.watched(share_of_products) for name, writer in writers.items() if name.startswith(("qkv", "HF"))
    }
    for writer in writers.values():
        writer.end()
    surprise = {} if settings.bench.small else perplexities(tuple(BYTES))
    rows = []
    for peer in chosen:
        row: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {"by": peer.name}
        rows.append(row)
        if peer.name in missing:
            row["tokens/s"] = missing[peer.name]
            continue
        figure = middle[peer.name]
        row["tokens/s"] = round(figure, 1)
        for library in ("HF", "CTranslate2", "llama.cpp"):
            if (beside := middle.get(f"{library}, {peer.precision}")) is not None:
                row[f"times {library}"] = round(figure / beside, 2)
        row["of what memory allows"] = (
            f"{figure * BYTES[peer.precision] * parameters_of(settings.model) / bandwidth:.0%}"
        )
        row["tokens written"] = "equal" if peer.precision == "float32" else "not compared"
        if peer.name in shares:
            row["time in products and steps"] = f"{shares[peer.name]:.0%}"
        if peer.name.startswith("qkv") and peer.precision in surprise:
            row["perplexity"] = round(surprise[peer.precision], 2)
    return rows, bandwidth


if __name__ == "__main__":
    main()
