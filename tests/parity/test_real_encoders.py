"""Published encoders answer here as in the reference library: sentence vectors, hidden tokens, classes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

import qkv
from qkv.errors import QkvWarning
from qkv.weights.convert import convert
from qkv.weights.load import load_model, load_sentence_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published

CHECKPOINTS = Path(__file__).resolve().parents[2] / "checkpoints"
pytestmark = pytest.mark.slow

SENTENCES = [
    "A man is eating food.",
    "Someone has a meal.",
    "The girl is carrying a baby.",
    "Ein Mann isst etwas 🍝, naïvely — 東京.",
]
# A Buchwald–Hartwig and an esterification, tokens as the models' vocabularies cut them.
REACTIONS = [
    "C C ( = O ) O . C C O >> C C ( = O ) O C C",
    "Br c 1 c c c c c 1 . N c 1 c c c c c 1 >> c 1 c c c ( N c 2 c c c c c 2 ) c c 1",
]


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=1e-4)


def folder_of(name):
    if not (CHECKPOINTS / name).exists():
        pytest.skip("needs `make checkpoints`")
    return CHECKPOINTS / name


def rewritten(name, folder, **config):
    """A folder whose weights are a pickle, with its weights as safetensors and what its configuration lacks."""
    folder = Path(shutil.copytree(folder_of(name), folder, ignore=shutil.ignore_patterns("*.bin")))
    state = torch.load(CHECKPOINTS / name / "pytorch_model.bin", map_location="cpu", weights_only=True)
    save_file({key: tensor.clone().contiguous() for key, tensor in state.items()}, folder / "model.safetensors")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


def reopened(model, folder, architecture):
    """What the reference makes of our export, which it must read without a remark."""
    save_published(model, folder, PUBLISHED)
    opened, report = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return opened.eval()


def reactions(folder):
    """ids and lengths of the reactions, by the words of the folder's vocabulary."""
    words = {word: number for number, word in enumerate((folder / "vocab.txt").read_text().splitlines())}
    rows = [[words[word] for word in ["[CLS]", *reaction.split(), "[SEP]"]] for reaction in REACTIONS]
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), int(lengths.max())), words["[PAD]"])
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
    return ids, lengths, words


@torch.no_grad()
def test_minilm_gives_the_reference_s_stream_and_the_published_sentence_vectors(tmp_path):
    folder = folder_of("all-minilm-l6-v2")
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    batch = transformers.AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    ids, real = batch["input_ids"], batch["attention_mask"]
    expected = reference(**batch)

    model = load_model(folder)
    found = model(ids, lengths=real.sum(1))
    close(found.states[real > 0], expected.last_hidden_state[real > 0])
    close(found.pooled, expected.pooler_output)

    sentences = load_sentence_model(folder)
    vectors = sentences(ids, lengths=real.sum(1))
    summed = (expected.last_hidden_state * real[..., None]).sum(1)  # as the model's own page says
    close(vectors, F.normalize(summed / real.sum(1, keepdim=True)))
    likeness = vectors @ vectors.T
    assert likeness[0, 1] > 0.6 > likeness[0, 2]
    long = ["word " * 400]  # of which 256 tokens are read, as the folder says
    cut = transformers.AutoTokenizer.from_pretrained(folder)(long, truncation=True, max_length=256, return_tensors="pt")
    close(qkv.load(folder, "cpu").run(long), F.normalize(reference(**cut).last_hidden_state.mean(1)))

    again = reopened(model, tmp_path / "encoder", "BertModel")
    close(again(**batch).pooler_output, expected.pooler_output)
    save_published(sentences, tmp_path / "sentences", PUBLISHED)
    close(load_sentence_model(tmp_path / "sentences")(ids, lengths=real.sum(1)), vectors)


@torch.no_grad()
def test_rxnfp_answers_both_of_bert_s_questions(tmp_path):
    folder = rewritten("rxnfp-bert", tmp_path / "read", model_type="bert", architectures=["BertForPreTraining"])
    reference = transformers.BertForPreTraining.from_pretrained(folder).eval()
    model = load_model(folder)
    ids, lengths, words = reactions(folder)
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    found, expected = model(ids, lengths=lengths), reference(ids, attention_mask=real.long())
    close(found.masked[real], expected.prediction_logits[real])
    close(found.next_sentence, expected.seq_relationship_logits)
    recovered(lambda ids: model(ids).masked, ids[:1, : lengths[0]], words["[MASK]"], least=0.8)
    again = reopened(model, tmp_path / "written", "BertForPreTraining")
    close(again(ids).prediction_logits, reference(ids).prediction_logits)


