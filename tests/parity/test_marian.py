"""Marian against the reference library's, on random weights with every parameter perturbed.

The reference divides a beam's log-probability by a power of its length, ours by the penalty of [wu2016 eq.14]; both are
switched off where beams are compared.
"""

from copy import deepcopy

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from qkv.files import copy_into, read_json, read_tensors, write_json, write_tensors
from qkv.generate.beam import beam_search
from qkv.generate.decode import LengthLimit, greedy
from qkv.models.catalogue import build
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.position import positions_in_documents
from qkv.weights.maps.marian import CONFIG, MARIAN, RULES
from qkv.weights.rules import to_ours, to_theirs
from qkv.weights.save import tensors_of
from tests.parity.published import agree

VOCABULARY, LONGEST = 37, 128
START = PAD = VOCABULARY - 1
END = 0
END_MORE = 3.0
LENGTHS = [1, 2, 9, 64, LONGEST]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The reference, and ours as read from the files the reference wrote."""
    torch.manual_seed(1)
    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=40,
        max_position_embeddings=LONGEST,
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
    )
    reference = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "embed_positions" not in name:
                parameter += 0.2 * torch.randn_like(parameter)
        reference.final_logits_bias += torch.randn_like(reference.final_logits_bias)
        reference.final_logits_bias[0, END] += END_MORE  # so that some outputs end and some do not
    folder = tmp_path_factory.mktemp("marian")
    reference.save_pretrained(folder)
    ours = build("marian", MARIAN.sizes_of(read_json(folder / "config.json"))).eval()
    named = tensors_of(ours)
    copy_into(named, to_ours(RULES, read_tensors(folder / "model.safetensors"), named), folder)
    return reference, ours


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(1, PAD, (rows, length))


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_agree_at_all_paddings_and_precisions(pair, length):
    reference, ours = pair
    assert agree(ours, reference, [length]) == []


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("length", LENGTHS)
@torch.no_grad()
def test_logits_are_the_reference_s(pair, length):
    reference, ours = pair
    source, target = ids(3, length), ids(3, length)
    close(ours(source, None, target), reference(input_ids=source, decoder_input_ids=target).logits)


@pytest.mark.parametrize("length", LENGTHS[1:])
@torch.no_grad()
def test_a_row_padded_on_the_right_is_the_reference_s_and_the_same_alone(pair, length):
    reference, ours = pair
    source, target = ids(3, length), ids(3, 5)
    lengths = torch.tensor([length, length // 2, 1])
    real = torch.arange(length) < lengths[:, None]
    source = source.where(real, PAD)
    logits = ours(source, lengths, target)
    close(logits, reference(input_ids=source, attention_mask=real.long(), decoder_input_ids=target).logits)
    for row, many in enumerate(lengths.tolist()):
        close(logits[row : row + 1], ours(source[row : row + 1, :many], None, target[row : row + 1]))


@pytest.mark.parametrize("length", LENGTHS[1:])
@torch.no_grad()
def test_a_row_padded_on_the_left_is_the_reference_s(pair, length):
    """The reference counts positions by slot, padding or not; ours does if nothing else is said."""
    reference, ours = pair
    source, target, padding = ids(2, length), ids(2, 5), length // 2
    documents = torch.ones_like(source)
    documents[1, :padding] = 0
    source = source.where(documents > 0, PAD)
    tokens = Tokens(length, documents=documents)
    logits = ours.decode(target, ours.encode_tokens(source, tokens, NotPadding()))
    close(logits, reference(input_ids=source, attention_mask=documents, decoder_input_ids=target).logits)
    # Positions that start at the first real token make the padding invisible altogether.
    memory = ours.encode_tokens(source, tokens, NotPadding(), positions_in_documents(documents))
    close(ours.decode(target, memory)[1:], ours(source[1:, padding:], None, target[1:]))


@pytest.mark.parametrize("length", LENGTHS)
@torch.no_grad()
def test_step_by_step_with_a_cache_is_the_same(pair, length):
    _, ours = pair
    source, target = ids(2, 9), ids(2, length)
    memory, cache = ours.encode(source, torch.tensor([9, 4])), ours.new_cache(length)
    steps = [ours.decode(target[:, step : step + 1], memory, cache) for step in range(length)]
    close(torch.cat(steps, 1), ours.decode(target, memory))


@pytest.mark.parametrize("padded", ["right", "left"])
@pytest.mark.parametrize("length", [1, 2, 9, 64])
def test_the_gradient_of_every_parameter_is_the_reference_s(pair, length, padded):
    reference, ours = deepcopy(pair)
    source, target, weights = ids(3, length), ids(3, 7), torch.randn(3, 7, VOCABULARY)
    lengths = torch.tensor([length, (length + 1) // 2, 1])
    real = (torch.arange(length) < lengths[:, None]).long()
    if padded == "left":
        real = real.flip(1)
    source = source.where(real > 0, PAD)
    memory = ours.encode_tokens(source, Tokens(length, documents=real), NotPadding())
    (ours.decode(target, memory) * weights).sum().backward()
    (reference(input_ids=source, attention_mask=real, decoder_input_ids=target).logits * weights).sum().backward()
    with torch.no_grad():  # the gradients in place of the parameters: then they have the names that are saved
        for parameter in ours.parameters():
            parameter.copy_(parameter.grad)
    mine = tensors_of(ours)
    theirs = {name: parameter.grad for name, parameter in reference.named_parameters() if parameter.grad is not None}
    theirs["final_logits_bias"] = weights.sum((0, 1))[None]  # not a parameter there
    theirs = to_ours(RULES, theirs, mine)
    for name, gradient in mine.items():
        torch.testing.assert_close(
            gradient, theirs[name], atol=1e-3, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )


@torch.no_grad()
def test_what_we_export_the_reference_loads(pair, tmp_path):
    _, ours = pair
    changed = deepcopy(ours)
    for parameter in changed.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    write_tensors(tmp_path / "model.safetensors", to_theirs(RULES, tensors_of(changed)))
    write_json(
        tmp_path / "config.json", CONFIG.write(changed.sizes) | {"pad_token_id": PAD, "decoder_start_token_id": PAD}
    )
    reference, said = MarianMTModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(said.values())
    source, target = ids(2, 9), ids(2, 5)
    close(changed(source, None, target), reference.eval()(input_ids=source, decoder_input_ids=target).logits)


def without_specials(rows: torch.Tensor) -> list[list[int]]:
    """What the reference generated, without its start token and from the end token on."""
    cut = [row[1:] for row in rows.tolist()]
    return [row[: row.index(END)] if END in row else [token for token in row if token != PAD] for row in cut]


@pytest.fixture
def sentences():
    torch.manual_seed(3)
    source, lengths = ids(6, 9), torch.tensor([9, 3, 7, 1, 5, 8])
    real = (torch.arange(9) < lengths[:, None]).long()
    return source.where(real > 0, PAD), lengths, real


@torch.no_grad()
def test_greedy_decoding_writes_what_the_reference_writes(pair, sentences):
    reference, ours = pair
    source, lengths, real = sentences
    theirs = reference.generate(source, attention_mask=real, do_sample=False, num_beams=1, max_new_tokens=20)
    answers = greedy(ours, source, lengths, start=START, end=END, limit=LengthLimit(0, 20))
    assert [answer.ids for answer in answers] == without_specials(theirs)


@pytest.mark.parametrize("beams", [2, 4])
@torch.no_grad()
def test_beam_search_writes_what_the_reference_writes(pair, sentences, beams):
    reference, ours = pair
    source, lengths, real = sentences
    theirs = reference.generate(
        source,
        attention_mask=real,
        do_sample=False,
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=0.0,
        early_stopping="never",
        max_new_tokens=20,
        return_dict_in_generate=True,
        output_scores=True,
    )
    answers = beam_search(
        ours,
        source,
        lengths,
        start=START,
        end=END,
        beams=beams,
        best=beams,
        length_penalty=0.0,
        limit=LengthLimit(0, 20),
    )
    flat = [one for answer in answers for one in answer]
    assert {one.ended for one in flat} == {True, False}
    assert [one.ids for one in flat] == without_specials(theirs.sequences)
    assert [one.score for one in flat] == pytest.approx(theirs.sequences_scores.tolist(), abs=1e-4)
