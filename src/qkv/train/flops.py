"""How much arithmetic a step takes, counted by running one."""

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.train.objectives.loss import Batch, Objective


def flops_per_target_token(model: SequenceToSequence, batch: Any, rows: int = 4) -> float:
    """Floating-point operations of matrix products, forward and backward, for each predicted token of a batch.

    Counted on the first rows of the batch, padding included: it is computed like anything else. A copy that has shapes
    and no numbers takes no time; a recurrent model is run on the CPU, because kernels that a GPU fuses (a whole layer
    in one call) cannot be seen into.
    """
    if not any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return _counted(deepcopy(model).to("meta"), batch, rows)
    place = next(model.parameters()).device
    gradients = [parameter.grad for parameter in model.parameters()]
    generator = torch.get_rng_state()
    flops = _counted(model.to("cpu"), batch, rows)
    model.to(place)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    torch.set_rng_state(generator)
    return flops


def _counted(model: nn.Module, batch: Any, rows: int) -> float:
    place = next(model.parameters()).device
    source, lengths, target = (each[:rows].to(place) for each in (batch.source, batch.source_lengths, batch.target))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # whose products can be seen
        model(source, lengths, target[:, :-1]).sum().backward()
    return counter.get_total_flops() / int((batch.target_lengths[:rows] - 1).sum())


def flops_per_counted_token(model: nn.Module, objective: Objective, batch: Batch) -> float:
    """The same for any objective: one step of it on a copy that has shapes and no numbers, so it takes no time.

    For models whose products torch can see into, which is all but recurrent ones.
    """
    # The objective is copied too: one that holds a teacher would take it along to where there are no numbers.
    shape, counting = deepcopy((model, objective))
    shape.to("meta").train(model.training)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss = counting(shape, batch.to(torch.device("meta")))
        loss.total.backward()
    return counter.get_total_flops() / max(1, loss.count)
