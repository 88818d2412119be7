"""Files of several ranks in processes beside each other, one process a file.

A process per file gives all of its memory back when it ends, so that the whole needs the memory of as many ranks as
run at once; and a file that kills its process costs only itself. What comes back through the pipe is small.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any

from tightship_analyzers.analysis.analyze_rank import OtherRank, analyze_rank
from tightship_analyzers.analysis.rank_part import RankPart
from tightship_analyzers.analysis.wanted import Wanted
from tightship_platform.errors import TightshipError
from tightship_platform.text import shown

TELL_EVERY_S = 0.1

Outcome = RankPart | TightshipError
"""What `analyze_rank` gives or raises."""
OnProgress = Callable[[str, int, int], None]
"""Called with (source, bytes read so far, bytes of the file or 0 where unknown)."""


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def analyze_files(
    sources: Sequence[str], wanted: Wanted, *, jobs: int = 1, on_progress: OnProgress | None = None
) -> Iterator[tuple[str, Outcome]]:
    """Each file with its outcome, as they become ready; `jobs` at once, in this process where that is one.

    A single file is read by two processes where `jobs` allows it, and judged in this one.
    """
    tell = on_progress or (lambda source, done, total: None)
    if jobs <= 1 or len(sources) <= 1:
        for source in sources:
            yield source, _here(source, wanted, tell, processes=min(jobs, 2))
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([analyze_rank.__module__])
    waiting = list(sources)[::-1]
    running: dict[Connection, tuple[str, ForkServerProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                source = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(theirs, source, wanted), daemon=True)
                process.start()
                theirs.close()
                running[ours] = source, process
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                source, process = running[ready]
                message = _received(ready, source, process)
                if message[0] == "progress":
                    tell(source, message[1], message[2])
                    continue
                del running[ready]
                ready.close()
                process.join()
                yield source, OtherRank(source, message[1]) if message[0] == "other rank" else message[1]
    finally:
        for connection, (_, process) in running.items():
            process.terminate()
            process.join()
            connection.close()


def _received(connection: Connection, source: str, process: ForkServerProcess) -> tuple[Any, ...]:
    try:
        message: tuple[Any, ...] = connection.recv()
        return message
    except (EOFError, OSError):
        process.join()
        code = process.exitcode or 0
        how = f"was killed by signal {-code} (out of memory?)" if code < 0 else f"ended with exit code {code}"
        return "done", TightshipError(f"The process that read {shown(source)} {how}; analyze this file alone")


def _here(source: str, wanted: Wanted, tell: OnProgress, processes: int = 1) -> Outcome:
    try:
        return analyze_rank(source, wanted, lambda done, total: tell(source, done, total), processes)
    except TightshipError as error:
        return error


def _work(connection: Connection, source: str, wanted: Wanted) -> None:
    # Ctrl-C reaches the whole group; the parent ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    last = 0.0

    def tell(_: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= TELL_EVERY_S:
            last = time.monotonic()
            connection.send(("progress", done, total))

    outcome = _here(source, wanted, tell)
    # An error's class may take other arguments than its message, and then could not be unpacked over there.
    if isinstance(outcome, OtherRank):
        connection.send(("other rank", outcome.rank))
    else:
        connection.send(("done", TightshipError(str(outcome)) if isinstance(outcome, TightshipError) else outcome))
