"""Reformer against the reference library's, with noise on every parameter and the same rotations.

In float64: near a score of -100,000, which a token has for itself, float32 knows steps of 0.008 only, and a token whose
rounding differs falls into another bucket.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import ReformerConfig

from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, count_parameters
from qkv.models.head_choice import HeadChoice
from qkv.parts.attention.visibility import Tokens
from qkv.parts.position import positions_in_documents
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from qkv.weights.rules import to_theirs
from qkv.weights.save import tensors_of
from tests.parity.published import Case, Pair, answers, check_both_ways, close, random_ids, reference_pair
from tests.weights.folders import edit_config, edit_tensors

CONFIG: dict[str, Any] = {
    "vocab_size": 41, "hidden_size": 24, "feed_forward_size": 40, "num_attention_heads": 3, "attention_head_size": 8,
    "attn_layers": ["local", "lsh", "local", "lsh"], "axial_pos_shape": [12, 16], "axial_pos_embds_dim": [10, 14],
    "max_position_embeddings": 192, "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8, "num_buckets": 4,
    "hash_seed": 7, "is_decoder": True, "pad_token_id": 5, "hidden_dropout_prob": 0.0,
    "local_attention_probs_dropout_prob": 0.0,
}  # fmt: skip
LANGUAGE, CLOSE = "ReformerModelWithLMHead", {"atol": 1e-9, "rtol": 1e-7}


def case(architecture: str = LANGUAGE, **changes: Any) -> Case:
    return Case(architecture, ReformerConfig(**{**CONFIG, **changes}))


CASES = {
    "language": case(),
    "rounds and factors": case(num_hashes=3, num_buckets=[4, 6], hash_seed=0),
    "local chunks are larger": case(local_attn_chunk_length=12),
    "local chunks are smaller": case(local_attn_chunk_length=6, lsh_attn_chunk_length=16),
    "two chunks before": case(lsh_num_chunks_before=2, attn_layers=["lsh", "lsh"]),
    "all local, learned positions": case(attn_layers=["local"] * 3, axial_pos_embds=False, hidden_act="gelu"),
    "heads wider than the stream": case(attention_head_size=12, layer_norm_eps=1e-3, attn_layers=["lsh", "local"]),
    "feed-forward in chunks": case(chunk_size_feed_forward=1),
    "states": case("ReformerModel"),
    "spans": case("ReformerForQuestionAnswering"),
}
LENGTHS = [1, 2, 7, 8, 9, 23, 64, 100]


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    made = reference_pair(CASES[request.param], tmp_path_factory.mktemp("reference"))
    return Pair(made.case, made.reference.double(), made.ours.double())


def theirs(pair: Pair, ids: Tensor, **beside: Any) -> Tensor:
    """Without its cache, which answers wrongly."""
    if pair.case.architecture != "ReformerForQuestionAnswering":
        beside["use_cache"] = False
    return answers(pair.reference(ids, **beside))[0]


@torch.no_grad()
@pytest.mark.parametrize("length", LENGTHS)
def test_outputs_agree_at_all_lengths(pair: Pair, length: int) -> None:
    for rows in (1, 3):
        ids = random_ids(pair, rows, length)
        torch.testing.assert_close(pair.ours(ids), theirs(pair, ids), **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("length", [2, 8, 48, 61])
def test_outputs_agree_padded_on_the_right(pair: Pair, length: int) -> None:
    ids, real = random_ids(pair, 3, length), torch.arange(length) < torch.tensor([[length], [1], [length // 2]])
    found = pair.ours(ids, tokens=Tokens(length, documents=real.long()))
    expected = theirs(pair, ids, attention_mask=real.long())
    torch.testing.assert_close(found[real], expected[real], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("length", [2, 5, 48])
def test_outputs_agree_padded_on_the_left(pair: Pair, length: int) -> None:
    """At lengths that the reference need not fill: there it cannot be told positions."""
    ids, real = random_ids(pair, 3, length), torch.arange(length) >= torch.tensor([[0], [length - 1], [length // 2]])
    positions = positions_in_documents(real.long())
    found = pair.ours(ids, tokens=Tokens(length, documents=real.long()), positions=positions)
    expected = theirs(pair, ids, attention_mask=real.long(), position_ids=positions)
    torch.testing.assert_close(found[real], expected[real], **CLOSE)


@torch.no_grad()
def test_as_many_buckets_as_suit_a_row(tmp_path: Path) -> None:
    made = reference_pair(case(num_buckets=None), tmp_path)
    pair = Pair(made.case, made.reference.double(), made.ours.double())
    for length in (9, 64, 192):
        for module in pair.reference.modules():  # it would keep the number that suited the row before
            if hasattr(module, "num_buckets"):
                module.num_buckets = None
        ids = random_ids(pair, 2, length)
        torch.testing.assert_close(pair.ours(ids), theirs(pair, ids), **CLOSE)


TRAINED = {"axial_pos_shape": [6, 8], "max_position_embeddings": 48, "num_hashes": 2}  # a grid that a row fills


@pytest.mark.parametrize("attn_layers", [["local"], ["lsh"], ["local", "lsh", "lsh"]], ids=str)
def test_gradients_agree(attn_layers: list[str], tmp_path: Path) -> None:
    """The reference learns in training mode only, from rows that fill its grid."""
    made = reference_pair(case(attn_layers=attn_layers, **TRAINED), tmp_path)
    reference, ours = made.reference.double().train(), made.ours.double().train()
    ids, pull = random_ids(made, 2, 48), torch.randn(2, 48, 41).double()
    (reference(ids, use_cache=False).logits * pull).sum().backward()
    (ours(ids) * pull).sum().backward()
    named = gradients_by_their_names(ours)
    expected = {name: parameter.grad for name, parameter in reference.named_parameters() if name != "lm_head.bias"}
    assert named.keys() - {"lm_head.bias"} == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(named[name], gradient, atol=1e-8, rtol=1e-6, msg=name)


@torch.no_grad()
def gradients_by_their_names(model: nn.Module) -> dict[str, Tensor]:
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, gradient in gradients:
        parameter.copy_(gradient)
    return to_theirs(PUBLISHED["reformer"].rules(model.sizes, model.head_choice), tensors_of(model))


def test_what_is_exported_the_reference_opens(pair: Pair, tmp_path: Path) -> None:
    reference = pair.reference.float()
    check_both_ways(Pair(pair.case, reference, pair.ours.float()), tmp_path)
    again = load_model(tmp_path)
    assert (again.sizes, again.head_choice) == (pair.ours.sizes, pair.ours.head_choice)
    pair.reference.double(), pair.ours.double()


@pytest.mark.parametrize("size", FAMILIES["reformer"].published)
@pytest.mark.parametrize("kind", PUBLISHED["reformer"].architectures)
def test_as_many_parameters_as_the_reference(size: str, kind: str) -> None:
    sizes, published = FAMILIES["reformer"].published[size], PUBLISHED["reformer"]
    config = transformers.AutoConfig.for_model(**published.config.write(sizes))
    with torch.device("meta"):
        reference = getattr(transformers, published.architectures[kind])(config)
    expected = {name: parameter.numel() for name, parameter in reference.named_parameters()}
    expected.pop("lm_head.bias", None)  # never added
    assert count_parameters("reformer", sizes, HeadChoice(kind)) == sum(expected.values())


def test_files_of_older_versions_hold_values_of_hidden_scores(tmp_path: Path) -> None:
    model = load_small(tmp_path)
    save_published(model, tmp_path / "ours", PUBLISHED)
    layer = "reformer__encoder__layers__1__attention__self_attention"
    more = {f"{layer}__mask_value_float16": torch.tensor(-1e4), f"{layer}__self_mask_value_float32": torch.tensor(-1e5)}
    edit_tensors(tmp_path / "ours", **more)
    ids = torch.arange(6, 12)[None]
    close(load_model(tmp_path / "ours")(ids), model(ids))


def test_a_cache_reads_rows_anew(pair: Pair) -> None:
    """Token by token as with every prefix alone: nothing else can be kept of rows that are sorted."""
    ids = random_ids(pair, 2, 12)
    cache = pair.ours.new_cache(12)
    with torch.no_grad():
        for start, end in ((0, 5), (5, 6), (6, 10), (10, 12)):
            found = pair.ours(ids[:, start:end], cache=cache)
            torch.testing.assert_close(found, pair.ours(ids[:, :end])[:, start:], **CLOSE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_decoder": False}, "is_decoder True; the config.json asks for False"),
        ({"attn_layers": ["local", "global"]}, 'list of "local" and "lsh"'),
        ({"num_hidden_layers": 3}, "tells of 4 layers"),
        ({"axial_pos_embds_dim": [10, 10]}, "must sum to"),
        ({"axial_pos_shape": [4, 4, 12]}, "two whole numbers"),
        ({"local_num_chunks_after": 1}, "local_num_chunks_after 0"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings False"),
        ({"num_buckets": "many"}, "must be whole numbers"),
        ({"hash_seed": "x"}, "must be a whole number"),
        ({"num_buckets": 5}, "even number"),
    ],
)
def test_what_would_be_another_model_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = load_small(tmp_path)
    save_published(model, tmp_path / "ours", PUBLISHED)
    edit_config(tmp_path / "ours", **changes)
    with pytest.raises(QkvError, match=message):
        load_model(tmp_path / "ours")


def load_small(folder: Path) -> Any:
    return reference_pair(case(), folder / "theirs").ours
