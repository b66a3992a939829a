"""Whether a model folder gives the same answers here and in the library that published it.

The only file that knows another library of models, and only once a person asks.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import read_json
from qkv.models.catalogue import Model
from qkv.models.detection_model import DetectionModel
from qkv.models.image_model import ImageModel
from qkv.parts.attention.kernels.lsh import LSHKernel
from qkv.parts.routing import Router
from qkv.weights.compare import ROWS, Setting, compared, settings_for
from qkv.weights.compare_images import sees_pictures, widest_picture
from qkv.weights.compare_scenes import sees_scenes, widest_scene
from qkv.weights.compare_sounds import hears_sounds
from qkv.weights.hub import local_folder
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import published_config, save_published
from qkv.weights.save import CONFIG_FILE
from qkv.weights.sentence_folder import is_sentence_folder, read_sentence_folder

EXACT = 5e-5  # float32: the largest difference, as a share of the root mean square of the reference's answers
OWN = 2.0  # float32: two answers that err as much as the reference itself, measured in float64, are as far apart
ROUNDED = 2.0  # bfloat16: our typical error over the reference's own, both against the reference in float32
ROUTED = 6.0  # the same with experts: in either library those that are all but equally likely change places
SAME_ROUNDING = 2**-9  # bfloat16: as large a share is within what rounding the answers themselves does
DTYPES = ("float32", "bfloat16")
USUAL_LONGEST = 512  # of models that set no bound and whose folder names none
KEYS = ("missing_keys", "unexpected_keys", "mismatched_keys")


@dataclass(frozen=True)
class Difference:
    """How far two answers are apart."""

    absolute: float  # the largest difference
    relative: float  # the same, as a share of the root mean square of what is expected
    typical: float  # the root mean square of all differences, as such a share


@dataclass(frozen=True)
class Finding:
    """One kind of answer at one setting."""

    setting: Setting
    dtype: str
    answer: str
    apart: Difference
    tolerance: float  # the most that passes

    @property
    def figure(self) -> float:
        """What is judged: in single precision the largest difference. Where numbers are rounded a single token may be
        far off in both libraries, so that the largest of all says little: there it is the typical one."""
        return self.apart.relative if self.dtype == "float32" else self.apart.typical

    @property
    def passed(self) -> bool:
        return self.figure <= self.tolerance  # so that what is no number fails


@dataclass(frozen=True)
class Report:
    """What came of comparing a folder."""

    folder: str
    architecture: str
    reference: str  # the library and its version
    longest: int  # the most tokens that were asked for; `reads` is the most that the model reads
    reads: int
    seed: int
    findings: tuple[Finding, ...]
    keys: dict[str, list[str]] = field(default_factory=dict)  # that the reference missed, or had no place for

    @property
    def passed(self) -> bool:
        return not any(self.keys.values()) and bool(self.findings) and all(each.passed for each in self.findings)

    def to_json(self) -> dict[str, Any]:
        head = {name: value for name, value in asdict(self).items() if name != "findings"}
        findings = [
            {
                **asdict(each.setting),
                "dtype": each.dtype,
                "answer": each.answer,
                **{name: _number(value) for name, value in asdict(each.apart).items()},
                "judged": "relative" if each.dtype == "float32" else "typical",
                "tolerance": each.tolerance,
                "passed": each.passed,
            }
            for each in self.findings
        ]
        return {"passed": self.passed, **head, "settings": findings}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def certify(
    folder: Path | str,
    *,
    longest: int | None = None,
    rows: Sequence[int] = ROWS,
    dtypes: Sequence[str] = DTYPES,
    device: str | torch.device = "cpu",
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Compare what a folder answers here with what it answers in the reference library.

    A folder of our own is exported to a passing place first, and the reference opens that. `longest` bounds the
    greatest length, which is otherwise the most that the model reads.
    """
    transformers = reference_library()
    folder = local_folder(folder)
    model: Model = load_model(folder, device)
    config = {} if folder.is_file() else read_json(folder / CONFIG_FILE)
    reads = reads_at_most(model, config)
    longest = reads if longest is None else longest
    if not 1 <= longest <= reads:
        unit = "pixels" if sees_pictures(model) or sees_scenes(model) else "tokens"
        raise QkvError(f"{folder} reads rows of 1 to {reads} {unit}, so it cannot be compared at {longest}.")
    with tempfile.TemporaryDirectory() as passing:
        published = folder
        if "model_type" not in config:
            published = Path(passing)
            save_published(model, published, PUBLISHED)
        architecture = published_config(model, PUBLISHED)["architectures"][0]
        reference, keys = open_reference(transformers, architecture, published)
    if published is folder:  # what others published may hold more than the model that it names
        keys["unexpected_keys"] = []
    findings = []
    for each in [model, *_embedding(folder, device)]:
        settings = settings_for(each, longest, rows=rows)
        findings += compare_models(each, reference.to(device), settings, dtypes=dtypes, seed=seed, say=say)
    version = f"transformers {transformers.__version__}"
    return Report(str(folder), architecture, version, longest, reads, seed, tuple(findings), keys)


def _embedding(folder: Path, device: str | torch.device) -> list[Model]:
    """The vectors of sentences too, where the folder says how they are pooled."""
    if not is_sentence_folder(folder):
        return []
    return [load_model(folder, device, read_sentence_folder(folder).head)]


def reference_library() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise QkvError(
            'Comparing needs the reference library, which is not installed: pip install "qkv[certify]".'
        ) from error
    return transformers


