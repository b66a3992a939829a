"""Small models and tokenizers, whole, for tests that damage them."""

import pytest
import torch

from tests.fuzz.folders import Seed
from tests.fuzz.seeds_of_models import published_models
from tests.fuzz.seeds_of_texts import tokenizers


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seed]:
    torch.manual_seed(0)
    return {seed.name: seed for seed in published_models(tmp_path_factory.mktemp("models"))}


@pytest.fixture(scope="module")
def cutters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seed]:
    return {seed.name: seed for seed in tokenizers(tmp_path_factory.mktemp("tokenizers"))}
