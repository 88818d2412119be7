"""The HTTP client that agents, launchers and the command line use to reach the API."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import socket
import ssl
from collections.abc import Generator, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import httpx

from tightship_platform.errors import (
    CertificateRefused,
    Invalid,
    ServerUnreachable,
    TightshipError,
    TokenWithheld,
    TooLarge,
)
from tightship_platform.logs import new_request_id, request_id
from tightship_platform.settings import Settings
from tightship_platform.token_file import local_token_path, read_token
from tightship_platform.units import format_bytes

API = "/api/v1"
REQUEST_ID = "x-request-id"
"""Header by which one request is found in the logs of all parts."""
ANSWER_S = 30.0
"""A server on a busy machine answers within this time."""
MAX_WAIT_S = 300.0
"""Longest time for which a client lets a server make it wait."""
CONNECT_S = 10.0
"""One that is there takes a connection, busy or not."""
_LISTENS = "0A"


def server_trust(settings: Settings) -> ssl.SSLContext:
    """What the certificate of an https server is checked against.

    :raises Invalid: TIGHTSHIP_CA_FILE cannot be read, or holds no certificate.
    """
    if not settings.server.startswith("https://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used: reading the public authorities takes a while
    if settings.ca_file is None:
        return httpx.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        why = "it holds none" if isinstance(error, ssl.SSLError) else error.strerror
        raise Invalid("TIGHTSHIP_CA_FILE", str(settings.ca_file), f"a PEM file of certificates ({why})") from error


def unreachable(server: str, error: httpx.HTTPError) -> ServerUnreachable:
    """A request that brought no answer, in one line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return CertificateRefused(server, cause.verify_message.rstrip("."))
        cause = cause.__cause__ or cause.__context__
    return ServerUnreachable(server, str(error) or type(error).__name__)


class ApiError(TightshipError):
    """The server refused; the message is the server's own line."""

    def __init__(self, message: str, status: int, *, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.http_status = status
        self.wait_s = wait_s
        """How long the server asks to wait before another try."""


class ApiClient:
    """Calls `<server>/api/v1<path>`; an error answer becomes an exception with the server's one-line message.

    :raises Invalid: TIGHTSHIP_SERVER or TIGHTSHIP_CA_FILE is of no use.
    :raises ServerUnreachable: nothing answers, or not in time, or with a certificate that is not trusted.
    :raises ApiError: the server answered 4xx or 5xx.
    """

    def __init__(self, settings: Settings, *, timeout_s: float = ANSWER_S) -> None:
        self.server = settings.server
        # trust_env=False: a proxy meant for the outside world must not swallow traffic to the fleet's own server.
        try:
            self._http = httpx.Client(
                base_url=settings.server + API,
                auth=credentials(settings),
                timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S)),
                trust_env=False,
                verify=server_trust(settings),
            )
        except httpx.InvalidURL as error:
            raise Invalid("TIGHTSHIP_SERVER", settings.server, f"a URL ({error})") from error

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """GET; returns the decoded JSON."""
        given = {k: v for k, v in (params or {}).items() if v is not None}
        return self._call("GET", path, params=given or None)  # httpx takes {} as: drop the query of the path

    def post(self, path: str, body: Any) -> Any:
        """POST a wire dataclass (or plain JSON value); returns the decoded JSON."""
        return self._call("POST", path, json=_plain(body))

    def patch(self, path: str, body: Any) -> Any:
        """PATCH with a wire dataclass (or plain JSON value); returns the decoded JSON."""
        return self._call("PATCH", path, json=_plain(body))

    def delete(self, path: str) -> Any:
        """DELETE; returns the decoded JSON."""
        return self._call("DELETE", path)

    def put_stream(self, path: str, chunks: Iterable[bytes], headers: Mapping[str, str]) -> Any:
        """PUT a body of unknown memory size, chunk by chunk; returns the decoded JSON."""
        return self._call("PUT", path, content=chunks, headers=dict(headers), timeout=300.0)

    def get_file(self, path: str, file: IO[bytes], *, max_bytes: int) -> None:
        """GET a file of any size into an open one, piece by piece.

        :raises TooLarge: it has more than `max_bytes`.
        """
        size = 0
        try:
            with self._http.stream("GET", path, timeout=300.0) as response:
                if not response.is_success:
                    response.read()
                    raise self._refusal("GET", path, response)
                for chunk in response.iter_bytes():
                    size += len(chunk)
                    if size > max_bytes:
                        raise TooLarge(f"The answer of {self.server} for {path} exceeds {format_bytes(max_bytes)}")
                    file.write(chunk)
        except httpx.HTTPError as error:
            raise unreachable(self.server, error) from error

    def _call(self, method: str, path: str, **kwargs: Any) -> Any:
        headers = kwargs.pop("headers", {}) | {REQUEST_ID: request_id() or new_request_id()}
        try:
            response = self._http.request(method, path, headers=headers, **kwargs)
        except httpx.HTTPError as error:
            raise unreachable(self.server, error) from error
        if response.is_success:
            try:
                return response.json() if response.content else None
            except ValueError as error:
                raise ServerUnreachable(self.server, "what answers there is not a tightship server") from error
        raise self._refusal(method, path, response)

    def _refusal(self, method: str, path: str, response: httpx.Response) -> ApiError:
        try:
            message = str(response.json()["error"])
        except (ValueError, KeyError, TypeError):
            message = f"{self.server} answered {response.status_code} to {method} {path}"
        if response.status_code == 500:
            message += f" (request {response.headers.get(REQUEST_ID, 'without an id')})"
        asked = response.headers.get("retry-after", "")
        wait_s = min(float(asked), MAX_WAIT_S) if asked.isascii() and asked.isdecimal() else 0.0
        return ApiError(message, response.status_code, wait_s=wait_s)


