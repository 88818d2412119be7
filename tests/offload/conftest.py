"""What the tests of offloading share.

A test marked `machines` runs on the CPU backend and, if it is drawn, on the asynchronous one: `make test` draws some
of all such tests by TIGHTSHIP_SLICE, `make exactness` runs all of them, `make exactness PART=2/12` a twelfth.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator

import pytest
from warm_python import OPTIMIZERS, warm_python

DRAWN = 6
"""Tests that `make test` runs on the asynchronous backend."""
KINDS = ("cpu", "async")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("machines"):
        metafunc.parametrize("_machine", KINDS, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not drawn."""
    late = [item for item in items if _kind(item) == "async"]
    wanted = os.environ.get("TIGHTSHIP_EXACTNESS", "")
    if wanted == "all" or getattr(config.option, "lf", False):
        return
    if wanted:
        part, _, parts = wanted.partition("/")
        drawn = late[int(part) - 1 :: int(parts)]
    else:
        drawn = random.Random(f"{os.environ['TIGHTSHIP_SLICE']} async").sample(late, min(DRAWN, len(late)))
    left_out = [item for item in late if item not in drawn]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def _kind(item: pytest.Item) -> object:
    return item.callspec.params.get("_machine") if hasattr(item, "callspec") else None


@pytest.fixture(autouse=True)
def _machine(request: pytest.FixtureRequest) -> Iterator[None]:
    """The kind of machine that the test's trainings run on."""
    kind = getattr(request, "param", None)
    if kind is None:
        yield
        return
    from offload_machines import Running

    Running.kind, Running.machines = kind, 0
    yield
    Running.kind = KINDS[0]
    assert Running.machines, "it asked for no machine, so it need not be marked"


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
