"""The OpenID Connect provider: where it is, its keys, and who it says has logged in.

What it answers is hostile until checked: bounded in size and time, from where its own settings say, signed
with one of its keys, for us, for this login, and not expired. Specification:
https://openid.net/specs/openid-connect-core-1_0.html (section 3.1.3.7) and discovery-1_0.html.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import msgspec
from authlib.oidc.core import CodeIDToken
from joserfc import jws, jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from tightship_platform import validation
from tightship_platform.api.sso.refusal import LoginRefused, ProviderTrouble
from tightship_platform.errors import Invalid
from tightship_platform.settings import Settings

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Signatures that are taken: none of a secret that both sides have, and never `none`."""
ANSWER_S = 10.0
"""An answer of the provider is there whole within this time."""
ANSWER_MAX_BYTES = 1024**2
DISCOVERED_S = 3600.0
"""After this time the provider is asked again where it is and for its keys."""
KEYS_S = 10.0
"""Keys are not asked for more often than this, whatever tokens name."""
LEEWAY_S = 60
"""The provider's clock may be wrong by this much."""
MOST_AT_ONCE = 16
"""Logins that wait for the provider; so many requests can nobody make the server send it."""
GROUPS_MAX = 10_000


@dataclass(frozen=True, kw_only=True)
class Person:
    """Somebody who has logged in at the provider."""

    name: str
    """For people to read; only `subject` is never another's."""
    subject: str
    groups: frozenset[str]


class _Discovery(msgspec.Struct):
    """What it says of itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: list[str] = []


class _Tokens(msgspec.Struct):
    """Its answer to a code."""

    id_token: str
    access_token: str | None = None


class _Keys(msgspec.Struct):
    """The keys that it signs with, and others."""

    keys: list[Any]


class _Refusal(msgspec.Struct):
    """An answer with another status than 200."""

    error: str = ""


_T = TypeVar("_T", bound=msgspec.Struct)


class Provider:
    """The one that TIGHTSHIP_SSO_ISSUER names."""

    def __init__(self, settings: Settings) -> None:
        self.issuer = settings.sso_issuer
        self._client_id = settings.sso_client_id
        self._secret = settings.sso_client_secret
        self._groups_claim = settings.sso_groups_claim
        self._is_local = urlsplit(self.issuer).scheme == "http"
        self._trust = _trust(settings)
        self._known: _Discovery | None = None
        self._known_s = -DISCOVERED_S
        self._keys: KeySet | None = None
        self._keys_s = -KEYS_S
        self._waiting = 0

    async def begins_at(self) -> str:
        """Where a browser begins a login.

        :raises ProviderTrouble: the provider does not answer, or not with that.
        """
        return (await self._discovery()).authorization_endpoint

    async def _discovery(self) -> _Discovery:
        if self._known is None or time.monotonic() - self._known_s >= DISCOVERED_S:
            known = await self._ask(_Discovery, "GET", self.issuer.rstrip("/") + "/.well-known/openid-configuration")
            if known.issuer != self.issuer:
                shown = validation.line(repr(known.issuer), 200)
                raise self._trouble(f"it calls itself {shown}; TIGHTSHIP_SSO_ISSUER has to be the same, to the letter")
            for url in (known.authorization_endpoint, known.token_endpoint, known.jwks_uri):
                if not self._is_allowed(url):
                    raise self._trouble(f"it names the address {validation.line(repr(url), 200)}, no https:// URL")
            self._known, self._known_s, self._keys = known, time.monotonic(), None
        return self._known

    async def person(self, code: str, *, redirect_uri: str, verifier: str, nonce: str) -> Person:
        """Who logged in, from the code that their browser brought back.

        :raises ProviderTrouble: the provider does not answer, or answers nonsense.
        :raises LoginRefused: it does not take the code, or what it says of the person cannot be believed.
        """
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        known = await self._discovery()
        auth = self._authentication(form, known.token_endpoint_auth_methods_supported)
        answer = await self._ask(_Tokens, "POST", known.token_endpoint, data=form, auth=auth)
        claims = await self._checked(answer, nonce)
        return _person(claims, self._groups_claim)

    def _authentication(self, form: dict[str, str], taken: list[str]) -> httpx.BasicAuth | None:
        """How we prove to be ourselves: as RFC 6749, 2.3.1 has it, or by what the provider takes alone."""
        if not self._secret:
            form["client_id"] = self._client_id
            return None
        if "client_secret_basic" not in taken and "client_secret_post" in taken:
            form |= {"client_id": self._client_id, "client_secret": self._secret}
            return None
        return httpx.BasicAuth(quote(self._client_id, safe=""), quote(self._secret, safe=""))

    async def _checked(self, answer: _Tokens, nonce: str) -> CodeIDToken:
        registry = jws.JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        try:
            try:
                token = jwt.decode(answer.id_token, await self._key_set(), registry=registry)
            except InvalidKeyIdError:  # the provider may have new keys
                token = jwt.decode(answer.id_token, await self._key_set(again=True), registry=registry)
            claims = CodeIDToken(
                token.claims,
                token.header,
                {
                    "iss": {"essential": True, "value": self.issuer},
                    "aud": {"essential": True, "value": self._client_id},
                    "sub": {"essential": True},
                },
                {"nonce": nonce, "client_id": self._client_id, "access_token": answer.access_token},
            )
            claims.validate(leeway=LEEWAY_S)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            why = validation.line(str(error) or type(error).__name__, 200)
            raise LoginRefused(f"The login is refused: the provider's ID token is not valid ({why})") from error
        return claims

    async def _key_set(self, *, again: bool = False) -> KeySet:
        now_s = time.monotonic()
        if self._keys is not None and (not again or now_s - self._keys_s < KEYS_S):
            return self._keys
        answer = await self._ask(_Keys, "GET", (await self._discovery()).jwks_uri)
        public = [key for key in answer.keys if _is_public(key)]
        try:
            self._keys = KeySet.import_key_set({"keys": public})
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise self._trouble(f"its keys cannot be read ({validation.line(error, 100)})") from error
        if not self._keys:
            self._keys = None
            raise self._trouble("it has no key that signs")
        self._keys_s = now_s
        return self._keys

    async def _ask(self, kind: type[_T], method: str, url: str, **request: Any) -> _T:
        """The provider's answer, of this kind."""
        try:
            async with self._connected() as http, http.stream(method, url, **request) as answer:
                body = bytearray()
                async for piece in answer.aiter_raw():
                    body += piece
                    if len(body) > ANSWER_MAX_BYTES:
                        raise self._trouble(f"its answer has more than {ANSWER_MAX_BYTES} bytes")
                status = answer.status_code
        except TimeoutError as error:
            raise self._trouble(f"no answer within {ANSWER_S:.0f} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._trouble(validation.line(str(error) or type(error).__name__, 200)) from error
        if status == 200:
            try:
                return msgspec.json.decode(body, type=kind)
            except (msgspec.DecodeError, RecursionError) as error:
                raise self._trouble(f"its answer cannot be read: {validation.line(error, 100)}") from error
        try:
            shown = validation.line(msgspec.json.decode(body, type=_Refusal).error, 100)
        except (msgspec.DecodeError, RecursionError):
            shown = ""
        if status == 400 and shown == "invalid_grant":
            raise LoginRefused("The login is refused: the provider does not know the code, or it was used before")
        raise self._trouble(f"it answered {status} {shown}".rstrip())

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[httpx.AsyncClient]:
        if self._waiting >= MOST_AT_ONCE:
            raise self._trouble(f"{MOST_AT_ONCE} logins wait for it already; try again in a moment")
        self._waiting += 1
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                httpx.AsyncClient(
                    verify=self._trust,
                    timeout=ANSWER_S,
                    trust_env=not self._is_local,
                    follow_redirects=False,
                    headers={"accept": "application/json", "accept-encoding": "identity"},
                ) as http,
            ):
                yield http
        finally:
            self._waiting -= 1

    def _is_allowed(self, url: str) -> bool:
        """Under TLS, like the issuer; plain HTTP is for a provider on this machine, by which nobody reads along."""
        try:
            parts = urlsplit(url)
            return (
                bool(parts.hostname)
                and url.isprintable()
                and parts.scheme in ("https", "http" if self._is_local else "")
            )
        except ValueError:
            return False

    def _trouble(self, why: str) -> ProviderTrouble:
        return ProviderTrouble(f"The provider at {self.issuer} cannot be used ({why})")


