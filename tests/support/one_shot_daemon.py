"""Answers the first request of each process of a run with one config, and every other with nothing to do.

The real service arms as an agent should. This one arms as a test wants it, also where an agent never would. Like an
agent it asks again where Kineto refused, which on a busy machine happens: the start was past before it looked.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tightship_collectors.jobs.control_file import Flag, arm_capture, rank_path, read_rank_file

REFUSED_NS = 2_000_000_000
_HEAD = struct.Struct("<Q32s")


class OneShotDaemon:
    """Serves `<run_dir>/dynolog` between construction and `close`.

    :param config: the config for a process, and what its exit guard receives, made when the process asks.
    :param patience_s: how long the exit guards may wait.
    :param after_steps: that many have to be counted first.
    :param after_file: a file of the job's that has to be there first.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Callable[[], tuple[dict[str, str | int], dict[str, int]]],
        *,
        patience_s: float = 60.0,
        after_steps: int = 1,
        after_file: Path | None = None,
    ) -> None:
        self.sent: dict[int, Path] = {}
        """By pid: where its trace will be."""
        self.starts: dict[int, int] = {}
        """By pid: when its window opens; 0 where steps are counted."""
        self._run_dir = run_dir
        self._config = config
        self._patience_s = patience_s
        self._after_steps = after_steps
        self._after_file = after_file
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(run_dir / "dynolog"))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.settimeout(0.2)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def is_recording(self, pid: int) -> bool:
        """The window of this process is open, or was: Kineto has opened its file, and the start is past."""
        return pid in self.sent and self._has_opened(pid) and time.time_ns() > self.starts[pid]

    def _has_opened(self, pid: int) -> bool:
        final = self.sent[pid]
        return final.exists() or final.with_name(f"{final.name}.tmp").exists()

    def _was_refused(self, pid: int, asks_for: int) -> bool:
        start_ns = self.starts[pid]
        is_late = start_ns > 0 and time.time_ns() > start_ns + REFUSED_NS
        return is_late and bool(asks_for & 2) and not self._has_opened(pid)

    def close(self) -> None:
        """Answer no more."""
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                message, credentials, _, address = self._socket.recvmsg(4096, 256)
            except TimeoutError:
                continue
            pid = struct.unpack("iii", credentials[0][2])[0]
            kind = message[8:40].rstrip(b"\0")
            body = (
                struct.pack("<i", 1) if kind == b"ctxt" else self._answer(pid, *struct.unpack_from("<i", message, 40))
            )
            self._socket.sendto(_HEAD.pack(len(body), kind) + body, address)

    def _answer(self, pid: int, asks_for: int) -> bytes:
        if pid in self.sent and not self._was_refused(pid, asks_for):
            return b""
        place = rank_path(self._run_dir, pid)
        file = read_rank_file(place, uid=os.getuid())
        if file is None or Flag.LAUNCHER in file.flags or file.steps < self._after_steps:
            return b""
        if self._after_file is not None and not self._after_file.exists():
            return b""
        settings, reported = self._config()
        trace = self._run_dir / "traces" / "t.json"
        final = trace.with_name(f"t_{pid}.json")
        deadline_ns = time.time_ns() + int(self._patience_s * 1e9)
        if not arm_capture(place, uid=os.getuid(), trace=final, deadline_ns=deadline_ns, **reported):
            return b""
        self.starts[pid] = reported.get("start_ns", 0)
        self.sent[pid] = final
        lines = {"ACTIVITIES_LOG_FILE": trace, **settings}
        return "".join(f"{key}={value}\n" for key, value in lines.items()).encode()


def window(*, ahead_s: float, seconds: float) -> Callable[[], tuple[dict[str, Any], dict[str, int]]]:
    """Record `seconds` of time, beginning `ahead_s` after the process asks."""

    def make() -> tuple[dict[str, Any], dict[str, int]]:
        start_ns = time.time_ns() + int(ahead_s * 1e9)
        settings = {
            "PROFILE_START_TIME": start_ns // 1_000_000,
            "ACTIVITIES_WARMUP_PERIOD_SECS": 0,
            "ACTIVITIES_DURATION_MSECS": int(seconds * 1000),
            "PROFILE_WITH_STACK": "true",
        }
        return settings, {"start_ns": start_ns, "end_ns": start_ns + int(seconds * 1e9)}

    return make


def iterations(count: int) -> Callable[[], tuple[dict[str, Any], dict[str, int]]]:
    """Record `count` optimizer steps after one of warm-up."""

    def make() -> tuple[dict[str, Any], dict[str, int]]:
        settings = {
            "PROFILE_START_ITERATION": 0,
            "PROFILE_START_ITERATION_ROUNDUP": 1,
            "ACTIVITIES_WARMUP_ITERATIONS": 1,
            "ACTIVITIES_ITERATIONS": count,
            "PROFILE_WITH_STACK": "true",
        }
        return settings, {"iterations": count + 1}

    return make
