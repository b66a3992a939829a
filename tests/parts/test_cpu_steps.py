import pytest
import torch
import torch.nn.functional as F

from qkv.parts import cpu, cpu_steps
from qkv.parts.eight_bits import LEVELS, Int8Linear
from qkv.parts.feedforward import ACTIVATIONS

needs_program = pytest.mark.skipif(cpu.library() is None, reason="needs a C++ compiler that knows OpenMP")


@needs_program
@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 2e-6), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 13, 17, 40])
@torch.no_grad()
def test_a_packed_map_is_the_map(rows, dtype, off):
    torch.manual_seed(0)
    for outputs, inputs in ((1, 16), (31, 32), (33, 48), (70, 1040)):
        weight, bias, x = torch.randn(outputs, inputs), torch.randn(outputs), torch.randn(rows, 1, inputs)
        weight, bias, x = weight.to(dtype), bias.to(dtype), x.to(dtype)
        for given in (bias, None):
            y = cpu_steps.map_rows(cpu_steps.PackedMap(weight, given), x, 0.5)
            exact = F.linear(0.5 * x.double(), weight.double(), None if given is None else given.double())
            assert y.dtype == dtype
            torch.testing.assert_close(y.double(), exact, rtol=0, atol=off * float(1 + exact.abs().max()))


@needs_program
@pytest.mark.parametrize("rows", [1, 4, 20])
@torch.no_grad()
def test_any_number_of_threads_makes_the_same_bits(rows):
    weight, x, before = torch.randn(32 * 19 + 5, 80), torch.randn(rows, 80), torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(cpu_steps.map_rows(cpu_steps.PackedMap(weight, None), x))
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@needs_program
@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 2e-6), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize("rows", [1, 7, 130, 2 * 1024 + 5])
@torch.no_grad()
def test_a_matrix_may_lie_as_it_is(rows, dtype, off):
    torch.manual_seed(0)
    for outputs, inputs in ((1, 16), (31, 32), (64, 48), (70, 1040)):
        weight, bias, x = torch.randn(outputs, inputs) / 4, torch.randn(outputs), torch.randn(rows, inputs)
        weight, bias, x = weight.to(dtype), bias.to(dtype), x.to(dtype)
        for given in (bias, None):
            exact = F.linear(x.double(), weight.double(), None if given is None else given.double())
            for name in cpu_steps.ACTIVATIONS:
                y = cpu_steps.map_rows(cpu_steps.PlainMap(weight, given), x, activation=name)
                wanted = ACTIVATIONS[name](exact) if name else exact
                torch.testing.assert_close(y.double(), wanted, rtol=0, atol=off * float(1 + wanted.abs().max()))


@needs_program
@pytest.mark.parametrize("width", [0.01, 1.0, 30.0])
@torch.no_grad()
def test_a_gelu_is_as_near_as_single_precision(width):
    x = width * torch.linspace(-1, 1, 16 * 4096).view(-1, 16)
    found = cpu_steps.map_rows(cpu_steps.PlainMap(torch.eye(16), None), x, activation="gelu")
    near = F.gelu(x.double())
    assert float((found - near).abs().max()) <= 6e-8 * (1 + width)
    x[3, 5] = torch.nan
    found = cpu_steps.map_rows(cpu_steps.PlainMap(torch.eye(16), None), x, activation="gelu")
    assert found[3].isnan().all()
    assert int(found.isnan().sum()) == 16


@needs_program
@torch.no_grad()
def test_a_gelu_in_bfloat16_is_hardly_further_off_than_its_rounding():
    x = (6 * torch.linspace(-1, 1, 16 * 4096).view(-1, 16)).bfloat16()
    found = cpu_steps.map_rows(cpu_steps.PlainMap(torch.eye(16).bfloat16(), None), x, activation="gelu").double()
    near = F.gelu(x.double())
    assert bool(((found - near).abs() <= (2**-8 + 1.3e-4) * near.abs() + 1e-12).all())


@needs_program
@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 3e-6), (torch.bfloat16, 8e-3), (torch.int8, 3e-6)])
@pytest.mark.parametrize("rows", [3, 130, 1024 + 9])
@torch.no_grad()
def test_what_a_map_is_added_to_and_the_norm_of_that(rows, dtype, off):
    torch.manual_seed(0)
    d, stream = 48, torch.float32 if dtype == torch.int8 else dtype
    weight, bias = torch.randn(d, 32) / 4, torch.randn(d)
    x, added, gain, shift = torch.randn(rows, 32), torch.randn(rows, d), torch.rand(d) + 0.5, torch.randn(d)
    x, added = x.to(stream), added.to(stream)
    if dtype == torch.int8:
        layer = Int8Linear(weight, bias)
        assert layer.map is not None
        mapped, exact = layer.map, layer(x).double() + added.double()
    else:
        weight, bias = weight.to(dtype), bias.to(dtype)
        mapped = cpu_steps.PlainMap(weight, bias)
        exact = F.linear(x.double(), weight.double(), bias.double()) + added.double()
    allowed = {"rtol": off, "atol": off * float(exact.abs().max())}
    for rms in (False, True):
        norm = cpu_steps.RowNorm(gain, None if rms else shift, 1e-5, rms)
        wide = [each.double() for each in (gain, shift)]
        wanted = F.rms_norm(exact, (d,), wide[0], 1e-5) if rms else F.layer_norm(exact, (d,), *wide, 1e-5)
        both, sums = torch.empty_like(added), added.clone()
        cpu_steps.add_rows(mapped, x, sums, sums, norm, both)  # the sum in place, and its norm
        torch.testing.assert_close(sums.double(), exact, **allowed)
        torch.testing.assert_close(both.double(), wanted, **allowed)
        alone = added.clone()
        cpu_steps.add_rows(mapped, x, alone, None, norm, alone)  # the norm in its place
        assert torch.equal(alone, both)
        cpu_steps.add_rows(mapped, x, added, alone, None, None)  # no norm
        assert torch.equal(alone, sums)


