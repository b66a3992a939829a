"""A small Whisper that tells three pitches apart: no command trains one, so it learns here, in a few seconds."""

from __future__ import annotations

from math import pi
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from qkv.api.choices import DESK_SIZES
from qkv.data.pairs import PairBatch
from qkv.data.sound_features import LogMel
from qkv.data.sound_processor import write_sound_processor
from qkv.data.tokenizer import TextTokenizer
from qkv.files import write_json
from qkv.generate.speech_tokens import GENERATION_FILE, SpeechTokens, speech_tokens
from qkv.models.catalogue import build, find_family
from qkv.train.objectives import SequenceToSequenceLoss
from qkv.train.optimizers import adamw
from qkv.weights.save import save_model
from tools.gpu_verify.materials import PITCHES

SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>",
           "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")  # fmt: skip
GENERATION = {"is_multilingual": True, "suppress_tokens": [], "begin_suppress_tokens": [],
              "alignment_heads": [[0, 0]]}  # fmt: skip
FEATURES = LogMel(seconds=2)
SLOTS, TIMES = 100, 101  # of such a window; times from 0 to 2 seconds
SMALL = {"source_positions": SLOTS, "target_positions": 40, "width": 64, "encoder_hidden": 128, "decoder_hidden": 128,
         "encoder_heads": 2, "decoder_heads": 2, "encoder_layers": 1, "decoder_layers": 1}  # fmt: skip
STEPS = 150


def make(folder: Path) -> None:
    tokenizer = of_bytes()
    vocabulary = tokenizer.size + TIMES
    tokens = speech_tokens(tokenizer, GENERATION, vocabulary)
    family = find_family("whisper")
    model = build("whisper", family.sizes({**DESK_SIZES["whisper"], **SMALL, "vocabulary": vocabulary}))
    learn(model, tokenizer, tokens)
    save_model(model.eval(), folder)
    tokenizer.save(folder / "tokenizer.json")
    write_sound_processor(folder, FEATURES)
    write_json(folder / GENERATION_FILE, GENERATION)


def of_bytes() -> TextTokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    return TextTokenizer(made)


def learn(model: Any, tokenizer: TextTokenizer, tokens: SpeechTokens) -> None:
    optimizer, objective = adamw(model, learning_rate=2e-3), SequenceToSequenceLoss()
    targets = [said(name, tokenizer, tokens) for name in PITCHES]
    longest = max(map(len, targets))
    rows = torch.tensor([[*each, *[tokens.end] * (longest - len(each))] for each in targets])
    lengths = torch.tensor([len(each) for each in targets])
    model.train()
    for _ in range(STEPS):
        heard = FEATURES(tones())
        full = torch.full((len(targets),), heard.values.shape[-1])
        objective(model, PairBatch(heard.values, full, rows, lengths, padded=False)).total.backward()
        optimizer.step()
        optimizer.zero_grad()


def said(name: str, tokenizer: TextTokenizer, tokens: SpeechTokens) -> list[int]:
    begin, end = tokens.first_time, tokens.first_time + 50  # 0 and 1 seconds
    text: list[int] = tokenizer.encode([f" {name}"])[0]
    return [*tokens.opening("en", "transcribe", timestamps=True), begin, *text, end, tokens.end]


def tones() -> Tensor:
    """One of each pitch, about a second long. [3 t]"""
    time = torch.arange(FEATURES.rate + 2000) / FEATURES.rate
    pitches = torch.tensor([float(each) for each in PITCHES.values()])[:, None] * (0.95 + 0.1 * torch.rand(3, 1))
    return torch.sin(2 * pi * pitches * time) / 4
