"""Strange, broken and malicious sound files: the right answer or one sentence, from Python and on the command line."""

import json
import resource
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv.api.loading import load
from qkv.data.letters import Letters, write_letters
from qkv.data.sound import Sound, read_sound
from qkv.data.sound_features import WaveFeatures
from qkv.data.sound_processor import write_sound_processor
from qkv.errors import QkvError
from qkv.generate.sound_readers import SoundClassifier, SoundStateReader
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from qkv.weights.save import save_model
from tests.cli.command import Outcome, qkv
from tests.cli.hostile_sounds import READ, REFUSED, content, place, voice
from tests.generate.speech import END, FEATURES, GENERATION, START, tokenizer
from tests.generate.speech import small_model as small_whisper
from tests.generate.test_sound_readers import BANK, small_ast
from tests.models.small_sounds import small_sound

pytestmark = pytest.mark.slow  # `tests/fuzz` reads damaged files of these kinds at every change

KINDS = ("pictures of sound", "letters", "speech")
ROOM = 100 * 2**20  # bytes that reading a file may take


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each way to hear."""
    folder = tmp_path_factory.mktemp("models")
    SoundClassifier(small_ast(), BANK).save(folder / "pictures of sound")
    SoundStateReader(small_sound("base", "states"), WaveFeatures()).save(folder / "states")
    save_model(small_sound("prenorm"), folder / "letters")
    write_letters(folder / "letters", Letters(tuple("-|abcde"), space=1))
    save_published(
        small_whisper(), folder / "speech", PUBLISHED, {"eos_token_id": END, "decoder_start_token_id": START}
    )
    tokenizer().save(folder / "speech" / "tokenizer.json")
    (folder / "speech" / "generation_config.json").write_text(json.dumps(GENERATION))
    write_sound_processor(folder / "speech", FEATURES)
    return {name: folder / name for name in (*KINDS, "states")}


@cache
def loaded(folder: Path) -> Any:
    return load(folder, "cpu")


def command(folder: Path, *more: object) -> Outcome:
    return qkv("run", folder, *map(str, more), "--device", "cpu", "--json")


def numbers(answer: Any) -> list[float]:
    """Every number in an answer, in order."""
    if isinstance(answer, dict):
        return numbers(list(answer.values()))
    if isinstance(answer, list):
        return [number for each in answer for number in numbers(each)]
    return [float(answer)] if isinstance(answer, int | float) else []


@pytest.mark.parametrize("case", READ)
def test_a_strange_file_is_the_plain_sound(case: str, tmp_path: Path) -> None:
    name, make, plain, error = READ[case]
    found = read_sound(place(tmp_path, name, make()), 16_000).samples
    assert found.shape == plain().shape
    inner = slice(200, -200) if error > 1e-3 else slice(None)  # at the ends a resampled sound meets silence
    torch.testing.assert_close(found[inner], torch.from_numpy(plain()).float()[inner], atol=error / 5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", READ)
def test_a_strange_file_is_heard_as_the_plain_one(
    case: str, kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    name, make, plain, error = READ[case]
    strange = place(tmp_path, name, make())
    other = place(tmp_path, "plain.wav", content(plain(), subtype="FLOAT"))
    answers = []
    for file in (strange, other):
        outcome = command(folders[kind], file)
        assert outcome.code == 0, outcome
        (answer,) = map(json.loads, outcome.out.splitlines())
        assert answer.pop("input") == str(file)
        answers.append(answer)
    if error < 1e-3:
        np.testing.assert_allclose(numbers(answers[0]), numbers(answers[1]), atol=1e-4)
        assert answers[0].get("text") == answers[1].get("text")
    assert np.isfinite(numbers(answers[0])).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", REFUSED)
def test_a_broken_file_is_told_in_one_sentence(case: str, kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    name, make, told = REFUSED[case]
    file = place(tmp_path, name, make())
    good = place(tmp_path, "good.wav", content(voice()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = command(folders[kind], good, file)
    assert outcome.code == 2, outcome
    assert told in outcome.complaint
    assert file.name in outcome.complaint
    assert len(outcome.err.splitlines()) == 1
    with pytest.raises(QkvError, match=told):
        loaded(folders[kind]).run([file])
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < ROOM


@pytest.mark.parametrize("kind", [*KINDS, "states"])
@pytest.mark.parametrize(
    "samples",
    [torch.zeros(0), torch.tensor([0.1, float("nan")] * 900), torch.full((999,), float("inf")), torch.zeros(2, 900),
     torch.zeros(900, dtype=torch.int16)],
    ids=["none", "no numbers", "infinite", "two rows", "integers"],
)  # fmt: skip
def test_samples_that_are_no_sound_are_refused(kind: str, samples: torch.Tensor, folders: dict[str, Path]) -> None:
    for given in (samples, Sound(samples, 16_000), Sound(samples, 44_100)):
        with pytest.raises(QkvError):
            loaded(folders[kind]).run([given])
