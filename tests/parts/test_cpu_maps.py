import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from qkv.parts import cpu_maps
from qkv.parts.cpu_maps import MANY, SMALL, QuickMaps, fit, mkl_is_slow, quick_maps, without_asking
from qkv.parts.cpu_steps import takes_many

WIDTH = 512
pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")


@pytest.fixture
def products(monkeypatch):
    """How often oneDNN was asked."""
    asked = []
    kept = torch.ops.mkldnn._linear_pointwise

    class Counted:
        @staticmethod
        def default(*args):
            asked.append(args[0].shape)
            return kept.default(*args)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", Counted)
    return asked


@pytest.mark.parametrize("shape", [(1, WIDTH), (3, 7, WIDTH), (2, 60, WIDTH)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_other_library_gives_the_same(shape, bias, products):
    linear, x = nn.Linear(WIDTH, WIDTH, bias=bias), torch.randn(*shape)
    exact = F.linear(x.double(), linear.weight.double(), None if linear.bias is None else linear.bias.double())
    with torch.inference_mode(), QuickMaps():
        found = linear(x)
    assert found.shape == exact.shape
    assert len(products) == 1
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_goes_the_way_it_always_went(products):
    linear, x = nn.Linear(WIDTH, WIDTH), torch.randn(4, WIDTH)
    with QuickMaps():
        linear(x).sum().backward()  # gradients are asked for
        with torch.no_grad():
            nn.Linear(16, 16)(torch.randn(2, 16))  # it is small
            linear.bfloat16()(x.bfloat16())
            linear.float()(torch.empty(0, WIDTH))
            F.linear(x, weight=linear.weight)  # by name
            F.linear(x, linear.weight.t())  # it lies across
    assert products == []
    with torch.no_grad():
        assert fit(x, linear.weight)
        assert not fit(x.double(), linear.weight.double())
        assert not fit(x.to("meta"), linear.weight.to("meta"))


@pytest.mark.skipif(not takes_many(torch.empty(1, WIDTH)), reason="needs a compiler and wide registers")
@pytest.mark.parametrize("bias", [True, False])
def test_many_rows_are_our_own(bias, products):
    linear, x = nn.Linear(WIDTH, WIDTH, bias=bias), torch.randn(2, MANY, WIDTH)
    exact = F.linear(x.double(), linear.weight.double(), None if linear.bias is None else linear.bias.double())
    with torch.inference_mode(), QuickMaps():
        torch.testing.assert_close(linear(x).double(), exact, rtol=1e-5, atol=1e-5)
        assert products == []
        if takes_many(linear.weight.bfloat16()):
            assert fit(x.bfloat16(), linear.weight.bfloat16())
            found = linear.bfloat16()(x.bfloat16())
            torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0.02)


def test_who_made_the_processor_is_read_once(tmp_path):
    for maker, others in {"GenuineIntel": False, "AuthenticAMD": torch.backends.mkl.is_available()}.items():
        file = tmp_path / maker
        file.write_text(f"processor\t: 0\nvendor_id\t: {maker}\n")
        assert mkl_is_slow(file) == others
    assert not mkl_is_slow(tmp_path / "nothing")


@pytest.mark.parametrize(("others", "width", "asked"), [(True, WIDTH, 1), (False, WIDTH, 0), (True, 16, 0)])
def test_only_large_maps_on_such_processors_are_changed(others, width, asked, monkeypatch, products):
    monkeypatch.setattr(cpu_maps, "mkl_is_slow", lambda: others)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU())
    assert (width * width >= SMALL) == (width == WIDTH)
    with torch.inference_mode(), quick_maps(model):
        model(torch.randn(4, width))
    model(torch.randn(4, width))
    assert len(products) == asked


def test_nobody_is_asked_where_that_is_known_but_others_still_are():
    class Counts(TorchFunctionMode):
        asked = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.asked += 1
            return function(*args, **(kwargs or {}))

    class CountsMaps(QuickMaps):
        asked = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.asked += 1
            return super().__torch_function__(function, types, args, kwargs)

    x = torch.ones(3)
    with CountsMaps() as mine:
        x + x
        before = mine.asked
        with without_asking():
            x + x
        assert mine.asked == before > 0
        with Counts() as other, without_asking():  # somebody else looks on
            x + x
        assert other.asked > 0
