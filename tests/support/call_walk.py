"""The way of a trace through `tightship analyze`, call by call, as Python itself sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

PACKAGE = "tightship_analyzers"
STAGES = f"{PACKAGE}.analysis"


def walk(work: Callable[[], object]) -> list[str]:
    """Run the work and list its calls: the first into each folder of the analyzers, and the first into each module of
    `analysis`. As `folder.module.function`."""
    found: list[str] = []
    entered: set[str] = set()

    def module_of(frame: FrameType | None) -> str:
        while frame is not None:
            module = str(frame.f_globals.get("__name__", ""))
            if module.startswith(PACKAGE):
                return module
            frame = frame.f_back
        return ""

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        module = str(frame.f_globals.get("__name__", ""))
        folder = module.rpartition(".")[0]
        if not module.startswith(PACKAGE) or (folder in entered and (folder != STAGES or module in entered)):
            return
        function = frame.f_code.co_qualname
        if "<" in function or function.rpartition(".")[2].startswith("_"):
            return
        caller = module_of(frame.f_back)
        name = f"{module}.{function}"
        is_entry = folder not in entered and folder != caller.rpartition(".")[0]
        is_stage = folder == STAGES and module != caller and module not in entered and "." not in function
        if is_entry or is_stage:
            entered.update((folder, module))
            found.append(name.removeprefix(f"{PACKAGE}."))

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found
