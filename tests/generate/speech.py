"""Small models that hear, with a tokenizer of bytes and Whisper's special tokens."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from qkv.data.sound_features import LogMel
from qkv.data.tokenizer import TextTokenizer
from qkv.generate.speech_tokens import SpeechTokens, speech_tokens
from qkv.generate.transcribe import Transcriber
from qkv.models.catalogue import build
from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.models.whisper import WhisperSizes

SPECIAL = (
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|haw|>", "<|translate|>", "<|transcribe|>",
    "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
)  # fmt: skip
TEXT, TIMES = 256, 51  # tokens of text, and times of one second
END, START, EN, DE, HAW, TRANSLATE, TRANSCRIBE, LM, PREVIOUS, NO_SPEECH, NO_TIMES = range(TEXT, TEXT + len(SPECIAL))
FIRST = NO_TIMES + 1
VOCABULARY = FIRST + TIMES
FEATURES = LogMel(bands=8, seconds=1)
GENERATION = {
    "is_multilingual": True,
    "suppress_tokens": [1, 2, START, TRANSLATE, TRANSCRIBE, LM, PREVIOUS, NO_SPEECH],
    "begin_suppress_tokens": [32, END],
    "max_initial_timestamp_index": 10,
    "alignment_heads": [[0, 1], [1, 0]],
}
SIZES = WhisperSizes(
    vocabulary=VOCABULARY, mels=8, source_positions=50, target_positions=40, width=24, encoder_hidden=32,
    decoder_hidden=32, encoder_heads=2, decoder_heads=2, encoder_layers=1, decoder_layers=2,
)  # fmt: skip


def tokenizer() -> TextTokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    return TextTokenizer(made)


def tokens(**more: object) -> SpeechTokens:
    return speech_tokens(tokenizer(), {**GENERATION, **more}, VOCABULARY)


def small_model(seed: int = 0, sharp: float = 3.0) -> EncoderDecoder:
    """With noise on every parameter, and opinions."""
    torch.manual_seed(seed)
    model: EncoderDecoder = build("whisper", SIZES).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        model.target.tokens.weight.mul_(sharp)
    return model


def transcriber(seed: int = 0, sharp: float = 3.0, **more: object) -> Transcriber:
    return Transcriber(small_model(seed, sharp), tokenizer(), FEATURES, tokens(**more))


def noise(seconds: float, seed: int = 0) -> Tensor:
    return torch.randn(int(seconds * FEATURES.rate), generator=torch.Generator().manual_seed(seed)) * 0.1


class OfFrames(Transcriber):
    """Given the frames of a whole sound at once, as the reference library is."""

    whole: Tensor  # [m n]

    def _frames(self, live):  # type: ignore[no-untyped-def]
        size = self.features.samples // self.features.hop
        found = torch.zeros(len(live), len(self.whole), size)
        for row, each in enumerate(live):
            first = each.ahead.place // self.features.hop
            part = self.whole[:, first : first + min(size, len(each.window) // self.features.hop)]
            found[row, :, : part.shape[1]] = part
        return found
