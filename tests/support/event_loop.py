"""Coroutines in tests. Playwright runs an event loop in the main thread, where `asyncio.run` refuses a second one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """What it returns, or its exception."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
