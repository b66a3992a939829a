"""A training step of Switch-base-8 against the reference library's, and against our own dense T5 of equal operations.

    python bench/switch_gpu.py

32 rows of 512 source and 128 target tokens and no padding, bfloat16 by autocast, fused AdamW, dropout as published. All
models begin at random, with their tokens spread over the experts as chance has it; ours learns with the losses of
experts, the reference without. Ours is also compiled block by block, for this one shape and with torch's attention;
--exact adds it with scores held in memory. The reference is not: its Switch compiled whole ends in
BackendCompilerFailed after a minute, with torch 2.11 and transformers 5.22; --compile-reference tries again.
"""

from __future__ import annotations

import argparse
import gc
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from gpu import milliseconds, report
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from qkv.data.pairs import PairBatch
from qkv.models import switch, t5
from qkv.models.catalogue import build
from qkv.parts.attention.kernels import choose
from qkv.train.compiling import compiled_blocks
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss

ROWS, SOURCE, TARGET = 32, 512, 128
PATIENCE = 60  # seconds for the reference to be compiled and timed
Compiling = Callable[[nn.Module], AbstractContextManager[None]]
Step = tuple[nn.Module, Callable[[], None]]  # a model, and what trains it once
SMALL = {"width": 32, "key_width": 8, "hidden": 64, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}


def sizes(small: bool) -> tuple[Any, Any]:
    """Of Switch-base-8 and of a T5 with the feed-forward of one of its experts in every block."""
    sparse, dense = switch.SIZES["base-8"], t5.SIZES["base"]
    return (
        (replace(sparse, **SMALL, vocabulary=128), replace(dense, **SMALL, vocabulary=128))
        if small
        else (sparse, dense)
    )


def some_pairs(vocabulary: int, rows: int, source: int, target: int, device: str) -> PairBatch:
    return PairBatch(
        source=torch.randint(1, vocabulary, (rows, source), device=device),
        source_lengths=torch.full((rows,), source, device=device),
        target=torch.randint(1, vocabulary, (rows, target + 1), device=device),
        target_lengths=torch.full((rows,), target + 1, device=device),
        predicted=rows * target,
    )


def training_step(model: nn.Module, loss: Callable[[], torch.Tensor], device: str) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def our_step(family: str, chosen: Any, batch: PairBatch, device: str) -> Step:
    torch.manual_seed(0)
    with torch.device(device):
        model = build(family, chosen).train()
    objective = with_expert_losses(model, SequenceToSequenceLoss(smoothing=0.0))

    def loss() -> torch.Tensor:
        found = objective(model, batch)
        return found.total / found.count

    return model, training_step(model, loss, device)


