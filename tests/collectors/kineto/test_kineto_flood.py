"""A user who floods the sockets of many runs takes the time of nobody else's jobs."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tightship_collectors.jobs.live_run import HostRun
from tightship_collectors.kineto import service as service_module
from tightship_collectors.kineto.endpoint import NAME, Endpoint
from tightship_collectors.kineto.service import BURST, KinetoService
from tightship_platform.units import NS_PER_S

NOBODY = 65534
RUNS = 20


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, because socket paths end at 108 bytes, and passable for other users."""
    path = Path(f"/tmp/tsf-{uuid.uuid4().hex[:8]}")
    path.mkdir(mode=0o755)
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


def endpoint_of(folder: Path, number: int, uid: int) -> Endpoint:
    run_dir = folder / f"{number:016x}"
    run_dir.mkdir(mode=0o700)
    os.chown(run_dir, uid, -1)
    return Endpoint.bind(HostRun(run=run_dir.name, run_dir=run_dir, uid=uid, pids=(os.getpid(),), ranks=(), start_ns=0))


def client_of(endpoint: Endpoint) -> socket.socket:
    """As libkineto's."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    client.bind(str(endpoint.run.run_dir / f"dynoconfigclient{uuid.uuid4()}"))
    client.connect(str(endpoint.run.run_dir / NAME))
    return client


def waits(endpoint: Endpoint) -> bool:
    return bool(select.select([endpoint.socket], [], [], 0)[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_however_many_runs_of_a_user_are_flooded_another_waits_for_one_burst(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "MAX_AGE_NS", 600 * NS_PER_S)
    service = KinetoService()
    flooded = [endpoint_of(folder, number, NOBODY) for number in range(RUNS)]
    honest = endpoint_of(folder, RUNS, 0)
    clients = [client_of(endpoint) for endpoint in flooded]
    for client in clients:
        with contextlib.suppress(BlockingIOError):
            while True:
                client.send(b"rubbish")
    job = client_of(honest)
    for _ in range(3):
        before = service.dropped().get("malformed", 0)
        job.send(struct.pack("<Q32siiqi", 20, b"req", 3, 1, 0, os.getpid()))
        assert service._take_turns([*flooded, honest]), "somebody sends more than honest runs do"
        assert job.recv(100).startswith(struct.pack("<Q", 0)), "the poll is answered in the same turn"
        assert service.dropped()["malformed"] - before == BURST
    while service._take_turns(flooded):
        pass
    assert not any(waits(endpoint) for endpoint in flooded), "all runs of the user had their turn"
    for closing in (*flooded, honest, *clients, job, service):
        closing.close()
