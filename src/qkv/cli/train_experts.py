"""What commands that train models with experts can be told of them."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from qkv.cli.groups import given


@dataclass(frozen=True, kw_only=True)
class ExpertOptions:
    balance: Annotated[
        float, typer.Option(help="With experts: weight of the loss that is least where all of them are used alike.")
    ] = 0.01
    router_z: Annotated[
        float, typer.Option(help="With experts: weight of the loss that keeps the logits of routers small.")
    ] = 0.001


def with_weights(task: Any, experts: ExpertOptions) -> Any:
    """The objective of a task, with the weights that a person gave; without any it is told by the model."""
    from qkv.train.objectives.expert_losses import WithExpertLosses

    return WithExpertLosses(task, experts.balance, experts.router_z) if given(experts) else task
