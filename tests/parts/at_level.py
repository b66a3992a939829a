"""What small models answer in every precision on this processor, as it is or is taken for: run as a process of its own,
because torch looks at the processor once.

Printed is one line of JSON: how far answers are from those of the plain parts in double precision, as a share of their
size, and what was told meanwhile.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.errors import QkvWarning
from qkv.generate import prepare as preparing
from qkv.generate.continuation import FromPrompts
from qkv.generate.prepare import prepare
from qkv.generate.use import at_rest
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice
from qkv.parts import cpu_maps, in_place, narrow_maps
from qkv.parts.attention.kernels import short_cpu
from qkv.weights.precision import in_precision
from tests.cli.command import qkv
from tests.cli.text_models import save_reader, save_writer

PRECISIONS = ("float32", "bfloat16", "int8")
WIDE = {"width": 64, "hidden": 128, "heads": 2}
VOCABULARY, WRITTEN = 210, 4


class Work(NamedTuple):
    model: Any
    plainly: Callable[[Any], Tensor]
    as_used: Callable[[Any], Tensor]


def gpt2() -> Work:
    """Prompts of several lengths, carried on token by token."""
    prompts = [torch.randint(VOCABULARY, (size,)).tolist() for size in (9, 30, 17)]
    more = torch.randint(VOCABULARY, (3, WRITTEN))

    def plainly(model: Any) -> Tensor:
        texts = [torch.tensor([*prompt, *new]) for prompt, new in zip(prompts, more.tolist(), strict=True)]
        return torch.stack([model(text[None])[0, -WRITTEN - 1 :] for text in texts], 0)

    def as_used(model: Any) -> Tensor:
        rows = FromPrompts(prepare(model), prompts, most=WRITTEN + 1)
        return torch.stack([rows.begin(), *(rows.advance(more[:, [step]]) for step in range(WRITTEN))], 1)

    return Work(_made("gpt2", "language", vocabulary=VOCABULARY, positions=64, layers=2, **WIDE), plainly, as_used)


def bert() -> Work:
    """Texts with padding and a word to be found in each."""
    ids, lengths = torch.randint(VOCABULARY, (8, 60)), torch.randint(20, 61, (8,))
    real = torch.arange(60) < lengths[:, None]
    model = _made("bert", "masked", vocabulary=VOCABULARY, positions=64, layers=2, **WIDE)

    def answered(model: Any) -> Tensor:
        found: Tensor = model(ids, lengths=lengths)[real]
        return found

    return Work(model, answered, _at_rest(answered))


def t5() -> Work:
    """Sources of two lengths, and what is said of them token by token."""
    source, lengths = torch.randint(VOCABULARY, (3, 40)), torch.tensor([40, 33, 40])
    target = torch.randint(VOCABULARY, (3, WRITTEN))
    sizes = {"vocabulary": VOCABULARY, "key_width": 32, "encoder_layers": 2, "decoder_layers": 2, **WIDE}

    def as_used(model: Any) -> Tensor:
        ready = prepare(model)
        memory, cache = ready.encode(source, lengths), ready.new_cache(WRITTEN)
        return torch.cat([ready.decode(target[:, [step]], memory, cache) for step in range(WRITTEN)], 1)

    return Work(_made("t5", None, **sizes), lambda model: model(source, lengths, target), _at_rest(as_used))


def vit() -> Work:
    pictures = torch.randn(4, 3, 64, 64)
    model = _made("vit", "states", image=64, patch=8, layers=2, **WIDE)
    return Work(model, lambda model: model(pictures), _at_rest(lambda model: model(pictures)))


def _made(family: str, head: str | None, **sizes: Any) -> Any:
    model = build(family, find_family(family).sizes(sizes), None if head is None else HeadChoice(head)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def _at_rest(call: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    def as_used(model: Any) -> Tensor:
        with at_rest(model):
            return call(model)

    return as_used


def everything_pays() -> None:
    """Small models go the ways of large ones."""
    for module, name in (
        (cpu_maps, "SMALL"), (cpu_maps, "SMALL_FOR_MANY"), (cpu_maps, "MANY"), (preparing, "SMALL"),
        (narrow_maps, "SMALL"), (in_place, "ENOUGH_FOR_A_CPU"), (short_cpu, "ENOUGH"),
    ):  # fmt: skip
        setattr(module, name, 1)
    cpu_maps.mkl_is_slow = lambda *_: True  # type: ignore[assignment]


def errors() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for make in (gpt2, bert, t5, vit):
        torch.manual_seed(0)
        model, plainly, as_used = make()
        exact = plainly(deepcopy(model).double()).detach()  # where gradients are asked for, nothing stands for a part
        found[make.__name__] = {}
        for precision in PRECISIONS:
            with torch.inference_mode():
                answer = as_used(in_precision(deepcopy(model), precision))
            found[make.__name__][precision] = float((answer.double() - exact).norm() / exact.norm())
    return found


def by_the_front_door(folder: Path) -> None:
    writer, reader = save_writer(folder / "writer"), save_reader(folder / "reader", "embedding")
    for precision in PRECISIONS:
        for more in ([writer, "And God", "--max-tokens", "4"], [reader, "the light", "--json"]):
            done = qkv("run", *more, "--device", "cpu", "--precision", precision)
            assert done.code == 0, done


if __name__ == "__main__":
    torch.set_num_threads(1)
    everything_pays()
    with warnings.catch_warnings(record=True) as told, tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("always", QkvWarning)
        made = errors()
        sentences = [str(each.message) for each in told if issubclass(each.category, QkvWarning)]
        by_the_front_door(Path(folder))
    print(json.dumps({"errors": made, "told": sentences}))