@needs_program
@torch.no_grad()
def test_maps_in_8_bits_are_those_of_the_whole_numbers():
    """In float64 with the same roundings; a row is the same alone and in any company."""
    torch.manual_seed(0)
    weight, bias, x = torch.randn(37, 64), torch.randn(37), torch.randn(11, 64) * torch.logspace(-3, 2, 11)[:, None]
    x[1], x[2] = 0.0, x[2].abs()
    layer = Int8Linear(weight, bias)
    assert layer.map is not None
    scales = weight.abs().amax(1, keepdim=True) / LEVELS
    torch.testing.assert_close(layer.dequantised(), (weight / scales).round() * scales)
    low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    step = ((high - low) / 255).clamp(min=1e-30)
    zero = (-low / step).round()
    rounded = ((x / step).round() + zero).clamp(0, 255) - zero
    exact = F.linear((rounded * step).double(), layer.dequantised().double(), bias.double())
    together = layer(x)
    # A number half-way between two steps may be rounded to either, and then differs by a step times a weight.
    allowed = 1e-4 * float(exact.abs().max()) + step * layer.dequantised().abs().amax(1)
    assert ((together - exact).abs() <= allowed).all()
    for row, answer in zip(x, together, strict=True):
        torch.testing.assert_close(layer(row[None])[0], answer, rtol=0, atol=0)
    assert layer(x[:0]).shape == (0, 37)
    assert layer(x.half()).dtype == torch.float16
    for odd in (torch.nan, torch.inf):
        x[3, 5] = odd
        assert layer(x)[3].isnan().all()
        torch.testing.assert_close(layer(x)[4], together[4], rtol=0, atol=0)


@needs_program
@pytest.mark.parametrize("vocabulary", [5, 127, 128, 1000])
def test_the_likeliest_are_those_of_torch(vocabulary):
    torch.manual_seed(0)
    logits = 5 * torch.randn(3, vocabulary)
    logits[1, 1] = -torch.inf
    for count in (1, 4):
        for forbidden in (None, torch.tensor([3, 0]), torch.tensor([], dtype=torch.long)):
            best, tokens = cpu_steps.likeliest(logits, min(count, vocabulary - 2), forbidden)
            own = logits.log_softmax(-1)
            if forbidden is not None:
                own[:, forbidden] = -torch.inf
            wanted = own.topk(min(count, vocabulary - 2))
            torch.testing.assert_close(best, wanted.values, rtol=1e-6, atol=1e-5)
            assert torch.equal(tokens, wanted.indices)


@needs_program
def test_logits_that_are_no_numbers_are_seen():
    logits = torch.randn(2, 300)
    logits[1, 77] = torch.nan
    best, _ = cpu_steps.likeliest(logits, 1, None)
    assert best[0].isfinite().all()
    assert best[1].isnan().all()


@needs_program
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_change_places_as_by_an_index(dtype):
    torch.manual_seed(0)
    rooms = [torch.randn(6, 3, 7, 16).to(dtype), torch.randn(6, 2, 7, 32).to(dtype)]
    before = [room.clone() for room in rooms]
    rows = torch.tensor([1, 0, 2, 2, 5, 0])
    cpu_steps.reorder(rooms, rows, 4)
    for room, old in zip(rooms, before, strict=True):
        assert torch.equal(room[:, :, :4], old[rows][:, :, :4])
        assert torch.equal(room[:, :, 4:], old[:, :, 4:])


def test_large_answers_lie_where_nobody_looks_any_more():
    answers, x = cpu_steps.Answers(), torch.zeros(1)
    shape = (2, cpu_steps.LARGE // 4)
    first = answers.like(x, shape)
    view = first[1]
    view.fill_(1.0)
    place = first.data_ptr()
    del first
    second = answers.like(x, shape)  # a view of the first is still held
    second.fill_(2.0)
    assert second.data_ptr() != place
    assert (view == 1).all()
    del view
    assert answers.like(x, shape).data_ptr() == place
    assert answers.like(x, (3,)).shape == (3,)