def open_reference(transformers: Any, architecture: str, folder: Path) -> tuple[Any, dict[str, list[str]]]:
    """The reference's model of a folder in single precision, and the keys that it missed or had no place for."""
    opener = getattr(transformers, architecture, None)
    if opener is None:
        raise QkvError(f"The installed transformers {transformers.__version__} has no {architecture}.")
    loud, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model, said = opener.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    finally:
        transformers.logging.set_verbosity(loud)
        if bars:
            transformers.logging.enable_progress_bar()
    if getattr(model.config, "_experts_implementation", None) is not None:
        model.config._experts_implementation = "eager"  # its plain loop: the other ways refuse narrow experts
    return model.eval(), {kind: sorted(map(str, said[kind])) for kind in KEYS}


def reads_at_most(model: Model, config: dict[str, Any]) -> int:
    """The most tokens of a row; where nothing bounds them, what the folder was made for. Of pictures the longest side.

    Models of other kinds cannot be compared here.
    """
    if sees_pictures(model):
        return widest_picture(model)
    if sees_scenes(model):
        return widest_scene(model)
    if isinstance(model, ImageModel | DetectionModel) and not hears_sounds(model):
        raise QkvError(f"Models of the family {model.family} with this head cannot be certified yet.")
    hashed = [kernel.whole for kernel in model.modules() if isinstance(kernel, LSHKernel)]
    if hashed:  # longer rows are sorted by rotations that are drawn at random
        return min(hashed)
    told = getattr(model, "longest", None) or getattr(model.sizes, "target_positions", None)
    return int(told or config.get("max_position_embeddings") or config.get("n_positions") or USUAL_LONGEST)


@torch.no_grad()
def compare_models(
    model: Model,
    reference: Any,
    settings: Iterable[Setting],
    *,
    dtypes: Sequence[str] = DTYPES,
    seed: int = 0,
    exact: float = EXACT,
    own: float = OWN,
    rounded: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Finding]:
    """Both models at every setting.

    In single precision the answers must be the reference's, but for `own` times what the reference itself loses to
    rounding: deep models with a few very large activations lose more than others. In bfloat16 both are measured
    against the reference in single precision, and our typical error may be `rounded` times the reference's: at this
    setting or over all of them, whichever is more. The typical error of n tokens or rows varies by 1/√(2n) of itself
    from draw to draw, and three times that is allowed, or a single row would fail by chance.
    """
    if rounded is None:
        rounded = ROUTED if any(isinstance(module, Router) for module in model.modules()) else ROUNDED
    settings = list(settings)
    pad = padding_of(reference)
    findings, wide = [], None  # the reference in float64, where it is needed
    if "float32" in dtypes:
        for setting in settings:
            say(f"float32 {setting}")
            for answer, found, expected in compared(model, reference, setting, pad, seed):
                apart, tolerance = difference(found, expected), exact
                if apart.relative > exact and own:
                    wide = wide or copy.deepcopy(reference).double()
                    truth = {name: answer for name, _, answer in compared(model, wide, setting, pad, seed)}
                    tolerance = max(exact, own * difference(expected, truth[answer]).relative)
                findings.append(Finding(setting, "float32", answer, apart, tolerance))
    if "bfloat16" in dtypes:
        findings += _compare_rounded(model, reference, settings, pad, seed, rounded, say)
    return findings


def _compare_rounded(
    model: Model,
    reference: Any,
    settings: Sequence[Setting],
    pad: int,
    seed: int,
    rounded: float,
    say: Callable[[str], None],
) -> list[Finding]:
    ours, theirs = copy.deepcopy(model).bfloat16(), copy.deepcopy(reference).bfloat16()
    found: list[tuple[Setting, str, Difference, float, int]] = []  # ours, the reference's typical error, of how many
    for setting in settings:
        say(f"bfloat16 {setting}")
        pairs = zip(
            compared(ours, reference, setting, pad, seed), compared(ours, theirs, setting, pad, seed), strict=True
        )
        for (answer, mine, expected), (_, _, their_own) in pairs:
            error = difference(their_own, expected).typical
            found.append((setting, answer, difference(mine, expected), error, len(mine)))
    usual = {name: _mean_square([each[3] for each in found if each[1] == name]) for _, name, *_ in found}
    findings = []
    for setting, answer, apart, error, count in found:
        chance = 1 + 3 / math.sqrt(2 * count)
        tolerance = max(SAME_ROUNDING, rounded * chance * max(error, usual[answer]))
        findings.append(Finding(setting, "bfloat16", answer, apart, tolerance))
    return findings


def _mean_square(errors: Sequence[float]) -> float:
    return math.sqrt(sum(error**2 for error in errors) / len(errors))


def difference(found: Tensor, expected: Tensor) -> Difference:
    expected = expected.float()
    apart = found.float() - expected
    largest, size = float(apart.abs().max()), float(expected.square().mean().sqrt())
    if largest == 0:
        return Difference(0.0, 0.0, 0.0)
    share = 1 / size if size else math.inf
    return Difference(largest, largest * share, float(apart.square().mean().sqrt()) * share)


def padding_of(reference: Any) -> int:
    """The reference's padding token, by which it tells where rows end; where it has none, it is given the first."""
    pad = getattr(reference.config, "pad_token_id", None)
    if pad is None or not 0 <= pad < getattr(reference.config, "vocab_size", 0):
        reference.config.pad_token_id = pad = 0
    return int(pad)
