import mmap

import pytest
import torch

from qkv.parts.large_pages import LINE, PAGE, PIECE, LargePages

needs_pages = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="needs a system that has large pages")


def test_matrices_share_no_number():
    pages, shapes = LargePages(), [(3, 5), (1, 700), (PAGE // 8, 3), (2,), (0, 4), (PIECE // 4 + 1,), (7, 7)]
    matrices = [pages.empty(shape, torch.int32).fill_(number) for number, shape in enumerate(shapes)]
    for number, (matrix, shape) in enumerate(zip(matrices, shapes, strict=True)):
        assert matrix.shape == shape
        assert matrix.is_contiguous()
        assert (matrix == number).all()


@needs_pages
def test_a_matrix_begins_with_a_page_or_behind_the_one_before_it():
    pages = LargePages()
    first, second, large = (pages.empty((size,), torch.float32) for size in (100, 10, PIECE // 4))
    assert first.data_ptr() % PAGE == large.data_ptr() % PAGE == 0
    assert second.data_ptr() == first.data_ptr() + -(-400 // LINE) * LINE


def test_where_there_are_no_large_pages_others_do(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert LargePages().empty((4, 8), torch.int32).fill_(3).sum() == 96


def test_a_matrix_outlives_whoever_gave_it():
    pages = LargePages()
    one, other = pages.empty((1000,), torch.int32).fill_(1), pages.empty((1000,), torch.int32).fill_(2)
    del pages, one
    assert (other == 2).all()
