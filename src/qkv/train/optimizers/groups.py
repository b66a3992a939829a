"""Which parameters decay, and which learn more slowly than others: the same rules for every optimizer."""

from collections.abc import Callable
from typing import Any

from torch import nn

from qkv.errors import QkvError
from qkv.parts.embed import TokenEmbedding
from qkv.parts.position import Learned, Learned2D, RelativeBuckets

# Modules whose weight is a table looked up by index.
TABLES = (nn.Embedding, TokenEmbedding, Learned, Learned2D, RelativeBuckets)

# Says whether a parameter decays, given the module that owns it, its name there, and itself.
DecayRule = Callable[[nn.Module, str, nn.Parameter], bool]

# The share of the learning rate that a parameter gets, given the model and its name there: `adapt.LayerwiseRates`.
RateRule = Callable[[nn.Module, str], float]


def decay_matrices(module: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    """The usual rule: matrices decay; biases, norms' gains and embedding tables do not.

    A gain or a bias sets a scale that decay would only fight. A row of a table is touched only when its token appears,
    so decay would shrink rare tokens. A table shared with the output projection counts as a table.
    """
    return parameter.ndim >= 2 and not isinstance(module, TABLES)


def decay_everything(module: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    """No exceptions, as AdamW was first published."""
    return True


def decay_groups(model: nn.Module, weight_decay: float, decays: DecayRule = decay_matrices) -> list[dict[str, Any]]:
    """Two parameter groups, what decays and what does not; an empty one is left out."""
    owners = dict(model.named_modules())
    decaying: list[nn.Parameter] = []
    resting: list[nn.Parameter] = []
    for name, parameter in trainable(model):
        owner, _, own_name = name.rpartition(".")
        (decaying if decays(owners[owner], own_name, parameter) else resting).append(parameter)
    groups = [{"params": decaying, "weight_decay": weight_decay}, {"params": resting, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def cut_groups(
    model: nn.Module,
    groups: list[dict[str, Any]],
    settings: Callable[[nn.Module, str, nn.Parameter], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Each group cut by a further setting of its parameters, given the module that owns one, its name, and itself."""
    owners, names = dict(model.named_modules()), {parameter: name for name, parameter in model.named_parameters()}
    found: list[dict[str, Any]] = []
    for group in groups:
        cut: list[dict[str, Any]] = []
        for parameter in group["params"]:
            own = settings(owners[names[parameter].rpartition(".")[0]], names[parameter], parameter)
            fitting = [each for each in cut if all(each[name] == value for name, value in own.items())]
            if not fitting:
                cut.append({**group, **own, "params": []})
            (fitting or cut)[-1]["params"].append(parameter)
        found += cut
    return found


def rate_groups(
    model: nn.Module, groups: list[dict[str, Any]], learning_rate: float, rates: RateRule
) -> list[dict[str, Any]]:
    """Each group cut into groups of one learning rate, the highest first: that is the rate a run reports."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    found: dict[tuple[float, int], list[nn.Parameter]] = {}
    for number, group in enumerate(groups):
        for parameter in group["params"]:
            found.setdefault((rates(model, names[parameter]), number), []).append(parameter)
    return [
        {**groups[number], "params": parameters, "lr": learning_rate * share}
        for (share, number), parameters in sorted(found.items(), key=lambda item: (-item[0][0], item[0][1]))
    ]


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Each parameter once, under its first name, however many modules share it."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not named:
        raise QkvError("The model has no trainable parameter, so there is nothing to optimise.")
    return named
