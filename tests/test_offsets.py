"""Every program in Triton's language at the largest sizes that are let in: no offset passes 32 bits unnoticed.

What is told apart is in `bounded_triton.py`: programs run with bounds in place of numbers, and nothing is allocated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts import cuda
from qkv.parts.attention.bands import FAR, Band, Runs
from qkv.parts.attention.blocks import TileLists, TileMap
from tests.bounded_triton import Program, Report, bounded_programs, program_files

MANY = 65_535  # rows times heads, of programs that count them in the second direction of a grid
LONG = 1 << 20  # slots of one row
VOCABULARY = 256_000


def made(*shape: int, kind: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=kind, device="meta")


def wide(*shape: int) -> Tensor:
    return made(*shape, kind=torch.float32)


def whole(*shape: int, bits: int = 64) -> Tensor:
    return made(*shape, kind=torch.int64 if bits == 64 else torch.int32)


def heads(rows: int, count: int, slots: int, width: int) -> Tensor:
    """As a stream lies in memory. [b h s d]"""
    return made(rows, slots, count, width).transpose(1, 2)


def pictures() -> None:
    from qkv.parts import patch_triton

    pixels, mean = made(100_000, 3, 384, 384, kind=torch.uint8), wide(3, 1, 1)
    for lying in (pixels, pixels.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)):
        images = patch_triton.normalised(lying, (1.0, 0.0), mean, mean)
    patch_triton.cut(images, (16, 16), (16, 16), (24, 24), torch.bfloat16)
    patch_triton.placed(made(100_000, 576, 1024), wide(577, 1024))
    patch_triton.taken_back(made(100_000, 577, 1024), 576, torch.bfloat16)


def streams() -> None:
    from qkv.parts import joined_map_triton, norm_triton, sum_norm_triton

    x, y, vector = wide(4 * LONG, 4096), made(4 * LONG, 4096), wide(4096)
    sum_norm_triton.sum_norm(x, y, vector, vector, vector, 1e-5, False, x, y, wide(2, 4 * LONG), wide())
    rows = wide(4 * LONG)
    sum_norm_triton.sum_norm_back(x, y, x, wide(2, 4 * LONG), vector, False, x, y, wide(3, 4096))
    sum_norm_triton.sum_norm_back(
        x, y, x, wide(2, 4 * LONG), vector, False, x, y, wide(3, 4096), factors=rows, reach=wide(1),
        scales=wide(3, 4 * LONG), tops=wide(2, 4),
    )  # fmt: skip
    norm_triton.norm_into(y, y, vector, vector, 1e-5, rms=False, places=y[:2048], waiting=vector, carried=vector)
    joined_map_triton.side_by_side([y, y, y], made(4 * LONG, 3 * 4096), wide(3 * 4096))


def tokens() -> None:
    from qkv.parts import embed_triton

    embed_triton.of_vectors(whole(4 * LONG), wide(4 * LONG, 4096), VOCABULARY)


def logits() -> None:
    from qkv.train.objectives import entropy_triton

    rows, numbers = 1 << 17, wide(1 << 17)
    targets: Any = SimpleNamespace(
        wanted=whole(rows), real=made(rows, kind=torch.bool), vocabulary=VOCABULARY, smoothing=0.1
    )
    narrow: Any = SimpleNamespace(slopes=made(rows, VOCABULARY, kind=torch.float8_e5m2), times=16)
    into: Any = (numbers, numbers, numbers)
    entropy_triton.measure(made(rows, VOCABULARY), targets, into)
    entropy_triton.measure_and_differentiate(made(rows, VOCABULARY), targets, into, narrow)
    entropy_triton.differentiate(made(rows, VOCABULARY), targets, numbers, wide(), made(rows, VOCABULARY))
    held: Any = SimpleNamespace(**{**vars(targets), "vocabulary": 50_257})
    entropy_triton.measure_and_differentiate(made(rows, 50_304), held, into, None)


def experts() -> None:
    from qkv.parts import expert_triton

    b, s, e, d = MANY, 256, 128, 1024
    choice = expert_triton.choose(wide(b, s, e), 512)
    expert_triton.choose_backward(wide(b, s, e), choice.experts, choice.kept, choice.log_sum, wide(b, s), choice.sums)
    place, order = expert_triton.even_places(choice.experts, choice.number, choice.sums, e, 8)
    expert_triton.sorted_places(choice.experts, choice.number, choice.sums, e)
    x = made(b * s, d)
    expert_triton.carry(x, order, torch.bfloat16, own=wide(len(order)))
    expert_triton.carry(x, place, torch.bfloat16, theirs=wide(len(order)), copies=2, share=2)
    expert_triton.products(x, place, x)


def frames() -> None:
    from qkv.parts.frame_triton import scaled

    scaled(made(MANY, 4096, 512), wide(MANY, 1, 512), wide(MANY, 1, 512))


def short_rows() -> None:
    from qkv.parts.attention import in_rows_triton
    from qkv.parts.attention.kernels import short_backward_triton, short_triton

    q = heads(100_000, 16, 200, 64)
    documents = whole(100_000, 200)
    o, log_sum = short_triton.attend_rows_and_keep(q, q, q, documents, causal=True, scale=1.0)
    short_triton.attend_rows(q, q, q, None, causal=False, scale=1.0)
    short_backward_triton.back_over_rows(q, q, q, documents, o, log_sum, o, (q, q, q), causal=True, scale=1.0)
    line = heads(1, 64, 4 * LONG, 128)
    numbers, bounds = whole(4 * LONG, bits=32), whole(9001, bits=32)
    short_triton.attend_in_line(line, line, line, numbers, bounds, causal=True, scale=1.0)
    for x in (line, line.contiguous()):
        in_rows_triton.put(x, made(9000, 64, 4096, 128), bounds, 2048)


def long_rows() -> Iterator[tuple[Any, Any]]:
    """Queries, and what they see."""
    for q in (heads(2, 128, LONG, 128), heads(4095, 16, 1024, 64)):
        rows, tiles = q.shape[0], -(-q.shape[2] // 128)
        numbers, met = whole(rows, q.shape[2], bits=32), whole(rows, tiles, 2, bits=32)
        lists = TileLists(
            *(whole(rows * tiles + 1, bits=32) for _ in range(2)), *(whole(1 << 20, bits=32) for _ in "tp")
        )
        yield q, Band(0, FAR)
        yield q, Band(-FAR, 4096, Runs(numbers, numbers, met, met))
        yield q, TileMap(rows, lists, lists, whole(4096, 128, 4, bits=32))


def attended() -> None:
    from qkv.parts.attention.kernels import flash_triton
    from qkv.parts.attention.kernels.flash_dropout import Lot

    for q, reach in long_rows():
        for lot in (None, Lot(whole(1), 0.1)):
            o, log_sum = flash_triton.forward(q, q, q, None, reach, 0.1, lot)
            flash_triton.backward(q, q, q, None, reach, 0.1, o, log_sum, o, lot)
    q, bias = heads(4, 16, 46_208, 64), made(1, 16, 46_208, 46_208)
    for _, reach in list(long_rows())[:3]:
        o, log_sum = flash_triton.forward(q, q, q, bias, reach, 0.1)
        flash_triton.backward(q, q, q, bias, reach, 0.1, o, log_sum, o)


def hashed() -> None:
    from qkv.parts.attention.kernels import lsh_triton

    for q, rounds in ((heads(1, 64, LONG, 128), 8), (heads(1023, 16, 4096, 64), 4)):
        n, real = q.shape[2], made(q.shape[0], q.shape[2], kind=torch.bool)
        rotations = made(q.shape[1], q.shape[3], rounds, 128)
        chunks = lsh_triton.Chunks(64, 1, 0, True, 0.1)
        for k in (None, q):
            order = lsh_triton.sorted_by_bucket(lsh_triton.buckets(q, rotations, (64, 32), real), n)
            o, log_sum = lsh_triton.combine(*lsh_triton.attend_by_rounds(q, k, q, order, real, chunks))
            lsh_triton.go_back(q, k, q, order, o, log_sum, real, chunks, o)


def features() -> None:
    from qkv.parts.attention.kernels import positive_triton

    for q in (heads(1, 64, LONG, 128), heads(4095, 16, 1024, 64)):
        rows, count, length, width = q.shape
        w, real = made(256, width), made(rows, length, kind=torch.bool)
        layout = positive_triton.layout_of((q.shape,) * 3, (q.stride(),) * 3, q.dtype, 256, 0.1)
        given = (q, q, q, w, real.view(torch.int8))
        for causal in (True, False):
            constants = {"PADDED": True, **layout.constants}
            begun = (wide(rows, count, 256, width + 8), wide(rows, count, 1, 1)) if causal else (None, None)
            sums, tops, after, _ = positive_triton._gathered(given, *begun, layout, constants, kept=causal)
            seen, constants = sums if causal else after, {"CAUSAL": causal, **constants}
            o, level = q, wide(rows, count, length)
            numbers = (*layout.strides, *layout.of_queries)
            grid = layout.queries, layout.lines
            for program, tensors in (
                (positive_triton.programs.read, (*given, seen, tops, o, level, level)),
                (positive_triton.backward_programs.back_to_queries, (*given, seen, tops, o, *(level,) * 3, q)),
                (positive_triton.backward_programs.back_to_keys, (*given, seen, tops, o, *(level,) * 3, q, q)),
            ):
                positive_triton.launch(program, grid, tensors, numbers, {**constants, "F": layout.read.features})
            positive_triton._pulled(q, w, o, o, level, level, tops, after if causal else None, layout, constants)


def eight_bits() -> None:
    from qkv.train.float8 import rounding_triton, weights_triton

    rows, width = 4 * LONG, 16_384
    x, ones = made(rows, width), wide(rows, 1)
    rounding_triton.rounded(x)
    part = made(rows, 1024)
    for parts in ([part, part], [part, part, part]):
        rounding_triton.rounded_side_by_side(parts, ones)
    narrow = made(rows, width, kind=torch.float8_e4m3fn)
    rounding_triton.turned(narrow, ones, wide(), ones)
    rounding_triton.turned(narrow, None, None, None)
    rounding_triton.activated(x, ones, "gelu")
    rounding_triton.sloped(x, x, ones, ones, wide(), ones, "gelu")
    d, hidden = 8192, 32_768
    norms = (wide(d), wide(d)), (wide(d), wide(d))
    weights = wide(3 * d, d), wide(d, d), wide(hidden, d), wide(d, hidden)
    learned: Any = SimpleNamespace(weights=weights, norms=norms, values=d, value_bias=wide(d), inner_bias=wide(hidden))
    weights_triton.narrow(learned, 4, 1.0, 1.0)


def steps() -> None:
    """A token of each row, with as many slots before it as there may be."""
    from qkv.generate import step_attention_programs, step_maps_triton, step_programs

    rows, width, count, head, capacity, sources = 4096, 8192, 64, 128, LONG, 512
    norm: Any = SimpleNamespace(gain=wide(width), shift=wide(width), epsilon=1e-5, scale=1.0, rms=False)
    linear: Any = SimpleNamespace(weight=made(VOCABULARY, width), bias=made(VOCABULARY), gap=(10, 20))
    outer: Any = SimpleNamespace(weight=made(width, 4 * width), bias=made(width), gap=(0, 0))
    gated: Any = SimpleNamespace(activation="silu", gated=True)
    few = step_maps_triton.RowByRow(wide(2, width))
    few.normed(norm, linear, wide(2, VOCABULARY))
    few.normed(norm, linear, made(2, VOCABULARY // 2), gated)
    few.added(made(2, 4 * width), outer)
    step_maps_triton.add_norm(wide(rows, width), made(rows, width), norm, made(rows, width), {"EARLY": False})
    hidden = made(rows, 2 * 4 * width)
    step_programs.activate[(rows, 32)](
        hidden, made(rows, 4 * width), 4 * width, ACTIVATION="silu", GATED=True, STEP=1024, EARLY=False
    )
    ids = whole(rows, 1)
    step_programs.embed[(rows,)](
        ids, ids, made(VOCABULARY, width), made(capacity, width), wide(rows, width), 1.0, K=width, WIDE=width,
        PLACED=True, EARLY=True,
    )  # fmt: skip
    tiles = VOCABULARY // 2048
    at, forbidden = whole(rows, tiles, bits=32), made(VOCABULARY, kind=torch.uint8)
    step_programs.best_of_tiles[(rows, tiles)](
        made(rows, VOCABULARY), forbidden, wide(rows, 3, tiles), at, VOCABULARY, VOCABULARY, tiles, TILE=2048,
        EARLY=False,
    )  # fmt: skip
    step_programs.take_best[(rows,)](
        wide(rows, 3, tiles), at, ids, ids, whole(rows), whole(16, rows), wide(16, rows), tiles, VOCABULARY, ROUND=16,
        TILES=128, EARLY=False,
    )  # fmt: skip
    parts, stat, done = wide(rows, count, 8, head), wide(rows, count, 8, 2), whole(rows, count, bits=32)
    shares = {"SHARES": 8, "STEP": 16, "STAGES": 4, "H": count, "D": head, "EARLY": True}
    cache, cos = made(rows, 8, capacity, head), wide(capacity, head)
    step_attention_programs.attend[(rows * count, 8)](
        made(rows, (count + 16) * head), cache, cache, made(rows, count * head), parts, stat, done, ids, ids, cos, cos,
        whole(head), whole(capacity, bits=32), made(32, count), 1.0, capacity, G=8, ROTARY=True, BIASED=True, **shares,
    )  # fmt: skip
    memory, attended = made(sources, 8, LONG, head), made(rows, count * head)
    step_attention_programs.attend_memory[(rows * count, 8)](
        attended, memory, memory, whole(sources, LONG), attended, parts, stat, done, 1.0, LONG, G=8,
        BEAMS=rows // sources, **shares,
    )  # fmt: skip


CASES: list[Callable[[], None]] = [
    pictures, streams, tokens, logits, experts, frames, short_rows, attended, hashed, features, eight_bits, steps,
]  # fmt: skip
LOADED = {
    "begin": (0, 2**24),
    "partial": (0, 2**24),
    "met": (0, LONG),
    "order": (-1, 2**26),
    "positions_ptr": (0, LONG),
}


# Sums of which one term is not 0: the expert that a token chose. Bounds do not know that.
ONE_OF_MANY = "expert_programs.choose, ", "expert_programs.sorted_places, "


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    with bounded_programs() as found:
        found.values.update(LOADED)
        for case in CASES:
            case()
        yield found


def test_no_offset_passes_32_bits(report: Report) -> None:
    assert [each for each in sorted(set(report.wrong)) if not each.startswith(tuple(ONE_OF_MANY))] == []


def test_no_program_is_forgotten(report: Report) -> None:
    programs = [
        each.name for file in program_files() for each in vars(sys.modules[file]).values() if isinstance(each, Program)
    ]
    helpers = {name for name in programs if name.endswith((".both_sums", ".larger_and_sum", "._in_runs"))}  # of sums
    assert sorted(set(programs) - report.met - helpers) == []
    assert len(report.met) > 90


WRONG = """
import triton
import triton.language as tl

