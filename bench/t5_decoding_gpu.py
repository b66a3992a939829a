"""T5-base writes on a GPU: 8 sources of 128 tokens, 128 tokens for each, greedily and by 4 beams.

    python bench/t5_decoding_gpu.py           # about 40 s
    python bench/t5_decoding_gpu.py --small

The peer is the reference library's `generate`, which is not compiled for this model. Neither may end before the last
token, so both write as many. Ours are `greedy` and `beam_search`, which `TextToText.run` calls.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch
from peers import Bench, Call, Work, main, same_tokens
from same_weights import NARROW, ours_of, reference_of
from torch import Tensor

from qkv.generate.beam import beam_search
from qkv.generate.decode import LengthLimit, greedy
from qkv.generate.prepare import Ready
from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.models.t5 import SIZES

TINY = {
    "vocabulary": 300, "width": 48, "key_width": 16, "hidden": 96, "heads": 3, "encoder_layers": 2, "decoder_layers": 2,
}  # fmt: skip
START, END = 0, 1
COMPARED = 16


def decoding(bench: Bench, beams: int, given: float) -> Work:
    rows, length, new = bench.pick((8, 128, 128), (2, 6, 6))
    sizes = replace(SIZES["base"], **(TINY if bench.small else {}))
    model = ours_of("t5", sizes, None, bench)
    tokens = {"pad_token_id": START, "eos_token_id": END, "decoder_start_token_id": START}
    reference = reference_of(model, bench, tokens)
    source = torch.randint(2, sizes.vocabulary, (rows, length), device=bench.device)
    ready: Ready[EncoderDecoder] = Ready()

    def write(new: int) -> list[list[int]]:
        limit = LengthLimit(factor=0.0, constant=new)
        with ready.decoding(model) as prepared:
            if beams == 1:
                return [each.ids for each in greedy(prepared, source, start=START, end=END, limit=limit, never=(END,))]
            found = beam_search(prepared, source, start=START, end=END, beams=beams, limit=limit, never=(END,))
            return [each[0].ids for each in found]

    def generate(new: int) -> list[list[int]]:
        found: Tensor = reference.generate(
            source, max_new_tokens=new, min_new_tokens=new, num_beams=beams, do_sample=False
        )
        return found[:, 1:].tolist()  # behind the token that outputs begin with

    def agreement() -> str:
        few = min(new, COMPARED)
        return same_tokens({"qkv": write(few), "HF": generate(few)})

    def ours(stack: ExitStack) -> Call:
        model.to(NARROW)
        return lambda: write(new)

    def theirs(stack: ExitStack) -> Call:
        reference.to(NARROW)
        return lambda: generate(new)

    way = "greedy" if beams == 1 else f"{beams} beams"
    return Work(
        title=f"T5-base, {way}, {rows} sources of {length} tokens, {new} written",
        unit="tokens/s",
        amount=rows * new,
        ours={"qkv": ours},
        peers={"HF": theirs},
        agreement=agreement,
        given={"HF": given},
        calls=2,
        warm=1,
    )


WORKS = {
    "greedy": partial(decoding, beams=1, given=577),
    "beams": partial(decoding, beams=4, given=510),
}

if __name__ == "__main__":
    main("t5_decoding_gpu", WORKS, {"precision": "bfloat16"})
