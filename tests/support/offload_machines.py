"""The machines that trainings are compared on: the CPU backend, and the asynchronous one.

A test marked `machines` runs on both; see tests/offload/conftest.py. `machine()` gives it the one that it runs on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from offload_async import AsyncBackend

from tightship_offload.backends.base import Backend
from tightship_offload.backends.cpu import CpuBackend

KINDS = ("cpu", "async")
SEED = int(os.environ.get("TIGHTSHIP_SLICE", "1"))
"""Of what is late by chance, where a test has no seed of its own."""
MAX_DELAY_S = 0.0003
DEADLINE_S = 60.0


class Running:
    """What the running test is on."""

    kind = KINDS[0]
    machines = 0
    """How many it has been given."""


def chosen() -> str:
    """The kind that the running test is on, for a process of its own."""
    Running.machines += 1
    return Running.kind


@contextmanager
def machine(kind: str | None = None, **options: Any) -> Iterator[Backend]:
    """A backend in which nothing is right by luck: memory that counts no more is full of NaN, lanes are late at random.

    With the asynchronous one, the operators of this thread are its device's until the block ends.

    :param kind: None: what the running test is on.
    """
    kind = kind or chosen()
    settings = {"delay_s": MAX_DELAY_S, "deadline_s": DEADLINE_S, "seed": SEED} | options
    if kind == "async":
        with AsyncBackend(**settings).computing() as backend:
            yield backend
        return
    plain = CpuBackend(poison=True, **settings)
    try:
        yield plain
    finally:
        plain.close()