def _is_public(key: Any) -> bool:
    return (
        isinstance(key, dict) and key.get("kty") in ("RSA", "EC") and key.get("use", "sig") == "sig" and "d" not in key
    )


def _person(claims: CodeIDToken, groups_claim: str) -> Person:
    """Whom the claims are about.

    :raises LoginRefused: it is nobody who could be named.
    """
    subject, name = claims["sub"], None
    if not 0 < len(subject) <= 255 or not subject.isprintable():
        raise LoginRefused("The login is refused: the provider's ID token is not valid (subject)")
    if claims.get("email_verified") is True:
        name = claims.get("email")
    name = name or claims.get("preferred_username")
    shown = validation.line(name, 190) if isinstance(name, str) else ""
    groups = claims.get(groups_claim)
    listed = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    return Person(
        name=f"sso:{shown or validation.line(subject, 190)}",
        subject=subject,
        groups=frozenset(group for group in listed[:GROUPS_MAX] if isinstance(group, str)),
    )


def _trust(settings: Settings) -> ssl.SSLContext:
    """What the provider's certificate is checked against.

    :raises Invalid: TIGHTSHIP_SSO_CA_FILE cannot be read, or holds no certificate.
    """
    if settings.sso_issuer.startswith("http://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used: reading the public authorities takes a while
    if settings.sso_ca_file is None:
        return httpx.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=settings.sso_ca_file)
    except OSError as error:
        why = "it holds none" if isinstance(error, ssl.SSLError) else error.strerror
        path = str(settings.sso_ca_file)
        raise Invalid("TIGHTSHIP_SSO_CA_FILE", path, f"a PEM file of certificates ({why})") from error
