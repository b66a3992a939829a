"""The same random weights on both sides: our model, and the reference library's with its numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from peers import Bench
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.models.catalogue import build, head_of
from qkv.models.head_choice import HeadChoice
from qkv.parts.wanted import slots_read
from qkv.weights.certify import open_reference
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import family_of, published_config, save_published
from qkv.weights.rules import to_theirs
from qkv.weights.save import tensors_of

NOISE = 0.02  # on every parameter: at the beginning biases are 0 and norms 1, which would hide one taken for another
NARROW = torch.bfloat16


def ours_of(family: str, sizes: Any, head: HeadChoice | None, bench: Bench) -> Any:
    """Our model in float32, in evaluation mode."""
    torch.manual_seed(0)
    try:
        with bench.device:
            model = build(family, sizes, head)
    except RuntimeError:  # numbers drawn by a generator of the host
        model = build(family, sizes, head)
    model = model.to(bench.device).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(NOISE * torch.randn_like(parameter))
    return model


def names_of_others(ours: Any) -> dict[str, Tensor]:
    """The tensors of our model by the names they are published under."""
    return to_theirs(family_of(ours, PUBLISHED).rules(ours.sizes, head_of(ours)), tensors_of(ours))


def reference_of(ours: Any, bench: Bench, more: Mapping[str, Any] | None = None) -> Any:
    """The reference library's model with the weights of ours; `more` is added to its configuration."""
    told = {**published_config(ours, PUBLISHED), **(more or {})}
    kind = getattr(transformers, told["architectures"][0])
    config = transformers.AutoConfig.for_model(told.pop("model_type"), **told)
    with bench.device:
        reference = kind(config)
    theirs = names_of_others(ours)
    if not theirs.keys() <= reference.state_dict().keys():  # names on disk are not those in memory
        folder = bench.folder / "published"
        save_published(ours, folder, PUBLISHED, more)
        reference, keys = open_reference(transformers, kind.__name__, folder)
        if any(keys.values()):
            raise QkvError(f"The reference library reads what we write otherwise: {keys}.")
        return reference.to(bench.device).eval()
    reference.load_state_dict(theirs, strict=False)
    reference.tie_weights()
    filled = {tensor.data_ptr() for name, tensor in reference.state_dict().items() if name in theirs}
    empty = [name for name, parameter in reference.named_parameters() if parameter.data_ptr() not in filled]
    if empty:
        raise QkvError(f"Nothing was said of these weights of the reference library: {', '.join(empty)}.")
    return reference.to(bench.device).eval()


def many_bytes(vocabulary: int, *special: str) -> TextTokenizer:
    """A byte-level tokenizer of so many tokens: all bytes, pairs of them in the order of their numbers, these last."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(first, second) for first in letters for second in letters][: vocabulary - len(letters) - len(special)]
    tokens = [*letters, *(first + second for first, second in pairs), *special]
    made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(special))
    return TextTokenizer(made)


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def operations(family: str, sizes: Any, head: HeadChoice | None, *given: Tensor, answers: bool = False) -> int:
    """Of the matrix products of a forward pass, counted on a model that has shapes and no numbers.

    Where only `answers` count, without those of the last block that make states which the head does not read.
    """
    with torch.device("meta"):
        model: Any = build(family, sizes, head).eval()
    streams: list[torch.Size] = []
    if answers:
        model.stack.register_forward_pre_hook(lambda _, passed: streams.append(passed[0].shape))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*(each.to("meta") for each in given))
    total = int(counter.get_total_flops())
    for rows, slots, width in streams:
        unread = slots - (slots_read(model.head) or slots)
        total -= rows * unread * 4 * width * (width + sizes.hidden + slots)  # queries and what is read, hidden units
    return total
