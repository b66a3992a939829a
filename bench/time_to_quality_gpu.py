"""Seconds of a GPU until a GPT-2 of 124 million parameters predicts real text so well, by two recipes.

    make corpora
    python bench/time_to_quality_gpu.py --tokens-only            # on any machine: corpora/time-to-quality.safetensors
    python bench/time_to_quality_gpu.py                          # about 6 minutes; writes bench/results/
    python bench/time_to_quality_gpu.py --small --tokens FILE    # to see that it runs; writes nothing

Both read the same tokens in the same order: reviews, articles, addresses and novels, each once, in rows of 1,024.

- nanoGPT's: the model as one writes it by hand (`plain_gpt2.py`), compiled whole; AdamW (0.9, 0.95), rate 6e-4, decay
  0.1 of all matrices, cosine to a tenth, gradients clipped at 1; weights begin at N(0, 0.02), those that lead back into
  the stream at 1/√(2 · layers) of it.
- ours: a step of the training loop as it is by default, recorded and not compiled; Muon for the matrices and AdamW for
  the rest, a rate that stays and then falls in a line to 0. It is given fewer steps, and has to end no worse. Then the
  same with products in 8 bits, whose losses have to be those of the run before it.

The goal is what nanoGPT's recipe ends with, seed by seed. Compiling and validating are not counted for either. Once
nanoGPT's recipe is also run at three times its rate, which is meant for batches of half a million tokens, and then
ours is told beside that end too.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu import report
from plain_gpt2 import PlainGPT2
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from qkv.data.packing import LanguageBatch
from qkv.models.catalogue import build
from qkv.models.gpt2 import SIZES, GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.train.cost.step import AlwaysThis
from qkv.train.float8.products import float8_products
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import muon
from qkv.train.schedules import Cosine, Schedule, WarmupStableDecay
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper
from qkv.train.streamed import streamed_stacks

TOKENS = Path("corpora/time-to-quality.safetensors")
RATE, HIGHER, WARM_UP = 6e-4, 1.8e-3, 0.05
OURS = {"qkv's recipe": "bfloat16", "qkv's recipe in 8 bits": "float8"}
LOOKS = 12  # validations of a run
WARM = 4  # steps before the clock, whose weights are thrown away


@dataclass(frozen=True)
class Plan:
    sizes: GPT2Sizes
    rows: int = 32
    length: int = 1024
    held_out: int = 96  # rows


PLAIN = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
FULL = Plan(replace(SIZES["base"], **PLAIN))
SMALL = Plan(replace(FULL.sizes, width=32, hidden=128, heads=2, layers=2, positions=64), rows=4, length=64, held_out=4)


@dataclass(frozen=True)
class Contender:
    """A recipe that has begun: steps, and a loss of rows that it does not learn from."""

    step: Callable[[Tensor, float], None]  # rows [b n+1], learning rate as a share of the recipe's own
    loss: Callable[[Tensor], Tensor]


# Makes the model of a recipe, and what begins it anew; what must be undone afterwards goes on the stack.
Begin = Callable[[Plan, torch.device, ExitStack], tuple[nn.Module, Callable[[], Contender]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=Path, default=TOKENS)
    parser.add_argument("--tokens-only", action="store_true", help="write the tokens of the texts and stop")
    parser.add_argument("--corpora", type=Path, default=Path("corpora"))
    parser.add_argument("--tokenizer", type=Path, default=Path("checkpoints/gpt2-tokenizer"))
    parser.add_argument("--small", action="store_true", help="tiny sizes on a CPU; nothing is written")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of nanoGPT's recipe; all the tokens once if nothing is said")
    parser.add_argument("--share", type=float, default=0.5, help="of those steps that ours is given")
    parser.add_argument("--rate", type=float, default=4e-3, help="of Muon")
    parser.add_argument("--ours-only", action="store_true", help="to try rates and shares; nothing is written")
    given = parser.parse_args()
    if given.tokens_only:
        write_tokens(given.corpora, given.tokenizer, given.tokens)
        return
    plan, device = (SMALL, torch.device("cpu")) if given.small else (FULL, torch.device("cuda"))
    tokens = load_file(given.tokens)
    held_out = in_rows(tokens["valid"], plan, device)[: plan.held_out]
    rows = in_rows(tokens["train"], plan, device)
    steps = given.steps or (8 if given.small else len(rows) // plan.rows)
    fewer = round(given.share * steps)
    remarks = {
        "model": f"GPT-2, {plan.sizes.layers} layers of {plan.sizes.width}, bfloat16 by autocast",
        "data": f"{len(tokens['train']):,} tokens of real text, {plan.rows} × {plan.length} a step, {steps} steps",
    }
    runs: list[dict[str, Any]] = []
    for seed in range(given.seeds):
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).to(device)
        peers = {} if given.ours_only else {"nanoGPT's recipe": RATE}
        if peers and seed == 0:
            peers["nanoGPT's recipe at a higher rate"] = HIGHER
        ends = {}
        for name, rate in peers.items():
            cosine = Cosine(warmup=round(WARM_UP * steps), floor=0.1)
            history = run(partial(nano, rate=rate), cosine, steps, rows[order], held_out, plan, seed)
            ends[name] = history[-1]
            runs.append(told(f"{name}, seed {seed}", rate, history))
        for name, precision in OURS.items():
            if precision == "float8" and device.type != "cuda":
                continue
            schedule = WarmupStableDecay(warmup=round(WARM_UP * steps), decay=0.5)
            recipe = partial(ours, rate=given.rate, precision=precision)
            history = run(recipe, schedule, fewer, rows[order], held_out, plan, seed)
            sooner = {
                f"times sooner than {peer}": round(end["seconds"] / reached(history, end["loss"]), 2)
                for peer, end in ends.items()
            }
            runs.append({**told(f"{name}, seed {seed}", given.rate, history), **sooner})
        if not (given.small or given.ours_only):  # whoever is stopped keeps the seeds before
            report("time_to_quality_gpu", runs, remarks)
    if given.small or given.ours_only:
        print(json.dumps(runs))


def told(name: str, rate: float, history: list[dict[str, float]]) -> dict[str, Any]:
    row = {"run": name, "rate": rate, **history[-1], "history": history}
    print(json.dumps({**row, "history": len(history)}), flush=True)
    return row


def reached(history: list[dict[str, float]], loss: float) -> float:
    """Seconds until a validation loss was reached, in a line between validations; infinity: never."""
    before = None
    for each in history:
        if each["loss"] <= loss:
            if before is None:
                return each["seconds"]
            share = (before["loss"] - loss) / (before["loss"] - each["loss"])
            return before["seconds"] + share * (each["seconds"] - before["seconds"])
        before = each
    return math.inf


def run(
    begin: Begin,
    schedule: Schedule,
    steps: int,
    rows: Tensor,
    held_out: Tensor,
    plan: Plan,
    seed: int,
) -> list[dict[str, float]]:
    """Validation losses by seconds of training."""
    torch.manual_seed(seed)
    device = rows.device
    with ExitStack() as stack:
        model, contender = begin(plan, device, stack)
        history = trained(model, contender, schedule, steps, rows, held_out, plan)
    torch._dynamo.reset()
    return history


def trained(
    model: nn.Module,
    contender: Callable[[], Contender],
    schedule: Schedule,
    steps: int,
    rows: Tensor,
    held_out: Tensor,
    plan: Plan,
) -> list[dict[str, float]]:
    device = rows.device
    first = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    history: list[dict[str, float]] = []
    warm = contender()
    for _ in range(WARM):
        warm.step(rows[: plan.rows], 1.0)
    validated(warm, held_out, plan)
    model.load_state_dict(first)
    recipe = contender()
    looks = {round(steps * (number + 1) / LOOKS) for number in range(LOOKS)}
    spent, since = 0.0, now(device)
    for step in range(1, steps + 1):
        start = (step - 1) * plan.rows % (len(rows) - plan.rows + 1)
        recipe.step(rows[start : start + plan.rows], schedule(step, (step - 1) / steps))
        if step in looks:
            spent += now(device) - since
            history.append({"step": step, "seconds": round(spent, 4), "loss": validated(recipe, held_out, plan)})
            since = now(device)
    return history


@torch.no_grad()
def validated(contender: Contender, held_out: Tensor, plan: Plan) -> float:
    losses = [float(contender.loss(some)) * len(some) for some in held_out.split(plan.rows)]
    return sum(losses) / len(held_out)


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def nano(plan: Plan, device: torch.device, stack: ExitStack, rate: float) -> tuple[nn.Module, Callable[[], Contender]]:
    with device:
        model = PlainGPT2(plan.sizes)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            back = name.endswith(("out.weight", "outer.weight"))
            nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * plan.sizes.layers) if back else 1))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    loss_of = torch.compile(model.loss) if device.type == "cuda" else model.loss
    autocast = lambda: torch.autocast(device.type, torch.bfloat16)  # noqa: E731

    def contender() -> Contender:
        matrices = [each for each in model.parameters() if each.ndim > 1]
        others = [each for each in model.parameters() if each.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)

        def step(ids: Tensor, share: float) -> None:
            for group in optimizer.param_groups:
                group["lr"] = rate * share
            with autocast():
                loss = loss_of(ids)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        def loss(ids: Tensor) -> Tensor:
            with autocast():
                return model.loss(ids)

        return Contender(step, loss)

    return model, contender


def ours(
    plan: Plan, device: torch.device, stack: ExitStack, rate: float, precision: str
) -> tuple[nn.Module, Callable[[], Contender]]:
    with device:
        model = build("gpt2", plan.sizes, HeadChoice("language")).train()
    settings = TrainSettings(steps=1, precision=precision, device=device.type, clip=1.0)
    if precision == "float8":
        stack.enter_context(float8_products(model))
    stack.enter_context(streamed_stacks(model))

    def batch(ids: Tensor) -> LanguageBatch:
        return LanguageBatch(ids, torch.ones_like(ids), packed=False, predicted=ids[:, 1:].numel(), bytes=ids.numel())

    def contender() -> Contender:
        stepper = Stepper(model, LanguageLoss(), muon(model, learning_rate=rate), settings)

        def step(ids: Tensor, rate: float) -> None:
            stepper.set_rate(rate)
            batches: Any = AlwaysThis(batch(ids), device)
            stepper.update(batches)

        def loss(ids: Tensor) -> Tensor:
            with settings.autocast(device):
                found = LanguageLoss()(model, batch(ids))
            return found.total / found.count

        return Contender(step, loss)

    return model, contender


def in_rows(tokens: Tensor, plan: Plan, device: torch.device) -> Tensor:
    """[r n+1], each row beginning with the last token of the one before."""
    tokens = tokens.to(device).int() % 2**16  # stored as signed numbers of 16 bits
    return tokens.long().unfold(0, plan.length + 1, plan.length)


def write_tokens(corpora: Path, tokenizer: Path, file: Path) -> None:
    """Texts of all kinds mixed, an end after each, as GPT-2's own tokenizer cuts them."""
    import sys

    from tokenizers import ByteLevelBPETokenizer

    sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
    from fetched_texts import documents

    cut = ByteLevelBPETokenizer(str(tokenizer / "vocab.json"), str(tokenizer / "merges.txt"))
    end = json.loads((tokenizer / "vocab.json").read_text(encoding="utf-8"))["<|endoftext|>"]
    found = documents(corpora)
    tensors = {}
    for part in ("train", "valid"):
        texts = found[part]
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0)).tolist()
        ids: list[int] = []
        for each in cut.encode_batch([texts[number] for number in order]):
            ids += [*each.ids, end]
        tensors[part] = torch.tensor(ids, dtype=torch.int32).to(torch.int16)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, file)
    print(f"{file}: " + ", ".join(f"{len(tensor):,} tokens to {part}" for part, tensor in tensors.items()))


if __name__ == "__main__":
    main()