@triton.jit
def copied(x, y, width, R: tl.constexpr):
    row = tl.program_id(0) * R + tl.arange(0, R)
    tl.store(y + row.to(tl.int64) * width, tl.load(x + row * width))
"""


def test_an_offset_that_does_is_seen(tmp_path: Path) -> None:
    (tmp_path / "wrong_programs.py").write_text(WRONG)
    with bounded_programs() as found:
        spec: Any = spec_from_file_location("wrong_programs", tmp_path / "wrong_programs.py")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        module.copied[(2**20,)](made(2**20, 4096), made(2**20, 4096), 4096, R=4)
    assert {each.split(":")[0] for each in found.wrong} == {"wrong_programs.copied, line 8"}
    assert found.largest["wrong_programs.copied, line 8"] >= 2**31


def test_what_has_no_place_in_32_bits_is_refused_by_name() -> None:
    with bounded_programs():
        from qkv.parts.attention.kernels import flash_triton
        from qkv.parts.frame_triton import scaled

        q, bias = heads(1, 1, 65_536, 64), made(1, 1, 65_536, 65_536)
        with pytest.raises(QkvError, match="bias of 65,536 × 65,536"):
            flash_triton.forward(q, q, q, bias, Band(0, FAR), 0.1)
        with pytest.raises(QkvError, match="65,536 rows times heads are more than a GPU starts"):
            scaled(made(65_536, 4, 512), wide(65_536, 1, 512), wide(65_536, 1, 512))
    with pytest.raises(QkvError, match="counts in 32 bits, and 2,147,483,648"):
        cuda._held(2**31)
    assert cuda._held(-1)[0].value == -1


def test_tensors_of_several_devices_are_refused() -> None:
    """Such as one without numbers, whose address is none."""
    from qkv.parts.attention.kernels.launch_triton import launch

    with pytest.raises(QkvError, match="several devices"):
        launch(object(), (1, 1), (torch.ones(1), made(1)), (), {})
