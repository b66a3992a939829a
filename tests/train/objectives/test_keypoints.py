import pytest
import torch

from qkv.data.keypoint_rows import KeypointBatch
from qkv.errors import QkvError
from qkv.generate.keypoints import read_maps
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.models.vitpose import ViTPoseSizes
from qkv.train.objectives.keypoints import HeatmapLoss, hills


def test_a_hill_is_highest_at_its_point():
    points = torch.tensor([[[0.5, 0.25], [1.0, 0.0]]])
    maps = hills(points, 9, 5, radius=1.5)
    assert maps.shape == (1, 2, 9, 5)
    assert maps[0, 0, 2, 2] == 1.0
    assert maps[0, 1, 0, 4] == 1.0
    torch.testing.assert_close(maps[0, 0, 2, 3], torch.exp(torch.tensor(-1 / 4.5)))


def test_the_loss_is_the_squared_distance_of_maps_that_count():
    torch.manual_seed(0)
    maps, points = torch.randn(2, 3, 8, 6), torch.rand(2, 3, 2)
    seen = torch.tensor([[True, False, True], [False, False, True]])
    loss = HeatmapLoss().of_maps(maps, points, seen, 3)
    wanted = hills(points, 8, 6, 2.0)
    expected = torch.stack([((maps - wanted)[b, p] ** 2).mean() for b, p in ((0, 0), (0, 2), (1, 2))])
    torch.testing.assert_close(loss.total / loss.count, expected.mean())


def test_batches_in_which_nothing_is_seen_teach_nothing():
    loss = HeatmapLoss().of_maps(torch.randn(1, 2, 4, 4), torch.zeros(1, 2, 2), torch.zeros(1, 2, dtype=torch.bool), 0)
    assert (float(loss.total), loss.count) == (0.0, 1)


def test_a_hill_without_a_radius_is_refused():
    with pytest.raises(QkvError, match="radius above 0"):
        HeatmapLoss(radius=0)


@pytest.mark.parametrize("decoder", ["deconvolved", "plain"])
def test_a_small_model_learns_where_corners_are(decoder):
    """A bright rectangle on a dark picture: two of its corners."""
    torch.manual_seed(0)
    sizes = ViTPoseSizes(
        image=32, image_width=32, patch=8, width=32, hidden=32, heads=2, layers=1, decoder=decoder, decoder_width=16
    )
    model = build("vitpose", sizes, HeadChoice("keypoints", ("first", "last")))
    pixels, points = torch.zeros(6, 3, 32, 32), torch.zeros(6, 2, 2)
    for picture in range(6):
        x, y = 3 + 3 * (picture % 3), 4 + 8 * (picture // 3)
        pixels[picture, :, y : y + 11, x : x + 14] = 1.0
        points[picture] = torch.tensor([[x, y], [x + 13, y + 10]]) / 31
    batch = KeypointBatch(pixels, points, torch.ones(6, 2, dtype=torch.bool), 12)
    loss, optimizer = HeatmapLoss(radius=1.5), torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(120):
        optimizer.zero_grad()
        loss(model, batch).total.backward()
        optimizer.step()
    places, _ = read_maps(model(pixels).detach().numpy())
    off = (torch.from_numpy(places) - points).norm(dim=-1) * 31  # in pixels of the picture
    assert off.mean() < 2.5
