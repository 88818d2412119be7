"""How a process that lasts gets under way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def starting() -> Iterator[None]:
    """What is made in this block stays as long as the process: garbage is not looked for meanwhile, nor in it later.

    Imports make hundreds of thousands of objects. Looking through them again and again takes an eighth of a server's
    start, and each later look at them is as long again. Processes that are forked afterwards share them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
