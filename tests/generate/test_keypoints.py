import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.vitpose.image_processing_pil_vitpose import VitPoseImageProcessorPil
from transformers.models.vitpose.modeling_vitpose import VitPoseEstimatorOutput

from qkv.data.framing import frame_around
from qkv.data.preprocessing import Exactly, Preprocessing
from qkv.errors import QkvError
from qkv.generate.keypoints import KeypointFinder, blurred, read_maps
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.models.vitpose import ViTPoseSizes

NAMES = ("nose", "ear", "eye")
SIZE = (64, 48)
PREPARED = Preprocessing(resize=Exactly(*SIZE))


def small_model(kind: str = "keypoints"):
    torch.manual_seed(0)
    sizes = ViTPoseSizes(image=64, image_width=48, width=16, hidden=16, heads=2, layers=1, decoder="plain")
    return build("vitpose", sizes, HeadChoice(kind, NAMES if kind == "keypoints" else ()))


def hills(points, height, width, radius):
    """exp(−d²/2r²), d being the distance to the point, between pixels too. [b p 2] → [b p h w]"""
    across, down = points[..., 0] * (width - 1), points[..., 1] * (height - 1)
    columns, rows = torch.arange(width) - across[..., None], torch.arange(height) - down[..., None]
    return torch.exp(-(rows[..., :, None] ** 2 + columns[..., None, :] ** 2) / (2 * radius**2))


def noisy_maps(rows: int = 4) -> torch.Tensor:
    torch.manual_seed(1)
    points = torch.rand(rows, 3, 2) * 0.8 + 0.1
    return hills(points, 16, 12, 2.0) + 0.05 * torch.randn(rows, 3, 16, 12)


def test_points_are_those_of_the_reference():
    maps = noisy_maps()
    boxes = [[(10.0, 20.0, 60.0, 50.0), (0.0, 5.0, 30.0, 90.0)], [(40.5, 30.25, 44.0, 70.0), (1.0, 2.0, 300.0, 80.0)]]
    as_coco = [[[x0, y0, x1 - x0, y1 - y0] for x0, y0, x1, y1 in some] for some in boxes]
    processor = VitPoseImageProcessorPil(size={"height": SIZE[0], "width": SIZE[1]})
    reference = processor.post_process_pose_estimation(VitPoseEstimatorOutput(heatmaps=maps), as_coco)
    expected = [pose for poses in reference for pose in poses]
    places, peaks = read_maps(maps.numpy())
    for number, box in enumerate(box for some in boxes for box in some):
        frame = frame_around(box, SIZE)
        found = np.array([frame.point(*place) for place in places[number].tolist()])
        np.testing.assert_allclose(found, expected[number]["keypoints"].numpy(), rtol=1e-3, atol=0.02)
        np.testing.assert_allclose(peaks[number], expected[number]["scores"].numpy(), rtol=1e-6)


def test_the_middle_of_a_hill_is_found_between_pixels():
    points = torch.tensor([[[0.31, 0.72], [0.55, 0.4], [0.5, 0.5]]])
    places, peaks = read_maps(hills(points, 33, 25, 2.0).numpy())
    np.testing.assert_allclose(places, points.numpy(), atol=2e-3)
    assert (peaks > 0.9).all()


def test_maps_without_a_hill_give_some_point_and_no_error():
    for maps in (np.zeros((1, 2, 8, 8)), np.full((1, 2, 8, 8), -3.0), np.full((1, 2, 2, 2), 1e9)):
        places, _ = read_maps(maps)
        assert np.isfinite(places).all()


def test_a_blur_is_that_of_scipy():
    from scipy.ndimage import gaussian_filter

    maps = np.random.default_rng(0).normal(size=(2, 2, 9, 14))
    for thing in range(2):
        for point in range(2):
            expected = gaussian_filter(maps[thing, point], sigma=0.8, radius=5)
            np.testing.assert_allclose(blurred(maps)[thing, point], expected, atol=1e-12)


def test_what_a_model_says_comes_back_in_pixels_of_the_picture():
    model = small_model()
    finder = KeypointFinder(model, PREPARED)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8))
    found = finder.run([picture, picture], [[(0.0, 0.0, 50.0, 60.0), (20.0, 10.0, 110.0, 80.0)], []], batch=1)
    assert [[len(points) for points in things] for things in found] == [[3, 3], []]
    assert [point.name for point in found[0][0]] == list(NAMES)
    frame = frame_around((0.0, 0.0, 50.0, 60.0), SIZE)
    for point in found[0][0]:
        across, down = frame.share(point.x, point.y)
        assert -0.2 < across < 1.2
        assert -0.2 < down < 1.2
    assert len(finder.run([picture])[0]) == 1
    assert model.training


def test_what_finds_no_points_is_refused():
    with pytest.raises(QkvError, match="keypoints head"):
        KeypointFinder(small_model("states"), PREPARED)
    with pytest.raises(QkvError, match="has one size"):
        KeypointFinder(small_model(), Preprocessing())
    with pytest.raises(QkvError, match="boxes for 0"):
        KeypointFinder(small_model(), PREPARED).run([Image.new("RGB", (8, 8))], [])
    with pytest.raises(QkvError, match="at least 2 × 2"):
        read_maps(np.zeros((1, 1, 1, 5)))
