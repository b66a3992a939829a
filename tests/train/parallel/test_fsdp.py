"""Parameters in parts: what several ranks learn is what one process learns."""

import pytest
import torch

from tests.train.parallel.ranks import run_ranks
from tests.train.parallel.steps import language_model, train_a_little


def same(ranks: int, parallel: str = "", **settings: object) -> None:
    losses, weights = train_a_little(language_model, **settings)
    for of_rank, theirs in run_ranks(ranks, train_a_little_there, parallel, settings):
        assert [count for *_, count in of_rank] == [count for *_, count in losses]
        torch.testing.assert_close(torch.tensor(of_rank), torch.tensor(losses), rtol=1e-5, atol=1e-6)
        assert theirs.keys() == weights.keys()
        for name, tensor in weights.items():
            torch.testing.assert_close(
                theirs[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
            )


def train_a_little_there(parallel: str, settings: dict[str, object]) -> object:
    return train_a_little(language_model, parallel, **settings)


@pytest.mark.parametrize(
    ("ranks", "parallel"), [(2, ""), (4, ""), (4, "replicate:2"), (2, "tensor:2"), (4, "tensor:2")]
)
def test_a_step_on_several_ranks_is_that_of_one_process(ranks: int, parallel: str) -> None:
    same(ranks, parallel)


def test_several_batches_for_an_update() -> None:
    same(2, accumulate=2, clip=0.1)
