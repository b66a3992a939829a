"""What a process that is alone holds is its whole model, by the names of a model folder."""

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES
from qkv.parts.linear import JoinedLinear
from qkv.parts.low_rank import AdaptedJoinedLinear, LowRank
from qkv.train.optimizers import adafactor, adamw
from qkv.train.parallel.pieces import Piece, in_place_of, pieces_of, state_pieces
from qkv.train.parallel.whole import whole_tensors
from qkv.weights.save import tensors_of
from tests.models.small_text import TEXT_FAMILIES, small_model


class Reordered(JoinedLinear):
    """Rows as two tensor ranks have them: those of the first rank of each map, then those of the second."""

    def stretches(self) -> list[tuple[str, int, int]]:
        return [(name, rank * rows // 2, rows // 2) for rank in range(2) for name, rows in self.outputs.items()]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        joined = JoinedLinear(6, {"query": 4, "key": 2, "value": 2}, bias=("query", "value"))
        self.joined = AdaptedJoinedLinear(joined, {"key": LowRank(torch.zeros(2, 6), 2, 1.0)})
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("passing", torch.zeros(2), persistent=False)
        self.first = nn.Linear(6, 5, bias=False)
        self.again = self.first
        self.out = nn.Embedding(5, 6)
        self.out.weight = self.first.weight


def check_same_as_a_folder(model: nn.Module) -> None:
    expected, pieces = tensors_of(model), pieces_of(model)
    assert sorted(piece.key for piece in pieces) == sorted(expected)
    for piece in pieces:
        assert piece.is_whole
        assert piece.tensor.data_ptr() == expected[piece.name].data_ptr()
        assert piece.tensor.shape == expected[piece.name].shape
    assert dict(whole_tensors(model)).keys() == expected.keys()


def test_a_lone_process_holds_what_a_model_folder_holds() -> None:
    check_same_as_a_folder(Tied())
    for family in TEXT_FAMILIES:
        check_same_as_a_folder(small_model(family))
    assert len(FAMILIES) > len(TEXT_FAMILIES) > 5


def test_rows_in_another_order_have_the_same_names() -> None:
    plain = JoinedLinear(3, {"query": 4, "key": 2}, bias=("key",))
    other = Reordered(3, {"query": 4, "key": 2}, bias=("key",))
    whole = tensors_of(nn.ModuleDict({"project": plain}))
    pieces = pieces_of(nn.ModuleDict({"project": other}))
    assert [(piece.key, piece.shape) for piece in pieces] == [
        ("project.query.weight@0,0", (4, 3)),
        ("project.query.weight@2,0", (4, 3)),
        ("project.key.weight@0,0", (2, 3)),
        ("project.key.weight@1,0", (2, 3)),
        ("project.key.bias@0", (2,)),
        ("project.key.bias@1", (2,)),
    ]
    for piece in pieces:  # its memory is the module's own
        rows = slice(piece.start[0], piece.start[0] + len(piece.tensor))
        piece.tensor.copy_(whole[piece.name][rows])
    query, key = plain.weight.detach().split([4, 2])
    assert torch.equal(other.weight, torch.cat([query[:2], key[:1], query[2:], key[1:]]))


def test_the_state_of_an_optimizer_has_the_names_of_parameters() -> None:
    model = Tied()
    optimizer = adamw(model)
    model.joined(torch.randn(2, 6))[0].sum().backward()
    optimizer.step()
    pieces = {piece.key: piece for piece in state_pieces(model, optimizer)}
    state = optimizer.state[model.joined.weight]
    assert pieces["joined.weight/exp_avg"].is_whole
    assert torch.equal(pieces["joined.weight/exp_avg"].tensor, state["exp_avg"])
    assert pieces["joined.weight/step"].shape == ()


def test_state_of_any_shape_is_kept_where_one_process_has_it() -> None:
    model = nn.Linear(40, 30)
    optimizer = adafactor(model)
    model(torch.randn(2, 40)).sum().backward()
    optimizer.step()
    assert all(piece.is_whole for piece in state_pieces(model, optimizer))


def test_an_average_of_another_model_is_refused() -> None:
    piece = Piece("w", (4, 2), (2, 0), torch.zeros(2, 2))
    assert in_place_of([piece], {"w@2,0": torch.ones(2, 2)})[0].tensor.sum() == 4
    with pytest.raises(QkvError, match="only one of the two has w"):
        in_place_of([piece], {"w": torch.ones(4, 2)})
