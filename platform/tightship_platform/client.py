"""The HTTP client that agents, launchers and the command line use to reach the API.

It is that of the standard library: any other takes longer to import than a launcher may need by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection
from typing import IO, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from tightship_platform import __version__
from tightship_platform.errors import (
    CertificateRefused,
    Invalid,
    ServerUnreachable,
    TightshipError,
    TooLarge,
)
from tightship_platform.settings import Settings
from tightship_platform.token_file import credentials
from tightship_platform.units import format_bytes
from tightship_platform.validation import line

API = "/api/v1"
REQUEST_ID = "x-request-id"
"""Header by which one request is found in the logs of all parts."""
ANSWER_S = 30.0
"""A server on a busy machine answers within this time."""
FILE_S = 300.0
"""And takes or sends the next part of a file within this."""
MAX_WAIT_S = 300.0
"""Longest time for which a client lets a server make it wait."""
CONNECT_S = 10.0
"""One that is there takes a connection, busy or not."""
KEPT_S = 5.0
"""A connection that was idle for longer is not used again: the server may be about to close it."""
_request_id: ContextVar[str] = ContextVar("tightship_request_id", default="")
Params = Mapping[str, Any] | None
"""Of a query; those that are None are left out."""
WHY_MAX = 200
"""Characters of what went wrong that are repeated."""
_CHUNK_BYTES = 65_536
_PATH = "/?:@!$&'()*+,;=~%"
"""Of a path these stay; a per cent sign only where it begins an escape."""
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def new_request_id() -> str:
    """An id by which a request is found in the logs of every part that it passes through."""
    return os.urandom(8).hex()


def set_request_id(request_id: str) -> None:
    """Have this context (task, thread-pool call) log under this id; empty: under none."""
    _request_id.set(request_id)


def request_id() -> str:
    """The id of the request that is being worked on; empty outside of one."""
    return _request_id.get()


def server_trust(settings: Settings) -> ssl.SSLContext:
    """What the certificate of an https server is checked against.

    :raises Invalid: TIGHTSHIP_CA_FILE cannot be read, or holds no certificate.
    """
    if not settings.server.startswith("https://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used: reading the public authorities takes a while
    if settings.ca_file is None:
        import certifi

        return ssl.create_default_context(cafile=certifi.where())
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        why = "it holds none" if isinstance(error, ssl.SSLError) else error.strerror
        raise Invalid("TIGHTSHIP_CA_FILE", str(settings.ca_file), f"a PEM file of certificates ({why})") from error


class ApiError(TightshipError):
    """The server refused; the message is the server's own line."""

    def __init__(self, message: str, status: int, *, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.http_status = status
        self.wait_s = wait_s
        """How long the server asks to wait before another try."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer, whatever its status."""

    status: int
    headers: HTTPMessage
    """By name in any case."""
    body: bytes
    has_token: bool
    """A token was sent."""

    @property
    def is_success(self) -> bool:
        """Whether the server did what it was to do."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The decoded body; None: there is none.

        :raises ValueError: it is no JSON.
        """
        return json.loads(self.body) if self.body else None


class _Kept(NamedTuple):
    """An idle connection."""

    connection: HTTPConnection
    since_s: float


class ApiClient:
    """Calls `<server>/api/v1<path>`; an error answer becomes an exception with the server's one-line message.

    Threads may share one. Connections are kept for the next call.

    :raises Invalid: TIGHTSHIP_SERVER or TIGHTSHIP_CA_FILE is of no use.
    :raises ServerUnreachable: nothing answers, or not in time, or with a certificate that is not trusted.
    :raises ApiError: the server answered 4xx or 5xx.
    """

    def __init__(self, settings: Settings, *, timeout_s: float = ANSWER_S) -> None:
        self.server = settings.server
        try:
            url = urlsplit(settings.server)
            self._port = url.port or (443 if url.scheme == "https" else 80)
            self._host = url.hostname or ""
        except ValueError as error:
            raise Invalid("TIGHTSHIP_SERVER", settings.server, f"a URL ({error})") from error
        if not self._host:
            raise Invalid("TIGHTSHIP_SERVER", settings.server, "a URL with a host")
        self._base = url.path + API
        self._timeout_s = timeout_s
        self._credentials = credentials(settings)
        self._trust = server_trust(settings) if url.scheme == "https" else None
        self._idle: list[_Kept] = []

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        while self._idle:
            self._idle.pop().connection.close()

    def get(self, path: str, params: Params = None) -> Any:
        """GET; returns the decoded JSON."""
        return self._call("GET", path, params)

    def post(self, path: str, body: Any) -> Any:
        """POST a wire dataclass (or plain JSON value); returns the decoded JSON."""
        return self._call("POST", path, body=_encoded(body))

    def patch(self, path: str, body: Any) -> Any:
        """PATCH with a wire dataclass (or plain JSON value); returns the decoded JSON."""
        return self._call("PATCH", path, body=_encoded(body))

    def delete(self, path: str) -> Any:
        """DELETE; returns the decoded JSON."""
        return self._call("DELETE", path)

    def put_stream(self, path: str, chunks: Iterable[bytes], headers: Mapping[str, str]) -> Any:
        """PUT a body of unknown memory size, chunk by chunk; returns the decoded JSON."""
        return self._decoded("PUT", path, self._once("PUT", path, _readable(chunks), headers, FILE_S))

    def get_file(self, path: str, file: IO[bytes], *, max_bytes: int) -> None:
        """GET a file of any size into an open one, piece by piece.

        :raises TooLarge: it has more than `max_bytes`.
        """
        size = 0
        with self._exchange("GET", path, None, {}, FILE_S) as (answer, has_token):
            if not 200 <= answer.status < 300:
                raise self._refusal("GET", path, self._whole(answer, has_token))
            while chunk := self._read(answer, _CHUNK_BYTES):
                size += len(chunk)
                if size > max_bytes:
                    raise TooLarge(f"The answer of {self.server} for {path} exceeds {format_bytes(max_bytes)}")
                file.write(chunk)
            if answer.length:
                raise ServerUnreachable(self.server, f"its answer ended {format_bytes(answer.length)} too early")

    def request(self, method: str, path: str, params: Params = None, *, body: bytes | None = None) -> Reply:
        """The answer, whatever its status.

        :param params: of the query; those that are None are left out.
        :param body: JSON.
        :raises ServerUnreachable: there is none.
        :raises TokenWithheld: the token of this home's user is not to be shown to what listens there.
        """
        given = {name: _text(value) for name, value in (params or {}).items() if value is not None}
        path += f"{'&' if '?' in path else '?'}{urlencode(given, doseq=True)}" if given else ""
        headers = {} if body is None else {"content-type": "application/json"}
        reply = self._once(method, path, body, headers, self._timeout_s)
        if reply.status == 401 and self._credentials is not None and not reply.has_token:
            # The server may have begun to listen after it was looked for.
            reply = self._once(method, path, body, headers, self._timeout_s)
        return reply

    def _once(
        self, method: str, path: str, body: bytes | Iterable[bytes] | None, headers: Mapping[str, str], timeout_s: float
    ) -> Reply:
        with self._exchange(method, path, body, headers, timeout_s) as (answer, has_token):
            return self._whole(answer, has_token)

    def _call(self, method: str, path: str, params: Params = None, *, body: bytes | None = None) -> Any:
        return self._decoded(method, path, self.request(method, path, params, body=body))

    def _decoded(self, method: str, path: str, reply: Reply) -> Any:
        if not reply.is_success:
            raise self._refusal(method, path, reply)
        try:
            return reply.json()
        except ValueError as error:
            raise ServerUnreachable(self.server, "what answers there is not a tightship server") from error

    def _refusal(self, method: str, path: str, reply: Reply) -> ApiError:
        try:
            message = str(reply.json()["error"])
        except (ValueError, KeyError, TypeError):
            message = f"{self.server} answered {reply.status} to {method} {path}"
        if reply.status == 500:
            message += f" (request {reply.headers.get(REQUEST_ID, 'without an id')})"
        asked = reply.headers.get("retry-after", "")
        wait_s = min(float(asked), MAX_WAIT_S) if asked.isascii() and asked.isdecimal() else 0.0
        return ApiError(message, reply.status, wait_s=wait_s)

    @contextlib.contextmanager
    def _exchange(
        self, method: str, path: str, body: bytes | Iterable[bytes] | None, headers: Mapping[str, str], timeout_s: float
    ) -> Iterator[tuple[HTTPResponse, bool]]:
        """One request and its answer, whose body is yet to be read; and whether a token was sent."""
        token = None if self._credentials is None else self._credentials.token(self._host, self._port)
        sent = {"user-agent": f"tightship/{__version__}", "accept": "*/*", **headers}
        sent |= {REQUEST_ID: request_id() or new_request_id()}
        sent |= {} if token is None else {"authorization": f"Bearer {token}"}
        escaped = quote(_NO_ESCAPE.sub("%25", self._base + path), safe=_PATH)
        with self._on_the_line():
            kept = self._kept(timeout_s)
            connection = kept or self._connect(timeout_s)
        try:
            with self._on_the_line():
                try:
                    answer = _ask(connection, method, escaped, body, sent)
                except ConnectionResetError:
                    if kept is None or method != "GET":
                        raise
                    connection.close()  # by the server at this very moment; a question may be asked again
                    connection = self._connect(timeout_s)
                    answer = _ask(connection, method, escaped, body, sent)
            with answer:
                yield answer, token is not None
                is_kept = answer.isclosed() and not answer.will_close
        except BaseException as error:
            connection.close()
            if isinstance(error, _SourceFailed):
                raise error.error from None
            raise
        if is_kept:
            self._idle.append(_Kept(connection, time.monotonic()))
        else:
            connection.close()

    @contextlib.contextmanager
    def _on_the_line(self) -> Iterator[None]:
        """A request that brings no answer fails in one line."""
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            raise CertificateRefused(self.server, error.verify_message.rstrip(".")) from error
        except (OSError, HTTPException) as error:
            why = line(str(error), WHY_MAX) or type(error).__name__  # what answers there may have written it
            raise ServerUnreachable(self.server, why) from error

    def _read(self, answer: HTTPResponse, most: int | None = None) -> bytes:
        with self._on_the_line():
            return answer.read(most)

    def _whole(self, answer: HTTPResponse, has_token: bool) -> Reply:
        body = self._read(answer)
        return Reply(status=answer.status, headers=answer.headers, body=body, has_token=has_token)

    def _kept(self, timeout_s: float) -> HTTPConnection | None:
        """One that is open still, as far as can be seen; None: there is none."""
        with contextlib.suppress(IndexError):
            while True:
                connection, since_s = self._idle.pop()
                if time.monotonic() - since_s < KEPT_S and not _was_closed(connection):
                    connection.sock.settimeout(timeout_s)
                    return connection
                connection.close()
        return None

    def _connect(self, timeout_s: float) -> HTTPConnection:
        connect_s = min(timeout_s, CONNECT_S)
        # Proxies that the environment names are meant for the outside world, and not asked.
        if self._trust is None:
            connection = HTTPConnection(self._host, self._port, timeout=connect_s)
        else:
            connection = HTTPSConnection(self._host, self._port, timeout=connect_s, context=self._trust)
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        connection.sock.settimeout(timeout_s)
        return connection


def _ask(
    connection: HTTPConnection,
    method: str,
    path: str,
    body: bytes | Iterable[bytes] | None,
    headers: Mapping[str, str],
) -> HTTPResponse:
    # A server that refuses a body may close before it has all of it: its answer says why.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
        connection.request(method, path, body, headers)
    return connection.getresponse()


def _was_closed(connection: HTTPConnection) -> bool:
    """Whether the server has ended it: nothing else is to be read before a request."""
    try:
        connection.sock.settimeout(0)
        return connection.sock.recv(1) is not None
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True


class _SourceFailed(Exception):
    """What was to be sent could not be read, which is no fault of the line."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error


def _readable(chunks: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from chunks
    except OSError as error:
        raise _SourceFailed(error) from error


def _text(value: object) -> object:
    """A parameter as the server reads it."""
    return str(value).lower() if isinstance(value, bool) else value


def _encoded(body: Any) -> bytes | None:
    """As JSON; None: no body."""
    if body is None:
        return None
    plain = dataclasses.asdict(body) if dataclasses.is_dataclass(body) and not isinstance(body, type) else body
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
