import torch
from torch import Tensor

from qkv.data.letters import Letters
from qkv.data.plan import PlannedBatch
from qkv.data.sound_rows import SpokenBatch, SpokenRows
from qkv.train.metrics import character_error_rate, word_error_rate
from qkv.train.objectives.ctc import CTCLoss
from qkv.train.objectives.spoken_errors import SpokenErrors

LETTERS = Letters.of_texts(["ab c"])


class Hears:
    """A model that hears what it is told, one frame a letter, blanks between."""

    training = False

    def __init__(self, texts: list[str], frames: int) -> None:
        paths = [[each for token in LETTERS.encode(text) for each in (token, LETTERS.blank)] for text in texts]
        padded = [path + [LETTERS.encode("a")[0]] * (frames - len(path)) for path in paths]  # what is heard in padding
        self.logits = torch.nn.functional.one_hot(torch.tensor(padded), len(LETTERS)).float() * 9
        self.counts = torch.tensor([len(path) for path in paths])

    def __call__(self, waves: Tensor, **_: object) -> Tensor:
        return self.logits


def batch_of(texts: list[str], heard: Hears, filler: int = 0) -> SpokenBatch:
    rows = SpokenRows(
        [torch.zeros(40)] * len(texts), [LETTERS.encode(text) for text in texts], frames=lambda lengths: lengths // 2
    )
    batch = rows.batch(PlannedBatch(torch.arange(len(texts)).numpy(), 40, 1, filler))
    return SpokenBatch(**{**vars(batch), "frame_lengths": heard.counts})


def test_rates_are_those_of_the_texts() -> None:
    wanted, said = ["ab c", "c", "a b"], ["ab c", "cc", "b"]
    heard = Hears(said, 20)
    errors = SpokenErrors(CTCLoss(), LETTERS.space)
    figures = errors.measure(heard, batch_of(wanted, heard))  # type: ignore[arg-type]
    assert float(figures["cer"].total) / figures["cer"].count == character_error_rate(said, wanted)
    assert float(figures["wer"].total) / figures["wer"].count == word_error_rate(said, wanted)
    assert figures["loss"].count == 8


def test_filler_says_nothing_and_spaces_at_an_end_are_none() -> None:
    heard = Hears(["ab ", "ab"], 20)  # the filler row is heard as well
    figures = SpokenErrors(CTCLoss(), LETTERS.space).measure(heard, batch_of(["ab"], heard, 1))  # type: ignore[arg-type]
    assert float(figures["cer"].total) == 0
    assert figures["cer"].count == 2
    assert figures["wer"].count == 1


def test_without_a_space_only_letters_are_counted() -> None:
    heard = Hears(["ab"], 20)
    assert SpokenErrors(CTCLoss(), None).measure(heard, batch_of(["ab"], heard)).keys() == {"loss", "cer"}  # type: ignore[arg-type]
