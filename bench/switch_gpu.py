"""A training step of Switch-base-8 against the reference library's, and against our own dense T5 of equal operations.

    python bench/switch_gpu.py

32 and 64 rows of 512 source and 128 target tokens and no padding, bfloat16 by autocast, fused AdamW, dropout as
published. All models begin at random, with their tokens spread over the experts as chance has it; ours learns with the
losses of experts, the reference without. Ours is a step of the training loop, recorded as it is by default, and plain
(`record=False`): then a slow host needs longer to launch a step of 32 rows than the GPU to compute it. --compiled adds
ours compiled block by block, for 32 rows. The reference is not compiled: its Switch compiled whole ends in
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
from qkv.train.compiling import compiled_blocks
from qkv.train.cost.step import AlwaysThis
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
from qkv.train.optimizers import adamw
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper

ROWS, SOURCE, TARGET = 32, 512, 128
MORE_ROWS = 64
RATE = 1e-5
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


def our_step(family: str, chosen: Any, batch: PairBatch, device: str, record: bool | None = None) -> Step:
    torch.manual_seed(0)
    with torch.device(device):
        model = build(family, chosen).train()
    objective = with_expert_losses(model, SequenceToSequenceLoss(smoothing=0.0))
    settings = TrainSettings(steps=1, precision="bfloat16", device=device, clip=None, record=record)
    stepper = Stepper(model, objective, adamw(model, learning_rate=RATE), settings)
    always: Any = AlwaysThis(batch, torch.device(device))

    def step() -> None:
        stepper.update(always)

    return model, step


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
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            loss = model(input_ids=source, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


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


def compiled_for_one_shape(model: nn.Module) -> AbstractContextManager[None]:
    torch._dynamo.reset()
    return compiled_blocks(model, dynamic=False)


def steps(
    shape: tuple[int, int, int], small: bool, compiled: bool, compiled_reference: bool, clock: Callable[..., float]
) -> list[dict[str, Any]]:
    """Of rows of a source and a target."""
    device = "cpu" if small else "cuda"
    sparse, dense = sizes(small)
    batch = some_pairs(sparse.vocabulary, *shape, device)
    counted = {"switch": operations("switch", sparse, batch), "t5": operations("t5", dense, batch)}
    times: dict[str, float] = {}

    def measure(name: str, make: Callable[[], Step], compiling: Compiling = lambda model: nullcontext()) -> None:
        start = time.perf_counter()
        model, step = make()
        try:
            with compiling(model):
                times[name] = clock(step)
            print(f"{shape[0]} rows, {name}: {times[name]:.1f} ms ({time.perf_counter() - start:.0f} s)", flush=True)
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
    measure("qkv switch, plain", partial(our_switch, record=False))
    measure("qkv t5, plain", partial(our_t5, record=False))
    measure("qkv switch, recorded", our_switch)
    measure("qkv t5, recorded", our_t5)
    measure("reference switch", their_switch)
    measure("reference t5", partial(reference_step, False, dense, batch, device))
    if compiled:
        measure("qkv switch, compiled", our_switch, compiled_for_one_shape)
        measure("qkv t5, compiled", our_t5, compiled_for_one_shape)
    if compiled_reference:
        measure("reference switch, compiled", their_switch, compiled_in_time)
    theirs = min(each for name, each in times.items() if name.startswith("reference switch"))
    rows = []
    for name, each in times.items():
        same = name.replace("switch", "t5")
        if same not in times or name.startswith("reference"):
            same = "qkv t5, recorded"
        operations_of_step = counted["switch" if "switch" in name else "t5"]
        rows.append(
            {
                "rows": shape[0],
                "model": name,
                "step ms": round(each, 2),
                "encoder tokens/s": round(1000 * shape[0] * shape[1] / each),
                "TFLOP of a step": round(operations_of_step / 1e12, 3),
                "TFLOP/s": round(operations_of_step / each / 1e9),
                "against the reference switch": f"{theirs / each:.2f}x",
                "against our dense": f"{times[same] / each:.2f}",
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiled", action="store_true", help="ours compiled block by block, too")
    parser.add_argument("--compile-reference", action="store_true", help="try to compile the reference, too")
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)  # on a CPU, to see that it runs
    chosen = parser.parse_args()
    if chosen.small:
        print(*steps((2, 16, 8), True, chosen.compiled, False, on_cpu), sep="\n")
        return
    rows = steps((ROWS, SOURCE, TARGET), False, chosen.compiled, chosen.compile_reference, milliseconds)
    rows += steps((MORE_ROWS, SOURCE, TARGET), False, False, False, milliseconds)
    report("switch_gpu", rows, {"precision": "bfloat16 by autocast", "batch": f"rows of {SOURCE} → {TARGET} tokens"})


if __name__ == "__main__":
    main()
