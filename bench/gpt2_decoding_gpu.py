"""Greedy decoding by GPT-2 on a GPU: 124M and XL one text at a time, XL 64 prompts of mixed lengths.

    python bench/gpt2_decoding_gpu.py         # about four minutes: nearly all of it is compiling
    python bench/gpt2_decoding_gpu.py --small

One text: 32 tokens of a prompt, then 256 more. Peers: the reference library's `generate` with its static cache, for
which it compiles itself, and a step as one writes it by hand (`plain_gpt2.py`): blocks compiled, all of it recorded as
a CUDA graph. 64 texts: prompts of 16 to 512 tokens, then 128 more; the reference pads them on the left, with its
dynamic cache. Ours is `TextWriter.run` with the options that nobody asked for, on a model in bfloat16.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from peers import Bench, Call, Work, main, same_tokens
from plain_gpt2 import PlainDecoder, PlainGPT2
from same_weights import NARROW, many_bytes, names_of_others, ours_of, parameters_of, reference_of
from torch import Tensor

from qkv.generate.language import Options, TextWriter
from qkv.models.gpt2 import SIZES
from qkv.models.head_choice import HeadChoice

TINY = {"vocabulary": 300, "positions": 128, "width": 48, "hidden": 192, "heads": 3, "layers": 2}
PROMPT, NEW = 32, 256
ROWS, SHORTEST, LONGEST, NEW_OF_MANY = 64, 16, 512, 128
COMPARED = 16  # tokens that are compared, of which single precision hardly ever turns one


class Writers:
    """Our model and the reference library's, with the same weights."""

    def __init__(self, bench: Bench, size: str) -> None:
        self.bench = bench
        sizes = replace(SIZES[size], **(TINY if bench.small else {}))
        self.ours = ours_of("gpt2", sizes, HeadChoice("language"), bench)
        self.reference = reference_of(self.ours, bench, {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0})
        self.writer = TextWriter(self.ours, many_bytes(sizes.vocabulary))  # as `qkv.load` gives it

    def write(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        return [found[0].ids for found in self.writer.run_all(prompts, Options(most=new))]

    def generate(self, prompts: list[list[int]], new: int, **options: Any) -> list[list[int]]:
        """By the reference library, padded on the left."""
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(each)) + each for each in prompts], device=self.bench.device)
        seen = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts], device=ids.device)
        found: Tensor = self.reference.generate(
            ids, attention_mask=seen, max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0, **options
        )
        return found[:, longest:].tolist()

    def narrow(self) -> None:
        self.ours.to(NARROW)
        self.reference.to(NARROW)

    def some_prompts(self, lengths: list[int]) -> list[list[int]]:
        generator = torch.Generator().manual_seed(1)
        return [torch.randint(1, self.ours.vocabulary, (each,), generator=generator).tolist() for each in lengths]


def one_text(bench: Bench, size: str, named: str, given: dict[str, float]) -> Work:
    prompt, new = bench.pick((PROMPT, NEW), (8, 12))
    writers = Writers(bench, size)
    (ids,) = prompts = writers.some_prompts([prompt])

    def plain(new: int, compiled: bool) -> PlainDecoder:
        with bench.device:
            model = PlainGPT2(writers.ours.sizes).filled(names_of_others(writers.ours))
        model = model.to(writers.ours.embed.tokens.weight.dtype)
        return PlainDecoder(model, prompt, new, compiled=compiled)

    @torch.inference_mode()
    def agreement() -> str:
        few = min(new, COMPARED)
        by_hand = plain(few, False).run(torch.tensor([ids]))
        found = {"qkv": writers.write(prompts, few), "HF": writers.generate(prompts, few), "plain torch": [by_hand]}
        return same_tokens(found)

    def ours(stack: ExitStack) -> Call:
        writers.narrow()
        return lambda: writers.write(prompts, new)

    def static(stack: ExitStack) -> Call:
        writers.narrow()
        return lambda: writers.generate(prompts, new, cache_implementation="static")

    def by_hand(stack: ExitStack) -> Call:
        writers.narrow()
        stack.enter_context(torch.inference_mode())
        decoder, given_ids = plain(new, bench.compiles), torch.tensor([ids], device=bench.device)
        return lambda: decoder.run(given_ids)

    return Work(
        title=f"{named}, one text, {prompt} tokens and {new} more",
        unit="tokens/s",
        amount=new,
        ours={"qkv": ours},
        peers={"plain torch, CUDA graph": by_hand, "HF, static cache": static},
        agreement=agreement,
        least=lambda most: most.seconds(bytes=2 * parameters_of(writers.ours) * new),
        given=given,
        calls=3,
        warm=2,
    )


def many_texts(bench: Bench) -> Work:
    rows, shortest, longest, new = bench.pick((ROWS, SHORTEST, LONGEST, NEW_OF_MANY), (4, 2, 12, 6))
    writers = Writers(bench, "xl")
    lengths = torch.randint(shortest, longest + 1, (rows,), generator=torch.Generator().manual_seed(2)).tolist()
    prompts = writers.some_prompts(lengths)

    def agreement() -> str:
        few = min(new, COMPARED)
        return same_tokens({"qkv": writers.write(prompts[:8], few), "HF": writers.generate(prompts[:8], few)})

    def ours(stack: ExitStack) -> Call:
        writers.narrow()
        return lambda: writers.write(prompts, new)

    def theirs(stack: ExitStack) -> Call:
        writers.narrow()
        return lambda: writers.generate(prompts, new)

    return Work(
        title=f"GPT-2 XL, {rows} texts of {shortest} to {longest} tokens and {new} more",
        unit="tokens/s",
        amount=rows * new,
        ours={"qkv": ours},
        peers={"HF, padded": theirs},
        agreement=agreement,
        calls=3,
        warm=2,
    )


def _one(size: str, named: str, graph: float, static: float) -> Any:
    given = {"plain torch, CUDA graph": graph, "HF, static cache": static}
    return partial(one_text, size=size, named=named, given=given)


WORKS = {
    "base": _one("base", "GPT-2 124M", graph=2043, static=602),
    "xl": _one("xl", "GPT-2 XL", graph=393, static=247),
    "xl-64": many_texts,
}

if __name__ == "__main__":
    main("gpt2_decoding_gpu", WORKS, {"precision": "bfloat16", "search": "greedy, to the last token asked for"})
