"""A small OpenID Connect provider: a real HTTP server with real keys, which a test may have say anything."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

from tightship_platform.units import NS_PER_S, now_ns

CLIENT = "tightship here"
SECRET = "s3cret/of the client+"


@cache
def key(kid: str = "first") -> RSAKey:
    """A key of this name; making one takes a while."""
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


class OidcProvider:
    """Lets in `person` without asking, as a provider does where somebody is logged in already."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.person: dict[str, Any] = {"sub": "0815", "email": "ann@example.com", "email_verified": True}
        self.claims: Callable[[dict[str, Any]], dict[str, Any]] = lambda claims: claims
        """Changes what an ID token claims."""
        self.sign: Callable[[dict[str, Any]], str] = self.signed
        """Makes an ID token of claims."""
        self.answers: dict[str, tuple[int, bytes, dict[str, str]] | Callable[[], None]] = {}
        """Path → what is answered there instead; or what happens first."""
        self.keys = [key()]
        self.discovered: dict[str, Any] = {}
        """Changes what the provider says of itself."""
        self.is_sloppy = False
        """Takes a code as often as it comes."""
        self.takes = "basic"
        """How a client proves to be itself: `basic` or `post`."""
        self.asks_first = False
        """Shows a page with a link that lets the person in."""
        self.requests: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}

    def signed(self, claims: dict[str, Any], **header: Any) -> str:
        """An ID token as it should be."""
        signer = self.keys[0]
        return jwt.encode({"alg": "RS256", "kid": signer.kid} | header, claims, signer)

    def discovery(self) -> dict[str, Any]:
        """What it says of itself."""
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize?tenant=1",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        } | self.discovered

    def authorize(self, query: dict[str, str]) -> str:
        """Where the browser goes with a code."""
        wanted = ("response_type", "client_id", "redirect_uri", "scope", "state", "nonce", "code_challenge")
        assert all(query.get(name) for name in wanted) and query["code_challenge_method"] == "S256", query
        assert query["client_id"] == CLIENT and query["response_type"] == "code"
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """The answer to a code."""
        client, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        given = {
            "basic": (unquote(client), unquote(secret)),
            "post": (form.get("client_id"), form.get("client_secret")),
        }
        if given[self.takes] != (CLIENT, SECRET):
            return 401, {"error": "invalid_client"}
        query = self._codes.get(form["code"]) if self.is_sloppy else self._codes.pop(form["code"], None)
        if query is None or query["redirect_uri"] != form["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != query["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        now_s = now_ns() // NS_PER_S
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now_s, "exp": now_s + 300, "nonce": query["nonce"]}
        id_token = self.sign(self.claims(claims | self.person))
        return 200, {"access_token": "opaque", "token_type": "Bearer", "id_token": id_token}


@contextmanager
def oidc_provider(host: str = "127.0.0.1", certificate: tuple[Path, Path] | None = None) -> Iterator[OidcProvider]:
    """A running provider; with a certificate and its key it speaks TLS."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    provider = OidcProvider(f"{'https' if certificate else 'http'}://{host}:{server.server_address[1]}")
    server.provider = provider  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    @property
    def provider(self) -> OidcProvider:
        found: OidcProvider = self.server.provider  # type: ignore[attr-defined]
        return found

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self._is_answered(parts.path):
            return
        if parts.path == "/.well-known/openid-configuration":
            self._json(200, self.provider.discovery())
        elif parts.path == "/keys":
            self._json(200, {"keys": [signer.as_dict(private=False) for signer in self.provider.keys]})
        elif parts.path == "/authorize" and query.pop("tenant") == "1":
            url = self.provider.authorize(query)
            if self.provider.asks_first:
                link = f'<a id="in" href="{html.escape(url)}">Let me in</a>'
                page = f'<!doctype html><title>Provider</title><link rel="icon" href="data:,">{link}'
                self._send(200, page.encode(), {"content-type": "text/html"})
            else:
                self._send(302, b"", {"location": url})
        else:
            self._send(404, b"", {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        if not self._is_answered(self.path):
            self._json(*self.provider.token(form, self.headers.get("authorization", "")))

    def _is_answered(self, path: str) -> bool:
        self.provider.requests.append(path)
        answer = self.provider.answers.get(path)
        if isinstance(answer, tuple):
            self._send(*answer)
            return True
        if answer is not None:
            answer()
        return False

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), {"content-type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass  # whoever asked has left

    def log_message(self, *_: Any) -> None:
        """Nothing."""
