"""Published layouts: every token, segment and place as the reference library has them, and the same roles."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AlbertTokenizer,
    AutoTokenizer,
    BertTokenizer,
    CLIPTokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
    MarianTokenizer,
    OpenAIGPTTokenizer,
    RobertaTokenizer,
    T5Tokenizer,
)

from qkv.data.encoding import Limit
from qkv.data.published_tokenizer import read_tokenizer, read_tokenizers
from qkv.data.sentencepiece import merges_of, read_sentencepiece
from qkv.data.token_roles import PUBLISHED_KEYS
from qkv.errors import QkvError
from tests.data.published_folders import (
    CORPUS,
    ROBERTA_SPECIALS,
    bert_folder,
    byte_level_folder,
    marked_words_folder,
    sentencepiece_bytes,
    write,
)
from tests.data.torture import MEGABYTE, TORTURE, random_strings

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
TEXTS = [*CORPUS[:6], *TORTURE, *random_strings(100)]
needs_checkpoints = pytest.mark.skipif(not CHECKPOINTS.exists(), reason="needs `make checkpoints`")


def check(ours, theirs, texts=TEXTS):
    """All that both libraries do with texts, pairs and ids."""
    assert theirs.is_fast
    assert ours.size == len(theirs)
    for role, key in PUBLISHED_KEYS.items():
        assert ours.roles.get(role) == (getattr(theirs, key) and str(getattr(theirs, key))), role
    pairs = list(zip(texts, reversed(texts), strict=True))
    for allowed in (True, False):
        if not allowed and isinstance(theirs.backend_tokenizer.model, models.Unigram):
            break  # the reference library then finds special tokens in the vocabulary of pieces
        theirs.backend_tokenizer.encode_special_tokens = not allowed
        theirs.split_special_tokens = not allowed
        assert ours.encode(texts, allow_special=allowed) == theirs(texts, add_special_tokens=False)["input_ids"]
        assert ours.encode(texts, allow_special=allowed, special=True) == theirs(texts)["input_ids"]
        one = ours.encodings(texts, allow_special=allowed)
        two = ours.encode_pairs(*zip(*pairs, strict=True), allow_special=allowed)
        for found, their in ((one, theirs(texts)), (two, theirs(*map(list, zip(*pairs, strict=True))))):
            assert [list(row.ids) for row in found] == their["input_ids"]
            for row, encoding in zip(found, their.encodings, strict=True):
                assert list(row.segments) == encoding.type_ids
                assert list(row.offsets) == encoding.offsets
                assert list(row.words) == encoding.word_ids
                assert list(row.sides) == encoding.sequence_ids
                assert list(map(int, row.special)) == encoding.special_tokens_mask
    for ids in theirs(texts)["input_ids"]:
        assert ours.decode(ids, whole=True) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, whole=True, special=True) == theirs.decode(ids)


def check_saved(ours, folder):
    """What is saved opens in the reference library, and here again, as the same tokenizer."""
    folder.mkdir()
    ours.save(folder / "tokenizer.json")
    theirs = AutoTokenizer.from_pretrained(folder)
    check(ours, theirs)
    assert ours.notes.inputs == tuple(theirs.model_input_names)
    assert ours.notes.padding_side == theirs.padding_side
    again = read_tokenizer(folder)
    check(again, theirs)
    assert again.fingerprint() == ours.fingerprint()


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"do_lower_case": True},
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True},
        {"strip_accents": False, "tokenize_chinese_chars": False},
        {"clean_up_tokenization_spaces": True, "model_max_length": 64},
    ],
)
def test_bert(tmp_path, config):
    folder = bert_folder(tmp_path, **config)
    ours = read_tokenizer(folder)
    check(ours, BertTokenizer.from_pretrained(folder))
    assert ours.notes.longest == config.get("model_max_length")
    assert (ours.start, ours.end) == (ours.classifier, ours.separator)
    check_saved(ours, tmp_path / "saved")


@pytest.mark.parametrize("config", [{}, {"add_prefix_space": True}, {"add_bos_token": True, "pad_token": "<pad>"}])
def test_gpt2(tmp_path, config):
    folder = byte_level_folder(tmp_path, "gpt2", ["<|endoftext|>"], **config)
    ours = read_tokenizer(folder)
    check(ours, GPT2Tokenizer.from_pretrained(folder))
    assert ours.has("pad") == ("pad_token" in config)
    check_saved(ours, tmp_path / "saved")


def test_roberta(tmp_path):
    folder = byte_level_folder(tmp_path, "roberta", ROBERTA_SPECIALS)
    ours = read_tokenizer(folder)
    check(ours, RobertaTokenizer.from_pretrained(folder))
    check_saved(ours, tmp_path / "saved")


def test_gpt1(tmp_path):
    folder = marked_words_folder(tmp_path, "openai-gpt", ["<unk>"])
    ours = read_tokenizer(folder)
    check(ours, OpenAIGPTTokenizer.from_pretrained(folder))
    check_saved(ours, tmp_path / "saved")


def test_clip(tmp_path):
    folder = marked_words_folder(tmp_path, "clip", ["<|startoftext|>", "<|endoftext|>"])
    check(read_tokenizer(folder), CLIPTokenizer.from_pretrained(folder))


def test_without_a_name_the_files_tell_the_kind(tmp_path):
    kinds = {
        "bert": lambda folder: bert_folder(folder),
        "gpt2": lambda folder: byte_level_folder(folder, "gpt2", ["<|endoftext|>"]),
        "roberta": lambda folder: byte_level_folder(folder, "roberta", ROBERTA_SPECIALS),
        "gpt1": lambda folder: marked_words_folder(folder, "openai-gpt", ["<unk>"]),
        "clip": lambda folder: marked_words_folder(folder, "clip", ["<|startoftext|>", "<|endoftext|>"]),
    }
    for kind, make in kinds.items():
        (tmp_path / kind).mkdir()
        folder = make(tmp_path / kind)
        named = read_tokenizer(folder)
        (folder / "config.json").unlink()
        assert read_tokenizer(folder).fingerprint() == named.fingerprint()
        assert read_tokenizer(folder).roles == named.roles


def test_a_model_may_have_the_tokenizer_of_another(tmp_path):
    folder = bert_folder(tmp_path)
    write(folder, "config.json", {"model_type": "albert"})
    check(read_tokenizer(folder), BertTokenizer.from_pretrained(folder))


def test_older_folders_name_special_tokens_in_files_of_their_own(tmp_path):
    folder = byte_level_folder(tmp_path, "gpt2", ["<|endoftext|>"])
    start = {"content": "<start>", "lstrip": True}
    write(folder, "special_tokens_map.json", {"pad_token": "<pad>", "bos_token": start})
    write(folder, "added_tokens.json", {"<pad>": 500, "<start>": 501, "Katze": 502})
    ours = read_tokenizer(folder)
    check(ours, GPT2Tokenizer.from_pretrained(folder))
    assert (ours.pad, ours.start, ours.id_of("Katze"), ours.size) == (500, 501, 502, 503)
    assert ours.encode(["die Katze"])[0][-1] == 502


def test_newer_folders_name_them_in_the_configuration(tmp_path):
    folder = byte_level_folder(tmp_path, "gpt2", ["<|endoftext|>"])
    added = {
        "0": {"content": "<|endoftext|>", "special": True, "normalized": False, "lstrip": False},
        "500": {"content": "<|im_start|>", "special": True, "normalized": False, "lstrip": False},
        "501": {"content": "<tool>", "special": False, "normalized": False, "lstrip": False},
    }
    added = {key: value | {"rstrip": False, "single_word": False} for key, value in added.items()}
    config = {"added_tokens_decoder": added, "pad_token": "<|im_start|>", "tokenizer_class": "GPT2Tokenizer"}
    write(folder, "tokenizer_config.json", config | {"chat_template": "{{ messages }}"})
    write(folder, "special_tokens_map.json", {"pad_token": "ignored, since the newer file is there"})
    ours = read_tokenizer(folder)
    texts = [*TEXTS, "<|im_start|>user<tool>"]
    check(ours, GPT2Tokenizer.from_pretrained(folder), texts)
    assert ours.notes.chat_template == "{{ messages }}"
    assert ours.encode(["a<tool>"])[0][-1] == 501  # not special, so that text may spell it
    check_saved(ours, tmp_path / "saved")
    config["added_tokens_decoder"]["500"]["content"] = "the"
    write(folder, "tokenizer_config.json", config)
    with pytest.raises(QkvError, match="belongs to another model"):
        read_tokenizer(folder)


def test_any_tokenizer_file(tmp_path):
    """Of a kind that is not known here by name, and whose roles are named nowhere else."""
    made = Tokenizer(models.WordLevel({"<none>": 0, "a": 1, "b": 2, "<fill>": 3}, unk_token="<none>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<none>", "<fill>"])
    made.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<none>", "pad_token": "<fill>"}
    write(tmp_path, "tokenizer_config.json", config)
    ours = read_tokenizer(tmp_path)
    assert (ours.pad, ours.unknown) == (3, 0)
    assert not ours.has("end")
    assert ours.encode(["a <fill> b z"]) == [[1, 0, 2, 0]]  # as text, it is a word that the vocabulary may not give
    assert (
        ours.encode(["a <fill> b z"], allow_special=True)
        == AutoTokenizer.from_pretrained(tmp_path)(["a <fill> b z"])["input_ids"]
    )


def reference_pieces(file):
    """Pieces, scores and table of characters, as the reference library takes them from the file."""
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    numbers = range(theirs.get_piece_size())
    return [(theirs.id_to_piece(number), theirs.get_score(number)) for number in numbers]


def test_t5(tmp_path):
    settings = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    (tmp_path / "spiece.model").write_bytes(sentencepiece_bytes(**settings))
    vocabulary = reference_pieces(tmp_path / "spiece.model")
    vocabulary += [(f"<extra_id_{number}>", 0.0) for number in reversed(range(100))]
    characters = read_sentencepiece(tmp_path / "spiece.model").characters
    ours = read_tokenizer(tmp_path)
    theirs = T5Tokenizer(vocab=vocabulary, _spm_precompiled_charsmap=characters)
    assert ours.size == len(theirs)
    assert ours.encode(TEXTS, special=True, allow_special=True) == theirs(TEXTS)["input_ids"]
    assert [ours.decode(ids, whole=True) for ids in ours.encode(TEXTS)] == theirs.batch_decode(
        ours.encode(TEXTS), skip_special_tokens=True
    )
    assert (ours.pad, ours.end, ours.unknown, ours.id_of("<extra_id_0>")) == (0, 1, 2, ours.size - 1)
    with pytest.raises(QkvError, match="no start token"):
        _ = ours.start
    assert ours.with_roles(start="<pad>").start == 0
    library = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert ours.encode(CORPUS) == library.encode(CORPUS)
    check_saved(ours, tmp_path / "saved")


@pytest.mark.parametrize("config", [{}, {"do_lower_case": False, "keep_accents": True}])
def test_albert(tmp_path, config):
    settings = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
    (tmp_path / "spiece.model").write_bytes(sentencepiece_bytes(**settings))
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "AlbertTokenizer", **config})
    vocabulary = reference_pieces(tmp_path / "spiece.model")
    characters = read_sentencepiece(tmp_path / "spiece.model").characters
    ours = read_tokenizer(tmp_path)
    theirs = AlbertTokenizer(vocab=vocabulary, _spm_precompiled_charsmap=characters, **config)
    assert ours.encode(TEXTS, special=True, allow_special=True) == theirs(TEXTS)["input_ids"]
    assert (ours.classifier, ours.separator, ours.mask) == (2, 3, 4)
    check_saved(ours, tmp_path / "saved")


def test_llama(tmp_path):
    settings = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_bytes("bpe", 500, **settings))
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True})
    ours = read_tokenizer(tmp_path)
    library = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    assert ours.encode(TEXTS) == library.encode(TEXTS)
    assert ours.encode(TEXTS, special=True) == [[ours.start, *ids] for ids in library.encode(TEXTS)]
    # The reference library drops one space of those that a text begins with, which SentencePiece and llama.cpp keep.
    pieces = read_sentencepiece(tmp_path / "tokenizer.model").pieces
    vocabulary = {piece.text: place for place, piece in enumerate(pieces)}
    theirs = LlamaTokenizer(vocab=vocabulary, merges=merges_of(pieces), add_bos_token=True)
    plain = [text for text in TEXTS if not text.startswith((" ", "▁")) and "<s>" not in text and "</s>" not in text]
    plain = [text for text in plain if "<unk>" not in text]
    assert len(plain) > 100
    assert ours.encode(plain, special=True) == theirs(plain)["input_ids"]
    check_saved(ours, tmp_path / "saved")


@pytest.mark.filterwarnings("ignore:Recommended")
def test_marian(tmp_path):
    unknown = sentencepiece_bytes("unigram", 150)
    for side, content in (("source", unknown), ("target", sentencepiece_bytes("unigram", 220))):
        (tmp_path / f"{side}.spm").write_bytes(content)
    pieces = [piece for side in ("source", "target") for piece, _ in reference_pieces(tmp_path / f"{side}.spm")]
    ordinary = [piece for piece in dict.fromkeys(pieces) if piece not in ("<s>", "</s>", "<unk>")]
    left_out = ordinary[5::17]  # pieces that a published vocabulary does not know
    names = ["</s>", "<unk>", ">>de<<", *(piece for piece in ordinary if piece not in left_out), "<pad>"]
    write(tmp_path, "vocab.json", {name: number for number, name in enumerate(names)})
    write(tmp_path, "config.json", {"model_type": "marian"})
    source, target = read_tokenizers(tmp_path)
    theirs = MarianTokenizer.from_pretrained(tmp_path)
    assert source.size == target.size == len(theirs) == len(names)
    texts = [*CORPUS, "Hello, world!  It's  1984.", "", " ", ">>de<< The cat sat on the mat.", "the </s> mat"]
    assert source.encode(texts, special=True) == theirs(texts, split_special_tokens=True)["input_ids"]
    with_targets = theirs(text_target=texts, split_special_tokens=True)["input_ids"]
    assert target.encode(texts, special=True) == with_targets
    assert any(source.unknown in ids for ids in source.encode(CORPUS))
    for ids in target.encode(CORPUS[:6]):
        known = [token for token in ids if token != target.unknown]
        assert target.decode(known) == theirs.decode(known, skip_special_tokens=True)
    target.save(tmp_path / "target_tokenizer.json")
    assert type(target).load(tmp_path / "target_tokenizer.json").encode(texts) == target.encode(texts)


def test_windows_and_cuts_are_those_of_the_reference_library(tmp_path):
    folder = bert_folder(tmp_path)
    ours, theirs = read_tokenizer(folder), BertTokenizer.from_pretrained(folder)
    questions, paragraphs = CORPUS[:6], [" ".join(CORPUS[place : place + 6]) for place in range(6)]
    for limit, truncation in (
        (Limit(32), {"truncation": "longest_first", "max_length": 32}),
        (Limit(110, "first"), {"truncation": "only_first", "max_length": 110}),
        (Limit(64, "second"), {"truncation": "only_second", "max_length": 64}),
        (Limit(64, "second", 16), {"truncation": "only_second", "max_length": 64, "stride": 16}),
    ):
        windows = limit.stride is not None
        found = ours.encode_pairs(questions, paragraphs, limit=limit)
        their = theirs(questions, paragraphs, return_overflowing_tokens=windows, **truncation)
        assert [list(row.ids) for row in found] == their["input_ids"]
        assert [list(row.segments) for row in found] == their["token_type_ids"]
        assert [list(row.offsets) for row in found] == [encoding.offsets for encoding in their.encodings]
        rows = their["overflow_to_sample_mapping"] if windows else range(6)
        assert [row.row for row in found] == list(rows)
        assert all(len(row) <= limit.length for row in found)
        assert windows == (len(found) > 6)
    with pytest.raises(QkvError, match="Truncation error"):
        ours.encode_pairs(questions, paragraphs, limit=Limit(20, "second"))


def test_words_that_are_cut_already(tmp_path):
    folder = bert_folder(tmp_path)
    ours, theirs = read_tokenizer(folder), BertTokenizer.from_pretrained(folder)
    rows = [text.split() for text in CORPUS[:6]]
    found, their = ours.encode_words(rows), theirs(rows, is_split_into_words=True)
    assert [list(row.ids) for row in found] == their["input_ids"]
    assert [list(row.words) for row in found] == [their.word_ids(place) for place in range(6)]


def test_folders_without_a_tokenizer(tmp_path):
    with pytest.raises(QkvError, match="no folder"):
        read_tokenizer(tmp_path / "absent")
    with pytest.raises(QkvError, match=r"no tokenizer that can be read: it should have a tokenizer\.json"):
        read_tokenizer(tmp_path)
    for name, missing in {
        "BertTokenizer": "vocab.txt",
        "GPT2Tokenizer": "merges.txt",
        "T5Tokenizer": "spiece.model",
        "LlamaTokenizer": "tokenizer.model",
        "MarianTokenizer": "source.spm",
    }.items():
        write(tmp_path, "tokenizer_config.json", {"tokenizer_class": name})
        with pytest.raises(QkvError, match=missing.replace(".", r"\.")):
            read_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"model_type"', "\ud800".encode("utf-16", "surrogatepass")])
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "config.json", "tokenizer.json"])
def test_broken_files(tmp_path, name, content):
    folder = bert_folder(tmp_path)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(QkvError, match=name.replace(".", r"\.")):
        read_tokenizer(folder)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"added_tokens_decoder": True}, "has True as added_tokens_decoder"),
        ({"added_tokens_decoder": {"x": "y"}}, "by their numbers"),
        ({"model_max_length": "long"}, "has 'long' as model_max_length"),
        ({"pad_token": 7}, "there is 7"),
        ({"pad_token": {"text": "[PAD]"}}, "special token should be a text"),
    ],
)
def test_broken_notes(tmp_path, config, problem):
    folder = bert_folder(tmp_path)
    write(folder, "tokenizer_config.json", config)
    with pytest.raises(QkvError, match=problem):
        read_tokenizer(folder)


def test_a_vocabulary_without_the_token_for_the_unknown_cannot_cut_everything(tmp_path):
    Tokenizer(models.WordPiece({"a": 0}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.encode(["a"]) == [[0]]
    for encode in (tokenizer.encode, tokenizer.encodings):
        with pytest.raises(QkvError, match=r"cannot cut this text as it should: .*\[UNK\]"):
            encode(["b"])


def test_broken_vocabularies(tmp_path):
    (tmp_path / "vocab.txt").write_text("just\nwords\n")
    with pytest.raises(QkvError, match=r"does not know \[UNK\] \[CLS\] \[SEP\]"):
        read_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(QkvError, match=r"vocab\.txt is not a whole vocabulary"):
        read_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    for vocabulary, problem in (
        ({"a": 0, "b": 1}, "'ab' is not in the vocabulary"),
        ({"a": "x"}, "numbers 'a' as 'x'"),
        ({"a": -1}, "numbers 'a' as -1"),
        ({}, "no tokens"),
    ):
        write(tmp_path, "vocab.json", vocabulary)
        with pytest.raises(QkvError, match=problem):
            read_tokenizer(tmp_path)
    write(tmp_path, "vocab.json", {"a": 0, "b": 1, "ab": 2})
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\na b c\n")
    with pytest.raises(QkvError, match=r"Line 3 of .*two tokens"):
        read_tokenizer(tmp_path)


@pytest.mark.slow
@needs_checkpoints
def test_the_vocabulary_of_gpt2():
    folder = CHECKPOINTS / "gpt2-tokenizer"
    ours, theirs = read_tokenizer(folder), GPT2Tokenizer.from_pretrained(folder)
    check(ours, theirs)
    assert ours.size == 50257
    assert ours.encode(["Hello world"]) == [[15496, 995]]
    assert ours.encode([MEGABYTE]) == theirs([MEGABYTE])["input_ids"]


@pytest.mark.slow
@needs_checkpoints
@pytest.mark.parametrize("layout", ["tokenizer.json", "vocab.txt"])
def test_the_vocabulary_of_bert(layout, tmp_path):
    for file in ("tokenizer_config.json", "special_tokens_map.json", "config.json", layout):
        shutil.copy(CHECKPOINTS / "all-minilm-l6-v2" / file, tmp_path)
    ours, theirs = read_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    check(ours, theirs)
    assert (ours.size, ours.notes.longest) == (30522, 512)
    assert ours.encode([MEGABYTE]) == [[ours.unknown]]


@pytest.mark.slow
@needs_checkpoints
def test_the_vocabulary_of_clip(tmp_path):
    """Its merges are published alone: the vocabulary is the bytes, the bytes that end words, the merges."""
    lines = gzip.decompress((CHECKPOINTS / "clip-tokenizer" / "bpe_simple_vocab_16e6.txt.gz").read_bytes()).decode()
    merges = lines.split("\n")[1 : 49152 - 256 - 2 + 1]
    visible = [chr(byte) for byte in range(256) if chr(byte) in pre_tokenizers.ByteLevel.alphabet()]
    alphabet = [*visible, *(chr(256 + place) for place in range(256 - len(visible)))]
    names = [*alphabet, *(f"{byte}</w>" for byte in alphabet), *(merge.replace(" ", "") for merge in merges)]
    names += ["<|startoftext|>", "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    write(tmp_path, "config.json", {"model_type": "clip"})
    ours = read_tokenizer(tmp_path)
    check(ours, CLIPTokenizer.from_pretrained(tmp_path))
    assert ours.encode(["a photo of a cat"], special=True) == [[49406, 320, 1125, 539, 320, 2368, 49407]]
