import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.parts.convolution import BatchNorm, FrozenBatchNorm, ResNet, basic, bottleneck, find_block, find_norm


def resnet(norm=BatchNorm, block=basic, **changed):
    sizes = {"channels": 3, "stem": 8, "widths": (8, 16, 24), "depths": (1, 2, 1), **changed}
    return ResNet(**sizes, block=block, norm=norm)


def test_a_norm_over_a_batch_is_that_of_torch():
    torch.manual_seed(0)
    ours, theirs = BatchNorm(5), nn.BatchNorm2d(5)
    for _ in range(3):
        x = torch.randn(4, 5, 6, 7) * 3 + 1
        torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_variance, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_a_frozen_norm_is_the_other_one_in_evaluation():
    torch.manual_seed(0)
    learned, frozen = BatchNorm(5), FrozenBatchNorm(5)
    for value in learned.state_dict().values():
        value.copy_(torch.rand_like(value) + 0.2)
    frozen.load_state_dict(learned.state_dict())  # by the same names
    x = torch.randn(2, 5, 4, 4)
    torch.testing.assert_close(frozen(x), learned.eval()(x))
    assert list(frozen.parameters()) == []
    before = {name: value.clone() for name, value in frozen.state_dict().items()}
    frozen.train()(x)
    assert all(torch.equal(value, before[name]) for name, value in frozen.state_dict().items())


@pytest.mark.parametrize("block", [basic, bottleneck])
def test_a_block_whose_steps_say_nothing_passes_its_input_on(block):
    made = block(8, 8, FrozenBatchNorm)
    nn.init.zeros_(made.steps[-1].convolution.weight)
    x = torch.randn(2, 8, 5, 5)
    torch.testing.assert_close(made(x), x.relu())
    assert made.shortcut is None
    assert block(8, 16, FrozenBatchNorm).shortcut is not None
    assert block(8, 8, FrozenBatchNorm, 2).shortcut is not None


@pytest.mark.parametrize(
    ("block", "depths", "factor", "millions"),
    [(basic, (2, 2, 2, 2), 1, 11.69), (basic, (3, 4, 6, 3), 1, 21.80), (bottleneck, (3, 4, 6, 3), 4, 25.56)],
)
def test_a_network_has_the_parameters_that_are_published(block, depths, factor, millions):
    """Those of torchvision's ResNet-18, 34 and 50 with their thousand classes."""
    widths = tuple(factor * width for width in (64, 128, 256, 512))
    with torch.device("meta"):
        network = ResNet(3, 64, widths, depths, block, BatchNorm)
    counted = sum(parameter.numel() for parameter in network.parameters()) + 1000 * widths[-1] + 1000
    assert counted / 1e6 == pytest.approx(millions, abs=0.01)


def test_maps_shrink_at_every_stage_but_the_first():
    with torch.no_grad():
        assert resnet()(torch.randn(1, 3, 64, 96)).shape == (1, 24, 4, 6)
        assert resnet(last_stride=1)(torch.randn(1, 3, 64, 96)).shape == (1, 24, 8, 12)
        assert resnet()(torch.randn(1, 3, 33, 1)).shape == (1, 24, 3, 1)


def test_what_makes_no_network_is_refused():
    with pytest.raises(QkvError, match="width and a depth"):
        resnet(depths=(1, 2))
    with pytest.raises(QkvError, match="no stride of 3"):
        resnet(last_stride=3)
    with pytest.raises(QkvError, match="must divide by 4"):
        bottleneck(8, 6, BatchNorm)
    with pytest.raises(QkvError, match="3 channels, height, width"):
        resnet()(torch.randn(1, 4, 32, 32))
    with pytest.raises(QkvError, match="no residual block called bottle"):
        find_block("bottle")
    with pytest.raises(QkvError, match="no norm of maps called layer"):
        find_norm("layer")