@torch.no_grad()
def test_rxnfp_tells_fifty_classes(tmp_path):
    folder = rewritten("rxnfp-bert-classes", tmp_path / "read")
    model = load_model(folder)
    assert len(model.head_choice.labels) == 50
    config = transformers.BertConfig.from_pretrained(folder, id2label=dict(enumerate(model.head_choice.labels)))
    reference = transformers.BertForSequenceClassification.from_pretrained(folder, config=config).eval()
    ids, lengths, _ = reactions(folder)
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    close(model(ids, lengths=lengths), reference(ids, attention_mask=real.long()).logits)


@torch.no_grad()
def test_rxnmapper_recovers_hidden_tokens_as_the_reference_does(tmp_path):
    folder = rewritten("rxnmapper-albert", tmp_path / "read")
    reference = transformers.AlbertForMaskedLM.from_pretrained(folder).eval()
    model = load_model(folder)
    ids, lengths, words = reactions(folder)
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    found, expected = model(ids, lengths=lengths), reference(ids, attention_mask=real.long()).logits
    close(found[real], expected[real])
    recovered(model, ids[:1, : lengths[0]], words["[MASK]"], least=0.8)
    again = reopened(model, tmp_path / "written", "AlbertForMaskedLM")
    close(again(ids).logits, reference(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize(("name", "architecture"), [("rxnfp-bert", "Bert"), ("rxnmapper-albert", "Albert")])
def test_reactions_are_read_as_smiles(name, architecture, tmp_path):
    """As their packages cut them, which their files do not say: a person does, and then it stands in the folder."""
    folder = rewritten(name, tmp_path / "read", model_type=architecture.lower())
    kind = "ForMaskedLM" if architecture == "Albert" else "ForPreTraining"
    config = json.loads((folder / "config.json").read_text()) | {"architectures": [architecture + kind]}
    (folder / "config.json").write_text(json.dumps(config))
    ids, lengths, words = reactions(folder)
    texts = ["".join(reaction.split()) for reaction in REACTIONS]
    with pytest.warns(QkvWarning, match=r"does not know .* of the .* pieces .*--split smiles"):
        qkv.load(folder, "cpu").run([f"[MASK]{texts[0]}"])

    reference = getattr(transformers, architecture + "ForMaskedLM").from_pretrained(folder).eval()
    convert(folder, tmp_path / "split", split="smiles")
    for use in (qkv.load(folder, "cpu", split="smiles"), qkv.load(tmp_path / "split", "cpu")):
        assert use.tokenizer.encode(texts, special=True) == [
            row[:length].tolist() for row, length in zip(ids, lengths, strict=True)
        ]
        row = ids[0, : lengths[0]].tolist()
        for slot in (3, 8, 13):
            hidden = [*row[:slot], words["[MASK]"], *row[slot + 1 :]]
            shares = reference(torch.tensor([hidden])).logits[0, slot].softmax(-1)
            (found,) = use.run(["".join(use.tokenizer.spelling(token) for token in hidden[1:-1])], best=3)
            top = shares.topk(3)
            assert [filling.token for filling in found] == [use.tokenizer.spelling(int(i)) for i in top.indices]
            close(torch.tensor([filling.probability for filling in found]), top.values)
            assert found[0].text == texts[0]  # what was hidden is recovered, and the reaction is whole again


def recovered(masked, ids, mask, least):
    """Each token but the first and the last, hidden in turn, is the most likely one at its place."""
    slots = torch.arange(1, ids.shape[1] - 1)
    hidden = ids.repeat(len(slots), 1)
    hidden[torch.arange(len(slots)), slots] = mask
    guesses = masked(hidden)[torch.arange(len(slots)), slots].argmax(-1)
    assert (guesses == ids[0, slots]).float().mean() >= least
