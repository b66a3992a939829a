"""Work in the background: same items, same errors, and nothing left running."""

import subprocess
import sys
import threading
from textwrap import dedent

import pytest

from qkv.data.ahead import Ahead, prefetched


def test_result_and_error():
    assert Ahead(lambda: 6 * 7).result() == 42
    with pytest.raises(ZeroDivisionError):
        Ahead(lambda: 1 / 0).result()


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_items_come_in_order(depth):
    assert list(prefetched(range(50), depth)) == list(range(50))
    assert list(prefetched([], depth)) == []


def test_an_error_comes_after_the_items_before_it():
    def failing():
        yield from (1, 2)
        raise ValueError("broken")

    items = prefetched(failing(), 1)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(ValueError, match="broken"):
        next(items)


def test_an_abandoned_consumer_stops_the_producer():
    stopped = threading.Event()
    made = []

    def endless():
        try:
            while True:
                made.append(len(made))
                yield made[-1]
        finally:
            stopped.set()

    items = prefetched(endless(), 2)
    assert next(items) == 0
    items.close()
    assert stopped.wait(timeout=30)
    assert len(made) < 10


def test_a_program_that_ends_while_torch_is_at_work_in_the_background_ends_well():
    """Python ends a thread that asks for its lock at the end; inside of torch's code that would abort the program."""
    ended = ran("""
        import torch
        from qkv.data.ahead import prefetched

        torch.set_num_threads(1)

        def products():
            x = torch.randn(1000, 1000)
            while True:
                x = x @ x  # without Python's lock
                yield x

        items = prefetched(products(), 1000)
        next(items)
    """)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_never_ends_is_not_waited_for_without_end():
    ended = ran("""
        import threading
        from qkv.data import ahead

        ahead.PATIENCE = 0.1
        ahead.Ahead(threading.Event().wait)
    """)
    assert (ended.returncode, ended.stderr) == (0, "")


def ran(program):
    return subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, timeout=60)
