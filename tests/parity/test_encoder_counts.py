"""Every published size of the encoders has as many parameters as the reference's, counted without memory."""

import pytest
import torch
import transformers

from qkv.models.catalogue import FAMILIES, count_parameters
from qkv.models.head_choice import HeadChoice
from qkv.weights.maps.catalogue import PUBLISHED

CASES = [
    (family, size, kind)
    for family in ("bert", "albert", "distilbert", "roformer")
    for size in FAMILIES[family].published
    for kind in PUBLISHED[family].architectures
    if not (kind == "states" and "pooled" in PUBLISHED[family].architectures)  # the reference has no class for it
]


@pytest.mark.parametrize(("family", "size", "kind"), CASES, ids=lambda value: value)
def test_as_many_as_the_reference(family, size, kind):
    sizes, published = FAMILIES[family].published[size], PUBLISHED[family]
    labels = ("no", "yes") if kind in ("classification", "tokens") else ()
    config = transformers.AutoConfig.for_model(**published.config.write(sizes))
    with torch.device("meta"):
        reference = getattr(transformers, published.architectures[kind])(config)
    expected = sum(parameter.numel() for parameter in reference.parameters() if parameter.requires_grad)
    assert count_parameters(family, sizes, HeadChoice(kind, labels)) == expected


# In millions, as the papers say: [devlin2019 §3], [lan2020 tab.1], [sanh2019 tab.3].
SAID = {
    ("bert", "base"): 110,
    ("bert", "large"): 340,
    ("albert", "base"): 12,
    ("albert", "large"): 18,
    ("albert", "xlarge"): 60,
    ("albert", "xxlarge"): 235,
    ("distilbert", "base"): 66,
}


@pytest.mark.parametrize(("family", "size"), SAID)
def test_about_as_many_as_the_paper_says(family, size):
    kind = "pretraining" if "pretraining" in FAMILIES[family].heads else "states"
    counted = count_parameters(family, FAMILIES[family].published[size], HeadChoice(kind))
    assert counted == pytest.approx(SAID[family, size] * 10**6, rel=0.06)
