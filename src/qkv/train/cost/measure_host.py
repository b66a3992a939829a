"""How long the host takes for an operator: a step so small that the device waits for it, divided by its operators."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from qkv.data.packing import LanguageBatch
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.visibility import Causal
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, gelu
from qkv.parts.heads import LogitHead
from qkv.parts.norm import LayerNorm
from qkv.parts.residual import PreNorm
from qkv.parts.stack import Stack
from qkv.train.cost.backends import CUDNN_PREFERRED
from qkv.train.cost.operators import PROGRAMS
from qkv.train.cost.step import AlwaysThis, trace_step
from qkv.train.cost.tracer import BACKWARD, FORWARD, UPDATE, Trace
from qkv.train.objectives.language import LanguageLoss
from qkv.train.objectives.loss import Loss
from qkv.train.optimizers import adamw
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper

VIEW = 0.3  # of an operator's time on the host is what a view takes, which launches nothing
WIDTH, LAYERS, ROWS, LENGTH, STEPS = 64, 12, 1, 32, 20
WARM, CALLS = 5, 30


def launches(trace: Trace) -> dict[str, float]:
    """How many operators the host starts in each phase, views counted as the part of one that they are."""
    found = dict.fromkeys((FORWARD, BACKWARD, UPDATE), 0.0)
    for (phase, work), times in trace.works.items():
        found[phase] += times * (VIEW if work.kind == "nothing" else 1.0)
    return found


def calls_of(trace: Trace) -> Counter[str]:
    """How often kernels are called that take the host far longer than an operator does, by their names."""
    found: Counter[str] = Counter()
    for (_, work), times in trace.works.items():
        if work.kind == "attention" and work.shape[0] in ("cudnn", "tiles"):
            found[work.shape[0]] += times
        elif "_programs." in work.name or work.name in PROGRAMS or work.shape[:1] in (("short",), ("long",)):
            found["program"] += times
    return found


def _calls(place: torch.device, usual: float) -> dict[str, float]:
    """Seconds that the host takes for a call of cuDNN's attention, or of our own programs, more than is usual."""
    from qkv.parts.attention.kernels.flash import flash
    from qkv.parts.attention.visibility import Mask, Tokens

    tokens = Tokens(512)
    mask = Mask(Causal(), tokens, tokens, place)
    q, k, v = (torch.randn(1, 2, 512, 64, device=place, dtype=torch.bfloat16).requires_grad_() for _ in range(3))

    def by_cudnn() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    found = {}
    for name, call in (("cudnn", by_cudnn), ("tiles", lambda: flash(q, k, v, mask))):
        try:
            both = _host_seconds(place, lambda call=call: call().sum().backward())  # type: ignore[misc]
        except RuntimeError:  # a kernel that this machine does not have
            continue
        found[name] = max(0.0, (both - 4 * usual) / 2)  # forward and back; the sum and its way back are usual
    return found | ({"program": found["tiles"] / 2} if "tiles" in found else {})


def _host_seconds(place: torch.device, call: Callable[[], object]) -> float:
    for _ in range(3):
        call()
    torch.cuda.synchronize(place)
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    spent = time.perf_counter() - start
    torch.cuda.synchronize(place)
    return spent / CALLS


def measure_host(place: torch.device, *, tiny: bool = False) -> dict[str, float]:
    """Seconds for each operator, by precision and phase: {"float32 forward": …}."""
    found = {}
    for precision in ("float32", "bfloat16") if place.type == "cuda" else ("float32",):
        settings = TrainSettings(steps=1, precision=precision, device=str(place), record=False)
        times = _phases(place, settings, 3 if tiny else STEPS)
        trace, _ = trace_step(_small_model(), LanguageLoss(), adamw, _small_batch(), settings, _numbered(place),
                              CUDNN_PREFERRED)  # fmt: skip
        for phase, count in launches(trace).items():
            found[f"{precision} {phase}"] = times[phase] / count
    if place.type == "cuda":
        found |= _calls(place, (found["float32 forward"] + found["float32 backward"]) / 2)
    return found


def _numbered(place: torch.device) -> torch.device:
    return torch.device(place.type, place.index or 0) if place.type == "cuda" else place


def _phases(place: torch.device, settings: TrainSettings, steps: int) -> dict[str, float]:
    """Seconds of each phase of a small step, of steps that follow each other as those of a training do."""
    model = _small_model().to(place).train()
    optimizer = adamw(model)
    at: dict[str, float] = {}

    def forward(model: Any, batch: Any) -> Loss:
        at["begin"] = time.perf_counter()
        loss = LanguageLoss()(model, batch)
        at["forward"] = time.perf_counter()
        return loss

    model.embed.tokens.weight.register_post_accumulate_grad_hook(  # the last to be known
        lambda _: at.__setitem__("backward", time.perf_counter())
    )
    stepper, batch = Stepper(model, forward, optimizer, settings), _small_batch().to(place)
    rows = []
    for _ in range(WARM + steps):
        stepper.update(AlwaysThis(batch, place))  # type: ignore[arg-type]
        end = time.perf_counter()
        rows.append((at["forward"] - at["begin"], at["backward"] - at["forward"], end - at["backward"]))
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    medians = (statistics.median(column) for column in zip(*rows[WARM:], strict=True))
    return dict(zip((FORWARD, BACKWARD, UPDATE), medians, strict=True))


def _small_model() -> TextModel:
    def block() -> Block:
        attention = Attention(WIDTH, 1, visibility=Causal())
        return Block(
            attention=PreNorm(LayerNorm(WIDTH), attention, 0.1),
            feed_forward=PreNorm(LayerNorm(WIDTH), MLP(WIDTH, 4 * WIDTH, gelu), 0.1),
        )

    blocks: list[nn.Module] = [block() for _ in range(LAYERS)]
    return TextModel(Embed(TokenEmbedding(256, WIDTH)), Stack(blocks, LayerNorm(WIDTH)), LogitHead(WIDTH, 256))


def _small_batch() -> LanguageBatch:
    ids = torch.ones(ROWS, LENGTH + 1, dtype=torch.long)
    return LanguageBatch(ids, torch.ones_like(ids), False, ROWS * LENGTH, ROWS * LENGTH)
