"""SMILES cut into atoms, bonds and rings before they are looked up."""

import re
from pathlib import Path

import pytest

from qkv.data.published_tokenizer import read_tokenizer
from qkv.data.splitting import SMILES, split_by
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"cCNO()=1.", ">>", "Br", "[nH]", "B", "Cl", "%12"]
# The same, as the programs of this field usually write it.
USUAL = r"(\%\([0-9]{3}\)|\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"  # noqa: E501
REACTIONS = [
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "Brc1ccccc1.Nc1ccccc1>>c1ccc(Nc2ccccc2)cc1",
    r"F/C=C\F.[13C@@H](Cl)(Br)I.C%12CC%12~[Na+].B$C#N*?:P|s%(101)o@+>b",
]


@pytest.fixture
def molecules(tmp_path: Path) -> TextTokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    return read_tokenizer(tmp_path)


@pytest.mark.parametrize("text", REACTIONS)
def test_a_reaction_is_cut_into_atoms_bonds_and_rings(text):
    assert re.findall(SMILES, text) == re.findall(USUAL, text)
    assert "".join(re.findall(SMILES, text)) == text


def test_the_vocabulary_then_knows_its_tokens(molecules, tmp_path):
    text = "Brc1cc[nH]1.C%12Cl>>N"
    assert molecules.encode([text])[0].count(molecules.unknown) > 1
    split = split_by(molecules, "smiles")
    ids = split.encode([text])[0]
    assert split.tokens(ids) == ["Br", "c", "1", "c", "c", "[nH]", "1", ".", "C", "%12", "Cl", ">>", "N"]
    assert split.decode(ids, whole=True) == text
    assert split.tokens(split.encode(["C[MASK]N"], special=True, allow_special=True)[0]) == [
        "[CLS]", "C", "[MASK]", "N", "[SEP]",
    ]  # fmt: skip
    assert split.encode(["C[Zn]!N"])[0] == [
        *split.encode(["C"])[0],
        split.unknown,
        split.unknown,
        *split.encode(["N"])[0],
    ]
    (tmp_path / "kept").mkdir()
    split.save(tmp_path / "kept" / "tokenizer.json")
    assert read_tokenizer(tmp_path / "kept").encode([text])[0] == ids


def test_what_cannot_be_split_is_refused(molecules):
    with pytest.raises(QkvError, match="did you mean smiles"):
        split_by(molecules, "smile")
    with pytest.raises(QkvError, match="this is one of BPE"):
        split_by(TextTokenizer.train("bpe", ["some text"], vocabulary=280), "smiles")
