"""Published encoder-decoders as folders: random weights, and vocabularies learnt on the spot."""

from pathlib import Path

import torch
from transformers import MarianConfig, MarianMTModel, T5Config, T5ForConditionalGeneration

from tests.data.published_folders import sentencepiece_bytes, write

SENTENCES = [("The cat sat on the mat", "Das Mädchen grüßt die Katze"), ("the cats sang", "schöne Grüße!")] * 3
ROUNDED = 64  # real vocabularies are rounded up to a multiple of 128


def t5_folder(folder: Path) -> Path:
    """A T5 whose vocabulary has more rows than its tokenizer has tokens, as 32,128 are more than 32,100."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = sentencepiece_bytes(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "spiece.model").write_bytes(pieces)
    write(folder, "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "extra_ids": 100})
    from qkv.data.published_tokenizer import read_tokenizer

    config = T5Config(
        vocab_size=read_tokenizer(folder).size // ROUNDED * ROUNDED + ROUNDED,
        d_model=16,
        d_kv=6,
        d_ff=24,
        num_heads=2,
        num_layers=2,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    return _saved(T5ForConditionalGeneration(config), folder)


def marian_folder(folder: Path) -> Path:
    """A Marian with a SentencePiece model for each side and one vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    import sentencepiece

    names = ["</s>", "<unk>"]
    for side, size in (("source", 150), ("target", 200)):
        (folder / f"{side}.spm").write_bytes(sentencepiece_bytes("unigram", size))
        library = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        names += [library.id_to_piece(number) for number in range(library.get_piece_size())]
    names = [*dict.fromkeys(name for name in names if name != "<s>"), "<pad>"]
    write(folder, "vocab.json", {name: number for number, name in enumerate(names)})
    config = MarianConfig(
        vocab_size=len(names),
        d_model=16,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_layers=2,
        decoder_layers=2,
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=len(names) - 1,
        decoder_start_token_id=len(names) - 1,
        eos_token_id=0,
        bos_token_id=0,
        forced_eos_token_id=0,
        bad_words_ids=[[len(names) - 1]],
        share_encoder_decoder_embeddings=True,
    )
    return _saved(MarianMTModel(config), folder)


def _saved(model: torch.nn.Module, folder: Path) -> Path:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder
