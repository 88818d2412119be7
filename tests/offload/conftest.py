"""What the tests of offloading share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from warm_python import OPTIMIZERS, warm_python


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The result of a matrix product depends on the number of threads."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def warm() -> Iterator[tuple[str, ...]]:
    """Stands for `python` in a command, where torch is imported already."""
    with warm_python(*OPTIMIZERS) as python:
        yield python
