"""Connections that bring nothing, half a request, or no end: they go, and others are served meanwhile."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from api_calls import Served, authorization
from processes import Running, answers
from services import free_port
from waiting import PATIENCE_S, wait_for

from tightship_platform.api import bodies, connections
from tightship_platform.api.connections import HEAD_MAX_BYTES

HEAD = b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture
def impatient(served: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A server that waits for next to no time."""
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    monkeypatch.setattr(bodies, "BODY_S", 0.3)
    return served


@contextmanager
def connected(served: Served) -> Iterator[socket.socket]:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as made:
        yield made


def rest(of: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    heard = b""
    try:
        while piece := of.recv(65536):
            heard += piece
    except ConnectionResetError:
        pass
    return heard


def test_a_connection_that_brings_nothing_is_closed(impatient: Served) -> None:
    with connected(impatient) as silent:
        assert rest(silent) == b""


def test_half_a_head_is_408(impatient: Served) -> None:
    with connected(impatient) as half:
        half.sendall(HEAD)
        assert rest(half).startswith(b"HTTP/1.1 408")


def test_a_head_that_comes_drop_by_drop_is_408(impatient: Served) -> None:
    """Each piece is fast; the whole is not."""
    with connected(impatient) as dripping:
        over = threading.Event()

        def drip() -> None:
            while not over.wait(0.02):
                try:
                    dripping.sendall(b"x: y\r\n")
                except OSError:
                    return

        dripping.sendall(HEAD)
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert rest(dripping)[:12] in (b"HTTP/1.1 408", b"")
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize("piece", [b"\r\n", b"GET", b"x"])
def test_what_follows_an_answer_has_to_be_a_request(impatient: Served, piece: bytes) -> None:
    with connected(impatient) as kept:
        kept.sendall(HEAD + b"\r\n")
        assert kept.recv(12) == b"HTTP/1.1 200"
        kept.sendall(piece)
        rest(kept)


def test_a_second_request_on_the_same_connection_is_answered(impatient: Served) -> None:
    with connected(impatient) as kept:
        for _ in range(3):
            kept.sendall(HEAD + b"\r\n")
            heard = kept.recv(65536)
            assert heard.startswith(b"HTTP/1.1 200")
            assert b"connection: close" not in heard


@pytest.mark.parametrize(
    "head", [POST, POST.replace(b"/api/v1/runs", b"/_dash-layout"), POST.replace(b"/api/v1/runs", b"/login")]
)
@pytest.mark.parametrize("length", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"])
def test_half_a_body_is_408(impatient: Served, head: bytes, length: bytes) -> None:
    with connected(impatient) as half:
        half.sendall(head + authorization(impatient.settings.home).encode() + length)
        heard = rest(half)
        assert heard.startswith(b"HTTP/1.1 408")
        assert b"was not there within" in heard


def test_a_head_without_end_is_refused(served: Served) -> None:
    with connected(served) as endless:
        endless.sendall(HEAD + b"x: ")
        try:
            for _ in range(100):
                endless.sendall(b"y" * HEAD_MAX_BYTES)
        except OSError:
            return  # refused long before
        assert rest(endless)[:12] in (b"HTTP/1.1 431", b"")


def test_trailers_without_end_are_refused(served: Served) -> None:
    head = POST + authorization(served.settings.home).encode()
    with connected(served) as endless:
        endless.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: ")
        try:
            for _ in range(100):
                endless.sendall(b"y" * HEAD_MAX_BYTES)
        except OSError:
            return
        assert rest(endless)[:12] in (b"HTTP/1.1 431", b"")


def test_an_answer_that_nobody_reads_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_S", 0.3)

    async def large(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
        ended.set()

    ended = threading.Event()
    served.app.mount("/api/v1/large", large)
    served.app.router.routes.insert(0, served.app.router.routes.pop())
    with connected(served) as deaf:
        deaf.sendall(HEAD.replace(b"health", b"large/") + b"\r\n")
        assert ended.wait(PATIENCE_S), "the rest is thrown away once the connection is"


def test_many_that_ask_for_nothing_do_not_shut_out_others(platform_env: Any) -> None:
    """150 half-sent requests where 128 files may be open."""
    port = free_port()
    server = f"exec {sys.executable} -m tightship_platform.cli server --port {port}"
    command = ["bash", "-c", f"ulimit -n 128; {server}"]
    with Running(platform_env.environ, command=command) as running, ExitStack() as stack:
        running.hear("Serving")
        wait_for(lambda: answers(f"http://127.0.0.1:{port}"), "the server to answer")
        for _ in range(150):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            half.sendall(HEAD)
        for _ in range(5):
            assert answers(f"http://127.0.0.1:{port}")
        running.hear("closing those that ask for nothing")
        assert running.process.poll() is None
        assert len(list(Path(f"/proc/{running.process.pid}/fd").iterdir())) < 128


def test_the_limit_of_open_files_is_raised(platform_env: Any) -> None:
    port = free_port()
    server = f"exec {sys.executable} -m tightship_platform.cli server --port {port}"
    with Running(platform_env.environ, command=["bash", "-c", f"ulimit -Sn 64; {server}"]) as running:
        running.hear("Serving")
        wait_for(lambda: answers(f"http://127.0.0.1:{port}"), "the server to answer")
        limits = Path(f"/proc/{running.process.pid}/limits").read_text()
        (line,) = (line for line in limits.splitlines() if line.startswith("Max open files"))
        assert int(line.split()[3]) > 64
