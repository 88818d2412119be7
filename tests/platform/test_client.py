"""The HTTP client, against servers that close, cut short, refuse early or are none; what a real one answers is seen by
the tests of the API."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tightship_platform.client import ApiClient, ApiError
from tightship_platform.errors import Invalid, ServerUnreachable, TooLarge
from tightship_platform.settings import Settings

Serve = Callable[[socket.socket], None]


@contextmanager
def speaking(home: Path, *connections: Serve) -> Iterator[ApiClient]:
    """A client of a server that takes so many connections, each served in its way."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for one in connections:
                connection, _ = listener.accept()
                with connection:
                    one(connection)

        server = threading.Thread(target=serve)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with ApiClient(Settings(home=home, server=url, token="ts_one"), timeout_s=20) as api:
            yield api
        server.join(20)
        assert not server.is_alive()


def head_of(connection: socket.socket) -> str:
    """A request without its body."""
    read = b""
    while b"\r\n\r\n" not in read:
        read += connection.recv(1)
    return read.decode()


def answered(*bodies: bytes, status: str = "200 OK", seen: list[str] | None = None) -> Serve:
    def serve(connection: socket.socket) -> None:
        for body in bodies:
            head = head_of(connection)
            if seen is not None:
                seen.append(head)
            connection.sendall(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    return serve


def test_one_connection_serves_many_calls_and_one_that_was_closed_is_not_used_again(tmp_path: Path) -> None:
    with speaking(tmp_path, answered(b"[1]", b"[2]"), answered(b"[3]")) as api:
        assert [api.get("/runs"), api.get("/runs"), api.get("/runs")] == [[1], [2], [3]]


def test_a_request_is_written_as_the_server_reads_it(tmp_path: Path) -> None:
    seen: list[str] = []
    with speaking(tmp_path, answered(b"", b"", b"", seen=seen)) as api:
        assert api.get("/runs/50% ä/x", {"label": ["a=1", "b c"], "brief": True, "after": None}) is None
        api.post("/captures/a%2Fb/cancel", None)
        api.post("/captures", {"ä": 1})
    assert seen[0].startswith("GET /api/v1/runs/50%25%20%C3%A4/x?label=a%3D1&label=b+c&brief=true HTTP/1.1\r\n")
    assert "authorization: Bearer ts_one\r\n" in seen[0] and "x-request-id: " in seen[0]
    assert seen[1].startswith("POST /api/v1/captures/a%2Fb/cancel ") and "Content-Length: 0" in seen[1]
    assert "content-type: application/json" in seen[2] and "Content-Length: 8" in seen[2]


def test_a_body_that_is_refused_before_its_end_is_answered(tmp_path: Path) -> None:
    def refuse(connection: socket.socket) -> None:
        head_of(connection)
        connection.shutdown(socket.SHUT_RD)
        body = b'{"error": "too much"}'
        connection.sendall(b"HTTP/1.1 413 No\r\nconnection: close\r\ncontent-length: 21\r\n\r\n" + body)

    with speaking(tmp_path, refuse) as api, pytest.raises(ApiError, match=r"^too much$") as refused:
        api.put_stream("/traces/1", (bytes(65_536) for _ in range(1000)), {})
    assert refused.value.http_status == 413


def test_what_cannot_be_read_here_is_no_fault_of_the_line(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"a"
        raise FileNotFoundError("/gone")

    with speaking(tmp_path, head_of) as api, pytest.raises(FileNotFoundError, match="/gone"):  # type: ignore[arg-type]
        api.put_stream("/traces/1", chunks(), {})


def test_a_file_comes_whole_or_not_at_all(tmp_path: Path) -> None:
    def cut(connection: socket.socket) -> None:
        head_of(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345")

    with speaking(tmp_path, answered(b"12345"), answered(b"12345"), cut, cut) as api:
        file = io.BytesIO()
        api.get_file("/traces/1/file", file, max_bytes=5)
        assert file.getvalue() == b"12345"
        api.close()
        with pytest.raises(TooLarge):
            api.get_file("/traces/1/file", file, max_bytes=4)
        with pytest.raises(ServerUnreachable, match="5 B too early"):
            api.get_file("/traces/1/file", file, max_bytes=100)
        with pytest.raises(ServerUnreachable, match="IncompleteRead"):
            api.get("/runs")


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n<p>"])
def test_what_is_no_server_is_one_line(tmp_path: Path, said: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        head_of(connection)
        connection.sendall(said)

    with speaking(tmp_path, serve) as api, pytest.raises(ServerUnreachable) as unreachable:
        api.get("/runs")
    assert "\n" not in str(unreachable.value) and api.server in str(unreachable.value)


@pytest.mark.parametrize("server", ["http://", "http://host:99999", "http://[::1"])
def test_what_is_no_url_is_one_line(tmp_path: Path, server: str) -> None:
    with pytest.raises(Invalid, match="TIGHTSHIP_SERVER"):
        ApiClient(Settings(home=tmp_path, server=server, token="ts_one"))
