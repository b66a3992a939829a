"""A training step of GPT-2 124M on a GPU: 32 rows of 1,024 tokens.

    python bench/gpt2_training_gpu.py         # about 150 s: nearly all of it is compiling
    python bench/gpt2_training_gpu.py --small

Peers: the model as one writes it by hand (`plain_gpt2.py`), compiled whole; the reference library's, compiled whole and
eager. All of them: bfloat16 by autocast on float32 weights, fused AdamW, no dropout, no clipping, a batch that stays on
the GPU. Ours is a step of the training loop with `precision="bfloat16"` as it is by default, recorded and not compiled;
then the same with `precision="float8"`, beside the best of these in bfloat16.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from peers import Bench, Call, Make, Work, agree, main
from plain_gpt2 import PlainGPT2
from same_weights import names_of_others, operations, ours_of, reference_of
from torch import Tensor, nn

from qkv.data.packing import LanguageBatch
from qkv.models.gpt2 import SIZES
from qkv.models.head_choice import HeadChoice
from qkv.train.cost.step import AlwaysThis
from qkv.train.float8.products import float8_products
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import adamw
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper
from qkv.train.streamed import streamed_stacks

PLAIN = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
TINY = {"vocabulary": 300, "positions": 64, "width": 48, "hidden": 192, "heads": 3, "layers": 2}
ROWS, LENGTH, RATE = 32, 1024, 1e-4
HEAD = HeadChoice("language")


class HandedLoss(nn.Module):
    """The reference library's model, which makes its loss itself."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids[:, :-1]
        loss: Tensor = self.model(input_ids=ids, labels=ids, use_cache=False).loss
        return loss


class PlainLoss(nn.Module):
    def __init__(self, model: PlainGPT2) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model.loss(ids)


def our_step(model: Any, ids: Tensor, precision: str = "bfloat16") -> Call:
    """A step of the training loop that predicts each of these tokens but the first of a row."""
    rows, length = ids.shape[0], ids.shape[1] - 1
    settings = TrainSettings(steps=1, precision=precision, device=ids.device.type, clip=None)
    stepper = Stepper(model.train(), LanguageLoss(), adamw(model, learning_rate=RATE), settings)
    batch = LanguageBatch(ids, torch.ones_like(ids), packed=False, predicted=rows * length, bytes=rows * length)
    batches: Any = AlwaysThis(batch, ids.device)
    return lambda: stepper.update(batches)


def training(bench: Bench, precision: str) -> Work:
    device, in_8_bits = bench.device, " in 8 bits" if precision == "float8" else ""
    rows, length = bench.pick((ROWS, LENGTH), (2, 16))
    sizes = replace(SIZES["base"], **PLAIN, **(TINY if bench.small else {}))
    model = ours_of("gpt2", sizes, HEAD, bench)
    published = {name: tensor.detach().clone() for name, tensor in names_of_others(model).items()}
    ids = torch.randint(0, sizes.vocabulary, (rows, length + 1), device=device)

    def plain_model() -> PlainGPT2:
        with device:
            return PlainGPT2(sizes).filled(published)

    reference = reference_of(model, bench)  # before any step
    reference.loss_type = "ForCausalLM"  # which it takes anyway, but with a remark that its compiler stumbles over
    flops = 3 * rows * operations("gpt2", sizes, HEAD, torch.empty(1, length, dtype=torch.long, device="meta"))

    @torch.no_grad()
    def agreement() -> str:
        few = ids[:2, :-1]
        plain = plain_model()(few)[..., : sizes.vocabulary]
        return agree({"qkv": model(few), "HF": reference(few).logits, "plain torch": plain})

    def ours(stack: ExitStack) -> Call:
        if precision == "float8":
            stack.enter_context(float8_products(model))
        stack.enter_context(streamed_stacks(model))
        return our_step(model, ids, precision)

    def theirs(of: nn.Module | None, compiled: bool) -> Make:
        def make(stack: ExitStack) -> Call:
            peer = (PlainLoss(plain_model()) if of is None else of).train()
            optimizer = torch.optim.AdamW(peer.parameters(), lr=RATE, fused=True)
            loss_of = bench.compiled(peer) if compiled else peer

            def step() -> None:
                with torch.autocast(device.type, torch.bfloat16):
                    loss = loss_of(ids)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

            return step

        return make

    best: dict[str, Make] = {"plain torch, compiled": theirs(None, True)}
    library = {
        "HF, eager": theirs(HandedLoss(reference), False),
        "HF, compiled": theirs(HandedLoss(reference), True),
    }
    return Work(
        title=f"GPT-2 124M, training step{in_8_bits}, {rows} × {length} tokens",
        unit="tokens/s",
        amount=rows * length,
        ours={"qkv": ours},
        peers=best if precision == "float8" else best | library,
        agreement=agreement,
        least=lambda most: most.seconds(flops=flops),
        given={"plain torch, compiled": 513_000, "HF, eager": 155_000, "HF, compiled": 355_000},
    )


WORKS = {"training": partial(training, precision="bfloat16"), "float8": partial(training, precision="float8")}

if __name__ == "__main__":
    main("gpt2_training_gpu", WORKS, {"precision": "bfloat16 by autocast, weights in float32", "optimizer": "AdamW"})