def reference_step(sparse: bool, chosen: Any, batch: PairBatch, device: str) -> Step:
    import transformers

    common = {
        "vocab_size": chosen.vocabulary, "d_model": chosen.width, "d_kv": chosen.key_width, "d_ff": chosen.hidden,
        "num_heads": chosen.heads, "num_layers": chosen.encoder_layers, "num_decoder_layers": chosen.decoder_layers,
        "decoder_start_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(0)
    config: Any
    kind: Any
    if sparse:
        config = transformers.SwitchTransformersConfig(
            **common,
            num_experts=chosen.experts,
            num_sparse_encoder_layers=chosen.encoder_layers // chosen.encoder_step,
            num_sparse_decoder_layers=chosen.decoder_layers // chosen.decoder_step,
            expert_capacity=chosen.capacity,
        )
        kind = transformers.SwitchTransformersForConditionalGeneration
    else:
        config, kind = transformers.T5Config(**common), transformers.T5ForConditionalGeneration
    with torch.device(device):
        model = kind(config).train()
    source, labels = batch.source, batch.target[:, 1:].contiguous()
    return model, training_step(model, lambda: model(input_ids=source, labels=labels).loss, device)


def operations(family: str, chosen: Any, batch: PairBatch) -> int:
    """Of the matrix products of a step, counted on a model that has shapes and no numbers."""
    with torch.device("meta"):
        model = build(family, chosen)
    with FlopCounterMode(display=False) as counter:
        SequenceToSequenceLoss(smoothing=0.0)(model, batch.to(torch.device("meta"))).total.backward()
    return int(counter.get_total_flops())


def on_cpu(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


@contextmanager
def compiled_in_time(model: nn.Module) -> Iterator[None]:
    """Inside, the whole model runs compiled, and its first steps must come soon."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    model.compile()
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def compiled_for_one_shape(model: nn.Module, *, scores_up_to: int) -> Iterator[None]:
    """Inside, blocks run compiled; up to so many keys, attentions that learn a bias hold their scores in memory."""
    before, choose.SHORT = choose.SHORT, scores_up_to
    torch._dynamo.reset()
    try:
        with compiled_blocks(model, dynamic=False):
            yield
    finally:
        choose.SHORT = before


def steps(
    small: bool, compiled: bool, exact: bool, compiled_reference: bool, device: str, clock: Callable[..., float]
) -> list[dict[str, Any]]:
    sparse, dense = sizes(small)
    shape = (2, 16, 8) if small else (ROWS, SOURCE, TARGET)
    batch = some_pairs(sparse.vocabulary, *shape, device)
    counted = {"switch": operations("switch", sparse, batch), "t5": operations("t5", dense, batch)}
    times: dict[str, float] = {}

    def measure(name: str, make: Callable[[], Step], compiling: Compiling = lambda model: nullcontext()) -> None:
        start = time.perf_counter()
        model, step = make()
        try:
            with compiling(model):
                times[name] = clock(step)
            print(f"{name}: {times[name]:.1f} ms ({time.perf_counter() - start:.0f} s)", flush=True)
        except Exception as error:  # torch wraps those of the clock in its own
            if not name.startswith("reference"):
                raise
            print(f"{name}: left out, {type(error).__name__} after at most {PATIENCE} seconds", flush=True)
        del model, step
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()

    our_switch, our_t5 = (partial(our_step, *which, batch, device) for which in (("switch", sparse), ("t5", dense)))
    their_switch = partial(reference_step, True, sparse, batch, device)
    measure("qkv switch", our_switch)
    measure("qkv t5", our_t5)
    measure("reference switch", their_switch)
    measure("reference t5", partial(reference_step, False, dense, batch, device))
    never, always = (partial(compiled_for_one_shape, scores_up_to=keys) for keys in (0, SOURCE))
    if compiled:
        measure("qkv switch, compiled", our_switch, never)
        measure("qkv t5, compiled", our_t5, never)
    if exact:
        measure("qkv switch, compiled, exact", our_switch, always)
        measure("qkv t5, compiled, exact", our_t5, always)
    if compiled_reference:
        measure("reference switch, compiled", their_switch, compiled_in_time)
    theirs = min(each for name, each in times.items() if name.startswith("reference switch"))
    tokens = shape[0] * shape[1]
    rows = []
    for name, each in times.items():
        same = name.replace("switch", "t5").replace("reference", "qkv")
        rows.append(
            {
                "model": name,
                "step ms": round(each, 2),
                "encoder tokens/s": round(1000 * tokens / each),
                "TFLOP of a step": round(counted["switch" if "switch" in name else "t5"] / 1e12, 3),
                "against the reference switch": f"{theirs / each:.2f}x",
                "against our dense": f"{times[same] / each:.2f}",
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-compile", action="store_true", help="leave out the compiled models")
    parser.add_argument("--exact", action="store_true", help="compiled with scores held in memory, too")
    parser.add_argument("--compile-reference", action="store_true", help="try to compile the reference, too")
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)  # on a CPU, to see that it runs
    chosen = parser.parse_args()
    device, clock = ("cpu", on_cpu) if chosen.small else ("cuda", milliseconds)
    compiled = not (chosen.no_compile or chosen.small)
    rows = steps(chosen.small, compiled, chosen.exact, chosen.compile_reference, device, clock)
    if chosen.small:
        print(*rows, sep="\n")
        return
    report(
        "switch_gpu", rows, {"precision": "bfloat16 by autocast", "batch": f"{ROWS} rows, {SOURCE} → {TARGET} tokens"}
    )


if __name__ == "__main__":
    main()
