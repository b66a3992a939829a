"""Small language models for the tests of decoding, and decoding as a sentence describes it: no batch, no cache."""

import json

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from qkv.data.tokenizer import TextTokenizer
from qkv.generate.line import Line
from qkv.generate.strategy import Job, Strategy
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel

PROMPTS = [[3, 4, 5], [7], [6, 5, 4, 3, 8, 9, 10], [11, 4, 11, 4, 5], [12, 13]]
END = 2
MOST = 9


def small_gpt(vocabulary: int = 23, seed: int = 0, positions: int = 64, head: str = "language") -> TextModel:
    """Random weights that are large enough to have opinions."""
    torch.manual_seed(seed)
    sizes = GPT2Sizes(vocabulary=vocabulary, positions=positions, width=16, hidden=32, heads=2, layers=2)
    model: TextModel = build("gpt2", sizes, HeadChoice(head)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


@torch.inference_mode()
def logits_after(model: TextModel, ids: list[int]) -> Tensor:
    """Of the token after these, for one text, computed without a cache. [v]"""
    return model(torch.tensor([ids]))[0, -1].float()


def plain_greedy(model: TextModel, prompt: list[int], most: int, end: int = END) -> list[int]:
    written: list[int] = []
    while len(written) < most:
        token = int(logits_after(model, prompt + written).argmax())
        if token == end:
            break
        written.append(token)
    return written


TEXTS = [
    "The quick brown fox jumps over the lazy dog. It was a sunny day, and the dog did not mind.",
    "Once upon a time there was a small village by the sea; its people fished and sang until the night came.",
    'A list: 1, 2, 3, 40, 500. Names: "Anna", "Béla" and "Żółć". {"key": [true, false, null], "n": -1.5e3}',
] * 3


def small_tokenizer(kind: str = "bpe", vocabulary: int | None = 320) -> TextTokenizer:
    return TextTokenizer.train(kind, TEXTS, vocabulary=vocabulary)


def spaced_tokenizer() -> TextTokenizer:
    """As Llama's: a space belongs to the word after it, the first one is dropped, and bytes stand in for the rest."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = pre_tokenizers.Metaspace()
    tokenizer.pre_tokenizer = words
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=360, special_tokens=special, show_progress=False)
    )
    state = json.loads(tokenizer.to_str())
    state["pre_tokenizer"] = None
    state["added_tokens"] = state["added_tokens"][:3]
    return TextTokenizer(Tokenizer.from_str(json.dumps(state)))


def written(
    model: TextModel, strategy: Strategy, prompts=PROMPTS, *, most: int = MOST, shapers=(), ends=(END,), **more
) -> list[Line]:
    """The lines that a strategy writes."""
    lines = [
        Line(prompt, most, frozenset(ends), chance=chance) for prompt in prompts for chance in strategy.chances(prompt)
    ]
    for _ in strategy.write(Job(model, prompts, lines, shapers, most, **more)):
        pass
    return [line for line in lines if not line.live]
