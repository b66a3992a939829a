"""A student that begins with its teacher's layers."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.train.student import spread_evenly, take_layers
from tests.models.small import small_model
from tests.train.objectives.small import small_bert


def test_blocks_come_from_the_named_layers_and_all_else_as_it_is():
    teacher, student = small_bert(seed=1, layers=3), small_bert(seed=2, layers=2)
    assert take_layers(student, teacher, [0, 2]) == []
    mine, theirs = student.state_dict(), teacher.state_dict()
    for name, tensor in mine.items():
        source = name.replace("blocks.1.", "blocks.2.")
        assert torch.equal(tensor, theirs[source]), name
    assert any("blocks.1." in name for name in mine)


def test_a_student_with_all_layers_is_the_teacher():
    teacher, student = small_bert(seed=1), small_bert(seed=2)
    take_layers(student, teacher, [0, 1])
    ids = torch.randint(4, 31, (2, 7))
    assert torch.equal(student(ids), teacher(ids))


def test_another_head_is_left_as_it_was():
    teacher, student = small_bert("masked", 1), small_bert("classification", 2, labels=("a", "b"))
    missing = take_layers(student, teacher, [0, 1])
    assert missing
    assert all(name.startswith("head.") for name in missing)


def test_stacks_can_be_named():
    teacher, student = small_model("transformer"), small_model("transformer")
    take_layers(student, teacher, {"encoder": [1, 0], "decoder": [0, 1]})
    assert torch.equal(next(student.encoder.blocks[0].parameters()), next(teacher.encoder.blocks[1].parameters()))
    assert torch.equal(next(student.decoder.blocks[0].parameters()), next(teacher.decoder.blocks[0].parameters()))
    with pytest.raises(QkvError, match="student's decoder"):
        take_layers(student, teacher, {"encoder": [1, 0]})


def test_layers_that_do_not_fit_are_refused():
    with pytest.raises(QkvError, match="equal widths"):
        take_layers(small_bert(width=8), small_bert(), [0, 1])
    with pytest.raises(QkvError, match="name layers that it has"):
        take_layers(small_bert(), small_bert(), [0, 7])
    with pytest.raises(QkvError, match="but 1 of the teacher's are named"):
        take_layers(small_bert(), small_bert(), [0])


def test_layers_are_spread_evenly():
    assert spread_evenly(6, 12) == [0, 2, 4, 7, 9, 11]
    assert spread_evenly(1, 4) == [0]
    assert spread_evenly(3, 3) == [0, 1, 2]
    with pytest.raises(QkvError, match="4 layers"):
        spread_evenly(4, 3)
