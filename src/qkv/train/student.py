"""A student that begins with some of its teacher's layers. [sanh2019 §3]"""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from qkv.errors import QkvError

OF_A_BLOCK = re.compile(r"(?P<stack>.*\bblocks)\.(?P<number>\d+)\.(?P<rest>.*)")


@torch.no_grad()
def take_layers(
    student: nn.Module, teacher: nn.Module, layers: Sequence[int] | Mapping[str, Sequence[int]]
) -> list[str]:
    """Fill a student with what its teacher has; returns the names of the tensors that the teacher does not have.

    Block i becomes the teacher's block `layers[i]`, counted from 0; where there are several stacks, `layers` may name
    them: `{"encoder": ..., "decoder": ...}`. All else (embeddings, final norm, head) is taken as it is. A tensor of
    another shape is an error: only models of the same width can share layers.
    """
    theirs = teacher.state_dict()
    missing = []
    for name, tensor in student.state_dict().items():
        source = _name_at_teacher(name, layers)
        if source not in theirs:
            if OF_A_BLOCK.fullmatch(name):
                raise QkvError(f"The teacher has no {source} for the student's {name}: name layers that it has.")
            missing.append(name)
        elif theirs[source].shape != tensor.shape:
            raise QkvError(
                f"The teacher's {source} is {list(theirs[source].shape)} and the student's {name} "
                f"{list(tensor.shape)}: only models of equal widths can share layers."
            )
        else:
            tensor.copy_(theirs[source])
    return missing


def spread_evenly(student_layers: int, teacher_layers: int) -> list[int]:
    """Layers spread evenly over a teacher, from its first to its last: 0, 2, 4, 7, 9, 11 of 12."""
    if not 1 <= student_layers <= teacher_layers:
        raise QkvError(f"A student of {student_layers} layers cannot take them from a teacher of {teacher_layers}.")
    if student_layers == 1:
        return [0]
    return [round(i * (teacher_layers - 1) / (student_layers - 1)) for i in range(student_layers)]


def _name_at_teacher(name: str, layers: Sequence[int] | Mapping[str, Sequence[int]]) -> str:
    found = OF_A_BLOCK.fullmatch(name)
    if not found:
        return name
    stack, number = found["stack"], int(found["number"])
    if isinstance(layers, Mapping):
        owner = stack.split(".")[0]
        if owner not in layers:
            raise QkvError(f"Say which layers the student's {owner} takes: there are those of {', '.join(layers)}.")
        chosen = layers[owner]
    else:
        chosen = layers
    if number >= len(chosen):
        raise QkvError(f"The student has a layer {number} in {stack}, but {len(chosen)} of the teacher's are named.")
    return f"{stack}.{chosen[number]}.{found['rest']}"
