"""What is written reaches the server in turns: one run's large files do not hold up the others'."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from waiting import wait_for

from tightship_collectors.kineto import trace_file
from tightship_collectors.kineto.config import final_path
from tightship_collectors.kineto.executor import CaptureExecutor
from tightship_collectors.kineto.manifest import Manifest, ManifestStore, Phase, RankTrace
from tightship_collectors.kineto.service import KinetoService
from tightship_platform.client import ApiClient
from tightship_platform.settings import Settings
from tightship_platform.units import NS_PER_S
from tightship_platform.wire import CaptureParams

MIB = 2**20


class Server(ThreadingHTTPServer):
    """Takes every report and every file, and remembers in which order."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files: list[str] = []
        self.reports: list[dict[str, str]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answers(BaseHTTPRequestHandler):
    server: Server

    def do_PUT(self) -> None:
        size = int(self.headers["content-length"])
        while size:
            size -= len(self.rfile.read(min(size, MIB)))
        capture, _, rank = self.path.partition("?")[0].split("/")[-3:]
        self.server.files.append(f"{capture} {rank}")
        self.answer({})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.endswith("/report"):
            self.server.reports.append(body)
        self.answer({"leases": [], "state": "written"})

    def answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.shutdown()
    made.server_close()


def written(tmp_path: Path, capture: str, run: str, *sizes: int) -> None:
    """A capture that an earlier agent has left with a trace of each of these sizes."""
    run_dir = tmp_path / run
    (run_dir / "traces").mkdir(parents=True, exist_ok=True)
    manifest = Manifest(
        capture=capture,
        run=run,
        run_dir=str(run_dir),
        uid=os.getuid(),
        params=CaptureParams(duration_ns=NS_PER_S),
        attempt=1,
        phase=Phase.WRITTEN,
        tries=1,
    )
    for rank, size in enumerate(sizes):
        manifest.ranks.append(RankTrace(rank=rank, pid=100 + rank, start_ticks=1, complete=True, released=True))
        path = final_path(manifest.asked_path, 100 + rank)
        path.write_bytes(b'{"trace_id": "%s"' % manifest.trace_id.encode())
        os.truncate(path, size)
    ManifestStore(tmp_path / "home" / "spool").save(manifest)


def deliver(tmp_path: Path, server: Server, *, trace_max_bytes: int = 2**30) -> None:
    """Run an agent's captures until none is left."""
    settings = Settings(
        home=tmp_path / "home",
        server=f"http://127.0.0.1:{server.server_port}",
        trace_max_bytes=trace_max_bytes,
    )
    executor = CaptureExecutor(settings, ApiClient(settings), KinetoService())
    try:
        wait_for(lambda: not list((settings.spool_dir / "captures").iterdir()))
    finally:
        executor.close()


def test_runs_take_turns(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "TURN_BYTES", MIB)
    written(tmp_path, "a1", "a" * 16, 200 * MIB, MIB)
    written(tmp_path, "a2", "a" * 16, MIB)
    written(tmp_path, "b1", "b" * 16, MIB, MIB)
    deliver(tmp_path, server)
    assert sorted(server.files[:2]) == ["b1 0", "b1 1"], "not after the large one"
    assert sorted(server.files[2:]) == ["a1 0", "a1 1", "a2 0"]
    assert all(list((tmp_path / (run * 16) / "traces").iterdir()) == [] for run in "ab")


def test_a_trace_that_is_too_large_fails_its_own_capture(tmp_path: Path, server: Server) -> None:
    written(tmp_path, "a1", "a" * 16, 2**40)
    written(tmp_path, "b1", "b" * 16, MIB)
    deliver(tmp_path, server, trace_max_bytes=8 * 2**30)
    assert server.files == ["b1 0"]
    (reason,) = [report["reason"] for report in server.reports if report["state"] == "failed"]
    assert reason == (
        "the trace of rank 0 is too large: it has 1.0 TiB and at most 8.0 GiB (TIGHTSHIP_TRACE_MAX_BYTES) are "
        "delivered; record a shorter window"
    )
    assert list((tmp_path / ("a" * 16) / "traces").iterdir()) == []
