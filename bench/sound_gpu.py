"""Models of sound on a GPU: wav2vec2-base on 32 sounds of 10 seconds, AST on 32 clips.

    python bench/sound_gpu.py                 # about 50 s
    python bench/sound_gpu.py --small

The peer is the reference library's model of the same weights, as it is and compiled. All in bfloat16, on samples and
filter banks that are on the GPU: how sound is read from files and prepared is not in these figures.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from peers import Bench, Call, Work, agree, main
from same_weights import NARROW, operations, ours_of, reference_of
from torch import Tensor

from qkv.models import ast, wav2vec2
from qkv.models.head_choice import HeadChoice

RATE, SECONDS, ROWS, CLASSES = 16_000, 10, 32, 527
STACK = {"width": 48, "hidden": 96, "heads": 3, "layers": 2}
TINY = {
    "wav2vec2": {**STACK, "channels": (16,) * 7, "position_kernel": 16, "position_groups": 2},
    "ast": {**STACK, "frames": 64, "bands": 32},
}


def hearing(
    bench: Bench, family: str, sizes: Any, head: HeadChoice, given_to_us: Callable[[Tensor], Tensor], **row: Any
) -> Work:
    """`given_to_us` makes of what the reference reads what we read."""
    shape, seconds = row.pop("shape"), row.pop("seconds", 1)
    model = ours_of(family, sizes, head, bench)
    reference = reference_of(model, bench)
    sounds = torch.randn(bench.pick(ROWS, 2), *shape, device=bench.device)
    flops = operations(family, sizes, head, given_to_us(sounds), answers=True)

    @torch.inference_mode()
    def agreement() -> str:
        few = sounds[:2]
        return agree({"qkv": model(given_to_us(few)), "HF": reference(few).logits})

    def ours(stack: ExitStack) -> Call:
        stack.enter_context(torch.inference_mode())
        model.to(NARROW)
        given = given_to_us(sounds.to(NARROW))
        return lambda: model(given)

    def theirs(stack: ExitStack, compiled: bool) -> Call:
        stack.enter_context(torch.no_grad())
        reference.to(NARROW)
        call, given = bench.compiled(reference) if compiled else reference, sounds.to(NARROW)
        return lambda: call(given)

    return Work(
        amount=len(sounds) * seconds,
        ours={"qkv": ours},
        peers={"HF": partial(theirs, compiled=False), "HF, compiled": partial(theirs, compiled=True)},
        agreement=agreement,
        least=lambda most: most.seconds(flops=flops),
        **row,
    )


def speech(bench: Bench) -> Work:
    seconds = bench.pick(SECONDS, 1)
    return hearing(
        bench,
        "wav2vec2",
        replace(wav2vec2.SIZES["base"], **(TINY["wav2vec2"] if bench.small else {})),
        HeadChoice("ctc"),
        lambda sounds: sounds,
        shape=(RATE * seconds,),
        seconds=seconds,
        title=f"wav2vec2-base, {bench.pick(ROWS, 2)} sounds of {seconds} s",
        unit="s of sound/s",
        given={"HF": 8_845},
    )


def clips(bench: Bench) -> Work:
    sizes = replace(ast.SIZES["base"], **(TINY["ast"] if bench.small else {}))
    return hearing(
        bench,
        "ast",
        sizes,
        HeadChoice("classification", labels=tuple(map(str, range(bench.pick(CLASSES, 5))))),
        lambda banks: banks.transpose(1, 2)[:, None],  # frames by bands → a picture, bands high
        shape=(sizes.frames, sizes.bands),
        title=f"AST, {bench.pick(ROWS, 2)} clips",
        unit="clips/s",
        given={"HF": 1_430},
    )


WORKS = {"speech": speech, "clips": clips}

if __name__ == "__main__":
    main("sound_gpu", WORKS, {"precision": "bfloat16"})