def _plain(body: Any) -> Any:
    return dataclasses.asdict(body) if dataclasses.is_dataclass(body) and not isinstance(body, type) else body


# ---- what a client proves itself with --------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Whether a listen address (or a caller's) is this machine only."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class LocalUser(httpx.Auth):
    """Sends the token of this home's user with every request, where there is one, and to nobody but that user's server.

    See [Note: one local user] in `api.auth`.

    It is read each time: a server that starts later may have made it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        """Add the token, and ask again where the server began to listen after it was looked for.

        :raises TokenWithheld: the file is of no use, or another user listens there.
        """
        if self._add(request):
            yield request
            return
        response = yield request
        can_repeat = isinstance(request.stream, httpx.ByteStream)
        if response.status_code == HTTPStatus.UNAUTHORIZED and can_repeat and self._add(request):
            yield request

    def _add(self, request: httpx.Request) -> bool:
        """Add the token; False: there is none, or nobody listens."""
        try:
            token = read_token(local_token_path(self._settings.home))
        except Invalid as error:
            raise TokenWithheld(self._settings.server, str(error)) from error
        if not token:
            return False
        url = request.url
        uids = listening_users(url.host, url.port or (443 if url.scheme == "https" else 80))
        strangers = uids - {os.geteuid(), 0}
        if strangers:
            raise TokenWithheld(self._settings.server, f"another user, {min(strangers)}, listens there")
        if uids:
            request.headers["authorization"] = f"Bearer {token}"
        return bool(uids)


def credentials(settings: Settings) -> httpx.Auth | None:
    """What a client of these settings proves itself with; None: nothing."""
    if settings.token:
        return _Bearer(settings.token)
    try:
        host = urlsplit(settings.server).hostname or ""
    except ValueError:  # no URL; httpx says so
        return None
    return LocalUser(settings) if is_loopback(host) else None


class _Bearer(httpx.Auth):
    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        request.headers["authorization"] = self._header
        yield request


def listening_users(host: str, port: int) -> set[int]:
    """Whose sockets take connections to a loopback address; empty: nobody listens there.

    Source: proc_pid_net(5), /proc/net/tcp.
    """
    listeners: dict[str, set[int]] = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), Path(f"/proc/net/{name}").open(encoding="ascii") as table:
            for line in table:
                fields = line.split()
                if len(fields) > 7 and fields[3] == _LISTENS:
                    address, _, at = fields[1].partition(":")
                    if int(at, 16) == port:
                        listeners.setdefault(address, set()).add(int(fields[7]))
    uids: set[int] = set()
    for address in ("127.0.0.1", "::1") if host == "localhost" else (host.partition("%")[0],):
        # The kernel prefers a socket of the very address, then one of the same family.
        order = (address, f"::ffff:{address}", "0.0.0.0", "::") if "." in address else (address, "::")  # noqa: S104
        uids |= next((found for one in order if (found := listeners.get(_as_kernel(one)))), set())
    return uids


def _as_kernel(address: str) -> str:
    """An address as /proc/net/tcp writes it: groups of four bytes, each in the machine's own order."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    groups = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(group, 'little'):08X}" for group in groups)
