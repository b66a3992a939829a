"""ViT on a GPU: inference of ViT-B/16 and ViT-L/16 on 256 pictures, and a training step of ViT-B/16.

    python bench/images_gpu.py                # about five minutes: nearly all of it is compiling
    python bench/images_gpu.py --small

The peer is timm's model of the same weights, compiled (for ViT-B also by max-autotune); where timm is not installed,
the reference library's ViT, compiled. Inference is in bfloat16 throughout; a training step is bfloat16 by autocast with
fused AdamW on float32 weights on either side, on pictures that are on the GPU already. Ours is recorded, as steps of
the training loop are by default.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from peers import Bench, Call, Make, Work, absent, agree, main, without
from same_weights import NARROW, operations, ours_of, reference_of
from torch import Tensor, nn

from qkv.data.image_rows import ImageBatch
from qkv.data.preprocessing import Normalise
from qkv.models.head_choice import HeadChoice
from qkv.models.vit import SIZES, ViTSizes
from qkv.train.cost.step import AlwaysThis
from qkv.train.objectives.images import ImageClassificationLoss
from qkv.train.optimizers import adamw
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper
from qkv.train.streamed import streamed_stacks
from qkv.weights.maps.timm import rules
from qkv.weights.rules import to_theirs
from qkv.weights.save import tensors_of

TINY: dict[str, Any] = {"image": 32, "width": 48, "hidden": 96, "heads": 3, "layers": 2}
ROWS, CLASSES, RATE = 256, 1000, 1e-4


class Pair:
    """Our ViT and the peer's with the same weights."""

    def __init__(self, bench: Bench, size: str) -> None:
        self.bench = bench
        sizes: ViTSizes = replace(SIZES[size], epsilon=1e-6, **(TINY if bench.small else {}))  # as timm has it
        self.rows = bench.pick(ROWS, 2)
        self.head = HeadChoice("classification", labels=tuple(map(str, range(bench.pick(CLASSES, 10)))))
        self.ours = ours_of("vit", sizes, self.head, bench)
        self.missing = absent("timm")
        self.peer = Logits(reference_of(self.ours, bench)) if self.missing else self.timm_model()
        self.called = "HF" if self.missing else "timm"
        self.pictures = torch.randn(self.rows, sizes.channels, sizes.image, sizes.image, device=bench.device)
        self.flops, self.flops_of_answers = (
            operations("vit", sizes, self.head, self.pictures, answers=answers) for answers in (False, True)
        )

    def timm_model(self) -> nn.Module:
        import timm

        sizes = self.ours.sizes
        # By its class, of which all its names for a plain ViT are made: so any size will do.
        model = timm.models.vision_transformer.VisionTransformer(
            img_size=sizes.image, patch_size=sizes.patch, num_classes=len(self.head.labels), embed_dim=sizes.width,
            depth=sizes.layers, num_heads=sizes.heads, mlp_ratio=sizes.hidden / sizes.width,
        )  # fmt: skip
        model.load_state_dict(to_theirs(rules("vit", sizes.query_bias, self.head), tensors_of(self.ours)))
        return model.to(self.bench.device).eval()

    def named(self, peers: dict[str, Make], given: dict[str, float]) -> dict[str, Make]:
        """Those that are here, and in place of timm, where it is not, that it is missing."""
        return peers if self.missing is None else {**peers, **dict.fromkeys(given, without(self.missing))}

    @torch.inference_mode()
    def agreement(self) -> str:
        few = self.pictures[:8]
        return agree({"qkv": self.ours(few), self.called: self.peer(few)})


class Logits(nn.Module):
    """The reference library's model, whose answer is the logits alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self.model(pictures).logits
        return logits


def inference(bench: Bench, size: str, given: dict[str, float]) -> Work:
    pair = Pair(bench, size)
    pictures = pair.pictures.to(NARROW)

    def answering(model: nn.Module) -> Make:
        def make(stack: ExitStack) -> Call:
            stack.enter_context(torch.inference_mode())
            model.to(NARROW)
            return lambda: model(pictures)

        return make

    def compiled(stack: ExitStack, mode: str | None) -> Call:
        stack.enter_context(torch.no_grad())  # as its own benchmarks have it
        model = bench.compiled(pair.peer.to(NARROW), mode=mode)
        return lambda: model(pictures)

    modes = {"compiled": None, **({"max-autotune": "max-autotune"} if size.startswith("base") else {})}
    peers: dict[str, Make] = {f"{pair.called}, {name}": partial(compiled, mode=mode) for name, mode in modes.items()}
    return Work(
        title=f"ViT {size}, inference, {pair.rows} pictures",
        unit="pictures/s",
        amount=pair.rows,
        ours={"qkv": answering(pair.ours)},
        peers=pair.named(peers, given),
        agreement=pair.agreement,
        least=lambda most: most.seconds(flops=pair.flops_of_answers),
        given=given,
    )


def training(bench: Bench, given: dict[str, float]) -> Work:
    pair = Pair(bench, "base-16")
    device = bench.device
    labels = torch.randint(0, len(pair.head.labels), (pair.rows,), device=device)
    pixels = torch.randint(0, 256, pair.pictures.shape, dtype=torch.uint8, device=device)

    def ours(stack: ExitStack) -> Call:
        settings = TrainSettings(steps=1, precision="bfloat16", device=device.type, clip=None)
        stack.enter_context(streamed_stacks(pair.ours))
        model = pair.ours.train()
        objective = ImageClassificationLoss(normalise=Normalise())
        stepper = Stepper(model, objective, adamw(model, learning_rate=RATE), settings)
        batches: Any = AlwaysThis(ImageBatch(pixels, labels, pair.rows), device)
        return lambda: stepper.update(batches)

    def peer(stack: ExitStack) -> Call:
        model = pair.peer.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
        forward, pictures = bench.compiled(model), pixels.float() / 255

        def step() -> None:
            with torch.autocast(device.type, torch.bfloat16):
                loss = F.cross_entropy(forward(pictures), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    return Work(
        title=f"ViT base-16, training step, {pair.rows} pictures",
        unit="pictures/s",
        amount=pair.rows,
        ours={"qkv": ours},
        peers=pair.named({f"{pair.called}, compiled": peer}, given),
        agreement=pair.agreement,
        least=lambda most: most.seconds(flops=3 * pair.flops),
        given=given,
    )


WORKS = {
    "base": partial(inference, size="base-16", given={"timm, max-autotune": 11_872}),
    "large": partial(inference, size="large-16", given={"timm, compiled": 3_838}),
    "training": partial(training, given={"timm, compiled": 3_724}),
}

if __name__ == "__main__":
    main("images_gpu", WORKS, {"precision": "bfloat16; of training by autocast", "pictures": "224 × 224, on the GPU"})
