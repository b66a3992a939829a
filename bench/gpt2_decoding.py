"""Greedy decoding by GPT-2 124M on a CPU, one text at a time, beside whatever else is installed that can do it.

    python bench/gpt2_decoding.py             # some three minutes on two cores
    python bench/gpt2_decoding.py --small     # to see that it runs; writes nothing
    python bench/gpt2_decoding.py --only HF   # ours and those peers alone whose names begin so

Peers: the reference library; CTranslate2, in single precision and 8 bits; llama.cpp by its Python package. The last two
are not among our dependencies: `pip install ctranslate2`, `pip install llama-cpp-python gguf`. All have the same random
weights and write the same tokens before anything is timed (those of 8 bits need not). They take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some machines announce AMX and forbid it

import numpy as np
import torch
from common import THREADS, interleaved, read_bandwidth, report
from peers import Bench, Disagreement, Missing, absent
from same_weights import many_bytes, names_of_others, ours_of, parameters_of, reference_of

from qkv.files import write_json
from qkv.generate.language import Options, TextWriter
from qkv.models.gpt2 import SIZES, GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published

TINY = {"vocabulary": 300, "positions": 128, "width": 48, "hidden": 192, "heads": 3, "layers": 2}
END = "<|endoftext|>"
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
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
        self.prompt_length, self.new, self.seconds = (8, 12, 0.0) if small else (32, 64, 120.0)
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
        model = ours_of("gpt2", self.sizes, HeadChoice("language"), self.bench).to(getattr(torch, precision))
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
        write_gguf(file, self, precision)
        model = llama_cpp.Llama(str(file), n_ctx=self.prompt_length + self.new, n_threads=THREADS, verbose=False)

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
            "qkv": (self.ours, ["float32", "bfloat16"]),
            "HF": (self.reference, ["float32", "bfloat16"]),
            "CTranslate2": (self.ctranslate2, ["float32", "int8"]),
            "llama.cpp": (self.llama_cpp, ["float32", "int8"]),
        }
        return [
            Peer(f"{name}, {precision}", precision, lambda make=make, precision=precision: make(precision))
            for name, (make, precisions) in makers.items()
            for precision in precisions
        ]


def write_gguf(file: Path, settings: Settings, precision: str) -> None:
    """The model as llama.cpp reads it; in 8 bits the matrices are in blocks of 32 numbers with a scale each."""
    import gguf

    sizes, writer = settings.sizes, gguf.GGUFWriter(file, "gpt2")
    writer.add_context_length(sizes.positions)
    writer.add_embedding_length(sizes.width)
    writer.add_feed_forward_length(sizes.hidden)
    writer.add_block_count(sizes.layers)
    writer.add_head_count(sizes.heads)
    writer.add_layer_norm_eps(sizes.epsilon)
    names = settings.tokenizer.names()
    library = settings.tokenizer.library_state()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * (len(names) - 1) + [int(gguf.TokenType.CONTROL)])
    writer.add_token_merges(merges_of(library))
    writer.add_eos_token_id(settings.tokenizer.id_of(END))
    writer.add_bos_token_id(settings.tokenizer.id_of(END))
    words = {"ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
             "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}  # fmt: skip
    tables = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
    for name, tensor in names_of_others(settings.model).items():
        place, _, kind = name.removeprefix("transformer.").rpartition(".")
        values = tensor.detach().numpy()
        if place.startswith("h."):
            _, number, part = place.split(".", 2)
            named = f"blk.{number}.{words[part]}.{kind}"
            values = values.T if part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj") else values
        else:
            named = f"{tables[place]}.{kind}"
        values = np.ascontiguousarray(values, dtype=np.float32)
        if precision == "int8" and values.ndim == 2 and place != "wpe" and values.shape[-1] % 32 == 0:
            narrow = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(named, narrow, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(named, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def merges_of(library: str) -> list[str]:
    """The merges of a tokenizer of the tokenizers library, each as two tokens with a space between."""
    merges = json.loads(library)["model"]["merges"]
    return [each if isinstance(each, str) else " ".join(each) for each in merges]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs; nothing is written")
    parser.add_argument("--only", action="append", help="peers whose names begin so, beside ours; may be said again")
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(Settings(given.small, Path(folder)), tuple(given.only or [""]))
    remarks = {
        "precision": "as each row says",
        "model": "GPT-2 124M, random weights",
        "written": "64 tokens after 32, greedily",
    }
    if given.small:
        print(*rows, sep="\n")
    else:
        report("gpt2_decoding", rows, remarks)


def check_tokens(written: dict[str, list[int]], peer: Peer, new: int) -> None:
    """In single precision everybody writes what we write; otherwise as much."""
    found = written[peer.name]
    if len(found) != new or (peer.precision == "float32" and found != written["qkv, float32"]):
        raise Disagreement(f"{peer.name} writes other tokens")


def measured(settings: Settings, only: tuple[str, ...]) -> list[dict[str, Any]]:
    writers: dict[str, Write] = {}
    missing: dict[str, str] = {}
    chosen = [peer for peer in settings.peers() if peer.name.startswith(("qkv", *only))]
    written: dict[str, list[int]] = {}
    for peer in chosen:
        try:
            writers[peer.name] = peer.make()
            written[peer.name] = writers[peer.name]()
            check_tokens(written, peer, settings.new)
        except Exception as error:
            if peer.name.startswith("qkv"):
                raise
            missing[peer.name] = f"{'not here' if isinstance(error, Missing) else 'failed'}: {error}"
            writers.pop(peer.name, None)
    times = interleaved(writers, seconds=settings.seconds, at_least=1 if settings.bench.small else 3)
    middle = {name: settings.new / statistics.median(some) for name, some in times.items()}
    bandwidth = read_bandwidth()
    rows = []
    for peer in chosen:
        row: dict[str, Any] = {"by": peer.name}
        if peer.name in missing:
            rows.append(row | {"tokens/s": missing[peer.name]})
            continue
        limit = bandwidth / (BYTES[peer.precision] * parameters_of(settings.model))
        same = middle.get(f"HF, {peer.precision}")
        row["tokens/s"] = round(middle[peer.name], 1)
        row["times HF at this precision"] = "" if same is None else round(middle[peer.name] / same, 2)
        row["of what memory allows"] = f"{middle[peer.name] / limit:.0%}"
        rows.append(row | {"tokens written": "equal" if peer.precision == "float32" else "not compared"})
    return rows


if __name__ == "__main__":
    main()
