"""The injected code by itself: loaded under another name, and its exit guard played in a separate process."""

from __future__ import annotations

import importlib.util
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from tightship_collectors.launch.environment import INJECT_DIR


def load_injected() -> ModuleType:
    """The injected code under another name, so that it defines everything and starts nothing."""
    spec = importlib.util.spec_from_file_location("injected", INJECT_DIR / "sitecustomize.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_later(name: str) -> Any:
    """What the injected code loads once torch is imported."""
    return load_injected().load_later(name)


def play_the_guard(run_dir: str, rounds: int, line: Connection) -> None:
    injected = load_injected()
    file = injected.ControlFile(run_dir, injected.GUARD)
    line.send("ready")
    for _ in range(rounds):
        for _ in range(line.recv()):  # how much later it comes
            pass
        file.u32[injected.OFF_EXITING // 4] = injected.EXITING
        # It says True at once when it sees no capture, and False where the window has not opened yet.
        line.send(injected.wait_for_trace(file))
        line.recv()
        file.u32[injected.OFF_EXITING // 4] = injected.RUNNING
        line.send("ready")
