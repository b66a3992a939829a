"""Multi-head attention: against torch's own, against itself computed another way, and what it hands to the ledger."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention, CrossAttention, HeadOptions, MultiHead
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.visibility import Causal, NotPadding, SameDocument, Tokens, Window
from qkv.parts.context import Context, Ledger
from qkv.parts.norm import RMSNorm
from qkv.parts.position import Rotary, rotary_rates, rotate_halves
from tests.parts.attention.cases import documents

WIDTH, HEADS = 12, 4


def noisy(module: nn.Module) -> nn.Module:
    """Every parameter made different from every other: fresh biases are zero and would hide a mix-up."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module


def plain(size: int) -> Context:
    return Context(tokens=Tokens(size))


def torch_attention(**options: int) -> nn.MultiheadAttention:
    return noisy(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)).eval()


@torch.no_grad()
def copy_self(reference: nn.MultiheadAttention, ours: Attention) -> None:
    ours.project.weight.copy_(reference.in_proj_weight)
    ours.project.bias.copy_(reference.in_proj_bias)
    ours.out.load_state_dict(reference.out_proj.state_dict())


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_is_that_of_torch(causal: bool) -> None:
    reference, ours = torch_attention(), Attention(WIDTH, HEADS, visibility=Causal() if causal else None)
    copy_self(reference, ours)
    x, lengths = torch.randn(3, 7, WIDTH), torch.tensor([7, 4, 1])
    tokens = Tokens.padded(lengths, 7)
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None  # True: may not attend
    expected, _ = reference(x, x, x, key_padding_mask=tokens.documents == 0, attn_mask=hidden, need_weights=False)
    found = ours(x, Context(tokens=tokens, visibility=NotPadding()))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_the_gradients_of_self_attention_are_those_of_torch() -> None:
    reference, ours = torch_attention(), Attention(WIDTH, HEADS)
    copy_self(reference, ours)
    x, pull = torch.randn(2, 5, WIDTH), torch.randn(2, 5, WIDTH)
    reference(x, x, x, need_weights=False)[0].backward(pull)
    ours(x, plain(5)).backward(pull)
    torch.testing.assert_close(ours.project.weight.grad, reference.in_proj_weight.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.project.bias.grad, reference.in_proj_bias.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.out.weight.grad, reference.out_proj.weight.grad, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_cross_attention_is_that_of_torch() -> None:
    reference = torch_attention(kdim=10, vdim=10)
    ours = CrossAttention(WIDTH, HEADS, memory_width=10)
    query_bias, key_bias, value_bias = reference.in_proj_bias.chunk(3)
    state = {
        "query.weight": reference.q_proj_weight,
        "query.bias": query_bias,
        "project.key.weight": reference.k_proj_weight,
        "project.key.bias": key_bias,
        "project.value.weight": reference.v_proj_weight,
        "project.value.bias": value_bias,
        "out.weight": reference.out_proj.weight,
        "out.bias": reference.out_proj.bias,
    }
    ours.load_state_dict(state)
    x, memory, tokens = torch.randn(3, 4, WIDTH), torch.randn(3, 6, 10), Tokens.padded(torch.tensor([6, 2, 5]), 6)
    expected, _ = reference(x, memory, memory, key_padding_mask=tokens.documents == 0, need_weights=False)
    ctx = Context(tokens=Tokens(4), visibility=NotPadding(), memory=memory, memory_tokens=tokens)
    torch.testing.assert_close(ours(x, ctx), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("key_value_heads", [1, 2])
@torch.no_grad()
def test_shared_keys_are_keys_repeated(key_value_heads: int) -> None:
    """Heads that share a key/value head act as heads with copies of it. [ainslie2023 §2.2]"""
    grouped = noisy(Attention(WIDTH, HEADS, key_value_heads=key_value_heads))
    full = Attention(WIDTH, HEADS)
    state = grouped.state_dict()
    for kind in ("weight", "bias"):
        for part in ("key", "value"):
            heads = state[f"project.{part}.{kind}"].unflatten(0, (key_value_heads, -1))
            state[f"project.{part}.{kind}"] = heads.repeat_interleave(HEADS // key_value_heads, 0).flatten(0, 1)
    full.load_state_dict(state)
    x = torch.randn(2, 5, WIDTH)
    torch.testing.assert_close(grouped(x, plain(5)), full(x, plain(5)), atol=1e-6, rtol=1e-5)
    assert grouped.project.weight.numel() < full.project.weight.numel()


@torch.no_grad()
def test_key_width_value_width_and_scale_are_independent() -> None:
    """By the equation, head by head, with W^O cut into one slice a head. [vaswani2017 §3.2.2]"""
    mixer = noisy(Attention(WIDTH, 3, key_width=5, value_width=2, scale=0.7))
    state, x = mixer.state_dict(), torch.randn(2, 4, WIDTH)
    assert state["project.query.weight"].shape == (15, WIDTH)
    assert state["project.value.weight"].shape == (6, WIDTH)
    assert state["out.weight"].shape == (WIDTH, 6)

    def head(part: str, i: int, width: int) -> Tensor:
        rows = slice(i * width, (i + 1) * width)
        return x @ state[f"project.{part}.weight"][rows].T + state[f"project.{part}.bias"][rows]

    expected = mixer.out.bias.expand(2, 4, WIDTH)
    for i in range(3):
        weights = torch.softmax(head("query", i, 5) @ head("key", i, 5).mT * 0.7, -1)
        expected = expected + weights @ head("value", i, 2) @ state["out.weight"][:, 2 * i : 2 * i + 2].T
    torch.testing.assert_close(mixer(x, plain(4)), expected, atol=1e-5, rtol=1e-5)


def norms(names: tuple[str, ...], width: int) -> dict[str, Any]:
    return {f"{name}_norm": noisy(RMSNorm(width, 1e-2)) for name in names}


NORMED = [("query",), ("key",), ("query", "key")]


@pytest.mark.parametrize("normed", NORMED, ids="-".join)
@torch.no_grad()
def test_queries_and_keys_are_normed_by_head_before_they_are_turned(normed: tuple[str, ...]) -> None:
    """By the equation, head by head; heads of a layer share one scale. [yang2025 §2]"""
    rotary = Rotary(rotary_rates(4, 10.0), rotate_halves)
    options = norms(normed, 4)
    mixer = noisy(Attention(WIDTH, 3, key_value_heads=1, key_width=4, rotary=rotary, **options))
    x, positions = torch.randn(2, 5, WIDTH), torch.arange(5)
    maps = dict(zip(("query", "key", "value"), mixer.project(x), strict=True))

    def head(part: str, i: int) -> Tensor:
        each = maps[part][..., 4 * i : 4 * i + 4]
        if part in normed:
            gain = mixer.state_dict()[f"{part}_norm.weight"]
            each = each / (each.square().mean(-1, keepdim=True) + 1e-2).sqrt() * gain
        return rotary(each[:, None], positions)[:, 0]

    weights = [torch.softmax(head("query", i) @ head("key", 0).mT / 2, -1) for i in range(3)]
    expected = mixer.out(torch.cat([each @ maps["value"] for each in weights], -1))
    torch.testing.assert_close(mixer(x, plain(5)), expected, atol=1e-5, rtol=1e-5)
    unnormed = Attention(WIDTH, 3, key_value_heads=1, key_width=4, rotary=rotary)
    unnormed.load_state_dict(mixer.state_dict(), strict=False)
    assert not torch.allclose(unnormed(x, plain(5)), expected, atol=1e-2)


@pytest.mark.parametrize("normed", NORMED, ids="-".join)
@torch.no_grad()
def test_normed_queries_and_keys_are_read_alike_by_every_way_in(normed: tuple[str, ...]) -> None:
    """The first slots alone, maps that another has made, and never as their one product made them."""
    plain_mixer, x = Attention(WIDTH, HEADS), torch.randn(2, 5, WIDTH)
    assert plain_mixer._reads_joined(x, plain(5))
    mixer = noisy(Attention(WIDTH, HEADS, **norms(normed, 3)))
    assert not mixer._reads_joined(x, plain(5))
    expected = mixer.hidden(x, plain(5))
    torch.testing.assert_close(mixer.hidden_of_maps(mixer.project(x), plain(5)), expected)
    torch.testing.assert_close(mixer.hidden_of_first(x, plain(5), 2), expected[:, :2])


@pytest.mark.parametrize("kernel", [exact, fused, flash, None])
@torch.no_grad()
def test_any_kernel_gives_the_same_answer(kernel: object) -> None:
    mixer = noisy(Attention(WIDTH, HEADS, key_value_heads=2, visibility=Causal() & Window(3)))
    numbers = documents("packed", 9)
    ctx = Context(tokens=Tokens(9, documents=numbers), visibility=SameDocument())
    x = torch.randn(3, 9, WIDTH)
    mixer.kernel = exact
    expected = mixer(x, ctx)
    mixer.kernel = kernel
    torch.testing.assert_close(mixer(x, ctx), expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_documents_of_a_packed_row_are_attended_as_if_alone() -> None:
    """With rotary positions only distances count, so not even positions need to start again."""
    mixer = noisy(Attention(WIDTH, 3, visibility=Causal(), rotary=Rotary(rotary_rates(4))))
    x = torch.randn(1, 9, WIDTH)
    numbers = torch.tensor([[1, 1, 1, 2, 2, 3, 3, 3, 3]])
    packed = mixer(x, Context(tokens=Tokens(9, documents=numbers), visibility=SameDocument()))
    for part in (slice(0, 3), slice(3, 5), slice(5, 9)):
        alone = mixer(x[:, part], plain(part.stop - part.start))
        torch.testing.assert_close(packed[:, part], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("beams", [2, 3])
@torch.no_grad()
def test_beams_that_share_a_memory_row_see_what_they_would_see_in_a_copy(beams: int) -> None:
    mixer = noisy(CrossAttention(WIDTH, HEADS))
    memory, tokens = torch.randn(2, 6, WIDTH), Tokens.padded(torch.tensor([6, 2]), 6)
    x = torch.randn(2 * beams, 3, WIDTH)
    shared = Context(tokens=Tokens(3), visibility=NotPadding(), memory=memory, memory_tokens=tokens)
    rows = torch.arange(2).repeat_interleave(beams)
    copied = Context(tokens=Tokens(3), visibility=NotPadding(), memory=memory[rows], memory_tokens=tokens.select(rows))
    torch.testing.assert_close(mixer(x, shared), mixer(x, copied), atol=1e-6, rtol=1e-5)


def test_beams_with_different_sights_cannot_share_a_memory_row() -> None:
    mixer = CrossAttention(WIDTH, HEADS, visibility=Window(2))
    with pytest.raises(QkvError, match="share a memory row"):
        mixer(torch.randn(4, 3, WIDTH), Context(tokens=Tokens(3), memory=torch.randn(2, 5, WIDTH)))


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_rows_that_no_number_of_beams_explains_are_an_error(rows: int) -> None:
    with pytest.raises(QkvError, match=f"{rows} rows cannot share 2 memory rows"):
        CrossAttention(WIDTH, HEADS)(
            torch.randn(rows, 3, WIDTH), Context(tokens=Tokens(3), memory=torch.randn(2, 5, WIDTH))
        )


def test_cross_attention_without_a_memory_says_so() -> None:
    with pytest.raises(QkvError, match="memory"):
        CrossAttention(WIDTH, HEADS)(torch.randn(1, 3, WIDTH), plain(3))


@torch.no_grad()
def test_the_ledger_keeps_weights_that_sum_to_one_and_give_the_output() -> None:
    model = nn.ModuleDict(
        {"self": noisy(Attention(WIDTH, HEADS, visibility=Causal())), "cross": CrossAttention(WIDTH, HEADS)}
    )
    x, memory = torch.randn(2, 5, WIDTH), torch.randn(2, 3, WIDTH)
    ledger = Ledger(model, keep={"weights"})
    ctx = Context(tokens=Tokens(5), memory=memory, ledger=ledger)
    found = model["self"](x, ctx)
    model["cross"](x, ctx)
    assert {name: [len(kept), kept[0].shape] for name, kept in ledger.entries.items()} == {
        "self/weights": [1, (2, HEADS, 5, 5)],
        "cross/weights": [1, (2, HEADS, 5, 3)],
    }
    for (weights,) in ledger.entries.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    (weights,) = ledger.entries["self/weights"]
    _, _, value = model["self"].project(x)
    heads = weights @ value.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # [b h q e]
    torch.testing.assert_close(model["self"].out(heads.transpose(1, 2).flatten(2)), found)


def test_the_ledger_keeps_only_what_was_asked_for() -> None:
    mixer = Attention(WIDTH, HEADS, kernel=fused)
    ledger = Ledger(mixer, keep={"balance"})
    mixer(torch.randn(1, 3, WIDTH), Context(tokens=Tokens(3), ledger=ledger))
    assert ledger.entries == {}


def test_a_kernel_that_cannot_record_is_not_replaced_in_silence() -> None:
    mixer = Attention(WIDTH, HEADS, kernel=fused)
    with pytest.raises(QkvError, match="exact kernel"):
        mixer(torch.randn(1, 3, WIDTH), Context(tokens=Tokens(3), ledger=Ledger(mixer, keep={"weights"})))


def test_dropout_falls_in_training_alone() -> None:
    mixer, x = Attention(WIDTH, HEADS, dropout=0.5), torch.randn(2, 5, WIDTH)
    calm = Attention(WIDTH, HEADS)
    calm.load_state_dict(mixer.state_dict())
    torch.testing.assert_close(mixer.eval()(x, plain(5)), calm(x, plain(5)))
    mixer.train()
    assert not torch.equal(mixer(x, plain(5)), mixer(x, plain(5)))


def test_the_layers_of_a_pass_share_one_table() -> None:
    ctx = Context(tokens=Tokens.padded(torch.tensor([3, 5]), 5), visibility=NotPadding())
    for mixer in (Attention(WIDTH, HEADS), Attention(WIDTH, HEADS), Attention(WIDTH, HEADS, visibility=Causal())):
        mixer(torch.randn(2, 5, WIDTH), ctx)
    assert [m.rule for m in ctx.masks] == [NotPadding(), Causal() & NotPadding()]


def test_heads_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(QkvError, match="3 key/value heads"):
        Attention(WIDTH, HEADS, key_value_heads=3)
    with pytest.raises(QkvError, match="5 heads"):
        Attention(WIDTH, 5)


@pytest.mark.parametrize(("bias", "out_bias", "biased"), [(False, True, {"out.bias"}), (True, None, None)])
def test_the_answer_may_have_a_bias_where_the_queries_have_none(bias, out_bias, biased) -> None:
    names = {name for name in Attention(12, 3, bias=bias, out_bias=out_bias).state_dict() if name.endswith("bias")}
    assert names == (biased or {"out.bias", *(f"project.{part}.bias" for part in ("query", "key", "value"))})


def test_saved_names_are_those_of_the_maps() -> None:
    assert set(Attention(WIDTH, HEADS).state_dict()) == {
        *(f"project.{part}.{kind}" for part in ("query", "key", "value") for kind in ("weight", "bias")),
        *("out.weight", "out.bias"),
    }
    assert set(CrossAttention(WIDTH, HEADS, bias=False).state_dict()) == {
        *("query.weight", "project.key.weight", "project.value.weight", "out.weight"),
    }


def test_a_printed_attention_tells_what_it_is() -> None:
    text = repr(Attention(WIDTH, HEADS, key_value_heads=2, visibility=Causal()))
    assert "4 heads × 3, 2 key/value heads" in text
    assert "Causal" in text


@torch.no_grad()
def test_the_ledger_gets_the_weights_of_beams_row_by_row() -> None:
    cross, x, memory = CrossAttention(8, 2), torch.randn(6, 4, 8), torch.randn(2, 5, 8)
    together, apart = Ledger(cross, ["weights"]), Ledger(cross, ["weights"])
    cross(x, Context(tokens=Tokens(4), memory=memory, ledger=together))
    cross(x, Context(tokens=Tokens(4), memory=memory.repeat_interleave(3, 0), ledger=apart))
    (found,), (expected,) = together.entries["/weights"], apart.entries["/weights"]
    assert found.shape == (6, 2, 4, 5)
    torch.testing.assert_close(found, expected)


def test_what_every_attention_may_be_told_is_listed_with_its_types() -> None:
    """The list gives subclasses their types, the signature gives the defaults: they must not drift apart."""
    parameters = inspect.signature(MultiHead).parameters.values()
    said = {each.name: each.annotation for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
    listed = {name: each.__forward_arg__ for name, each in HeadOptions.__annotations__.items()}
    assert said == listed
