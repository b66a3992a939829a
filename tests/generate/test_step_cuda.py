"""A whole step as one program: what it knows, what a block holds, and that its logits are those of the parts."""

import copy

import pytest
import torch

pytest.importorskip("triton")

from qkv.generate import step_cuda
from qkv.generate.choose import TheLikeliest
from qkv.generate.continuation import FromPrompts
from qkv.generate.fused import plan_of
from qkv.generate.line import Line
from qkv.generate.recording import Shape
from qkv.generate.standing import Standing
from qkv.generate.write import write
from qkv.parts import cuda
from tests.generate.stepped import model_of, reader_of

GPT = {"positions": 1088, "width": 192, "hidden": 768, "heads": 3}
MODELS = {
    "gpt2": lambda device: model_of("gpt2", device, **GPT),
    "gpt2, relu, untied": lambda device: model_of("gpt2", device, activation="relu", tied=False, positions=1088),
    "llama": lambda device: model_of("llama", device, positions=1088, width=256, hidden=688),
    "llama, biases, tied": lambda device: model_of(
        "llama", device, positions=1088, attention_bias=True, output_bias=True, feed_forward_bias=True, tied=True
    ),
}


def test_rows_are_cut_into_equal_pieces_that_a_copy_can_begin_at():
    for inputs, width, many in ((1600, 1600, 1), (6400, 1600, 4), (768, 768, 1), (3072, 768, 4), (11008, 4096, 8)):
        assert step_cuda.pieces_of(inputs, width) == many
    assert step_cuda.pieces_of(8 * 4099, 4096) is None  # a prime number of eights


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_what_a_block_holds_is_no_more_than_it_may(name, rows, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    plan = plan_of(MODELS[name]("cpu"))
    room = step_cuda.room_of(plan, rows, 132)
    assert step_cuda.FEWEST <= room.stages <= step_cuda.MOST
    assert room.bytes < step_cuda.ROOM
    for layer in plan.layers:
        for linear, pieces in zip((layer.project, layer.out, layer.outer), room.pieces, strict=True):
            assert step_cuda.TALL * 2 * linear.weight.shape[1] // pieces <= room.stage


def test_each_block_has_a_part_of_the_stream(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(step_cuda, "multiprocessors", lambda device: 132)
    assert step_cuda.blocks_of(plan_of(MODELS["gpt2"]("cpu"))) == 132
    assert step_cuda.blocks_of(plan_of(model_of("gpt2", "cpu"))) == 48  # as wide as it is


def test_what_it_does_not_know_is_left_to_others(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    one = Shape(1, 64, 0, 0)
    assert not step_cuda.fits(plan_of(model_of("gpt2", "cpu").bfloat16()), one)
    if not torch.cuda.is_available() or not cuda.has_bindings():
        return
    on_gpu = model_of("gpt2", "cuda").bfloat16()
    assert step_cuda.fits(plan_of(on_gpu), one)
    assert not step_cuda.fits(plan_of(on_gpu), Shape(5, 64, 0, 0))
    assert not step_cuda.fits(plan_of(on_gpu.float()), one)
    assert not step_cuda.fits(plan_of(reader_of("cuda").bfloat16()), one)


def prompts_of(lengths):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, 101, (each,), generator=generator).tolist() for each in lengths]


@pytest.fixture
def hopper():
    if torch.cuda.get_device_capability() < (9, 0) or not cuda.has_bindings():
        pytest.skip("The program is for other GPUs.")


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [[33], [1, 300], [33, 1000, 1], [1, 33, 300, 1000]], ids=len)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_as_near_to_single_precision_as_those_of_the_parts(name, lengths, hopper):
    exact = MODELS[name]("cuda")
    with torch.no_grad():
        for parameter in exact.parameters():  # smaller, so that which slot a head looks at is no question of rounding
            parameter.mul_(0.25 if parameter.ndim == 2 else 1.0).copy_(parameter.bfloat16())
    model = copy.deepcopy(exact).bfloat16()
    prompts = prompts_of(lengths)
    parts, program, single = (FromPrompts(each, prompts, most=24) for each in (model, model, exact))
    program = Standing(program)
    with torch.inference_mode():
        logits, *_ = [each.begin() for each in (parts, program, single)]
        tokens = logits.argmax(-1)[:, None]
        for _ in range(4):
            by_parts, by_program, wanted = (each.advance(tokens).float() for each in (parts, program, single))
            far = (by_parts - wanted).abs().max()
            assert (by_program - wanted).abs().max() <= 1.5 * far + 0.01
            tokens = by_parts.argmax(-1)[:, None]
    assert type(program._record.plan) is step_cuda.SingleStep


@pytest.mark.gpu
def test_a_record_writes_the_same_again(hopper):
    model = MODELS["gpt2"]("cuda").bfloat16()

    def written():  # so many that words are told more often than their 8 bits can count
        lines = [Line(prompt, 300, frozenset([-1])) for prompt in prompts_of([20, 7])]
        for _ in write(FromPrompts(model, prompts_of([20, 7]), most=300), lines, TheLikeliest()):
            pass
        return [(line.ids, line.log_probabilities) for line in lines]

    first = written()
    assert written() == first  # by the record that was kept, to the bit


@pytest.mark.gpu
def test_all_of_a_step_is_read_by_one_launch(monkeypatch, hopper):
    launched, real = [], cuda.Program.launch

    def launch(self, *given, **told):
        launched.append(told)
        real(self, *given, **told)

    monkeypatch.setattr(cuda.Program, "launch", launch)
    rows = Standing(FromPrompts(MODELS["llama"]("cuda").bfloat16(), prompts_of([5]), most=24))
    with torch.inference_mode():
        rows.advance(rows.begin().argmax(-1)[:, None])
    assert launched == [{"at_once": True}] * 2  # once before it is recorded, once as it is
