"""A server that is asked to end: balancers hear of it first, uploads that are under way get time, nobody else does."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from api_calls import HOST, Capture, authorization, sha256, trace_file
from processes import Running, own
from services import free_port
from waiting import PATIENCE_S, wait_for


@contextmanager
def half_an_upload(env: Any, port: int, data: bytes) -> Iterator[socket.socket]:
    """A connection on which the first half of a trace has been sent."""
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}/api/v1", auth=own(env.environ), trust_env=False, timeout=PATIENCE_S
    ) as http:
        capture = Capture(http)
        capture.write()
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sending:
        head = (
            f"PUT /api/v1/captures/{capture.key}/traces/0?pid=100&host={HOST} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"{authorization(env.home)}Content-Length: {len(data)}\r\n"
            f"X-SHA256: {sha256(data)}\r\nExpect: 100-continue\r\n\r\n"
        )
        sending.sendall(head.encode())
        assert b"100 Continue" in sending.recv(1000)  # the server reads the body from here on
        sending.sendall(data[: len(data) // 2])
        yield sending


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True


def test_balancers_hear_first_and_an_upload_ends(make_platform_env: Any) -> None:
    env, port, data = make_platform_env(), free_port(), trace_file(300_000)
    ready = f"http://127.0.0.1:{port}/api/v1/ready"
    with Running(env.environ, "server", "--port", str(port)) as server:
        server.hear("Serving")  # it answers from here on
        assert httpx.get(ready, trust_env=False, timeout=PATIENCE_S).json()["status"] == "ok"
        with half_an_upload(env, port, data) as sending:
            os.kill(server.process.pid, signal.SIGTERM)
            # It still listens: whoever asked before asks again, and gets its answer.
            wait_for(lambda: httpx.get(ready, trust_env=False, timeout=PATIENCE_S).status_code == 503, "its notice")
            server.hear("Ending; 1 upload get")
            wait_for(lambda: not listens(port), "the end of new connections")
            sending.sendall(data[len(data) // 2 :])
            answer = sending.recv(10_000)
            assert answer.startswith(b"HTTP/1.1 200"), answer
        assert server.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in server.output()


def test_an_upload_that_does_not_end_is_cut(make_platform_env: Any) -> None:
    env, port, data = make_platform_env(), free_port(), trace_file(300_000)
    with Running(env.environ | {"TIGHTSHIP_DRAIN_S": "1"}, "server", "--port", str(port)) as server:
        server.hear("Serving")
        with half_an_upload(env, port, data):
            os.kill(server.process.pid, signal.SIGTERM)
            server.hear("1 upload is cut off")
            assert server.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in server.output()
