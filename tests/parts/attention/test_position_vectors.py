import torch

from qkv.parts.attention.attention import Attention, CrossAttention
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.low_rank import AdaptedJoinedLinear, LowRank

WIDTH, HEADS = 12, 3


def reference(attention, queries, keys, values):
    """torch's own attention, which takes what queries, keys and values are made of apart."""
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    state = attention.state_dict()
    names = ("project.query", "project.key", "project.value")
    names = tuple(name if f"{name}.weight" in state else "query" for name in names)
    theirs.load_state_dict(
        {
            "in_proj_weight": torch.cat([state[f"{name}.weight"] for name in names]),
            "in_proj_bias": torch.cat([state[f"{name}.bias"] for name in names]),
            "out_proj.weight": state["out.weight"],
            "out_proj.bias": state["out.bias"],
        }
    )
    return theirs(queries, keys, values)[0]


def noisy(attention):
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return attention


def test_vectors_are_added_where_queries_and_keys_are_made_alone():
    torch.manual_seed(0)
    attention, x, places = noisy(Attention(WIDTH, HEADS)), torch.randn(2, 5, WIDTH), torch.randn(2, 5, WIDTH)
    found = attention(x, Context(tokens=Tokens(5), position_vectors=places))
    torch.testing.assert_close(found, reference(attention, x + places, x + places, x))
    shared = attention(x, Context(tokens=Tokens(5), position_vectors=places[0]))
    torch.testing.assert_close(shared[0], found[0])


def test_the_memory_has_vectors_of_its_own():
    torch.manual_seed(0)
    attention, x, places = noisy(CrossAttention(WIDTH, HEADS)), torch.randn(2, 5, WIDTH), torch.randn(5, WIDTH)
    memory, there = torch.randn(2, 7, WIDTH), torch.randn(2, 7, WIDTH)
    ctx = Context(tokens=Tokens(5), position_vectors=places, memory=memory, memory_position_vectors=there)
    torch.testing.assert_close(attention(x, ctx), reference(attention, x + places, memory + there, memory))


def test_maps_without_a_bias_of_their_own_stay_so():
    torch.manual_seed(0)
    for options in ({"bias": False}, {"key_bias": False}):
        attention, x = Attention(WIDTH, HEADS, **options), torch.randn(2, 5, WIDTH)
        nothing = torch.zeros(5, WIDTH)
        with_vectors = attention(x, Context(tokens=Tokens(5), position_vectors=nothing))
        torch.testing.assert_close(with_vectors, attention(x, Context(tokens=Tokens(5))))


def test_updates_beside_the_maps_read_what_the_maps_read():
    torch.manual_seed(0)
    attention, x, places = Attention(WIDTH, HEADS), torch.randn(2, 5, WIDTH), torch.randn(5, WIDTH)
    rows = dict(zip(attention.project.outputs, attention.project.parts(attention.project.weight), strict=True))
    lora = {name: LowRank(rows[name], 2, 0.7) for name in ("query", "value")}
    for update in lora.values():
        torch.nn.init.normal_(update.b)
    adapted = AdaptedJoinedLinear(attention.project, lora)
    found = adapted.with_last_of(x + places, x)
    for name, update in lora.items():
        update.fold_into(rows[name])
    expected = adapted.without().with_last_of(x + places, x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
